//! One task from its claim to its result: robots.txt, its turn, the request, and the response.
//!
//! ```text
//!  begin ─► check_robots ─ rules known ─► enter_line ─► join ─► (the gate's line) ─► start ─► fetch ─► judge ─► settle
//!              │   ▲                       │    ▲                                                        │
//!              ▼   │                       ▼    │                                                        └ follow: a redirect
//!         check_start                  take_turn ─► ask_in_turn                                            goes to check_robots
//!              │   ▲                      (items only)
//!              ▼   │
//!         wait_for_robots
//! ```
//!
//! The task of an item asks the store twice whether it may start: before anything is requested from its site, and again
//! when its turn has come. A task that can't continue is released, and is waiting again in the store.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::line::Owner;
use comity_core::outcome::Outcome;
use comity_core::task::TaskId;
use comity_core::time::Timestamp;
use comity_store::domains::Tenure;
use comity_store::tasks::{
    Attempt, FORBIDDEN, LaneId, Lead, PageFacts, RedirectBody, RobotsAttempts, Settle, Step, TaskRow,
    origin_of,
};
use serde_json::{Map, Value};
use url::Url;

use super::Inner;
use super::lanes::LanePace;
use super::page::PageSink;
use super::scrape::{Scrape, StartScrape, TurnKey, may_start, take_turn};
use super::settler::{Settling, TaskInHand, TaskResult, UnsettledGuard};
use super::task_request::TaskRequest;
use crate::attempt::{
    AttemptResult, OriginListed, Outgoing, Provenance, Received, Redirect, Unsent, attempt, next_hop,
    origin_listed, provenance,
};
use crate::client::{ROBOTS_RETRY, Requester, RobotsUnavailable, cache_key, path_and_query};
use crate::gate::{Permit, QueuedRequest};
use crate::request::Trust;
use crate::transport::Request;

/// A task that is being worked on.
pub(super) struct ActiveTask {
    pub(super) pool: Arc<Inner>,
    pub(super) row: TaskRow,
    pub(super) lane: LaneId,
    tenure: Tenure,
    /// The domain whose line it waits in.
    pub(super) domain: Domain,
    /// The current URL, after redirects.
    pub(super) url: Url,
    /// The URL as listed, if it is another one.
    pub(super) listed: Option<Url>,
    pub(super) host: Domain,
    /// Where the current URL comes from, and which credentials it may receive.
    pub(super) provenance: Provenance,
    /// Whether the target of the last redirect is listed in the job, too.
    pub(super) origin_listed: OriginListed,
    /// What it sends, if it isn't a plain GET.
    pub(super) request: Option<TaskRequest>,
    /// Whether a redirect turned it into a plain GET.
    pub(super) redirect_body: RedirectBody,
    pub(super) hops: u32,
    pub(super) attempts: Vec<Attempt>,
    /// How its site's robots.txt was requested, if the task fails because of that.
    robots: Option<RobotsAttempts>,
    /// When the headers of the last response arrived.
    pub(super) answered_at: Option<Timestamp>,
    /// What is known about that response.
    pub(super) facts: PageFacts,
    /// The headers of that response, if the row includes them.
    pub(super) headers: Option<Map<String, Value>>,
    /// The scrape, if the task scrapes an item of a source.
    pub(super) scrape: Option<Scrape>,
}

impl ActiveTask {
    /// Starts working on a task: it joins its line, or is settled if it can't be fetched.
    pub(super) fn begin(pool: &Arc<Inner>, lane: LaneId, tenure: Tenure, domain: &Domain, row: TaskRow) {
        let row = match Self::of(pool, lane, tenure, domain, row) {
            Ok(active) => return active.find_provenance(),
            Err(row) => *row,
        };
        let step = Step::Failed { error: "not a valid URL".to_owned(), status: None };
        let nowhere =
            Url::parse("http://unreadable.invalid/").unwrap_or_else(|_| unreachable!("a valid URL"));
        let facts = Arc::default();
        let (task, url_key, job, attempts) = (row.id, row.url_key, pool.job.id, Vec::new());
        let settle = Settle { task, url_key, job, tenure, attempts, robots: None, facts, step };
        let answered_at = pool.now();
        let (guard, headers) = (None, None);
        let task = TaskInHand { row, lane, url: nowhere, answered: false, answered_at, guard, headers };
        let _ = pool.settles.send(Settling::Task(Box::new(TaskResult { settle, task })));
    }

    /// The task of a row; returns the row if its URL isn't valid.
    pub(super) fn of(
        pool: &Arc<Inner>,
        lane: LaneId,
        tenure: Tenure,
        domain: &Domain,
        row: TaskRow,
    ) -> Result<Box<Self>, Box<TaskRow>> {
        let listed = Url::parse(&row.url);
        let at = row.at_url.as_ref().map(|at| Url::parse(at));
        let (Ok(listed), Ok(at)) = (listed, at.transpose()) else { return Err(Box::new(row)) };
        let origin_listed = OriginListed::default();
        let provenance = match (row.lead, &at) {
            (Lead::Listed, None) => Provenance { lead: Lead::Listed, trust: Trust::Listed },
            (lead, at) => provenance(&listed, lead, at.as_ref().unwrap_or(&listed), origin_listed),
        };
        let (url, listed) = match at {
            Some(at) => (at, Some(listed)),
            None => (listed, None),
        };
        let Some(host) = Domain::of(&url) else { return Err(Box::new(row)) };
        let (hops, request) = (row.hops, row.sends.as_deref().map(TaskRequest::of));
        let scrape = row.scrapes.map(|_| Scrape::default());
        Ok(Box::new(Self {
            pool: pool.clone(),
            row,
            lane,
            tenure,
            domain: domain.clone(),
            url,
            listed,
            host,
            provenance,
            origin_listed,
            request,
            redirect_body: RedirectBody::Kept,
            hops,
            attempts: Vec::new(),
            robots: None,
            answered_at: None,
            facts: PageFacts::default(),
            headers: None,
            scrape,
        }))
    }

    /// Determines the provenance of a URL reached by earlier redirects. If it is listed in the job as well, it is
    /// trusted like the URL where it started.
    fn find_provenance(mut self: Box<Self>) {
        if self.row.at_url.is_none() || self.row.lead == Lead::Remote {
            return self.check_robots();
        }
        let pool = self.pool.clone();
        pool.runtime.clone().spawn(async move {
            let origin_listed = origin_listed(&*pool.store, pool.job.id, &self.url).await;
            self.provenance = provenance(self.listed(), self.row.lead, &self.url, origin_listed);
            self.check_robots();
        });
    }

    /// Checks robots.txt, and then enters the line.
    pub(super) fn check_robots(self: Box<Self>) {
        if !self.is_open() {
            // Its domain was handed over in the meantime, and the task with it.
            return;
        }
        // Without its credentials nothing is requested for it, not even robots.txt.
        if let Err(error) = self.pool.transport.requests().check(&self.url, self.provenance.trust) {
            return self.settle(Step::Failed { error: error.to_string(), status: None }, None);
        }
        let Some(robots_cache) = self.pool.robots_cache.clone() else { return self.enter_line() };
        match robots_cache.known(&self.url, self.provenance.lead) {
            Some(Ok(rules)) => match rules.allows(path_and_query(&self.url)) {
                true => self.enter_line(),
                false => self.settle(Step::Skipped { reason: FORBIDDEN.to_owned() }, None),
            },
            Some(Err(error)) => self.robots_unavailable(&error),
            None => self.check_start(),
        }
    }

    /// Retries the task when robots.txt will be fetched again, or fails it.
    fn robots_unavailable(mut self: Box<Self>, unavailable: &RobotsUnavailable) {
        let now = self.pool.now();
        if self.row.ready_at > now {
            // The task isn't due yet, so this uses up no retry. Its lane is claimed again when it is.
            return self.release();
        }
        let (retries, forgiven, error) = (self.row.retries, self.row.forgiven, unavailable.to_string());
        let step = match unavailable.retry_at {
            // Counted from now, however long ago the file was requested, so that no two retries are used up within one
            // wait.
            Some(_) if retries < self.pool.settings.max_retries => {
                Step::Retry { ready_at: now + ROBOTS_RETRY, retries: retries + 1, forgiven, error }
            }
            _ => {
                self.robots = unavailable.attempts.clone();
                Step::Failed { error, status: None }
            }
        };
        self.settle(step, None);
    }

    /// Checks whether the scrape of an item may start before requesting robots.txt for it: nothing is requested from a
    /// site for a scrape that may not start.
    fn check_start(self: Box<Self>) {
        if self.scrape.as_ref().is_none_or(Scrape::has_started) {
            return self.wait_for_robots();
        }
        let pool = self.pool.clone();
        pool.runtime.clone().spawn(async move {
            if let Some((active, _)) = may_start(&pool, self).await {
                active.wait_for_robots();
            }
        });
    }

    /// Waits for robots.txt together with all other tasks of the origin, without occupying a line or a worker.
    fn wait_for_robots(self: Box<Self>) {
        let (pool, url, lead) = (self.pool.clone(), self.url.clone(), self.provenance.lead);
        let requester = Requester { job: Some(pool.job.id), owner: self.owner() };
        let Some(robots_cache) = pool.robots_cache.clone() else { return };
        self.begin_next_of_another_origin();
        let cache_key = cache_key(&url, lead);
        let mut awaiting_robots = pool.awaiting_robots();
        let waiting = awaiting_robots.entry(cache_key.clone()).or_default();
        waiting.push(*self);
        if waiting.len() > 1 {
            return;
        }
        drop(awaiting_robots);
        let runtime = pool.runtime.clone();
        runtime.spawn(async move {
            let is_known = tokio::select! {
                rules = robots_cache.rules(&url, lead, requester) => rules.is_ok(),
                () = pool.until_stopping() => false,
            };
            let waiting = pool.awaiting_robots().remove(&cache_key).unwrap_or_default();
            for active in waiting.into_iter().map(Box::new) {
                // A closed gate says nothing about the site, so the task is left for whoever comes next.
                if is_known { active.check_robots() } else { active.release() }
            }
        });
    }

    /// Joins the line. The scrape of an item waits for its turn first.
    fn enter_line(self: Box<Self>) {
        match (&self.scrape, self.row.scrapes) {
            // A retry that isn't due yet is released. Its lane is claimed again when it is.
            (Some(_), Some(_)) if self.row.ready_at > self.pool.now() => self.release(),
            (Some(scrape), Some((_, source))) if !scrape.has_started() => {
                let (pool, key) = (self.pool.clone(), TurnKey::Lane(source, self.lane));
                let (lane, tenure, task) = (self.lane, self.tenure, self.row.id);
                take_turn(&pool, self, key);
                // Tasks of other sources don't wait for this one's turn.
                pool.begin_next(lane, tenure, task);
            }
            _ => self.join(),
        }
    }

    /// Joins the line, ready from `at` on.
    pub(super) fn join_at(mut self: Box<Self>, at: Timestamp) {
        self.row.ready_at = self.row.ready_at.max(at);
        self.join();
    }

    pub(super) fn join(self: Box<Self>) {
        let Some(pace) = self.pool.lanes().pace(self.lane) else { return self.release() };
        let mine = self.pool.gate.rules().domain(&self.host);
        if mine != self.domain {
            let (at_url, hops) = (self.at_url(), self.hops);
            let step = Step::Moved { domain: mine, at_url, hops, body: self.redirect_body };
            return self.settle(step, None);
        }
        let (pool, host, domain) = (self.pool.clone(), self.host.clone(), self.domain.clone());
        let (ready_at, tenure, whose) = (self.row.ready_at, self.tenure, (pool.job.id, self.owner()));
        let request: Box<dyn QueuedRequest> = match pace {
            LanePace::Slow if self.is_as_read() => self.into_waiting(),
            _ => self,
        };
        if let Err(request) = pool.gate.enqueue(&host, &domain, tenure, whose, ready_at, request) {
            // The job ended or the domain was handed over: the task is waiting again.
            release_queued(request);
        }
    }

    /// Whether it is nothing more than its row says.
    fn is_as_read(&self) -> bool {
        let url_is_known = self.row.at_url.is_none() || self.row.lead == Lead::Remote;
        url_is_known && self.hops == self.row.hops && self.attempts.is_empty() && self.scrape.is_none()
    }

    fn into_waiting(self: Box<Self>) -> Box<WaitingTask> {
        let Self { pool, row, lane, tenure, domain, .. } = *self;
        Box::new(WaitingTask { pool, row, lane, tenure, domain })
    }

    /// Sends the request; it has a permit.
    async fn fetch(mut self: Box<Self>, mut permit: Permit) {
        let pool = self.pool.clone();
        pool.begin_next(self.lane, self.tenure, self.row.id);
        let mut guard = UnsettledGuard { gate: pool.gate.clone(), holding: permit.holding(), room: None };
        guard.room = pool.room_for_result().await;
        if guard.room.is_none() || pool.is_stopping() {
            drop(permit);
            return self.release();
        }
        let (task, tenure) = self.task();
        let recording = pool.archive.record(&self.url);
        let mut page = PageSink::new(&pool, &self.url, recording.is_some());
        let headers = self.headers_to_send();
        let before = StartScrape { pool: &pool, scrape: self.scrape.as_mut(), task, tenure };
        let request = Request { headers: &headers, ..Request::new(&self.url, self.provenance.lead) };
        let request = self.request.as_ref().map_or(request, |own| own.request(request));
        let out = Outgoing { transport: &pool.transport, request, trust: self.provenance.trust, recording };
        let sent = attempt(out, &mut permit, before, &mut page).await;
        let page = page.into_entry();
        if let Ok(AttemptResult { received: Received::Response(head), .. }) = &sent
            && let Some(Redirect::To(next)) = next_hop(&self.url, head.status, &head.headers)
        {
            self.origin_listed = origin_listed(&*pool.store, pool.job.id, &next).await;
        }
        if let (Some(scrape), Ok(_) | Err(Unsent::Never(_))) = (&mut self.scrape, &sent) {
            scrape.sent();
        }
        match sent {
            Ok(ended) => self.judge(permit, guard, ended, page),
            Err(Unsent::Never(cause)) => {
                drop(permit);
                self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(guard));
            }
            Err(Unsent::Withheld) => {
                self.call_off().await;
                self.requeue(permit);
            }
            Err(Unsent::Vetoed(veto)) => {
                self.call_off().await;
                drop(permit);
                self.vetoed(veto);
            }
        }
    }

    /// Goes back to its previous place in line.
    pub(super) fn requeue(self: Box<Self>, permit: Permit) {
        if let Some(request) = permit.requeue(self) {
            release_queued(request);
        }
    }

    /// While this task waits for robots.txt, begins the next one of its lane that would not wait for the same file.
    fn begin_next_of_another_origin(&self) {
        let origin = origin_of(self.url.as_str());
        let is_other = |row: &TaskRow| origin_of(row.at_url.as_ref().unwrap_or(&row.url)) != origin;
        let next = self.pool.lanes().overtake(self.lane, self.tenure, self.row.id, is_other);
        if let Some((domain, row)) = next {
            Self::begin(&self.pool, self.lane, self.tenure, &domain, row);
        }
    }

    /// Whose share of the job's concurrency it uses: all tasks of a source share one.
    fn owner(&self) -> Owner {
        self.row.scrapes.map_or(Owner::NONE, |(_, source)| Owner(source.0.unsigned_abs()))
    }

    pub(super) fn task(&self) -> (TaskId, Tenure) {
        (self.row.id, self.tenure)
    }

    /// Whether it could leave right away, with nobody ahead of it in line.
    pub(super) fn may_leave_at_once(&self) -> bool {
        self.pool.gate.is_free(&self.host, &self.domain)
    }

    /// The URL as listed.
    pub(super) fn listed(&self) -> &Url {
        self.listed.as_ref().unwrap_or(&self.url)
    }

    /// Whether its lane is still claimed here.
    pub(super) fn is_open(&self) -> bool {
        self.pool.lanes().is_open(self.lane, self.tenure)
    }

    pub(super) fn settle(self: Box<Self>, step: Step, guard: Option<UnsettledGuard>) {
        let Self { pool, row, lane, tenure, listed, url, answered_at, facts, headers, .. } = *self;
        let (mut attempts, robots) = (self.attempts, self.robots);
        let answered = attempts.last().is_some_and(|attempt| attempt.outcome == Outcome::Answered);
        let step = match step {
            Step::Failed { error, status: None } => {
                let robots = robots.as_ref().map(|robots| &robots.last);
                let last = attempts.last().or(robots).or(row.last.as_ref());
                Step::Failed { error, status: last.and_then(|attempt| attempt.status) }
            }
            step => step,
        };
        // The pace took a redirect or a page that is too large for a success. The task did not get its page.
        if let (Step::Failed { .. } | Step::Skipped { .. }, Some(last)) = (&step, attempts.last_mut())
            && last.outcome == Outcome::Success
        {
            last.outcome = Outcome::Answered;
        }
        let final_url = listed.filter(|listed| *listed != url).map(|_| url.to_string());
        let facts = Arc::new(PageFacts { final_url, ..facts });
        let (task, url_key, job) = (row.id, row.url_key, pool.job.id);
        let settle = Settle { task, url_key, job, tenure, attempts, robots, facts, step };
        let answered_at = answered_at.unwrap_or_else(|| pool.now());
        let task = TaskInHand { row, lane, url, answered, answered_at, guard, headers };
        let _ = pool.settles.send(Settling::Task(Box::new(TaskResult { settle, task })));
    }

    /// Stops working on the task. It is waiting again in the store.
    pub(super) fn release(self: Box<Self>) {
        release(&self.pool, self.lane, self.tenure, self.row.id);
    }

    fn at_url(&self) -> Option<String> {
        (self.hops > 0).then(|| self.url.to_string())
    }
}

impl QueuedRequest for ActiveTask {
    fn start(self: Box<Self>, permit: Permit) {
        let pool = self.pool.clone();
        // Boxed, because it is large, and would be moved several times on its way into the runtime.
        pool.fetches.spawn_on(Box::pin(self.fetch(permit)), &pool.runtime);
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

impl Inner {
    /// Begins the next tasks of a lane, because this one no longer keeps them from it.
    fn begin_next(self: &Arc<Self>, lane: LaneId, tenure: Tenure, task: TaskId) {
        let next = self.lanes().passed(lane, tenure, task);
        if let Some((domain, rows)) = next.filter(|_| !self.is_stopping()) {
            rows.into_iter().for_each(|row| ActiveTask::begin(self, lane, tenure, &domain, row));
        }
    }
}

/// A task in a line that moves slowly. There may be a hundred thousand of them, so it is no more than its row.
struct WaitingTask {
    pool: Arc<Inner>,
    row: TaskRow,
    lane: LaneId,
    tenure: Tenure,
    domain: Domain,
}

impl QueuedRequest for WaitingTask {
    fn start(self: Box<Self>, permit: Permit) {
        let Self { pool, row, lane, tenure, domain } = *self;
        match ActiveTask::of(&pool, lane, tenure, &domain, row) {
            Ok(active) => active.start(permit),
            // It was valid before.
            Err(row) => release(&pool, lane, tenure, row.id),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

/// Releases a task that could not join a line, or was removed from one.
pub(super) fn release_queued(request: Box<dyn QueuedRequest>) {
    let request = match request.into_any().downcast::<ActiveTask>() {
        Ok(active) => return active.release(),
        Err(request) => request,
    };
    if let Ok(waiting) = request.downcast::<WaitingTask>() {
        release(&waiting.pool, waiting.lane, waiting.tenure, waiting.row.id);
    }
}

fn release(pool: &Inner, lane: LaneId, tenure: Tenure, task: TaskId) {
    if pool.lanes().release(lane, tenure, task) {
        pool.poke.notify_one();
    }
}
