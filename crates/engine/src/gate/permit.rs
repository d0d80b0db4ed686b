//! The right to send one request. The pace has already been charged for it: dropping an unused permit ends its time in
//! flight, but does not refund the slot.

use std::sync::Arc;

use comity_core::decision::{self, Limit};
use comity_core::dispatch::SILENT_AFTER;
use comity_core::domain::Domain;
use comity_core::guard;
use comity_core::headers::PacingHints;
use comity_core::intent::Intent;
use comity_core::line::{Owner, Ticket};
use comity_core::outcome::Answer;
use comity_core::pace::{Departure, PermitRef, Recorded, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::Rule;
use comity_core::time::{Span, Timestamp};
use tokio::sync::oneshot;
use url::Url;

use super::activity::Sent;
use super::state::{self, SaveWhen, Waiter, Who};
use super::{Gate, Inner, QueuedRequest};
use crate::event::{Event, Streaks};
use crate::redact;
#[cfg(feature = "client")]
use crate::transport::CloseSignal;

/// The right to send one request to a domain. Dropping it returns it unused.
#[derive(Debug)]
pub struct Permit {
    inner: Arc<Inner>,
    permit: decision::Permit,
    domain: Domain,
    id: DomainId,
    /// The tenure of the domain that it belongs to.
    serial: u64,
    /// The place in line it came from, for a request of a job.
    ticket: Option<Ticket>,
    owner: Owner,
    /// When its response last made progress, and how many bytes have arrived since.
    progress: (Timestamp, usize),
    /// Signals when the connection that its request was sent on is closed.
    #[cfg(feature = "client")]
    connection: Option<CloseSignal>,
    /// When its response headers were applied, and their effect, if they asked for anything.
    applied: Option<(Timestamp, Recorded)>,
    /// The URL of its request, without secrets, if the log wants it.
    url: Option<Box<str>>,
    rule: Arc<Rule>,
    crawl_delay: Span,
    /// Since when its request was ready to be sent.
    ready_at: Timestamp,
    open: bool,
}

/// Signals when a request should be given up because it has been silent for long and others wait.
#[derive(Debug)]
pub(crate) struct Recall {
    inner: Arc<Inner>,
    holding: (DomainId, u64),
    ticket: Option<Ticket>,
    listens_at: Timestamp,
}

impl Permit {
    #[expect(clippy::too_many_arguments, reason = "a plain record, made in two places")]
    pub(super) fn new(
        inner: Arc<Inner>,
        permit: decision::Permit,
        domain: Domain,
        id: DomainId,
        serial: u64,
        ticket: Option<(Ticket, Owner)>,
        rule: Arc<Rule>,
        crawl_delay: Span,
        ready_at: Timestamp,
    ) -> Self {
        let owner = ticket.map_or(Owner::NONE, |(_, owner)| owner);
        let ticket = ticket.map(|(ticket, _)| ticket);
        let progress = (permit.started_at(), 0);
        Self {
            inner,
            permit,
            domain,
            id,
            serial,
            ticket,
            owner,
            progress,
            #[cfg(feature = "client")]
            connection: None,
            applied: None,
            url: None,
            rule,
            crawl_delay,
            ready_at,
            open: true,
        }
    }

    /// The domain whose pace was charged.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Names the URL of its request, for a log that wants to know.
    pub(crate) fn name_url(&mut self, url: &Url) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.url = Some(redact::url(url).into());
        }
    }

    /// What the request is for.
    pub fn intent(&self) -> Intent {
        self.permit.intent()
    }

    /// The permit's number within its domain.
    pub fn id(&self) -> u32 {
        self.permit.id()
    }

    /// When its request started, as far as known.
    pub fn started_at(&self) -> Timestamp {
        self.permit.started_at()
    }

    /// The spacing when it started.
    pub fn spacing(&self) -> Span {
        self.permit.spacing()
    }

    pub(super) fn domain_id(&self) -> DomainId {
        self.id
    }

    pub(super) fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }

    /// The domain, and the serial of the tenure that the permit belongs to.
    pub(crate) fn holding(&self) -> (DomainId, u64) {
        (self.id, self.serial)
    }

    /// Checks whether the request may be written now that its connection is open. If so, it starts now.
    pub fn depart(&mut self) -> Departure {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        if let Some(reason) = self.inner.store_unavailable(&state, now) {
            return Departure::Wait { until: reason.until, reason };
        }
        if !state.owns(self.id, self.serial) || now >= state.valid_until {
            // The domain is no longer held here, so nothing may be sent with this permit.
            let reason = state::changing_hands(now);
            return Departure::Wait { until: reason.until, reason };
        }
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        match state.dispatch.pace_of(self.id, now) {
            Some(pace) => pace.depart(terms, &mut self.permit, now),
            None => {
                let reason = state::changing_hands(now);
                Departure::Wait { until: reason.until, reason }
            }
        }
    }

    /// Notes that the response headers have arrived, and returns the time. If it is known how long `ago` the request was
    /// written, that is its start.
    pub(crate) fn answered(&mut self, ago: Option<Span>) -> Timestamp {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        if !state.owns(self.id, self.serial) {
            return now;
        }
        if let Some(ago) = ago
            && let Some(pace) = state.dispatch.pace_of(self.id, now)
        {
            pace.written(terms, &mut self.permit, now - ago);
        }
        if let Some(ticket) = &self.ticket {
            state.dispatch.note_progress(ticket, now);
        }
        self.progress = (now, 0);
        now
    }

    /// Notes that part of the response body has arrived. A body that arrives at a fair rate keeps its slot; one that
    /// trickles does not.
    pub(crate) fn received(&mut self, bytes: usize) {
        let Some(ticket) = self.ticket else { return };
        self.progress.1 += bytes;
        if self.progress.1 < FAIR_BYTES {
            return;
        }
        let now = self.inner.clock.now();
        if now.since(self.progress.0) < SILENT_AFTER.split(2) {
            return;
        }
        self.progress = (now, 0);
        let mut state = self.inner.lock();
        if state.owns(self.id, self.serial) {
            state.dispatch.note_progress(&ticket, now);
        }
    }

    /// Notes the connection that its request is sent on.
    #[cfg(feature = "client")]
    pub(crate) fn sent_on(&mut self, connection: CloseSignal) {
        self.connection = Some(connection);
    }

    /// Waits until the connection of a request that was given up is closed, if that matters.
    #[cfg(feature = "client")]
    pub(crate) async fn connection_closed(&self) {
        if let (Some(_), Some(connection)) = (self.ticket, &self.connection) {
            connection.closed().await;
        }
    }

    /// Signals when its request should be given up.
    pub(crate) fn recall(&self) -> Recall {
        let holding = self.holding();
        let listens_at = self.permit.started_at() + SILENT_AFTER;
        let ticket = self.ticket.filter(|_| self.open);
        Recall { inner: self.inner.clone(), holding, ticket, listens_at }
    }

    /// Waits up to `patience` to depart. False if the domain was lost, a longer hold began or the store is unavailable:
    /// then drop the permit and acquire another.
    pub async fn depart_within(&mut self, patience: Span) -> bool {
        loop {
            match self.depart() {
                Departure::Go => return true,
                // This permit is void, or nobody knows when the store comes back.
                Departure::Wait { reason, .. }
                    if matches!(reason.limit, Limit::ChangingHands | Limit::StoreUnavailable(_)) =>
                {
                    return false;
                }
                Departure::Wait { until, .. } if until.since(self.now()) <= patience => {
                    self.inner.clock.sleep_until(until).await;
                }
                Departure::Wait { .. } => return false,
            }
        }
    }

    /// Ends a permit whose request was sent and whose outcome will never be recorded. Its slot stays charged, and
    /// nothing is learned.
    pub(crate) fn sent_unrecorded(mut self) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        self.open = false;
        self.abandon(&mut state, now);
        state::pump(&self.inner, state);
    }

    /// Makes dropping the permit a no-op, because it now belongs to somebody else.
    pub(super) fn disarm(mut self) {
        self.open = false;
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Records the outcome of the request, and grants what may leave as a result.
    pub fn record(mut self, answer: &Answer) -> Recorded {
        self.settle(answer)
    }

    /// Like [`Self::record`], but keeps the permit for questions about its domain.
    pub(crate) fn settle(&mut self, answer: &Answer) -> Recorded {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let was_open = std::mem::take(&mut self.open);
        let answer = &match self.applied {
            Some((at, _)) => Answer { hints: answer.hints.aged(now.since(at)), ..*answer },
            None => *answer,
        };
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        let recorded = match state.owns(self.id, self.serial) {
            true => state.dispatch.record(self.id, terms, &self.permit, answer, now),
            false => None,
        };
        if was_open {
            self.close(&mut state, now);
        }
        let Some(mut recorded) = recorded else {
            let is_lost = was_open && !state.is_closed();
            drop(state);
            if is_lost && answer.hints != PacingHints::default() {
                self.record_with_new_holder(answer);
            }
            return not_recorded();
        };
        if let Some((_, applied)) = self.applied.take() {
            recorded.held_until = recorded.held_until.max(applied.held_until);
            recorded.server_until = recorded.server_until.max(applied.server_until);
            recorded.retry_after = applied.retry_after;
        }
        let sent = Sent {
            id: self.id,
            started_at: self.permit.started_at(),
            ready_at: self.ready_at,
            spacing: self.permit.spacing(),
        };
        let pace = state.dispatch.paces().pace(self.id);
        let streaks = pace.map(Streaks::of).unwrap_or_default();
        let learned = pace.map(|pace| pace.learned().delay()).unwrap_or_default();
        state.activities.note(&sent, answer, &recorded, learned, now);
        self.inner.after_record(state, &self.domain, self.url.as_deref(), answer, &recorded, streaks);
        if let Some(change) = recorded.delay.filter(|_| self.ticket.is_some()) {
            let baseline = self.terms().baseline();
            let fewer = |delay: Span| guard::concurrency_reduction(delay.max(baseline), baseline);
            let (from, to) = (fewer(change.from), fewer(change.to));
            if from != to {
                self.inner.events.emit(&Event::ConcurrencyChanged { domain: &self.domain, from, to });
            }
        }
        recorded
    }

    /// Applies what the server asks for in its headers, while the body is still being read. When the complete response
    /// is recorded later, the same headers have no second effect.
    pub(crate) fn apply_hints(&mut self, answer: &Answer) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        if !state.owns(self.id, self.serial) {
            return;
        }
        let Some(pace) = state.dispatch.pace_of(self.id, now) else { return };
        let applied = pace.record_head(terms, answer, now);
        self.applied = Some((now, applied));
        let save = if applied.server_until.is_some() { SaveWhen::Now } else { SaveWhen::Never };
        self.inner.apply_change(state, &self.domain, save);
    }

    /// The current time on the gate's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Records the response with the domain's new holder, by taking the domain back for a moment. For a domain that
    /// went to another process while the request was in flight.
    fn record_with_new_holder(&self, answer: &Answer) {
        let Some(registration) = &self.inner.registration else { return };
        let (gate, domain, answer) = (Gate(self.inner.clone()), self.domain.clone(), *answer);
        let passed = PermitRef { id: self.id(), granted_at: self.started_at(), took: None };
        registration.spawn(async move {
            if let Err(error) = gate.record_passed(&domain, passed, &answer).await {
                tracing::warn!(%domain, %error, "could not record a response with the process that took over the site");
            }
        });
    }

    /// Puts a job's request that could not be sent back to its place in line. Returns the request if that isn't
    /// possible.
    pub(crate) fn requeue(mut self, request: Box<dyn QueuedRequest>) -> Option<Box<dyn QueuedRequest>> {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        self.open = false;
        self.abandon(&mut state, now);
        let (rule, crawl_delay, owner) = (self.rule.clone(), self.crawl_delay, self.owner);
        let waiter = Waiter { rule, crawl_delay, owner, who: Who::Request(request) };
        let back = match self.ticket.filter(|_| state.owns(self.id, self.serial)) {
            Some(ticket) => state.dispatch.rejoin(self.id, ticket, waiter, now).err(),
            None => Some(waiter),
        };
        state::pump(&self.inner, state);
        back.map(Waiter::into_request)
    }

    fn abandon(&self, state: &mut state::State, now: Timestamp) {
        if state.owns(self.id, self.serial)
            && let Some(pace) = state.dispatch.pace_of(self.id, now)
        {
            pace.abandon(&self.permit, now);
        }
        self.close(state, now);
    }

    /// Notes that the request is no longer in flight.
    fn close(&self, state: &mut state::State, now: Timestamp) {
        state.returned(self.id, self.serial);
        let Some(ticket) = &self.ticket else { return };
        state.recalls.remove(ticket);
        if state.owns(self.id, self.serial) {
            state.dispatch.ended(self.id, ticket, now);
        }
    }
}

impl Recall {
    /// Waits until the request should be given up; forever for a request without a job.
    pub(crate) async fn recalled(self) {
        let Some(ticket) = self.ticket else { return std::future::pending().await };
        // No request is recalled before this time, so few ever need to listen.
        self.inner.clock.sleep_until(self.listens_at).await;
        let listening = self.listen(ticket);
        if let Some(told) = listening
            && told.await.is_err()
        {
            // The request ended, or all domains were lost.
            std::future::pending().await
        }
    }

    /// `None` if the request has already been recalled.
    fn listen(&self, ticket: Ticket) -> Option<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.inner.lock();
        let (id, serial) = self.holding;
        if state.owns(id, serial) {
            if state.dispatch.is_recalled(&ticket) {
                return None;
            }
            state.recalls.insert(ticket, sender);
        }
        Some(receiver)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.open {
            let mut state = self.inner.lock();
            let now = self.inner.clock.now();
            self.abandon(&mut state, now);
            state::pump(&self.inner, state);
            self.inner.events.emit(&Event::Abandoned { domain: &self.domain });
        }
    }
}

/// This many bytes within [`SILENT_AFTER`] are a fair rate.
const FAIR_BYTES: usize = 16 << 10;

/// The result of recording on a domain that is no longer held here.
fn not_recorded() -> Recorded {
    Recorded {
        freshness: comity_core::pace::Freshness::Repeated,
        delay: None,
        held_until: None,
        server_until: None,
        retry_after: comity_core::pace::RetryAfterEffect::Absent,
    }
}
