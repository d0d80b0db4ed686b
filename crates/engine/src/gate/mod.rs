//! Decides which request of this process may leave now.
//!
//! There is one line per domain, one timer thread and one lock: a grant costs one decision however many wait, and a
//! penalty that starts in the meantime delays everybody in line. Whoever changes something also grants what may leave
//! as a result (`state::pump`); the timer thread does so when only time has passed. So threads and async tasks wait in
//! the same lines, and waiting needs no runtime.
//!
//! - here: acquiring permits and waiting; `record`: recording outcomes
//! - `state`: what the lock protects
//! - `permit`: the right to send, returned automatically when dropped; `lease`: permits that leave the process
//! - `query`: read access for people and metrics; `inspect`: the same for domains that are held elsewhere or not at all;
//!   `survey`: which of many domains they are shown
//! - `activity`: what happened lately, for people; `listing`: lists of domains, and their histories
//! - `registration`: this process as one of several holders on a store; `takeover`: taking domains from the store;
//!   `upkeep`: heartbeats and other background work; `outage`: while the store is unavailable
//!
//! The gate doesn't know what is fetched, or how.

mod activity;
mod block;
mod inspect;
mod lease;
mod listing;
mod outage;
mod permit;
mod query;
mod record;
mod registration;
mod state;
mod survey;
mod takeover;
mod upkeep;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};

use comity_core::decision::Decision;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::{Lane, Owner, Ticket};
use comity_core::pace::{Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::{Rule, RuleTable};
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::Tenure;
use comity_store::status::Backlog;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::event::{Event, Events};
use crate::lock;
use crate::status::Work;

pub use activity::RecentAttempt;
pub use inspect::{DomainView, Inspector};
pub use listing::{DomainSummaries, DomainSummary, Timeline, Trouble};
pub use outage::RememberedPaces;
pub use permit::Permit;
pub(crate) use permit::Recall;
pub use query::{DomainStatus, Overview, SlowDomain};
pub(crate) use registration::EndedTenures;
pub use registration::{CloseMode, GateError};
pub(crate) use state::{QueuedRequest, Waiter};
pub(crate) use takeover::ClaimedLane;

use registration::Registration;
use state::{SaveWhen, State, Who};

/// Grants permits to send. Clones share one gate.
///
/// Safe to share between threads and tasks: calls hold the lock only briefly, and nobody holds it while waiting.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
///
/// use comity::clock::Clock;
/// use comity::core::{domain::Domain, intent::Intent, outcome::Outcome, pace::Departure, rule::RuleTable};
/// use comity::event::Events;
/// use comity::gate::Gate;
///
/// let gate = Gate::new(Arc::new(RuleTable::default()), Clock::new(), Events::new());
/// let host = Domain::of_url("https://example.org/page")?;
///
/// let mut permit = gate.acquire(&host, Intent::Fetch).await?; // waits in line; here nobody is ahead of us
/// assert_eq!(permit.depart(), Departure::Go); // the connection is open: the request is written now
/// permit.record(&Outcome::Success.into()); // what came back
///
/// let (decision, _) = gate.check(&host, Intent::Fetch).await?; // or ask without waiting
/// assert!(decision.wait_ms(gate.clock().now()) > 900);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    rules: Arc<RuleTable>,
    events: Events,
    state: Arc<Mutex<State>>,
    timer: Arc<Condvar>,
    registration: Option<Registration>,
    /// The work in progress and its backlog per domain, for observers.
    work: Mutex<(Option<Work>, Arc<[Backlog]>)>,
    /// How long old rows are kept, in microseconds; 0 means forever.
    keep: AtomicU64,
    /// When domains were last listed, in microseconds: then their waiting tasks are counted.
    listed_at: AtomicI64,
    /// How long the last heartbeat took, in microseconds.
    beat_took: AtomicU64,
    /// One lock per job in progress.
    job_locks: Mutex<HashMap<JobId, Weak<tokio::sync::Mutex<()>>>>,
}

impl Gate {
    /// A gate without a store, for this process alone. What it learns is lost when the process ends.
    pub fn new(rules: Arc<RuleTable>, clock: Clock, events: Events) -> Self {
        Self::start(rules, clock, events, None)
    }

    fn start(
        rules: Arc<RuleTable>,
        clock: Clock,
        events: Events,
        registration: Option<Registration>,
    ) -> Self {
        let timer = Arc::new(Condvar::new());
        clock.notify_on_advance(&timer);
        let valid_until = if registration.is_some() { Timestamp::MIN } else { Timestamp::MAX };
        let state = Arc::new(Mutex::new(State::new(valid_until)));
        let inner = Arc::new(Inner {
            clock,
            rules,
            events,
            state,
            timer,
            registration,
            work: Mutex::new((None, Arc::new([]))),
            keep: AtomicU64::new(0),
            listed_at: AtomicI64::new(i64::MIN),
            beat_took: AtomicU64::new(0),
            job_locks: Mutex::default(),
        });
        let weak = Arc::downgrade(&inner);
        let (timer, state, clock) = (inner.timer.clone(), inner.state.clone(), inner.clock.clone());
        // Without its timer thread a gate could never end a wait, so there is no sensible way to continue.
        std::thread::Builder::new()
            .name("comity-gate".to_owned())
            .spawn(move || state::run_timer(&weak, &state, &timer, &clock))
            .expect("a thread can be started");
        Self(inner)
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The rules.
    pub fn rules(&self) -> &Arc<RuleTable> {
        &self.0.rules
    }

    /// The event stream.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// Waits in line until a request to `host` may leave. Dropping the future gives up the place in line.
    pub async fn acquire(&self, host: &Domain, intent: Intent) -> Result<Permit, GateError> {
        self.acquire_since(host, intent, self.now()).await
    }

    /// Like [`Self::acquire`], for a caller who has been waiting at another gate since `since`: ahead of those who came
    /// later.
    pub async fn acquire_since(
        &self,
        host: &Domain,
        intent: Intent,
        since: Timestamp,
    ) -> Result<Permit, GateError> {
        self.acquire_in(None, Owner::NONE, host, intent, since).await
    }

    /// Like [`Self::acquire`], as part of a job's concurrency. An error if the job has ended.
    pub(crate) async fn acquire_for(
        &self,
        job: JobId,
        owner: Owner,
        host: &Domain,
    ) -> Result<Permit, GateError> {
        self.acquire_in(Some(job), owner, host, Intent::Fetch, self.now()).await
    }

    async fn acquire_in(
        &self,
        job: Option<JobId>,
        owner: Owner,
        host: &Domain,
        intent: Intent,
        since: Timestamp,
    ) -> Result<Permit, GateError> {
        loop {
            let domain = self.0.rules.domain(host);
            self.ensure_held(&domain, host).await?;
            if job.is_some_and(|job| !self.lock().has_job(job)) {
                return Err(GateError::Closed);
            }
            let lane = Lane { job, intent };
            let Some(waiting) = self.join(host, &domain, lane, owner, since) else { continue };
            // If the domain was handed over to another process, ask for it again with the same waiting time.
            if let Some(permit) = self.unless_store_fails(waiting).await? {
                return Ok(permit);
            }
        }
    }

    /// Like [`Self::acquire`], but blocks the thread.
    pub fn acquire_blocking(&self, host: &Domain, intent: Intent) -> Result<Permit, GateError> {
        block::on(self.acquire(host, intent))
    }

    /// Checks whether a request to `host` may leave now. If so, takes the slot; it never overtakes anybody in line.
    pub async fn check(
        &self,
        host: &Domain,
        intent: Intent,
    ) -> Result<(Decision, Option<Permit>), GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        let mut state = self.lock_held(&domain, host).await?;
        let now = self.now();
        let lapsed = || (now >= state.valid_until).then(|| state::changing_hands(now));
        if let Some(reason) = self.0.store_unavailable(&state, now).or_else(lapsed) {
            return Ok((Decision::Wait { until: reason.until, reason }, None));
        }
        let crawl_delay = state.crawl_delay(host);
        let terms = Terms { rule, crawl_delay };
        let decision = state.dispatch.check(&domain, terms, intent, now);
        let permit = decision.permit().copied().zip(state.dispatch.paces().find(&domain));
        let serial = permit.and_then(|(_, id)| state.granted(id, now));
        drop(state);
        let permit = permit.map(|(permit, id)| {
            self.0.events.emit(&Event::Granted { domain: &domain });
            Permit::new(
                self.0.clone(),
                permit,
                domain,
                id,
                serial.unwrap_or(0),
                None,
                rule.clone(),
                crawl_delay,
                now,
            )
        });
        Ok((decision, permit))
    }

    /// Changes the pace of `host` on behalf of an operator, and saves the persistent part of the change. If another
    /// process holds the domain, it is handed over for this.
    pub async fn with_pace<T>(
        &self,
        host: &Domain,
        change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp) -> T,
    ) -> Result<T, GateError> {
        let domain = self.0.rules.domain(host);
        let (changed, generation) = {
            let state = self.lock_held(&domain, host).await?;
            let generation = state.generation;
            (self.change(state, &domain, host, change).ok_or(GateError::Closed)?, generation)
        };
        self.until_saved(&domain, generation).await?;
        Ok(changed)
    }

    /// Like [`Self::with_pace`], on a gate without a store.
    pub(crate) fn change_pace<T>(
        &self,
        host: &Domain,
        change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp) -> T,
    ) -> Option<T> {
        self.change(self.lock(), &self.0.rules.domain(host), host, change)
    }

    fn change<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        domain: &Domain,
        host: &Domain,
        change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp) -> T,
    ) -> Option<T> {
        let crawl_delay = state.crawl_delay(host);
        let rule = self.0.rules.rule(host);
        let now = self.now();
        let pace = state.dispatch.pace_mut(domain, now)?;
        let before = state::persistent_part(pace);
        let changed = change(pace, Terms { rule, crawl_delay }, now);
        // An operator's change is saved before anybody else may send, like a deadline stated by a server.
        let save = if state::persistent_part(pace) == before { SaveWhen::Never } else { SaveWhen::Now };
        self.0.apply_change(state, domain, save);
        Some(changed)
    }

    /// Locks the state while `domain` is held, so that nobody can take the domain while the lock is held. An error if
    /// the gate is closed.
    async fn lock_held(&self, domain: &Domain, host: &Domain) -> Result<MutexGuard<'_, State>, GateError> {
        loop {
            // No need to ask the store for a domain that is already held.
            if !self.has_failed() {
                let state = self.lock();
                if state.is_held(domain) && !state.is_closed() {
                    return Ok(state);
                }
            }
            self.ensure_held(domain, host).await?;
        }
    }

    /// Sets the crawl-delay from a host's robots.txt.
    pub fn set_crawl_delay(&self, host: &Domain, delay: Span) {
        let mut state = self.lock();
        match delay.is_zero() {
            true => state.crawl_delays.remove(host),
            false => state.crawl_delays.insert(host.clone(), delay),
        };
    }

    /// The lock to hold while working on a job. The next pool starts only when the previous one has shut down
    /// completely.
    pub(crate) fn job_lock(&self, job: JobId) -> Arc<tokio::sync::Mutex<()>> {
        let mut job_locks = lock(&self.0.job_locks);
        if let Some(known) = job_locks.get(&job).and_then(Weak::upgrade) {
            return known;
        }
        job_locks.retain(|_, work| work.strong_count() > 0);
        let fresh = Arc::default();
        job_locks.insert(job, Arc::downgrade(&fresh));
        fresh
    }

    /// Starts a job; its tasks join the lines with [`Self::enqueue`].
    pub(crate) fn begin_job(&self, job: JobId, concurrency: u32) {
        self.lock().begin_job(job, concurrency);
    }

    /// Ends a job, or the work on it here. Drops its waiting requests, and returns how many there were.
    pub(crate) fn end_job(&self, job: JobId) -> usize {
        let mut state = self.lock();
        let gone = state.end_job(job);
        self.pump(state);
        gone.len()
    }

    /// Removes a job's waiting requests from the line of a domain that it gave up, and returns them.
    pub(crate) fn leave_domain(
        &self,
        job: comity_core::task::JobId,
        domain: &Domain,
    ) -> Vec<Box<dyn QueuedRequest>> {
        let mut state = self.lock();
        let gone = state.dispatch.leave_domain(job, domain);
        self.pump(state);
        let request = |waiter: Waiter| match waiter.who {
            Who::Request(request) => Some(request),
            _ => None,
        };
        gone.into_iter().filter_map(request).collect()
    }

    /// Adds a request of a job to the line of a held domain. Returns the request if the job has ended or the domain is
    /// no longer held under `tenure`.
    pub(crate) fn enqueue(
        &self,
        host: &Domain,
        domain: &Domain,
        tenure: Tenure,
        (job, owner): (JobId, Owner),
        ready_at: Timestamp,
        request: Box<dyn QueuedRequest>,
    ) -> Result<(), Box<dyn QueuedRequest>> {
        let (rule, crawl_delay) = self.terms(host);
        let lane = Lane { job: Some(job), intent: Intent::Fetch };
        let mut state = self.lock();
        if !state.is_under(domain, tenure) {
            return Err(request);
        }
        let waiter = Waiter { rule, crawl_delay, owner, who: Who::Request(request) };
        let joined = state.dispatch.join(domain, lane, ready_at, waiter);
        self.pump(state);
        self.report_wait(host, domain, Intent::Fetch);
        joined.map(|_| ()).map_err(|waiter| waiter.into_request())
    }

    /// The earliest time at which the permit's domain would allow a retry.
    pub(crate) fn next_at(&self, permit: &Permit) -> Timestamp {
        let state = self.lock();
        let now = self.now();
        let pace = state.dispatch.paces().pace(permit.domain_id());
        pace.map_or(now, |pace| pace.retry_at(permit.terms(), permit.intent(), now))
    }

    fn join(
        &self,
        host: &Domain,
        domain: &Domain,
        lane: Lane,
        owner: Owner,
        since: Timestamp,
    ) -> Option<Waiting> {
        let (rule, crawl_delay) = self.terms(host);
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if !state.is_held(domain) {
            return None;
        }
        let waiter = Waiter { rule, crawl_delay, owner, who: Who::Caller(sender) };
        let (id, ticket) = state.dispatch.join(domain, lane, since, waiter).ok()?;
        let waiting = Waiting { gate: self.clone(), ticket: Some((id, ticket)), receiver };
        self.pump(state);
        self.report_wait(host, domain, lane.intent);
        Some(waiting)
    }

    /// Emits why somebody who has just joined a line has to wait, if anybody wants to know.
    fn report_wait(&self, host: &Domain, domain: &Domain, intent: Intent) {
        if !self.0.events.wants_waits() {
            return;
        }
        let (rule, crawl_delay) = self.terms(host);
        let state = self.lock();
        let id = state.dispatch.paces().find(domain);
        let pace =
            id.filter(|id| state.dispatch.waiting(*id) > 0).and_then(|id| state.dispatch.paces().pace(id));
        let reason = pace.and_then(|pace| pace.peek(Terms { rule: &rule, crawl_delay }, intent, self.now()));
        drop(state);
        if let Some(reason) = reason {
            self.0.events.emit(&Event::Waiting { domain, reason: &reason });
        }
    }

    fn terms(&self, host: &Domain) -> (Arc<Rule>, Span) {
        let delay = self.lock().crawl_delay(host);
        (self.0.rules.rule(host).clone(), delay)
    }

    /// The rule of `host`, and the domain whose pace it shares.
    fn rule_and_domain(&self, host: &Domain) -> (&Arc<Rule>, Domain) {
        let rule = self.0.rules.rule(host);
        (rule, rule.group().unwrap_or(host).clone())
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Grants everything that may leave now.
    fn pump(&self, state: MutexGuard<'_, State>) {
        state::pump(&self.0, state);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Follows up on a change of a domain: schedules saving and grants what may leave now.
    fn apply_change(self: &Arc<Self>, mut state: MutexGuard<'_, State>, domain: &Domain, save: SaveWhen) {
        if save != SaveWhen::Never {
            state.touch(domain, save, self.clock.now());
        }
        state::pump(self, state);
        if save == SaveWhen::Now
            && let Some(registration) = &self.registration
        {
            registration.urgent.notify_one();
        }
    }
}

/// A place in line. Dropping it gives up the place.
struct Waiting {
    gate: Gate,
    ticket: Option<(DomainId, Ticket)>,
    receiver: oneshot::Receiver<Permit>,
}

impl Future for Waiting {
    /// `None` if the domain went to another process.
    type Output = Option<Permit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.receiver).poll(context);
        if polled.is_ready() {
            self.ticket = None;
        }
        polled.map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((id, ticket)) = self.ticket.take() else { return };
        let mut state = self.gate.lock();
        let left = state.dispatch.leave(id, &ticket);
        self.gate.pump(state);
        drop(left);
        // A permit that was already sent to us is dropped with the channel, which returns it.
    }
}
