//! Holding domains in a store that other processes use too (B9): registering, and giving them back. How they are taken is
//! in `taking`, what is done all the time in `upkeep`, and what happens while the store is away in `away`.
//!
//! A process that cannot beat stops sending well before its time is over, and one whose time ran out while it was
//! stopped finds so on its own clock before anything leaves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use comity_core::domain::Domain;
use comity_core::paces::DomainId;
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{Hold, HolderId, Parting, Released, Saved};
use comity_store::{Availability, LEASE, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, RwLock, mpsc, watch};

use super::state::{self, Tenure};
use super::upkeep::{MARGIN, upkeep};
use super::{Gate, lease, taking};
use crate::clock::Clock;
use crate::event::Events;
use crate::lock;

/// Why nobody can be let go.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// The store does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The gate was closed.
    #[error("the gate is closed")]
    Closed,
    /// The domain was lost to another process before a change was saved.
    #[error("another process took the domain over before this was saved; try again")]
    Lost,
}

/// How a process takes its hands off its domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandsOff {
    /// It stops: who takes a domain later starts without its guesses (B37).
    Stop,
    /// It was one command of several: the next one goes on where it stopped.
    Pass,
}

/// Domains that are no longer ours, for whoever works on them: named by the hold, so that a domain that was taken
/// again meanwhile is not meant.
pub(crate) type Parted = Vec<Hold>;

pub(super) struct Tenancy {
    pub(super) store: Arc<dyn Store>,
    pub(super) availability: Arc<Availability>,
    pub(super) name: String,
    pub(super) holder: Mutex<HolderId>,
    /// Something must be saved before a domain goes on.
    pub(super) urgent: Arc<Notify>,
    /// What had to be saved was.
    pub(super) saved: Notify,
    /// Another process changed something in the store.
    pub(super) changed: Arc<Notify>,
    /// Held by whoever takes a domain, until it is taken up.
    pub(super) takings: RwLock<()>,
    parted: Mutex<Vec<mpsc::UnboundedSender<Parted>>>,
    pub(super) failure: watch::Sender<Option<StoreError>>,
    runtime: Handle,
}

impl std::fmt::Debug for Tenancy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenancy").field("store", &self.store.place()).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that holds its domains in `store`, which other processes may use too; `name` tells them who it is.
    /// Needs a tokio runtime to keep its time in the store.
    pub async fn with_store(
        rules: Arc<RuleTable>,
        clock: Clock,
        events: Events,
        store: Arc<dyn Store>,
        name: &str,
    ) -> Result<Self, StoreError> {
        let (holder, now) = register(&*store, name, &clock).await?;
        // It may have been waited for; by now it works, and the first beat follows at once.
        let availability = store.availability();
        let confirmed = availability.turns();
        let tenancy = Tenancy {
            store,
            availability,
            name: name.to_owned(),
            holder: Mutex::new(holder),
            urgent: Arc::default(),
            saved: Notify::new(),
            changed: Arc::new(Notify::new()),
            takings: RwLock::new(()),
            parted: Mutex::default(),
            failure: watch::Sender::new(None),
            runtime: Handle::current(),
        };
        let gate = Self::start(rules, clock, events, Some(tenancy));
        {
            let mut state = gate.lock();
            (state.valid_until, state.confirmed) = (now + LEASE.less(MARGIN), confirmed);
        }
        tokio::spawn(upkeep(Arc::downgrade(&gate.0)));
        Ok(gate)
    }

    /// Makes sure that `domain` is ours, waiting for whoever holds it.
    pub(super) async fn hold(&self, domain: &Domain, host: &Domain) -> Result<(), GateError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(()) };
        loop {
            let changed = tenancy.changed.notified();
            if let Some(error) = tenancy.failure.borrow().clone() {
                return Err(error.into());
            }
            {
                let state = self.lock();
                if state.is_closed() {
                    return Err(GateError::Closed);
                }
                if state.is_held(domain) {
                    return Ok(());
                }
            }
            // Taken and taken up in one piece: a caller that gives up in between leaves nothing half done (B11).
            let taking = taking::take_one(self.clone(), domain.clone(), host.clone());
            match tenancy.runtime.spawn(taking).await.unwrap_or(Err(StoreError::Closed)) {
                Ok(true) => return Ok(()),
                Ok(false) | Err(StoreError::Lost) => changed.await,
                Err(error) => {
                    // It may be ours or not, so nothing is sent until another gate has looked.
                    if matches!(error, StoreError::Uncertain { .. }) {
                        tenancy.fail(error.clone());
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Whether the store stopped working.
    pub(super) fn has_failed(&self) -> bool {
        self.0.tenancy.as_ref().is_some_and(|tenancy| tenancy.failure.borrow().is_some())
    }

    /// The hold under which a domain is ours.
    pub(crate) fn held(&self, domain: &Domain) -> Option<Hold> {
        let state = self.lock();
        let id = state.dispatch.paces().find(domain)?;
        state.tenures.get(&id).map(|tenure| tenure.hold)
    }

    /// Who this process is in the store.
    pub fn holder(&self) -> Option<HolderId> {
        self.0.tenancy.as_ref().map(Tenancy::holder)
    }

    /// Tells when another process changed something in the store.
    pub(crate) fn store_changed(&self) -> Arc<Notify> {
        self.0.tenancy.as_ref().map(|tenancy| tenancy.changed.clone()).unwrap_or_default()
    }

    /// Tells which domains went.
    pub(crate) fn parted(&self) -> mpsc::UnboundedReceiver<Parted> {
        let (sender, receiver) = mpsc::unbounded_channel();
        if let Some(tenancy) = &self.0.tenancy {
            lock(&tenancy.parted).push(sender);
        }
        receiver
    }

    /// Tells when the store stopped working.
    pub(crate) fn failure(&self) -> Option<watch::Receiver<Option<StoreError>>> {
        self.0.tenancy.as_ref().map(|tenancy| tenancy.failure.subscribe())
    }

    /// The store stopped working for somebody who uses it beside the gate.
    pub(crate) fn fail(&self, error: StoreError) {
        if let Some(tenancy) = &self.0.tenancy {
            tenancy.fail(error);
        }
    }

    /// An errand that went is settled in the store.
    pub(crate) fn settled(&self, tenure: (DomainId, u64)) {
        let mut state = self.lock();
        state.settled(tenure.0, tenure.1);
        let wanted =
            state.tenures.get(&tenure.0).is_some_and(|tenure| tenure.wanted && tenure.unsettled == 0);
        drop(state);
        if wanted && let Some(tenancy) = &self.0.tenancy {
            tenancy.urgent.notify_one();
        }
    }

    /// How long upkeep keeps rows that nobody needs any more ([`crate::retention`]); for ever without.
    pub fn set_keep(&self, keep: Option<Span>) {
        self.0.keep.store(keep.map_or(0, Span::as_micros), Ordering::Relaxed);
    }

    /// Where many domains come and go: those that nobody uses are let go of sooner when nearly so many are held.
    pub fn set_room(&self, domains: usize) {
        self.lock().room = domains;
    }

    /// Waits until what must not be lost of a domain is in the store, if it changed in that life. An error when
    /// everything was lost before.
    pub(super) async fn until_saved(&self, domain: &Domain, life: u64) -> Result<(), GateError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(()) };
        loop {
            let saved = tenancy.saved.notified();
            let mut saved = std::pin::pin!(saved);
            saved.as_mut().enable();
            if let Some(error) = tenancy.failure.borrow().clone() {
                return Err(error.into());
            }
            {
                let state = self.lock();
                if state.life != life {
                    return Err(if state.is_closed() { GateError::Closed } else { GateError::Lost });
                }
                let id = state.dispatch.paces().find(domain);
                // Nothing is handed over before it is saved.
                let tenure = id.and_then(|id| state.tenures.get(&id));
                if tenure.is_none_or(|tenure| tenure.must_save == 0) {
                    return Ok(());
                }
            }
            saved.await;
        }
    }

    /// Lets nobody go any more and gives all domains back. Once begun it is done to its end, also when nobody waits for that.
    pub async fn close(&self, hands_off: HandsOff) -> Result<(), StoreError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(()) };
        let gate = self.clone();
        let closing = tenancy.runtime.spawn(async move { gate.give_all_back(hands_off).await });
        closing.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn give_all_back(&self, hands_off: HandsOff) -> Result<(), StoreError> {
        let Some(tenancy) = &self.0.tenancy else { return Ok(()) };
        let parting = match hands_off {
            HandsOff::Stop => Parting::Stop,
            HandsOff::Pass => Parting::HandOver,
        };
        let settled = lease::settled(&self.0);
        let left = {
            let mut state = self.lock();
            let crawl_delays = std::mem::take(&mut state.crawl_delays);
            state.start_anew(crawl_delays, Timestamp::MIN)
        };
        let paces = left.dispatch.paces();
        let release = |(id, tenure): (&DomainId, &Tenure)| {
            let pace = paces.pace(*id)?;
            Some(Released { saved: state::saved(tenure.hold, pace), pace: pace.encode(), parting })
        };
        let now = self.now();
        // Nobody will hear the answers that are still under way. Such a domain is not given back but left, as by a
        // death: whoever takes it goes by the latest possible start, and waits for no answer.
        let (left_behind, whole): (Vec<_>, Vec<_>) =
            left.tenures.iter().partition(|(_, tenure)| hands_off == HandsOff::Stop && tenure.out > 0);
        let save = |(id, tenure): (&DomainId, &Tenure)| Some(state::saved(tenure.hold, paces.pace(*id)?));
        let saved: Vec<Saved> = left_behind.into_iter().filter_map(save).collect();
        let released: Vec<Released> = whole.into_iter().filter_map(release).collect();
        // Callers that still wait hear that their senders are gone, ask anew, and are told that it is closed.
        drop(left);
        tenancy.changed.notify_waiters();
        tenancy.saved.notify_waiters();
        // Whatever is being taken just now comes back first, or it would count as held by somebody who died.
        let _nobody = tenancy.takings.write().await;
        tenancy.store.save(tenancy.holder(), saved).await?;
        self.0.events.add_up(&*tenancy.store).await?;
        tenancy.forget_lent(settled).await?;
        tenancy.store.release(tenancy.holder(), released, now).await?;
        tenancy.store.deregister(tenancy.holder(), now).await
    }
}

/// Becomes a holder; from when on its time runs. The clock follows the store's time from here on (B7).
pub(super) async fn register(
    store: &dyn Store,
    name: &str,
    clock: &Clock,
) -> Result<(HolderId, Timestamp), StoreError> {
    if clock.runs() {
        clock.follow(store.time().await?);
    }
    let now = clock.now();
    let holder = store.register(name.to_owned(), now).await?;
    if !clock.runs() {
        return Ok((holder, now));
    }
    // Only now that others see it live is the time settled. A process that continues does not see steps of the wall clock.
    let time = if clock.take_into_use() { store.time().await? } else { store.join_time(holder).await? };
    clock.follow(time);
    Ok((holder, time.now))
}

impl Tenancy {
    pub(super) fn holder(&self) -> HolderId {
        *lock(&self.holder)
    }

    /// Does something of which nobody waits for the end.
    pub(super) fn spawn(&self, doing: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(doing);
    }

    pub(super) fn part(&self, parted: Parted) {
        let mut senders = lock(&self.parted);
        senders.retain(|sender| sender.send(parted.clone()).is_ok());
    }

    pub(super) fn fail(&self, error: StoreError) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                *failure = Some(error);
            }
            first
        });
        self.changed.notify_waiters();
        self.saved.notify_waiters();
    }
}
