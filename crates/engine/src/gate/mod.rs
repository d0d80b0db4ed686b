//! Who may send, now, in this process.
//!
//! One line for each domain, one timer for all of them, and one lock: a grant costs one decision however many
//! wait, and a penalty that begins meanwhile moves everybody. Whoever changes something looks who may go next
//! (`state::pump`); the timer's thread does so when time alone changes something. So threads and async
//! tasks wait in the same lines (B14), and nobody needs a runtime to wait.
//!
//! - here: asking and waiting; `record`: what came of it
//! - `state`: what the lock protects
//! - `permit`: the right to send, given back by itself when it is dropped; `lease`: permits that leave the process
//! - `look`: what people and metrics want to know of it; `sight`: the same of domains that others hold, or nobody
//! - `tenancy`: holding domains in a store that other processes use too; `taking`: how one becomes ours; `upkeep`: what
//!   holding them takes all the time; `away`: what happens while the store is away
//!
//! What is fetched, and how, is not known here.

mod away;
mod block;
mod lease;
mod look;
mod permit;
mod record;
mod sight;
mod state;
mod taking;
mod tenancy;
mod upkeep;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};

use comity_core::decision::Decision;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::{Lane, Owner, Place};
use comity_core::pace::{Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::{Rule, RuleTable};
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::domains::Hold;
use comity_store::status::Backlog;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::event::{Event, Events};
use crate::lock;
use crate::status::Work;

pub use away::Remains;
pub use look::{Live, Slow, Survey};
pub use permit::Permit;
pub(crate) use permit::Recall;
pub use sight::{Looker, Seen};
pub(crate) use state::{Errand, Waiter};
pub(crate) use taking::LaneInHand;
pub(crate) use tenancy::Parted;
pub use tenancy::{GateError, HandsOff};

use state::{Keep, State, Who};
use tenancy::Tenancy;

/// Who may send, now. Clones are the same gate.
///
/// Safe to share between threads and tasks: every call locks for its own length, and waiting holds no lock.
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
/// let mut permit = gate.acquire(&host, Intent::Fetch).await?; // waits in line; here nobody is before us
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
    tenancy: Option<Tenancy>,
    /// What is worked on and how much of it waits for which domain, for whoever looks on.
    work: Mutex<(Option<Work>, Arc<[Backlog]>)>,
    /// How long old rows are kept, in microseconds; for ever if it is 0.
    keep: AtomicU64,
    /// One lock per job that somebody works on.
    at_work: Mutex<HashMap<JobId, Weak<tokio::sync::Mutex<()>>>>,
}

impl Gate {
    /// A gate of this process alone: what it learns is gone with it.
    pub fn new(rules: Arc<RuleTable>, clock: Clock, events: Events) -> Self {
        Self::start(rules, clock, events, None)
    }

    fn start(rules: Arc<RuleTable>, clock: Clock, events: Events, tenancy: Option<Tenancy>) -> Self {
        let timer = Arc::new(Condvar::new());
        clock.wakes(&timer);
        let valid_until = if tenancy.is_some() { Timestamp::MIN } else { Timestamp::MAX };
        let state = Arc::new(Mutex::new(State::new(valid_until)));
        let inner = Arc::new(Inner {
            clock,
            rules,
            events,
            state,
            timer,
            tenancy,
            work: Mutex::new((None, Arc::new([]))),
            keep: AtomicU64::new(0),
            at_work: Mutex::default(),
        });
        let weak = Arc::downgrade(&inner);
        let (timer, state, clock) = (inner.timer.clone(), inner.state.clone(), inner.clock.clone());
        // Without its thread a gate would let nobody go after a wait: there is nothing sensible left to do.
        std::thread::Builder::new()
            .name("comity-gate".to_owned())
            .spawn(move || state::keep_time(&weak, &state, &timer, &clock))
            .expect("a thread can be started");
        Self(inner)
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The rules it goes by.
    pub fn rules(&self) -> &Arc<RuleTable> {
        &self.0.rules
    }

    /// The stream of what happens.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// Waits in line until a request to `host` may leave. Dropping the future gives the place up (B11).
    pub async fn acquire(&self, host: &Domain, intent: Intent) -> Result<Permit, GateError> {
        self.acquire_since(host, intent, self.now()).await
    }

    /// The same for somebody who waits since `since` already, at another gate: before those who came later.
    pub async fn acquire_since(
        &self,
        host: &Domain,
        intent: Intent,
        since: Timestamp,
    ) -> Result<Permit, GateError> {
        self.acquire_in(None, Owner::NONE, host, intent, since).await
    }

    /// The same on behalf of a job, in whose room it takes its place. An error when that ended.
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
            self.hold(&domain, host).await?;
            if job.is_some_and(|job| !self.lock().has_job(job)) {
                return Err(GateError::Closed);
            }
            let lane = Lane { job, intent };
            let Some(waiting) = self.join(host, &domain, lane, owner, since) else { continue };
            // A domain that was handed to another process is asked for again, from the same place in time.
            tokio::select! {
                biased;
                permit = waiting => if let Some(permit) = permit {
                    return Ok(permit);
                },
                error = self.until_store_fails() => return Err(error.into()),
            }
        }
    }

    /// The same for a thread, which sleeps meanwhile.
    pub fn acquire_blocking(&self, host: &Domain, intent: Intent) -> Result<Permit, GateError> {
        block::on(self.acquire(host, intent))
    }

    /// May a request to `host` leave now? If so the slot is taken (B3); nobody in line is overtaken.
    pub async fn check(
        &self,
        host: &Domain,
        intent: Intent,
    ) -> Result<(Decision, Option<Permit>), GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        let mut state = self.lock_held(&domain, host).await?;
        let now = self.now();
        let lapsed = || (now >= state.valid_until).then(|| state::changing_hands(now));
        if let Some(reason) = self.0.store_away(&state, now).or_else(lapsed) {
            return Ok((Decision::Wait { until: reason.until, reason }, None));
        }
        let crawl_delay = state.crawl_delay(host);
        let terms = Terms { rule, crawl_delay };
        let decision = state.dispatch.check(&domain, terms, intent, now);
        let permit = decision.permit().copied().zip(state.dispatch.paces().find(&domain));
        let serial = permit.and_then(|(_, id)| state.granted(id, now));
        drop(state);
        let permit = permit.map(|(permit, id)| {
            self.0.events.tell(&Event::Granted { domain: &domain });
            Permit::new(
                self.0.clone(),
                permit,
                domain,
                id,
                serial.unwrap_or(0),
                None,
                rule.clone(),
                crawl_delay,
            )
        });
        Ok((decision, permit))
    }

    /// Changes the pace of `host` by an operator's hand; what is to be kept of it is saved. Whoever has the domain hands it
    /// over for that.
    pub async fn with_pace<T>(
        &self,
        host: &Domain,
        change: impl FnOnce(&mut Pace, Terms<'_>, Timestamp) -> T,
    ) -> Result<T, GateError> {
        let domain = self.0.rules.domain(host);
        let (changed, life) = {
            let state = self.lock_held(&domain, host).await?;
            let life = state.life;
            (self.change(state, &domain, host, change).ok_or(GateError::Closed)?, life)
        };
        self.until_saved(&domain, life).await?;
        Ok(changed)
    }

    /// The same on a gate that holds nothing in a store.
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
        let before = state::to_keep(pace);
        let changed = change(pace, Terms { rule, crawl_delay }, now);
        // An operator's word is saved before anybody goes, as a server's is (B37).
        let keep = if state::to_keep(pace) == before { Keep::Nothing } else { Keep::Now };
        self.0.go_on(state, domain, keep);
        Some(changed)
    }

    /// The state, with `domain` held: nobody can take it before the lock is let go of. An error when it was closed.
    async fn lock_held(&self, domain: &Domain, host: &Domain) -> Result<MutexGuard<'_, State>, GateError> {
        loop {
            // Who holds it already need not look twice.
            if !self.has_failed() {
                let state = self.lock();
                if state.is_held(domain) && !state.is_closed() {
                    return Ok(state);
                }
            }
            self.hold(domain, host).await?;
        }
    }

    /// The crawl-delay that a host's robots.txt asks for.
    pub fn set_crawl_delay(&self, host: &Domain, delay: Span) {
        let mut state = self.lock();
        match delay.is_zero() {
            true => state.crawl_delays.remove(host),
            false => state.crawl_delays.insert(host.clone(), delay),
        };
    }

    /// Held by whoever works on a job: the next begins when the one before has put everything down.
    pub(crate) fn work_on(&self, job: JobId) -> Arc<tokio::sync::Mutex<()>> {
        let mut at_work = lock(&self.0.at_work);
        if let Some(known) = at_work.get(&job).and_then(Weak::upgrade) {
            return known;
        }
        at_work.retain(|_, work| work.strong_count() > 0);
        let fresh = Arc::default();
        at_work.insert(job, Arc::downgrade(&fresh));
        fresh
    }

    /// A job begins; its tasks join with [`Self::send`].
    pub(crate) fn begin_job(&self, job: JobId, concurrency: u32) {
        self.lock().begin_job(job, concurrency);
    }

    /// A job ends, or is put down: its errands that wait are dropped.
    pub(crate) fn end_job(&self, job: JobId) -> usize {
        let mut state = self.lock();
        let gone = state.end_job(job);
        self.pump(state);
        gone.len()
    }

    /// A job gives a domain up: its errands that wait there come back.
    pub(crate) fn leave_domain(
        &self,
        job: comity_core::task::JobId,
        domain: &Domain,
    ) -> Vec<Box<dyn Errand>> {
        let mut state = self.lock();
        let gone = state.dispatch.leave_domain(job, domain);
        self.pump(state);
        let errand = |waiter: Waiter| match waiter.who {
            Who::Errand(errand) => Some(errand),
            _ => None,
        };
        gone.into_iter().filter_map(errand).collect()
    }

    /// An errand joins the line of a domain that is held. It comes back when its job ended, or the domain is not
    /// held under that hold any more.
    pub(crate) fn send(
        &self,
        host: &Domain,
        domain: &Domain,
        hold: Hold,
        (job, owner): (JobId, Owner),
        ready_at: Timestamp,
        errand: Box<dyn Errand>,
    ) -> Result<(), Box<dyn Errand>> {
        let (rule, crawl_delay) = self.terms(host);
        let lane = Lane { job: Some(job), intent: Intent::Fetch };
        let mut state = self.lock();
        if !state.is_under(domain, hold) {
            return Err(errand);
        }
        let waiter = Waiter { rule, crawl_delay, owner, who: Who::Errand(errand) };
        let joined = state.dispatch.join(domain, lane, ready_at, waiter);
        self.pump(state);
        self.tell_waits(host, domain, Intent::Fetch);
        joined.map(|_| ()).map_err(|waiter| waiter.into_errand())
    }

    /// The first moment at which the pace of `host` lets a request leave: the limiter's time of a retry (B41).
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
        let (id, place) = state.dispatch.join(domain, lane, since, waiter).ok()?;
        let waiting = Waiting { gate: self.clone(), place: Some((id, place)), receiver };
        self.pump(state);
        self.tell_waits(host, domain, lane.intent);
        Some(waiting)
    }

    /// Tells why somebody who has just joined a line waits, if anybody wants to know.
    fn tell_waits(&self, host: &Domain, domain: &Domain, intent: Intent) {
        if !self.0.events.hears_waits() {
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
            self.0.events.tell(&Event::Waits { domain, reason: &reason });
        }
    }

    fn terms(&self, host: &Domain) -> (Arc<Rule>, Span) {
        let delay = self.lock().crawl_delay(host);
        (self.0.rules.rule(host).clone(), delay)
    }

    /// The rule that `host` goes by, and whose pace it shares.
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

    /// Lets go whoever may go.
    fn pump(&self, state: MutexGuard<'_, State>) {
        state::pump(&self.0, state);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Something of a domain changed: what is to be kept of it is saved, and whoever may go now goes.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>, domain: &Domain, keep: Keep) {
        if keep != Keep::Nothing {
            state.touch(domain, keep);
        }
        state::pump(self, state);
        if keep == Keep::Now
            && let Some(tenancy) = &self.tenancy
        {
            tenancy.urgent.notify_one();
        }
    }
}

/// A place in line. Dropping it gives the place up.
struct Waiting {
    gate: Gate,
    place: Option<(DomainId, Place)>,
    receiver: oneshot::Receiver<Permit>,
}

impl Future for Waiting {
    /// `None`: the domain went to another process.
    type Output = Option<Permit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.receiver).poll(context);
        if polled.is_ready() {
            self.place = None;
        }
        polled.map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some((id, place)) = self.place.take() else { return };
        let mut state = self.gate.lock();
        let left = state.dispatch.leave(id, &place);
        self.gate.pump(state);
        drop(left);
        // A permit that was on its way already is dropped with the channel, and given back by that.
    }
}
