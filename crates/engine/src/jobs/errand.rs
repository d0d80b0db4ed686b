//! One task on its way: robots.txt, its turn, the request, and what became of it.
//!
//! ```text
//!  begin ─► set_out ─ rules known ─► line_up ─► join ─► (the gate's line) ─► go ─► fetch ─► ended ─► settle
//!              │ ▲                    │    ▲                                               │
//!              ▼ │                    ▼    │                                               └─ follow: a redirect
//!  before_robots │           take_turn ► ask_in_turn                                          sets out again
//!              ▼ │                 (items only)
//!      wait_for_robots
//! ```
//!
//! The task of an item asks the store whether it may start: before anything is asked of its site, and once more
//! in its turn. What cannot go on is put down: in the store it waits.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::line::Owner;
use comity_core::outcome::Outcome;
use comity_core::task::TaskId;
use comity_core::time::Timestamp;
use comity_store::domains::Hold;
use comity_store::tasks::{Attempt, LaneId, Lead, Onward, PageFacts, Settle, Step, TaskRow};
use serde_json::{Map, Value};
use url::Url;

use super::Inner;
use super::page::Page;
use super::scrape::{Beginning, Key, Scrape, may_start, take_turn};
use super::sending::Sending;
use super::settler::{One, Settling, Tenant};
use crate::attempt::{Came, Ended, Footing, Lists, Next, Out, Unsent, attempt, footing, next_hop, origins};
use crate::client::{Asker, LATER, RobotsUnavailable, path_and_query, place};
use crate::gate::{Errand, Permit};
use crate::request::Trust;
use crate::transport::Request;

/// A task on its way.
pub(super) struct Trip {
    pub(super) pool: Arc<Inner>,
    pub(super) row: TaskRow,
    pub(super) lane: LaneId,
    hold: Hold,
    /// The domain whose line it stands in.
    pub(super) domain: Domain,
    /// What was listed,
    pub(super) listed: Url,
    /// where it is now,
    pub(super) url: Url,
    pub(super) host: Domain,
    /// who led there, and what it is trusted with.
    pub(super) on: Footing,
    /// Where the last answer leads is listed in the job, too.
    pub(super) lists: Lists,
    /// What it sends beside a plain GET.
    pub(super) sends: Option<Sending>,
    /// A redirect made it a plain GET.
    pub(super) onward: Onward,
    pub(super) hops: u32,
    pub(super) attempts: Vec<Attempt>,
    /// When the head of the last answer came.
    pub(super) answered_at: Option<Timestamp>,
    /// What is known of that answer,
    pub(super) facts: PageFacts,
    /// and its headers, if the row is to have them.
    pub(super) headers: Option<Map<String, Value>>,
    /// It scrapes an item of a source.
    pub(super) scrape: Option<Scrape>,
}

impl Trip {
    /// A task came into hand: it joins its line, or is settled if it is not to be fetched.
    pub(super) fn begin(pool: &Arc<Inner>, lane: LaneId, hold: Hold, domain: &Domain, row: TaskRow) {
        let listed = Url::parse(&row.url);
        let at = row.at_url.as_ref().map(|at| Url::parse(at));
        let url = at.as_ref().unwrap_or(&listed);
        let host = url.as_ref().ok().and_then(Domain::of);
        let (Ok(listed), Ok(url), Some(host)) = (&listed, url, host) else {
            let step = Step::Failed { error: "not a URL".to_owned(), status: None };
            let nowhere =
                Url::parse("http://unreadable.invalid/").unwrap_or_else(|_| unreachable!("a valid URL"));
            let facts = Arc::default();
            let settle = Settle { task: row.id, job: pool.job.id, hold, attempts: Vec::new(), facts, step };
            let answered_at = pool.now();
            let (tenant, headers) = (None, None);
            let one = One { settle, row, lane, url: nowhere, answered: false, answered_at, tenant, headers };
            let _ = pool.settles.send(Settling::One(Box::new(one)));
            return;
        };
        let (listed, url) = (listed.clone(), url.clone());
        let lists = Lists::default();
        let on = match row.lead {
            Lead::Listed if row.at_url.is_none() => Footing { lead: Lead::Listed, trust: Trust::Listed },
            _ => footing(&listed, row.lead, &url, lists),
        };
        let (hops, sends) = (row.hops, row.sends.as_deref().map(Sending::of));
        let scrape = row.scrapes.map(|_| Scrape::default());
        let trip = Self {
            pool: pool.clone(),
            row,
            lane,
            hold,
            domain: domain.clone(),
            listed,
            url,
            host,
            on,
            lists,
            sends,
            onward: Onward::Kept,
            hops,
            attempts: Vec::new(),
            answered_at: None,
            facts: PageFacts::default(),
            headers: None,
            scrape,
        };
        Box::new(trip).find_footing();
    }

    /// Where redirects led before may be listed in the job as well; then it is as good as where it began.
    fn find_footing(mut self: Box<Self>) {
        if self.row.at_url.is_none() || self.row.lead == Lead::Remote {
            return self.set_out();
        }
        let pool = self.pool.clone();
        pool.runtime.clone().spawn(async move {
            let lists = pool.lists(&self.url).await;
            self.on = footing(&self.listed, self.row.lead, &self.url, lists);
            self.set_out();
        });
    }

    /// Asks robots.txt, and joins the line.
    pub(super) fn set_out(self: Box<Self>) {
        if !self.is_open() {
            // Its domain went while it was not in line: somebody else has the task.
            return;
        }
        let Some(keeper) = self.pool.keeper.clone() else { return self.line_up() };
        match keeper.known(&self.url, self.on.lead) {
            Some(Ok(rules)) => match rules.allows(path_and_query(&self.url)) {
                true => self.line_up(),
                false => self.settle(Step::Skipped { reason: "robots".to_owned() }, None),
            },
            Some(Err(error)) => self.forbidden_for_now(&error),
            None => self.before_robots(),
        }
    }

    /// Tried again when robots.txt is, or given up.
    fn forbidden_for_now(self: Box<Self>, unavailable: &RobotsUnavailable) {
        let now = self.pool.now();
        if self.row.ready_at > now {
            // It is not its time yet, and so no try that is spent; its lane comes back then.
            return self.put_down();
        }
        let (retries, forgiven, error) = (self.row.retries, self.row.forgiven, unavailable.to_string());
        let step = match unavailable.again_at {
            // However long ago the file was asked for: no two tries of a page are spent within one wait.
            Some(_) if retries < self.pool.settings.max_retries => {
                Step::Retry { ready_at: now + LATER, retries: retries + 1, forgiven, error }
            }
            _ => Step::Failed { error, status: None },
        };
        self.settle(step, None);
    }

    /// The scrape of an item asks first whether it may start: for nothing else is anything asked of a site.
    fn before_robots(self: Box<Self>) {
        if self.scrape.as_ref().is_none_or(Scrape::has_begun) {
            return self.wait_for_robots();
        }
        let pool = self.pool.clone();
        pool.runtime.clone().spawn(async move {
            if let Some((trip, _)) = may_start(&pool, self).await {
                trip.wait_for_robots();
            }
        });
    }

    /// Waits for robots.txt with everybody else of its origin, in no line and on no worker.
    fn wait_for_robots(self: Box<Self>) {
        let (pool, url, lead) = (self.pool.clone(), self.url.clone(), self.on.lead);
        let asker = Asker { job: Some(pool.job.id), owner: self.owner() };
        let Some(keeper) = pool.keeper.clone() else { return };
        let place = place(&url, lead);
        let mut asking = pool.asking();
        let waiting = asking.entry(place.clone()).or_default();
        waiting.push(*self);
        if waiting.len() > 1 {
            return;
        }
        drop(asking);
        let runtime = pool.runtime.clone();
        runtime.spawn(async move {
            let is_known = tokio::select! {
                rules = keeper.rules(&url, lead, asker) => rules.is_ok(),
                () = pool.until_over() => false,
            };
            let waiting = pool.asking().remove(&place).unwrap_or_default();
            for trip in waiting.into_iter().map(Box::new) {
                // That nobody is let go any more says nothing about its site: it waits for whoever comes next.
                if is_known { trip.set_out() } else { trip.put_down() }
            }
        });
    }

    /// Joins the line; the scrape of an item takes its turn before.
    fn line_up(self: Box<Self>) {
        match (&self.scrape, self.row.scrapes) {
            // A retry whose time has not come is not asked for before; its lane comes back then.
            (Some(_), Some(_)) if self.row.ready_at > self.pool.now() => self.put_down(),
            (Some(scrape), Some((_, source))) if !scrape.has_begun() => {
                let key = Key::Lane(source, self.lane);
                take_turn(&self.pool.clone(), self, key);
            }
            _ => self.join(),
        }
    }

    /// Joins the line from then on.
    pub(super) fn join_at(mut self: Box<Self>, at: Timestamp) {
        self.row.ready_at = self.row.ready_at.max(at);
        self.join();
    }

    pub(super) fn join(self: Box<Self>) {
        if self.pool.lanes().is_given_up(self.lane) {
            return self.put_down();
        }
        let mine = self.pool.gate.rules().domain(&self.host);
        if mine != self.domain {
            let (at_url, hops) = (self.at_url(), self.hops);
            let step = Step::Moved { domain: mine, at_url, hops, sends: self.onward };
            return self.settle(step, None);
        }
        let (pool, host, domain) = (self.pool.clone(), self.host.clone(), self.domain.clone());
        let (ready_at, hold, whose) = (self.row.ready_at, self.hold, (pool.job.id, self.owner()));
        if let Err(errand) = pool.gate.send(&host, &domain, hold, whose, ready_at, self) {
            // The job ended or the domain went: the task is waiting again.
            put_back(errand);
        }
    }

    /// Its request may leave.
    async fn fetch(mut self: Box<Self>, mut permit: Permit) {
        let tenant = Tenant { gate: self.pool.gate.clone(), tenure: permit.tenure() };
        if self.pool.is_over() {
            drop(permit);
            return self.put_down();
        }
        let pool = self.pool.clone();
        let (task, hold) = self.task();
        let recording = pool.archive.record(&self.url);
        let mut page = Page::new(&pool, &self.url, recording.is_some());
        let headers = self.headers_to_send();
        let before = Beginning { pool: &pool, scrape: self.scrape.as_mut(), task, hold };
        let request = Request { headers: &headers, ..Request::new(&self.url, self.on.lead) };
        let request = self.sends.as_ref().map_or(request, |sends| sends.request(request));
        let out = Out { transport: &pool.transport, request, trust: self.on.trust, recording };
        let sent = attempt(out, &mut permit, before, &mut page).await;
        let page = page.into_entry();
        if let Ok(Ended { came: Came::Answer(head), .. }) = &sent
            && let Some(Next::To(next)) = next_hop(&self.url, head.status, &head.headers)
        {
            self.lists = pool.lists(&next).await;
        }
        if let (Some(scrape), Ok(_) | Err(Unsent::Never(_))) = (&mut self.scrape, &sent) {
            scrape.sent();
        }
        match sent {
            Ok(ended) => self.ended(permit, tenant, ended, page),
            Err(Unsent::Never(cause)) => {
                drop(permit);
                self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(tenant));
            }
            Err(Unsent::Withheld) => {
                self.call_off().await;
                self.withheld(permit);
            }
            Err(Unsent::Stays(stays)) => {
                self.call_off().await;
                drop(permit);
                self.stays(stays);
            }
        }
    }

    /// It takes the place in line that it had.
    pub(super) fn withheld(self: Box<Self>, permit: Permit) {
        if let Some(errand) = permit.withhold(self) {
            put_back(errand);
        }
    }

    /// On whose behalf it waits for room: the tasks of a source share what is theirs.
    fn owner(&self) -> Owner {
        self.row.scrapes.map_or(Owner::NONE, |(_, source)| Owner(source.0.unsigned_abs()))
    }

    pub(super) fn task(&self) -> (TaskId, Hold) {
        (self.row.id, self.hold)
    }

    /// Whether nobody and nothing is before it in line.
    pub(super) fn may_leave_at_once(&self) -> bool {
        self.pool.gate.is_free(&self.host, &self.domain)
    }

    /// Whether its lane is still worked on.
    pub(super) fn is_open(&self) -> bool {
        self.pool.lanes().is_open(self.lane, self.hold)
    }

    pub(super) fn settle(self: Box<Self>, step: Step, tenant: Option<Tenant>) {
        let Self { pool, row, lane, hold, listed, url, attempts, answered_at, facts, headers, .. } = *self;
        let answered = attempts.last().is_some_and(|attempt| attempt.outcome == Outcome::Answered);
        let final_url = (url != listed).then(|| url.to_string());
        let facts = Arc::new(PageFacts { final_url, ..facts });
        let settle = Settle { task: row.id, job: pool.job.id, hold, attempts, facts, step };
        let answered_at = answered_at.unwrap_or_else(|| pool.now());
        let one = One { settle, row, lane, url, answered, answered_at, tenant, headers };
        let _ = pool.settles.send(Settling::One(Box::new(one)));
    }

    /// It is not worked on any more; in the store it waits.
    pub(super) fn put_down(self: Box<Self>) {
        if self.pool.lanes().put_down(self.lane, self.hold, self.row.id) {
            self.pool.poke.notify_one();
        }
    }

    fn at_url(&self) -> Option<String> {
        (self.hops > 0).then(|| self.url.to_string())
    }
}

impl Errand for Trip {
    fn go(self: Box<Self>, permit: Permit) {
        let pool = self.pool.clone();
        pool.fetches.spawn_on(self.fetch(permit), &pool.runtime);
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

impl Inner {
    /// Whether the operator listed the origin of `url` in this job. When the store cannot tell, it was not.
    async fn lists(&self, url: &Url) -> Lists {
        let found = self.store.lists(self.job.id, origins(url)).await.unwrap_or_default();
        let nth = |nth: usize| found.get(nth).copied().unwrap_or(false);
        Lists { exactly: nth(0), by_other_scheme: nth(1) }
    }
}

/// An errand that could not join a line, or was sent away from one.
pub(super) fn put_back(errand: Box<dyn Errand>) {
    if let Ok(trip) = errand.into_any().downcast::<Trip>() {
        trip.put_down();
    }
}
