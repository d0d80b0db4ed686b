//! The right to send one request. It is charged already (B25); whoever drops it unused frees the wire, not the
//! slot.

use std::sync::Arc;

use comity_core::decision::{self, Limit};
use comity_core::dispatch::PATIENCE;
use comity_core::domain::Domain;
use comity_core::guard;
use comity_core::headers::Told;
use comity_core::intent::Intent;
use comity_core::line::{Owner, Place};
use comity_core::outcome::Answer;
use comity_core::pace::{Departure, Passed, Recorded, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::Rule;
use comity_core::time::{Span, Timestamp};
use tokio::sync::oneshot;

use super::state::{self, Keep, Waiter, Who};
use super::{Errand, Gate, Inner};
use crate::event::{Event, Streaks};
use crate::transport::Line;

/// The right to send one request to a domain.
#[derive(Debug)]
pub struct Permit {
    inner: Arc<Inner>,
    permit: decision::Permit,
    domain: Domain,
    id: DomainId,
    /// Which taking of the domain it belongs to.
    serial: u64,
    /// The place in line it came from, for a request of a job.
    place: Option<Place>,
    owner: Owner,
    /// When something was last heard of its request, and how much since.
    heard: (Timestamp, usize),
    /// The connection its request was written to.
    line: Option<Line>,
    /// When the head of its answer came, and what was made of it, if it said something.
    heeded: Option<(Timestamp, Recorded)>,
    rule: Arc<Rule>,
    crawl_delay: Span,
    open: bool,
}

/// Tells when a request is to be given up, because it is silent for long and others wait.
#[derive(Debug)]
pub(crate) struct Recall {
    inner: Arc<Inner>,
    tenure: (DomainId, u64),
    place: Option<Place>,
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
        place: Option<(Place, Owner)>,
        rule: Arc<Rule>,
        crawl_delay: Span,
    ) -> Self {
        let owner = place.map_or(Owner::NONE, |(_, owner)| owner);
        let place = place.map(|(place, _)| place);
        let heard = (permit.started_at(), 0);
        Self {
            inner,
            permit,
            domain,
            id,
            serial,
            place,
            owner,
            heard,
            line: None,
            heeded: None,
            rule,
            crawl_delay,
            open: true,
        }
    }

    /// Whose pace it was charged to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What it is for.
    pub fn intent(&self) -> Intent {
        self.permit.intent()
    }

    /// Its number among the permits of its domain.
    pub fn id(&self) -> u32 {
        self.permit.id()
    }

    /// When its request started, as far as is known.
    pub fn started_at(&self) -> Timestamp {
        self.permit.started_at()
    }

    /// The spacing it started under.
    pub fn spacing(&self) -> Span {
        self.permit.spacing()
    }

    pub(super) fn domain_id(&self) -> DomainId {
        self.id
    }

    pub(super) fn terms(&self) -> Terms<'_> {
        Terms { rule: &self.rule, crawl_delay: self.crawl_delay }
    }

    /// Which taking of the domain it belongs to.
    pub(crate) fn tenure(&self) -> (DomainId, u64) {
        (self.id, self.serial)
    }

    /// The connection is open: may the request be written now? If so, this is its start.
    pub fn depart(&mut self) -> Departure {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        if let Some(reason) = self.inner.store_away(&state, now) {
            return Departure::Wait { until: reason.until, reason };
        }
        if !state.owns(self.id, self.serial) || now >= state.valid_until {
            // The domain is no longer ours: nothing leaves on this permit.
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

    /// The head of its answer is there. The request was written so long ago, if that is known: that is its start (B25).
    pub(crate) fn answered(&mut self, ago: Option<Span>) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        if !state.owns(self.id, self.serial) {
            return;
        }
        if let Some(ago) = ago
            && let Some(pace) = state.dispatch.pace_of(self.id, now)
        {
            pace.written(terms, &mut self.permit, now - ago);
        }
        if let Some(place) = &self.place {
            state.dispatch.heard(place, now);
        }
        self.heard = (now, 0);
    }

    /// So much of its answer came. A body that comes at a fair rate keeps its slot, one that drips does not.
    pub(crate) fn came(&mut self, bytes: usize) {
        let Some(place) = self.place else { return };
        self.heard.1 += bytes;
        if self.heard.1 < FAIR {
            return;
        }
        let now = self.inner.clock.now();
        if now.since(self.heard.0) < PATIENCE.split(2) {
            return;
        }
        self.heard = (now, 0);
        let mut state = self.inner.lock();
        if state.owns(self.id, self.serial) {
            state.dispatch.heard(&place, now);
        }
    }

    /// Its request is written to this connection.
    pub(crate) fn takes(&mut self, line: Line) {
        self.line = Some(line);
    }

    /// Its request was given up: waits until the connection is closed, where that counts.
    pub(crate) async fn hung_up(&self) {
        if let (Some(_), Some(line)) = (self.place, &self.line) {
            line.closed().await;
        }
    }

    /// Tells when its request is to be given up.
    pub(crate) fn recall(&self) -> Recall {
        let tenure = self.tenure();
        let listens_at = self.permit.started_at() + PATIENCE;
        let place = self.place.filter(|_| self.open);
        Recall { inner: self.inner.clone(), tenure, place, listens_at }
    }

    /// Waits for its departure. False when the domain was lost, a hold began or the store is away: give the permit up and
    /// ask anew.
    pub async fn departs(&mut self, patience: Span) -> bool {
        loop {
            let now = self.inner.clock.now();
            match self.depart() {
                Departure::Go => return true,
                // It does not come back to this permit, or nobody knows when the store does.
                Departure::Wait { reason, .. }
                    if matches!(reason.limit, Limit::ChangingHands | Limit::StoreAway(_)) =>
                {
                    return false;
                }
                Departure::Wait { until, .. } if until.since(now) <= patience => {
                    self.inner.clock.sleep_until(until).await;
                }
                Departure::Wait { .. } => return false,
            }
        }
    }

    /// Its request left, and nobody will tell what came of it: its charge stays, and nothing is learned (B25).
    pub(crate) fn left(mut self) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        self.open = false;
        self.abandon(&mut state, now);
        state::pump(&self.inner, state);
    }

    /// It is somebody else's from now on: dropping it changes nothing.
    pub(super) fn let_go(mut self) {
        self.open = false;
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Records what the request came to, and lets the next one go if it may.
    pub fn record(mut self, answer: &Answer) -> Recorded {
        self.settle(answer)
    }

    /// The same, keeping the permit to ask about its domain.
    pub(crate) fn settle(&mut self, answer: &Answer) -> Recorded {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let was_open = std::mem::take(&mut self.open);
        let answer = &match self.heeded {
            Some((at, _)) => Answer { told: answer.told.aged(now.since(at)), ..*answer },
            None => *answer,
        };
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        let recorded = match state.owns(self.id, self.serial) {
            true => state.dispatch.record(self.id, terms, &self.permit, answer, now),
            false => None,
        };
        if was_open {
            self.leave(&mut state, now);
        }
        let Some(mut recorded) = recorded else {
            let is_lost = was_open && !state.is_closed();
            drop(state);
            if is_lost && answer.told != Told::default() {
                self.pass_on(answer);
            }
            return repeated();
        };
        if let Some((_, heeded)) = self.heeded.take() {
            recorded.held_until = recorded.held_until.max(heeded.held_until);
            recorded.server_until = recorded.server_until.max(heeded.server_until);
            recorded.heeded = heeded.heeded;
        }
        let streaks = state.dispatch.paces().pace(self.id).map(Streaks::of).unwrap_or_default();
        self.inner.learnt(state, &self.domain, answer, &recorded, streaks);
        if let Some(change) = recorded.delay.filter(|_| self.place.is_some()) {
            let baseline = self.terms().baseline();
            let fewer = |delay: Span| guard::fewer(delay.max(baseline), baseline);
            let (from, to) = (fewer(change.from), fewer(change.to));
            if from != to {
                self.inner.events.tell(&Event::Concurrency { domain: &self.domain, from, to });
            }
        }
        recorded
    }

    /// The head of an answer is there, and its body on the way: what the server says in it counts from now on. Whoever
    /// records the answer when the body ended says it once more, and it is not taken for news.
    pub(crate) fn heed(&mut self, answer: &Answer) {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        let terms = Terms { rule: &self.rule, crawl_delay: self.crawl_delay };
        if !state.owns(self.id, self.serial) {
            return;
        }
        let Some(pace) = state.dispatch.pace_of(self.id, now) else { return };
        let heeded = pace.heed(terms, answer, now);
        self.heeded = Some((now, heeded));
        let keep = if heeded.server_until.is_some() { Keep::Now } else { Keep::Nothing };
        self.inner.go_on(state, &self.domain, keep);
    }

    /// The time by which it goes.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The domain went to others while the request was on the wire: they are told what the server asked for, by
    /// taking the domain back for one word.
    fn pass_on(&self, answer: &Answer) {
        let Some(tenancy) = &self.inner.tenancy else { return };
        let (gate, domain, answer) = (Gate(self.inner.clone()), self.domain.clone(), *answer);
        let passed = Passed { id: self.id(), granted_at: self.started_at(), took: None };
        tenancy.spawn(async move {
            if let Err(error) = gate.record_passed(&domain, passed, &answer).await {
                tracing::warn!(%domain, %error, "what the server asked for could not be passed on");
            }
        });
    }

    /// Its errand could not go after all: it takes the place it had. It comes back when it cannot.
    pub(crate) fn withhold(mut self, errand: Box<dyn Errand>) -> Option<Box<dyn Errand>> {
        let mut state = self.inner.lock();
        let now = self.inner.clock.now();
        self.open = false;
        self.abandon(&mut state, now);
        let (rule, crawl_delay, owner) = (self.rule.clone(), self.crawl_delay, self.owner);
        let waiter = Waiter { rule, crawl_delay, owner, who: Who::Errand(errand) };
        let back = match self.place.filter(|_| state.owns(self.id, self.serial)) {
            Some(place) => state.dispatch.rejoin(self.id, place, waiter, now).err(),
            None => Some(waiter),
        };
        state::pump(&self.inner, state);
        back.map(Waiter::into_errand)
    }

    fn abandon(&self, state: &mut state::State, now: Timestamp) {
        if state.owns(self.id, self.serial)
            && let Some(pace) = state.dispatch.pace_of(self.id, now)
        {
            pace.abandon(&self.permit, now);
        }
        self.leave(state, now);
    }

    /// It is no longer on the wire.
    fn leave(&self, state: &mut state::State, now: Timestamp) {
        state.returned(self.id, self.serial);
        let Some(place) = &self.place else { return };
        state.recalls.remove(place);
        if state.owns(self.id, self.serial) {
            state.dispatch.ended(self.id, place, now);
        }
    }
}

impl Recall {
    /// Comes when the request is to be given up; never for one that is no job's.
    pub(crate) async fn comes(self) {
        let Some(place) = self.place else { return std::future::pending().await };
        // Nobody is recalled before: few ever listen.
        self.inner.clock.sleep_until(self.listens_at).await;
        let listening = self.listen(place);
        if let Some(told) = listening
            && told.await.is_err()
        {
            // It ended, or all domains were lost.
            std::future::pending().await
        }
    }

    /// `None` when it is recalled already.
    fn listen(&self, place: Place) -> Option<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.inner.lock();
        let (id, serial) = self.tenure;
        if state.owns(id, serial) {
            if state.dispatch.is_recalled(&place) {
                return None;
            }
            state.recalls.insert(place, sender);
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
            self.inner.events.tell(&Event::Abandoned { domain: &self.domain });
        }
    }
}

/// So much of a body within [`PATIENCE`] is a fair rate.
const FAIR: usize = 16 << 10;

/// What recording on a domain that is no longer ours comes to.
fn repeated() -> Recorded {
    Recorded {
        standing: comity_core::pace::Standing::Repeated,
        delay: None,
        held_until: None,
        server_until: None,
        heeded: comity_core::pace::Heeded::Absent,
    }
}
