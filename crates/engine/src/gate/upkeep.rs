//! What a gate on a store does all the time: it beats, saves what must survive, lets go of what nobody uses, and hands
//! over what others want.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, Parting, Released, Saved};
use comity_store::{LEASE, StoreError};

use super::state::{self, State};
use super::tenancy::{Tenancy, register};
use super::{Gate, Inner, lease};
use crate::event::Event;
use crate::lock;
use crate::retention::{More, Sweep, Swept};

/// Keeps our time in the store, saves what must be kept, and hands domains over.
pub(super) async fn upkeep(gate: Weak<Inner>) {
    let _broken = Broken(&gate);
    let mut beaten_at = Timestamp::MIN;
    let mut flushed_at = Timestamp::MIN;
    let mut swept_at = Timestamp::MIN;
    let mut told_at = Timestamp::MIN;
    let mut prune_at: Option<Timestamp> = None;
    let mut retention = Retention::default();
    let mut version = -1;
    while let Some(inner) = gate.upgrade() {
        let Some(tenancy) = &inner.tenancy else { return };
        let now = inner.clock.now();
        let urgent = tenancy.urgent.clone();
        let done = async {
            // When the store comes back, nobody goes before that is done.
            if now.since(beaten_at) >= BEAT || inner.store_away(&inner.lock(), now).is_some() {
                beat(&inner, tenancy).await?;
                beaten_at = now;
                tell(&inner, tenancy).await?;
            }
            let seen = tenancy.store.version().await?;
            if seen != version || now.since(told_at) >= LOOK {
                let wanted = tenancy.store.wanted(tenancy.holder()).await?;
                mark_wanted(&inner, &wanted);
                show(&inner, tenancy).await?;
                (version, told_at) = (seen, now);
                tenancy.changed.notify_waiters();
            }
            let flush = now.since(flushed_at) >= FLUSH;
            save(&inner, tenancy, flush).await?;
            if flush {
                flushed_at = now;
                tenancy.forget_lent(lease::settled(&inner)).await?;
                inner.events.add_up(&*tenancy.store).await?;
            }
            // Not in the first moments: most commands are over by then.
            if now >= *prune_at.get_or_insert(now + PRUNE_FIRST) {
                let more = tenancy.store.prune_robots(now - ROBOTS_KEPT, PRUNE_AT_ONCE).await?;
                let more = retention.some(&inner, tenancy, now).await? == More::Yes || more;
                prune_at = Some(now + if more { PRUNE_MORE } else { PRUNE });
            }
            hand_over(&inner, tenancy, &mut swept_at).await
        };
        if let Err(error) = done.await {
            inner.events.tell(&Event::StoreFailed { error: &error });
            tenancy.fail(error);
            return;
        }
        if tenancy.failure.borrow().is_some() || inner.lock().is_closed() {
            return;
        }
        // No hand on the gate while it sleeps: one that nobody has any more ends.
        drop(inner);
        let _ = tokio::time::timeout(TICK, urgent.notified()).await;
    }
}

/// Upkeep that panics, in a listener, say, does not keep our time any more: whoever waits must hear of it.
struct Broken<'a>(&'a Weak<Inner>);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(inner) = self.0.upgrade()
            && let Some(tenancy) = &inner.tenancy
        {
            tenancy.fail(StoreError::Closed);
        }
    }
}

async fn beat(inner: &Arc<Inner>, tenancy: &Tenancy) -> Result<(), StoreError> {
    // Read before the store is asked: however long that takes, our time ends no later than the store's.
    let (now, turns) = (inner.clock.now(), tenancy.availability.turns());
    match tenancy.store.beat(tenancy.holder(), now).await {
        Ok(()) => inner.events.tell(&Event::Beat { took: inner.clock.now().since(now) }),
        // It was closed meanwhile.
        Err(StoreError::Lost) if inner.lock().is_closed() => return Ok(()),
        Err(StoreError::Lost) => begin_anew(inner, tenancy, now).await?,
        Err(error) => return Err(error),
    }
    let mut state = inner.lock();
    if !state.is_closed() {
        (state.valid_until, state.confirmed) = (now + LEASE.less(MARGIN), turns);
    }
    state::pump(inner, state);
    Ok(())
}

/// What was held is not ours any more, or not as we thought: this process becomes another holder, which holds nothing.
async fn begin_anew(inner: &Arc<Inner>, tenancy: &Tenancy, now: Timestamp) -> Result<(), StoreError> {
    let gate = Gate(inner.clone());
    // Nobody takes anything as the former holder once that is lost.
    let _nobody = tenancy.takings.write().await;
    // A store that was away and lacks something may not know what a server asked for; we do.
    let remains = gate.store_away().map(|_| gate.remains());
    lose(inner, tenancy);
    // Whatever the former one still held it left as by a death.
    tenancy.store.deregister(tenancy.holder(), now).await?;
    let booted_at = inner.clock.booted_at();
    let (holder, _) = register(&*tenancy.store, &tenancy.name, &inner.clock).await?;
    *lock(&tenancy.holder) = holder;
    remains.into_iter().for_each(|remains| gate.go_on_with(remains));
    if inner.clock.booted_at() != booted_at {
        // Somebody set the store's time meanwhile: whatever waits here does so by another clock.
        return Err(StoreError::Lost);
    }
    // Whoever asked for a domain in between was refused, and asks again.
    tenancy.changed.notify_waiters();
    Ok(())
}

/// Tells whoever looks on what this process is at.
async fn tell(inner: &Arc<Inner>, tenancy: &Tenancy) -> Result<(), StoreError> {
    let gate = Gate(inner.clone());
    let status = serde_json::to_value(gate.status(TOLD)).unwrap_or_default();
    tenancy.store.tell(tenancy.holder(), status, gate.publish(PUBLISHED), inner.clock.now()).await
}

/// Shows the domains that somebody wishes to see.
async fn show(inner: &Arc<Inner>, tenancy: &Tenancy) -> Result<(), StoreError> {
    let wished = tenancy.store.wished(tenancy.holder()).await?;
    let sights = Gate(inner.clone()).shows(&wished);
    match sights.is_empty() {
        true => Ok(()),
        false => tenancy.store.show(tenancy.holder(), sights, inner.clock.now()).await,
    }
}

/// Everything held is somebody else's by now.
pub(super) fn lose(inner: &Arc<Inner>, tenancy: &Tenancy) {
    let mut state = inner.lock();
    let valid_until = state.valid_until;
    let crawl_delays = std::mem::take(&mut state.crawl_delays);
    let lost = state.start_anew(crawl_delays, valid_until);
    drop(state);
    inner.events.tell(&Event::LostAll { domains: lost.tenures.len() });
    tenancy.part(lost.tenures.values().map(|tenure| tenure.hold).collect());
    // Callers in line hear that their senders are gone and ask anew, and whoever waits for something to be saved hears
    // that it is not.
    drop(lost);
    tenancy.saved.notify_waiters();
}

fn mark_wanted(inner: &Arc<Inner>, wanted: &[DomainKey]) {
    let mut state = inner.lock();
    let ids: Vec<DomainId> = wanted.iter().filter_map(|key| state.keys.get(key).copied()).collect();
    for id in ids {
        if let Some(tenure) = state.tenures.get_mut(&id) {
            tenure.wanted = true;
            state.wanted.insert(id);
        }
    }
}

/// Saves what must not wait, and with `flush` whatever else changed (B35, B37).
async fn save(inner: &Arc<Inner>, tenancy: &Tenancy, flush: bool) -> Result<(), StoreError> {
    let (ids, saves): (Vec<(DomainId, u64, u64)>, Vec<Saved>) = {
        let state = inner.lock();
        let unsaved = state.unsaved.iter().filter_map(|id| Some((id, state.tenures.get(id)?)));
        let due = unsaved.filter(|(_, tenure)| flush || tenure.must_save > tenure.saved);
        due.filter_map(|(id, tenure)| Some(((*id, tenure.serial, tenure.changes), state.to_save(*id)?)))
            .unzip()
    };
    if saves.is_empty() {
        return Ok(());
    }
    let now = inner.clock.now();
    let lost = tenancy.store.save(tenancy.holder(), saves).await?;
    if !lost.is_empty() && !inner.lock().is_closed() {
        return begin_anew(inner, tenancy, now).await;
    }
    let mut state = inner.lock();
    for (id, serial, changes) in ids {
        let Some(tenure) = state.tenures.get_mut(&id).filter(|tenure| tenure.serial == serial) else {
            continue;
        };
        tenure.saved = changes;
        let (all, urgent) = (tenure.changes == changes, tenure.must_save <= changes && tenure.must_save > 0);
        if urgent {
            tenure.must_save = 0;
            state.dispatch.saved(id, now);
        }
        if all {
            state.unsaved.remove(&id);
        }
    }
    state::pump(inner, state);
    tenancy.saved.notify_waiters();
    Ok(())
}

/// Domains that others want and that had their turn.
fn wanted(state: &State, now: Timestamp) -> Vec<DomainId> {
    let tenures = state.wanted.iter().filter_map(|id| Some((id, state.tenures.get(id)?)));
    let due = tenures.filter(|(_, tenure)| {
        let had_its_turn = tenure.grants >= TURN_GRANTS || now.since(tenure.taken_at) >= TURN;
        had_its_turn && tenure.must_save == 0
    });
    due.map(|(id, _)| *id).collect()
}

/// Domains that nobody has used for a while, or, where many are held, lately; so many of them as are let go of at
/// once.
fn idle(state: &State, now: Timestamp) -> Vec<DomainId> {
    let full = state.tenures.len() > state.room / 4 * 3;
    let after = if full { IDLE_WHEN_FULL } else { IDLE };
    let due = state.tenures.iter().filter(|(id, tenure)| {
        let busy = state.dispatch.waiting(**id) > 0 || tenure.out > 0 || tenure.unsettled > 0;
        now.since(tenure.used_at) >= after && !busy && tenure.must_save == 0
    });
    due.map(|(id, _)| *id).take(IDLE_AT_ONCE).collect()
}

/// Hands over what others want, once it had its turn and nothing of it is on the wire, and now and then lets go of
/// what nobody uses.
async fn hand_over(
    inner: &Arc<Inner>,
    tenancy: &Tenancy,
    swept_at: &mut Timestamp,
) -> Result<(), StoreError> {
    let (mut released, mut settled) = (Vec::new(), Vec::new());
    {
        let mut state = inner.lock();
        let now = inner.clock.now();
        let mut due = wanted(&state, now);
        if now.since(*swept_at) >= SWEEP {
            let idle = idle(&state, now);
            if idle.len() < IDLE_AT_ONCE {
                *swept_at = now;
            }
            due.extend(idle);
        }
        for id in due {
            state.dispatch.drain(id);
            if state.tenures.get(&id).is_none_or(|tenure| tenure.unsettled > 0 || tenure.out > 0) {
                continue;
            }
            let over = state.settled_leases(id, now);
            // The senders of callers that wait go with the waiters: they ask anew.
            let Some((tenure, pace, waiters)) = state.part(id) else { continue };
            settled.extend(over);
            let saved = state::saved(tenure.hold, &pace);
            released.push((
                tenure.domain,
                Released { saved, pace: pace.encode(), parting: Parting::HandOver },
                waiters,
            ));
        }
    }
    if released.is_empty() {
        return Ok(());
    }
    let mut rows = Vec::new();
    let mut waiting = Vec::new();
    for (domain, row, waiters) in released {
        tenancy.part(vec![row.saved.hold]);
        rows.push(row);
        waiting.push((domain, waiters));
    }
    tenancy.forget_lent(settled).await?;
    tenancy.store.release(tenancy.holder(), rows, inner.clock.now()).await?;
    for (domain, waiters) in waiting {
        inner.events.tell(&Event::HandedOver { domain: &domain });
        drop(waiters);
    }
    Ok(())
}

/// A sweep over what is old, some at a time, and what went in it so far.
#[derive(Default)]
struct Retention {
    sweep: Sweep,
    swept: Swept,
}

impl Retention {
    /// Looks at the next rows.
    async fn some(&mut self, inner: &Inner, tenancy: &Tenancy, now: Timestamp) -> Result<More, StoreError> {
        let keep = Some(Span::from_micros(inner.keep.load(Ordering::Relaxed))).filter(|keep| !keep.is_zero());
        let (swept, more) = self.sweep.step(&*tenancy.store, &inner.rules, keep, now).await?;
        self.swept += swept;
        if more == More::No {
            let Swept { rows, domains } = std::mem::take(&mut self.swept);
            let (tasks, scrapes, fetches) = (rows.tasks, rows.scrapes, rows.fetches);
            if tasks + scrapes + fetches > 0 {
                tracing::info!(tasks, scrapes, fetches, domains, "removed what is older than upkeep.keep");
            }
        }
        Ok(more)
    }
}

/// A holder beats this often,
const BEAT: Span = Span::from_secs(2);
/// and sends nothing in the last part of its time.
pub(super) const MARGIN: Span = Span::from_secs(2);
/// What nobody needs any more is looked for after this long,
const PRUNE_FIRST: Span = Span::from_mins(1);
/// then this often,
const PRUNE: Span = Span::from_hours(1);
/// and so many go at once, a moment apart.
const PRUNE_AT_ONCE: u32 = 100;
const PRUNE_MORE: Span = Span::from_secs(1);
/// A robots.txt is good for a day; a clock that was set does not cost it.
const ROBOTS_KEPT: Span = Span::from_hours(48);
/// Whoever looks on is told of so many domains that hold the work back.
const TOLD: usize = 20;
/// And it sees so many domains without asking for them.
const PUBLISHED: usize = 100;
/// What was learnt is saved this often.
const FLUSH: Span = Span::from_secs(1);
/// The store is looked at this often for what others did,
const TICK: Duration = Duration::from_millis(20);
/// and this often although nothing seems to have changed.
const LOOK: Span = Span::from_millis(500);
/// A holder whose domain is wanted lets so many more go,
const TURN_GRANTS: u32 = 3;
/// or holds it for so long,
const TURN: Span = Span::from_millis(500);
/// and lets go of a domain that nobody used for this long.
const IDLE: Span = Span::from_secs(60);
/// or, when there is little room, for this long;
const IDLE_WHEN_FULL: Span = Span::from_secs(2);
/// it looks for them this often,
const SWEEP: Span = Span::from_secs(1);
/// and lets go of so many at once, so that nobody waits long for the store.
const IDLE_AT_ONCE: usize = 1_000;
