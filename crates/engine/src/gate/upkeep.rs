//! The background work of a gate on a store: heartbeats, saving, releasing unused domains, handing over wanted ones,
//! and deleting old rows.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::paces::DomainId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{DomainKey, ReleaseMode, Released, Saved};
use comity_store::{LEASE, StoreError};

use super::registration::{Registration, register};
use super::state::{self, HeldDomain, State};
use super::{Gate, Inner, lease, listing};
use crate::event::Event;
use crate::lock;
use crate::retention::{More, Sweep, Swept};

/// The upkeep loop.
pub(super) async fn upkeep(gate: Weak<Inner>) {
    let _panic_guard = PanicGuard(&gate);
    let mut heartbeat_at = Timestamp::MIN;
    let mut flushed_at = Timestamp::MIN;
    let mut swept_at = Timestamp::MIN;
    let mut checked_at = Timestamp::MIN;
    let mut reported_at = Timestamp::MIN;
    let mut waiting = WaitingCount::default();
    let mut prune_at: Option<Timestamp> = None;
    let mut retention = Retention::default();
    let mut version = -1;
    while let Some(inner) = gate.upgrade() {
        let Some(registration) = &inner.registration else { return };
        let now = inner.clock.now();
        let urgent = registration.urgent.clone();
        let done = async {
            // After an outage no permits are granted before the next heartbeat.
            if now.since(heartbeat_at) >= HEARTBEAT || inner.store_unavailable(&inner.lock(), now).is_some() {
                heartbeat(&inner, registration).await?;
                heartbeat_at = now;
                publish_status(&inner, registration).await?;
            }
            let current = registration.store.version().await?;
            if current != version || now.since(checked_at) >= RECHECK {
                let wanted = registration.store.wanted(registration.holder()).await?;
                mark_wanted(&inner, &wanted);
                answer_view_requests(&inner, registration).await?;
                (version, checked_at) = (current, now);
                registration.changed.notify_waiters();
            }
            let flush = now.since(flushed_at) >= FLUSH;
            save(&inner, registration, flush).await?;
            if flush {
                flushed_at = now;
                registration.forget_lent(lease::settled(&inner)).await?;
                inner.events.flush_counts(&*registration.store).await?;
            }
            if now.since(reported_at) >= REPORT {
                reported_at = now;
                let reports = listing::take_reports(&inner, REPORTED_AT_ONCE, now);
                inner.events.report_activity(&*registration.store, reports, now).await?;
            }
            waiting.step(&inner, registration, now).await?;
            // Not right after the start: most commands are done by then.
            if now >= *prune_at.get_or_insert(now + PRUNE_FIRST) {
                let more = registration.store.prune_robots(now - ROBOTS_KEPT, PRUNE_AT_ONCE).await?;
                let more = retention.step(&inner, registration, now).await? == More::Yes || more;
                prune_at = Some(now + if more { PRUNE_MORE } else { PRUNE });
            }
            hand_over(&inner, registration, &mut swept_at).await
        };
        if let Err(error) = done.await {
            inner.events.emit(&Event::StoreFailed { error: &error });
            registration.fail(error);
            return;
        }
        if registration.failure.borrow().is_some() || inner.lock().is_closed() {
            return;
        }
        let tick = if is_quiet(&inner, registration) { TICK_WHEN_QUIET } else { TICK };
        // Hold no reference to the gate while sleeping, so that an unused gate is dropped.
        drop(inner);
        let _ = tokio::time::timeout(tick, urgent.notified()).await;
    }
}

/// Whether nobody here waits for anything and no other process waits for this one.
fn is_quiet(inner: &Arc<Inner>, registration: &Registration) -> bool {
    let state = inner.lock();
    let is_idle = state.out == 0 && state.dispatch.waiting_in_total() == 0;
    is_idle && state.wanted.is_empty() && !registration.awaits_others()
}

/// Reports a panic in upkeep (for example in a listener) as a store failure: without heartbeats, those who wait must
/// learn about it.
struct PanicGuard<'a>(&'a Weak<Inner>);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(inner) = self.0.upgrade()
            && let Some(registration) = &inner.registration
        {
            registration.fail(StoreError::Closed);
        }
    }
}

async fn heartbeat(inner: &Arc<Inner>, registration: &Registration) -> Result<(), StoreError> {
    // Read before asking the store, so that our lease never ends later than the store thinks, however long it takes.
    let (now, turns) = (inner.clock.now(), registration.availability.turns());
    match registration.store.beat(registration.holder(), now).await {
        Ok(()) => {
            let took = inner.clock.now().since(now);
            inner.beat_took.store(took.as_micros(), Ordering::Relaxed);
            inner.events.emit(&Event::Heartbeat { took });
        }
        // The gate was closed in the meantime.
        Err(StoreError::Lost) if inner.lock().is_closed() => return Ok(()),
        Err(StoreError::Lost) => register_again(inner, registration).await?,
        Err(error) => return Err(error),
    }
    let mut state = inner.lock();
    if !state.is_closed() {
        (state.valid_until, state.confirmed) = (now + LEASE.less(MARGIN), turns);
    }
    state::pump(inner, state);
    Ok(())
}

/// Registers this process again as a new holder without domains, because its old tenures are no longer valid.
async fn register_again(inner: &Arc<Inner>, registration: &Registration) -> Result<(), StoreError> {
    let gate = Gate(inner.clone());
    // Nobody may take domains as the old holder once it is lost.
    let _nobody = registration.taking_lock.write().await;
    // A store that was replaced by an older copy may lack a server's deadline, but we remember it.
    let remembered = gate.store_unavailable().map(|_| gate.remembered_paces());
    lose_all(inner, registration);
    // Domains that the old holder still held count as left by a dead process.
    registration.store.deregister(registration.holder(), inner.clock.now()).await?;
    let booted_at = inner.clock.booted_at();
    let (holder, _) = register(&*registration.store, &registration.name, &inner.clock).await?;
    *lock(&registration.holder) = holder;
    if let Some(remembered) = &remembered {
        registration.store.restate(remembered.stated(&inner.clock)).await?;
    }
    remembered.into_iter().for_each(|remembered| gate.restore_paces(remembered));
    if inner.clock.booted_at() != booted_at {
        // The store's time was changed in between, so everything that waits here uses an outdated clock.
        return Err(StoreError::Lost);
    }
    // Requests for domains in between were refused; they ask again.
    registration.changed.notify_waiters();
    Ok(())
}

/// Publishes what this process is doing.
async fn publish_status(inner: &Arc<Inner>, registration: &Registration) -> Result<(), StoreError> {
    let gate = Gate(inner.clone());
    let status = gate.status(STATUS_DOMAINS_MAX).published();
    registration
        .store
        .report_status(registration.holder(), status, gate.publish(PUBLISHED_MAX), inner.clock.now())
        .await
}

/// Publishes the domains that observers asked for.
async fn answer_view_requests(inner: &Arc<Inner>, registration: &Registration) -> Result<(), StoreError> {
    let wished = registration.store.requested_snapshots(registration.holder()).await?;
    let sights = Gate(inner.clone()).shows(&wished);
    match sights.is_empty() {
        true => Ok(()),
        false => registration.store.publish_snapshots(registration.holder(), sights, inner.clock.now()).await,
    }
}

/// Drops all domains, because other processes may hold them by now.
pub(super) fn lose_all(inner: &Arc<Inner>, registration: &Registration) {
    let mut state = inner.lock();
    let valid_until = state.valid_until;
    let crawl_delays = std::mem::take(&mut state.crawl_delays);
    let lost = state.reset(crawl_delays, valid_until);
    drop(state);
    inner.events.emit(&Event::DomainsLost { domains: lost.held.len() });
    registration.notify_ended(lost.held.values().map(|held| held.tenure).collect());
    // Callers in line see that their channel is gone and ask again; those who wait for a save learn that it failed.
    drop(lost);
    registration.saved.notify_waiters();
}

fn mark_wanted(inner: &Arc<Inner>, wanted: &[DomainKey]) {
    let mut state = inner.lock();
    let ids: Vec<DomainId> = wanted.iter().filter_map(|key| state.keys.get(key).copied()).collect();
    for id in ids {
        if let Some(held) = state.held.get_mut(&id) {
            held.wanted = true;
            state.wanted.insert(id);
        }
    }
}

/// Saves urgent changes; with `flush`, all changes.
async fn save(inner: &Arc<Inner>, registration: &Registration, flush: bool) -> Result<(), StoreError> {
    let (ids, saves): (Vec<(DomainId, u64, u64)>, Vec<Saved>) = {
        let state = inner.lock();
        let unsaved = state.unsaved.iter().filter_map(|id| Some((id, state.held.get(id)?)));
        let due = unsaved.filter(|(_, held)| flush || held.must_save > held.saved);
        due.filter_map(|(id, held)| Some(((*id, held.serial, held.changes), state.to_save(*id)?))).unzip()
    };
    if saves.is_empty() {
        return Ok(());
    }
    let now = inner.clock.now();
    let lost = registration.store.save(registration.holder(), saves).await?;
    if !lost.is_empty() && !inner.lock().is_closed() {
        return register_again(inner, registration).await;
    }
    let mut state = inner.lock();
    for (id, serial, changes) in ids {
        let Some(held) = state.held.get_mut(&id).filter(|held| held.serial == serial) else {
            continue;
        };
        held.saved = changes;
        let (all, urgent) = (held.changes == changes, held.must_save <= changes && held.must_save > 0);
        if urgent {
            held.must_save = 0;
            state.dispatch.saved(id, now);
        }
        if all {
            state.unsaved.remove(&id);
        }
    }
    state::pump(inner, state);
    registration.saved.notify_waiters();
    Ok(())
}

/// Domains that other processes want and that had their turn here.
fn wanted(state: &State, now: Timestamp) -> Vec<DomainId> {
    let held = state.wanted.iter().filter_map(|id| Some((id, state.held.get(id)?)));
    let due = held.filter(|(_, held)| {
        let had_its_turn = held.grants >= TURN_GRANTS || now.since(held.taken_at) >= TURN;
        had_its_turn && held.must_save == 0
    });
    due.map(|(id, _)| *id).collect()
}

/// Domains that nobody has used for a while; if many are held, a much shorter while. At most as many as are released at
/// once.
fn idle(state: &mut State, now: Timestamp) -> Vec<DomainId> {
    let full = state.held.len() > state.room / 4 * 3;
    let is_idle = |state: &State, id: DomainId, held: &HeldDomain, after: Span| {
        let busy = state.dispatch.waiting(id) > 0 || held.out > 0 || held.unsettled > 0;
        now.since(held.used_at) >= after && !busy && held.must_save == 0
    };
    if full {
        let due = state.held.iter().filter(|(id, held)| is_idle(state, **id, held, IDLE_WHEN_FULL));
        return due.map(|(id, _)| *id).take(RELEASED_AT_ONCE).collect();
    }
    // A domain is looked at again when it could be idle, not every time.
    let mut due = Vec::new();
    while due.len() < RELEASED_AT_ONCE
        && let Some((id, serial)) = state.next_unused(now)
    {
        let Some(held) = state.held.get(&id).filter(|held| held.serial == serial) else { continue };
        let is_due = is_idle(state, id, held, IDLE);
        let look_at = match held.used_at + IDLE {
            unused_at if unused_at > now => unused_at,
            // In case it can't be released after all.
            _ if is_due => now + SWEEP,
            // Somebody waits for it. A million of these must not be looked at all the time.
            _ => now + IDLE,
        };
        if is_due {
            due.push(id);
        }
        state.look_for_use(id, serial, look_at);
    }
    due
}

/// Hands over wanted domains that had their turn and have nothing in flight, and now and then releases unused ones.
async fn hand_over(
    inner: &Arc<Inner>,
    registration: &Registration,
    swept_at: &mut Timestamp,
) -> Result<(), StoreError> {
    let (mut released, mut settled) = (Vec::new(), Vec::new());
    {
        let mut state = inner.lock();
        let now = inner.clock.now();
        let mut due = wanted(&state, now);
        if now.since(*swept_at) >= SWEEP {
            let idle = idle(&mut state, now);
            if idle.len() < RELEASED_AT_ONCE {
                *swept_at = now;
            }
            due.extend(idle);
        }
        for id in due {
            state.dispatch.drain(id);
            if state.held.get(&id).is_none_or(|held| held.unsettled > 0 || held.out > 0) {
                continue;
            }
            let over = state.settled_leases(id, now);
            // Dropping the waiters closes the channels of waiting callers, so that they ask again.
            let Some((held, pace, waiters)) = state.remove(id) else { continue };
            settled.extend(over);
            let saved = state::saved(held.tenure, &pace);
            released.push((
                held.domain,
                Released { saved, pace: pace.encode(), mode: ReleaseMode::HandOver },
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
        rows.push(row);
        waiting.push((domain, waiters));
    }
    registration.notify_ended(rows.iter().map(|row| row.saved.tenure).collect());
    registration.forget_lent(settled).await?;
    registration.store.release(registration.holder(), rows, inner.clock.now()).await?;
    for (domain, waiters) in waiting {
        inner.events.emit(&Event::HandedOver { domain: &domain });
        drop(waiters);
    }
    Ok(())
}

/// Counts the tasks that wait for each domain, a part at a time, while somebody looks at lists that are sorted by it.
#[derive(Default)]
struct WaitingCount {
    after: DomainKey,
    /// When the next part is due.
    next_at: Option<Timestamp>,
}

impl WaitingCount {
    async fn step(
        &mut self,
        inner: &Inner,
        registration: &Registration,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let listed_at = Timestamp::from_micros(inner.listed_at.load(Ordering::Relaxed));
        let is_due = self.next_at.is_none_or(|next_at| next_at <= now || next_at.since(now) > COUNT_AGAIN);
        if now.since(listed_at) > LOOKED_FOR || listed_at == Timestamp::MIN || !is_due {
            return Ok(());
        }
        let next = registration.store.count_waiting(self.after, COUNTED_AT_ONCE).await?;
        self.after = next.unwrap_or_default();
        self.next_at = Some(now + if next.is_some() { COUNT_MORE } else { COUNT_AGAIN });
        Ok(())
    }
}

/// The current sweep over old rows, and what it has deleted so far.
#[derive(Default)]
struct Retention {
    sweep: Sweep,
    swept: Swept,
}

impl Retention {
    /// Checks the next rows.
    async fn step(
        &mut self,
        inner: &Inner,
        registration: &Registration,
        now: Timestamp,
    ) -> Result<More, StoreError> {
        let keep = Some(Span::from_micros(inner.keep.load(Ordering::Relaxed))).filter(|keep| !keep.is_zero());
        let (swept, more) = self.sweep.step(&*registration.store, &inner.rules, keep, now).await?;
        self.swept += swept;
        if more == More::No {
            let Swept { rows, domains } = std::mem::take(&mut self.swept);
            let (tasks, scrapes, fetches, changes) = (rows.tasks, rows.scrapes, rows.fetches, rows.changes);
            if tasks + scrapes + fetches + changes > 0 {
                tracing::info!(
                    tasks,
                    scrapes,
                    fetches,
                    changes,
                    domains,
                    "removed rows older than upkeep.keep"
                );
            }
        }
        Ok(more)
    }
}

/// The interval between heartbeats.
pub(super) const HEARTBEAT: Span = Span::from_secs(2);
/// A holder sends nothing in this last part of its lease.
pub(super) const MARGIN: Span = Span::from_secs(2);
/// How often what happened is reported.
const REPORT: Span = Span::from_secs(5);
/// About how many domains at once, so that nobody waits long for the store.
const REPORTED_AT_ONCE: usize = 1_000;
/// Waiting tasks are counted for this long after somebody looked.
const LOOKED_FOR: Span = Span::from_mins(1);
/// The waiting tasks of this many domains are counted at once.
const COUNTED_AT_ONCE: u32 = 500;
/// The pause before the next part of them.
const COUNT_MORE: Span = Span::from_millis(200);
/// The pause before all are counted again.
const COUNT_AGAIN: Span = Span::from_secs(15);
/// When to look for old rows for the first time.
const PRUNE_FIRST: Span = Span::from_mins(1);
/// How often to look for old rows.
const PRUNE: Span = Span::from_hours(1);
/// How many old rows are deleted at once.
const PRUNE_AT_ONCE: u32 = 100;
/// The pause between batches of old rows.
const PRUNE_MORE: Span = Span::from_secs(1);
/// How long robots.txt files are kept. They are valid for a day, or for twice their crawl-delay, which the store adds; the
/// rest is a margin for a clock that is set.
const ROBOTS_KEPT: Span = Span::from_hours(48);
/// How many of the domains that hold the work back are published.
const STATUS_DOMAINS_MAX: usize = 20;
/// How many domains are published without being asked for.
const PUBLISHED_MAX: usize = 100;
/// How often learned delays are saved.
const FLUSH: Span = Span::from_secs(1);
/// How often to check whether other processes changed something in the store.
const TICK: Duration = Duration::from_millis(20);
/// The same while nobody waits. A process with nothing to do should cost nothing.
const TICK_WHEN_QUIET: Duration = Duration::from_millis(100);
/// How often to look for wanted domains even if nothing seems to have changed.
const RECHECK: Span = Span::from_millis(500);
/// A wanted domain is handed over after this many grants.
const TURN_GRANTS: u32 = 3;
/// A wanted domain is handed over after it has been held for this long.
const TURN: Span = Span::from_millis(500);
/// A domain unused for this long is released.
pub(super) const IDLE: Span = Span::from_secs(60);
/// A domain unused for this long is released if many are held.
const IDLE_WHEN_FULL: Span = Span::from_secs(2);
/// How often to look for unused domains.
const SWEEP: Span = Span::from_secs(1);
/// How many domains are released at once, so that nobody waits long for the store.
pub(super) const RELEASED_AT_ONCE: usize = 1_000;
