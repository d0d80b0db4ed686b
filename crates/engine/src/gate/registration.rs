//! This process as a holder of domains in a store that other processes share: registering, and giving domains back.
//! Taking domains is in `takeover`, background work in `upkeep`, and store outages in `outage`.
//!
//! A process that can't send heartbeats stops sending requests well before its lease ends. One whose lease ended while
//! it was suspended notices that on its own clock before anything is sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use comity_core::domain::Domain;
use comity_core::paces::DomainId;
use comity_core::rule::RuleTable;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{HolderId, ReleaseMode, Released, Saved, Tenure};
use comity_store::{Availability, LEASE, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, RwLock, mpsc, watch};

use super::state::{self, HeldDomain};
use super::upkeep::{HEARTBEAT, MARGIN, RELEASED_AT_ONCE, upkeep};
use super::{Gate, lease, listing, takeover};
use crate::clock::Clock;
use crate::event::Events;
use crate::lock;

/// Why no permit can be granted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The gate was closed.
    #[error("the gate is closed")]
    Closed,
    /// The domain was lost to another process before a change was saved.
    #[error("another process took over the site before this was saved; try again")]
    Lost,
}

/// How a process gives up its domains when it closes its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// The process stops. Later holders start without its guesses, such as backoffs.
    Stop,
    /// The process was one command of several, and the next one continues where it stopped.
    HandOver,
}

/// The tenures of domains that are no longer held here, for those who work on them. Identified by tenure, because the
/// domain may have been taken again in the meantime.
pub(crate) type EndedTenures = Vec<Tenure>;

pub(super) struct Registration {
    pub(super) store: Arc<dyn Store>,
    pub(super) availability: Arc<Availability>,
    pub(super) name: String,
    pub(super) holder: Mutex<HolderId>,
    /// Notified when something must be saved before its domain can continue.
    pub(super) urgent: Arc<Notify>,
    /// Notified when urgent changes have been saved.
    pub(super) saved: Notify,
    /// Notified when another process changed something in the store.
    pub(super) changed: Arc<Notify>,
    /// How many callers wait for a domain of another process.
    awaiting_others: AtomicUsize,
    /// Read-locked while a domain is being taken, until it is installed.
    pub(super) taking_lock: RwLock<()>,
    parted: Mutex<Vec<mpsc::UnboundedSender<EndedTenures>>>,
    pub(super) failure: watch::Sender<Option<StoreError>>,
    runtime: Handle,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("store", &self.store.location()).finish_non_exhaustive()
    }
}

impl Registration {
    /// Whether anybody here waits for a domain of another process.
    pub(super) fn awaits_others(&self) -> bool {
        self.awaiting_others.load(Ordering::SeqCst) > 0
    }

    /// Notes that a caller waits for a domain of another process, until the value is dropped.
    fn await_others(&self) -> AwaitingOthers<'_> {
        self.awaiting_others.fetch_add(1, Ordering::SeqCst);
        // Upkeep may be in the middle of a long pause.
        self.urgent.notify_one();
        AwaitingOthers(self)
    }
}

/// A caller that waits for a domain of another process.
struct AwaitingOthers<'a>(&'a Registration);

impl Drop for AwaitingOthers<'_> {
    fn drop(&mut self) {
        self.0.awaiting_others.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    /// A gate that holds its domains in `store`, which other processes may share. They see this process as `name`.
    /// Needs a tokio runtime for its heartbeats.
    pub async fn with_store(
        rules: Arc<RuleTable>,
        clock: Clock,
        events: Events,
        store: Arc<dyn Store>,
        name: &str,
    ) -> Result<Self, StoreError> {
        let (holder, now) = register(&*store, name, &clock).await?;
        // We may have waited for the store. By now it works, and the first heartbeat follows immediately.
        let availability = store.availability();
        let confirmed = availability.turns();
        let registration = Registration {
            store,
            availability,
            name: name.to_owned(),
            holder: Mutex::new(holder),
            urgent: Arc::default(),
            saved: Notify::new(),
            changed: Arc::new(Notify::new()),
            awaiting_others: AtomicUsize::new(0),
            taking_lock: RwLock::new(()),
            parted: Mutex::default(),
            failure: watch::Sender::new(None),
            runtime: Handle::current(),
        };
        let gate = Self::start(rules, clock, events, Some(registration));
        {
            let mut state = gate.lock();
            (state.valid_until, state.confirmed) = (now + LEASE.less(MARGIN), confirmed);
        }
        tokio::spawn(upkeep(Arc::downgrade(&gate.0)));
        Ok(gate)
    }

    /// Waits until `domain` is held here.
    pub(super) async fn ensure_held(&self, domain: &Domain, host: &Domain) -> Result<(), GateError> {
        let Some(registration) = &self.0.registration else { return Ok(()) };
        loop {
            let changed = registration.changed.notified();
            if let Some(error) = registration.failure.borrow().clone() {
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
            // In a task of its own, so that a caller that gives up in between leaves nothing half done.
            let taking = takeover::take_one(self.clone(), domain.clone(), host.clone());
            match registration.runtime.spawn(taking).await.unwrap_or(Err(StoreError::Closed)) {
                Ok(true) => return Ok(()),
                Ok(false) | Err(StoreError::Lost) => {
                    let _waits = registration.await_others();
                    changed.await;
                }
                Err(error) => {
                    // The domain may or may not be held here, so nothing is sent until another gate has checked.
                    if matches!(error, StoreError::Uncertain { .. }) {
                        registration.fail(error.clone());
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Whether the store has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.0.registration.as_ref().is_some_and(|registration| registration.failure.borrow().is_some())
    }

    /// The tenure of a domain that is held here.
    pub(crate) fn held(&self, domain: &Domain) -> Option<Tenure> {
        let state = self.lock();
        let id = state.dispatch.paces().find(domain)?;
        state.held.get(&id).map(|held| held.tenure)
    }

    /// The id of this process as a holder in the store.
    pub fn holder(&self) -> Option<HolderId> {
        self.0.registration.as_ref().map(Registration::holder)
    }

    /// Notified when another process changed something in the store.
    pub(crate) fn store_changed(&self) -> Arc<Notify> {
        self.0.registration.as_ref().map(|registration| registration.changed.clone()).unwrap_or_default()
    }

    /// Receives the holds that have ended.
    pub(crate) fn ended_tenures(&self) -> mpsc::UnboundedReceiver<EndedTenures> {
        let (sender, receiver) = mpsc::unbounded_channel();
        if let Some(registration) = &self.0.registration {
            lock(&registration.parted).push(sender);
        }
        receiver
    }

    /// Signals when the store fails.
    pub(crate) fn failure(&self) -> Option<watch::Receiver<Option<StoreError>>> {
        self.0.registration.as_ref().map(|registration| registration.failure.subscribe())
    }

    /// Reports a store failure found by other users of the store.
    pub(crate) fn fail(&self, error: StoreError) {
        if let Some(registration) = &self.0.registration {
            registration.fail(error);
        }
    }

    /// Notes that the task of a started request is settled in the store.
    pub(crate) fn settled(&self, holding: (DomainId, u64)) {
        let mut state = self.lock();
        state.settled(holding.0, holding.1);
        let wanted = state.held.get(&holding.0).is_some_and(|held| held.wanted && held.unsettled == 0);
        drop(state);
        if wanted && let Some(registration) = &self.0.registration {
            registration.urgent.notify_one();
        }
    }

    /// Sets how long upkeep keeps old rows ([`crate::retention`]); `None` means forever.
    pub fn set_keep(&self, keep: Option<Span>) {
        self.0.keep.store(keep.map_or(0, Span::as_micros), Ordering::Relaxed);
    }

    /// Sets how many domains may be held. Above three quarters of that, unused ones are released sooner.
    pub fn set_room(&self, domains: usize) {
        self.lock().room = domains;
    }

    /// Waits until the urgent changes of a domain are saved, if they were made in this generation. An error if
    /// everything was lost before that.
    pub(super) async fn until_saved(&self, domain: &Domain, generation: u64) -> Result<(), GateError> {
        let Some(registration) = &self.0.registration else { return Ok(()) };
        loop {
            let saved = registration.saved.notified();
            let mut saved = std::pin::pin!(saved);
            saved.as_mut().enable();
            if let Some(error) = registration.failure.borrow().clone() {
                return Err(error.into());
            }
            {
                let state = self.lock();
                if state.generation != generation {
                    return Err(if state.is_closed() { GateError::Closed } else { GateError::Lost });
                }
                let id = state.dispatch.paces().find(domain);
                // A domain that is no longer held has been saved: handing over saves first.
                let held = id.and_then(|id| state.held.get(&id));
                if held.is_none_or(|held| held.must_save == 0) {
                    return Ok(());
                }
            }
            saved.await;
        }
    }

    /// Stops granting permits and gives all domains back. Once started it runs to the end, even if the caller stops
    /// waiting.
    pub async fn close(&self, mode: CloseMode) -> Result<(), StoreError> {
        let Some(registration) = &self.0.registration else { return Ok(()) };
        let gate = self.clone();
        let closing = registration.runtime.spawn(async move { gate.give_all_back(mode).await });
        closing.await.unwrap_or(Err(StoreError::Closed))
    }

    async fn give_all_back(&self, mode: CloseMode) -> Result<(), StoreError> {
        let Some(registration) = &self.0.registration else { return Ok(()) };
        let parting = match mode {
            CloseMode::Stop => ReleaseMode::Stop,
            CloseMode::HandOver => ReleaseMode::HandOver,
        };
        let settled = lease::settled(&self.0);
        let reports = listing::take_reports(&self.0, REPORTED_AT_CLOSE, Timestamp::MAX);
        let left = {
            let mut state = self.lock();
            let crawl_delays = std::mem::take(&mut state.crawl_delays);
            state.reset(crawl_delays, Timestamp::MIN)
        };
        let paces = left.dispatch.paces();
        let release = |(id, held): (&DomainId, &HeldDomain)| {
            let pace = paces.pace(*id)?;
            Some(Released { saved: state::saved(held.tenure, pace), pace: pace.encode(), mode: parting })
        };
        let now = self.now();
        // Nobody will record the responses that are still in flight. Such a domain is not given back but left as if
        // this process had died: its next holder assumes the latest possible start and waits for no response.
        let (left_behind, whole): (Vec<_>, Vec<_>) =
            left.held.iter().partition(|(_, held)| mode == CloseMode::Stop && held.out > 0);
        let save = |(id, held): (&DomainId, &HeldDomain)| Some(state::saved(held.tenure, paces.pace(*id)?));
        let saved: Vec<Saved> = left_behind.into_iter().filter_map(save).collect();
        let released: Vec<Released> = whole.into_iter().filter_map(release).collect();
        // Waiting callers see that their channel is gone, ask again, and learn that the gate is closed.
        drop(left);
        registration.changed.notify_waiters();
        registration.saved.notify_waiters();
        // Wait until domains that are just being taken are returned; otherwise they would count as held by a dead
        // process.
        let _nobody = registration.taking_lock.write().await;
        registration.store.save(registration.holder(), saved).await?;
        self.0.events.flush_counts(&*registration.store).await?;
        registration.forget_lent(settled).await?;
        registration.release(released, now, &self.0.clock).await?;
        // For people only: the domains are given back, whether it succeeds or not.
        if let Err(error) = self.0.events.report_activity(&*registration.store, reports, self.now()).await {
            tracing::debug!(%error, "could not report what happened on sites");
        }
        registration.store.deregister(registration.holder(), self.now()).await
    }
}

/// A process that stops reports on at most this many domains.
const REPORTED_AT_CLOSE: usize = 5_000;

/// Registers as a holder, and returns when its lease started. From here on the clock follows the store's time.
pub(super) async fn register(
    store: &dyn Store,
    name: &str,
    clock: &Clock,
) -> Result<(HolderId, Timestamp), StoreError> {
    if clock.is_real() {
        clock.follow(store.time().await?);
    }
    let now = clock.now();
    let holder = store.register(name.to_owned(), now).await?;
    if !clock.is_real() {
        return Ok((holder, now));
    }
    // The time is settled only now that others see this process alive. A process that continues sees no steps of the
    // wall clock.
    let time = if clock.mark_in_use() { store.time().await? } else { store.join_time(holder).await? };
    clock.follow(time);
    Ok((holder, time.now))
}

impl Registration {
    pub(super) fn holder(&self) -> HolderId {
        *lock(&self.holder)
    }

    /// Releases domains, a part at a time. Sends heartbeats in between, because nobody else does any more.
    async fn release(
        &self,
        released: Vec<Released>,
        now: Timestamp,
        clock: &Clock,
    ) -> Result<(), StoreError> {
        let (mut released, mut heartbeat_at) = (released.into_iter(), now);
        loop {
            let part: Vec<Released> = released.by_ref().take(RELEASED_AT_ONCE).collect();
            if part.is_empty() {
                return Ok(());
            }
            self.store.release(self.holder(), part, now).await?;
            if clock.now().since(heartbeat_at) >= HEARTBEAT {
                heartbeat_at = clock.now();
                match self.store.beat(self.holder(), heartbeat_at).await {
                    // The rest is no longer ours to release.
                    Err(StoreError::Lost) => return Ok(()),
                    beaten => beaten?,
                }
            }
        }
    }

    /// Runs something in the background.
    pub(super) fn spawn(&self, doing: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(doing);
    }

    pub(super) fn notify_ended(&self, parted: EndedTenures) {
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
