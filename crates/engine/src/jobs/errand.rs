//! One task on its way: robots.txt, its turn, the request, and what became of it.
//!
//! ```text
//!  begin ─► set_out ─ rules known ─► line_up ─► join ─► (the gate's line) ─► go ─► fetch ─► answered ─► settle
//!              │ ▲                    │    ▲                                 │                │
//!              ▼ │                    ▼    │                                 ▼                └─ follow: a redirect
//!  before_robots │           take_turn ► ask_in_turn                   fetch_item                sets out again
//!              ▼ │                 (items only)                 (items: begins when connected)
//!      wait_for_robots
//! ```
//!
//! The task of an item asks the store whether it may start: before anything is asked of its site, and once more
//! in its turn. What cannot go on is put down: in the store it waits.

use std::sync::Arc;
use std::time::Duration;

use comity_core::domain::Domain;
use comity_core::line::Owner;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::Recorded;
use comity_core::retry::{self, Spent, Verdict};
use comity_core::task::{JobStep, TaskId, TaskStep};
use comity_core::time::Timestamp;
use comity_store::domains::Hold;
use comity_store::tasks::{Attempt, LaneId, Lead, Settle, Step, TaskRow};
use url::Url;

use super::scrape::{Key, Scrape, may_start, take_turn};
use super::settler::{One, Settling, Tenant};
use super::{Inner, unwritable};
use crate::archive::{ArchiveError, Ending, Entry, Head, Kept, Recording};
use crate::client::{
    LATER, Next, RobotsUnavailable, Unsent, next_hop, path_and_query, place, read_on, redirected_lead,
    request, send, told,
};
use crate::descriptors;
use crate::gate::{Errand, Permit};
use crate::transport::{Answered, Request, TransportError};

/// A task on its way.
pub(super) struct Trip {
    pub(super) pool: Arc<Inner>,
    row: TaskRow,
    lane: LaneId,
    hold: Hold,
    /// The domain whose line it stands in.
    domain: Domain,
    /// What was listed,
    listed: Url,
    /// where it is now,
    pub(super) url: Url,
    host: Domain,
    /// and who led there.
    pub(super) lead: Lead,
    hops: u32,
    attempts: Vec<Attempt>,
    /// When the head of the last answer came.
    answered_at: Option<Timestamp>,
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
            let settle = Settle { task: row.id, job: pool.job.id, hold, attempts: Vec::new(), step };
            let answered_at = pool.now();
            let one = One { settle, row, lane, url: nowhere, answered: false, answered_at, tenant: None };
            let _ = pool.settles.send(Settling::One(Box::new(one)));
            return;
        };
        let (listed, url) = (listed.clone(), url.clone());
        let lead = if row.at_url.is_some() { redirected_lead(&listed, row.lead, &url) } else { row.lead };
        let hops = row.hops;
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
            lead,
            hops,
            attempts: Vec::new(),
            answered_at: None,
            scrape,
        };
        Box::new(trip).set_out();
    }

    /// Asks robots.txt, and joins the line.
    fn set_out(self: Box<Self>) {
        if !self.is_open() {
            // Its domain went while it was not in line: somebody else has the task.
            return;
        }
        let Some(keeper) = self.pool.keeper.clone() else { return self.line_up() };
        match keeper.known(&self.url, self.lead) {
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
        let (pool, url, lead, owner) = (self.pool.clone(), self.url.clone(), self.lead, self.owner());
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
                rules = keeper.rules(&url, lead, owner) => rules.is_ok(),
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
            let step = Step::Moved { domain: mine, at_url: self.at_url(), hops: self.hops };
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
    async fn fetch(self: Box<Self>, mut permit: Permit) {
        let tenant = Tenant { gate: self.pool.gate.clone(), tenure: permit.tenure() };
        if self.pool.is_over() {
            drop(permit);
            return self.put_down();
        }
        if self.scrape.is_some() {
            return self.fetch_item(permit, tenant).await;
        }
        let pool = self.pool.clone();
        let recording = pool.archive.record(&self.url);
        let witness = recording.as_ref().map(Recording::witness);
        let asked = Request { witness, ..request(&self.url, self.lead) };
        let sent = send(&pool.transport, asked, &mut permit).await;
        match sent {
            Ok(answered) => self.answered(permit, tenant, answered, recording).await,
            Err(Unsent::Withheld) => self.withheld(permit),
            Err(Unsent::Broken(cause)) => self.broken(permit, tenant, &cause, None),
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

    pub(super) async fn answered(
        mut self: Box<Self>,
        mut permit: Permit,
        tenant: Tenant,
        mut answered: Answered,
        recording: Option<Recording>,
    ) {
        let now = self.pool.now();
        self.answered_at = Some(now);
        let told = told(&answered.headers, now);
        let answer = Answer::of_status(answered.status, told);
        let status = answered.status;
        if !(200..300).contains(&status) {
            let headers = std::mem::take(&mut answered.headers);
            // The word of the server counts from when it came. After anything but a refusal the next request may leave
            // at once, so an answer that is recorded is read before.
            let is_told_late = recording.is_some() && !answer.outcome.is_penalty();
            let early = (!is_told_late).then(|| self.note_answer(&mut permit, &answer, status));
            let kept = match recording {
                Some(recording) => read(answered, recording, &mut permit).await,
                None => {
                    // Its page is read only to keep the connection, and not for long.
                    let _ = tokio::time::timeout(DRAIN, drain(answered)).await;
                    Ok(())
                }
            };
            let recorded = early.unwrap_or_else(|| self.note_answer(&mut permit, &answer, status));
            if let Err(error) = kept {
                return self.unkept(error);
            }
            return match next_hop(&self.url, status, &headers) {
                Some(next) => self.follow(next, tenant),
                None if answer.outcome == Outcome::Success => self.done(tenant, status, Kept::default()),
                None => {
                    let error = format!("status {status}");
                    let (spent, retries_max) = self.spent();
                    let verdict = retry::judge(answer.outcome, recorded.standing, spent, retries_max);
                    self.judged(&permit, tenant, verdict, Some(status), error);
                }
            };
        }
        match self.keep(&mut answered, recording, &mut permit).await {
            Ok(kept) => {
                self.note_answer(&mut permit, &answer, status);
                self.done(tenant, status, kept);
            }
            Err(Unkept::Archive(error)) => {
                permit.settle(&answer);
                self.unkept(error);
            }
            Err(Unkept::Body(cause)) => self.broken(permit, tenant, &cause, Some(&answer)),
        }
    }

    /// What was answered is recorded and noted.
    fn note_answer(&mut self, permit: &mut Permit, answer: &Answer, status: u16) -> Recorded {
        let recorded = permit.settle(answer);
        self.note(permit, answer.outcome, Some(status));
        recorded
    }

    /// Reads the body into the archive, and keeps the records of it.
    async fn keep(
        &self,
        answered: &mut Answered,
        recording: Option<Recording>,
        permit: &mut Permit,
    ) -> Result<Kept, Unkept> {
        let kept = self.keep_body(answered, permit).await;
        let ending = match &kept {
            Ok(_) => Ending::Whole,
            Err(Unkept::Body(cause)) => Ending::of(cause),
            Err(Unkept::Archive(_)) => Ending::Lost,
        };
        if let Some(recording) = recording {
            recording.finish(ending).await.map_err(Unkept::Archive)?;
        }
        kept
    }

    async fn keep_body(&self, answered: &mut Answered, permit: &mut Permit) -> Result<Kept, Unkept> {
        let content_type =
            answered.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let head = Head {
            url: &self.listed,
            final_url: &self.url,
            status: answered.status,
            content_type,
            fetched_at: self.pool.now(),
        };
        let mut entry = self.begin_entry(head).await.map_err(Unkept::Archive)?;
        read_on(&mut answered.body, permit, |piece| entry.write(&piece).map_err(Unkept::Archive)).await?;
        let content_type = content_type.map(str::to_owned);
        entry.finish().map(|kept| Kept { content_type, ..kept }).map_err(Unkept::Archive)
    }

    /// Begins to keep a page. When there is no file descriptor for that, idle connections make room.
    async fn begin_entry(&self, head: Head<'_>) -> Result<Entry, ArchiveError> {
        for _ in 0..OPENED_AGAIN_MAX {
            match self.pool.archive.begin(head) {
                Err(error) if descriptors::ran_out(&error.cause) => {
                    self.pool.transport.make_room(error.cause).await;
                }
                begun => return begun,
            }
        }
        self.pool.archive.begin(head)
    }

    /// Where pages are kept nothing can be written: nothing is settled, and the work ends.
    fn unkept(self: Box<Self>, error: ArchiveError) {
        self.pool.gate.fail(unwritable(error));
        self.put_down();
    }

    fn done(self: Box<Self>, tenant: Tenant, status: u16, kept: Kept) {
        let file = kept.file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let Kept { bytes, content_type, .. } = kept;
        self.settle(Step::Done { status, bytes, file, content_type }, Some(tenant));
    }

    /// No whole answer came.
    pub(super) fn broken(
        mut self: Box<Self>,
        mut permit: Permit,
        tenant: Tenant,
        cause: &TransportError,
        answer: Option<&Answer>,
    ) {
        if cause.is_final() {
            // Nothing was asked of the site, or it answered more than we want: it is fine, and trying again is not.
            match answer {
                Some(answer) => {
                    permit.settle(answer);
                    self.note(&permit, answer.outcome, None);
                }
                None => drop(permit),
            }
            return self.settle(Step::Failed { error: cause.to_string(), status: None }, Some(tenant));
        }
        self.answered_at = None;
        let mut broken = Answer::of_breakdown(cause.breakdown());
        broken.told = answer.map(|answer| answer.told).unwrap_or_default();
        let recorded = permit.settle(&broken);
        self.note(&permit, broken.outcome, None);
        let (spent, retries_max) = self.spent();
        let verdict = match cause {
            // It did not get its full time, which is not the site's doing.
            TransportError::GivenUp => retry::judge_forgivable(spent, retries_max),
            _ => retry::judge(broken.outcome, recorded.standing, spent, retries_max),
        };
        self.judged(&permit, tenant, verdict, None, cause.to_string());
    }

    /// What the task has spent on failures, and how many retries it may spend.
    fn spent(&self) -> (Spent, u32) {
        let TaskRow { retries, forgiven, .. } = self.row;
        (Spent { retries, forgiven }, self.pool.settings.max_retries)
    }

    /// Tried again, or given up.
    fn judged(
        self: Box<Self>,
        permit: &Permit,
        tenant: Tenant,
        verdict: Verdict,
        status: Option<u16>,
        error: String,
    ) {
        let step = match verdict.step {
            TaskStep::Retry => {
                let ready_at = self.pool.gate.next_at(permit);
                let Spent { retries, forgiven } = verdict.spent;
                Step::Retry { ready_at, retries, forgiven, error }
            }
            _ if verdict.spent.attempts() > 1 => {
                let attempts = verdict.spent.attempts();
                Step::Failed { error: format!("{error} after {attempts} attempts"), status }
            }
            _ => Step::Failed { error, status },
        };
        self.settle(step, Some(tenant));
    }

    /// Goes on where a redirect leads.
    fn follow(mut self: Box<Self>, next: Next, tenant: Tenant) {
        let failed = |error: String| Step::Failed { error, status: None };
        let next = match next {
            Next::Astray => return self.settle(failed(ASTRAY.to_owned()), Some(tenant)),
            Next::To(_) if self.hops >= self.pool.redirects_max => {
                let error = format!("more than {} redirects", self.pool.redirects_max);
                return self.settle(failed(error), Some(tenant));
            }
            Next::To(next) if next == self.url => {
                return self.settle(failed("redirected to itself".to_owned()), Some(tenant));
            }
            Next::To(next) => next,
        };
        let Some(host) = Domain::of(&next) else {
            return self.settle(failed(ASTRAY.to_owned()), Some(tenant));
        };
        self.lead = redirected_lead(&self.listed, self.row.lead, &next);
        self.host = host;
        self.url = next;
        self.hops += 1;
        let domain = self.pool.gate.rules().domain(&self.host);
        if domain == self.domain && !self.pool.is_over() {
            // The same line, from the place it had.
            drop(tenant);
            return self.set_out();
        }
        let step = Step::Moved { domain, at_url: Some(self.url.to_string()), hops: self.hops };
        self.settle(step, Some(tenant));
    }

    /// Notes an attempt, for the store and for the guard that ends a job which is refused at the slowest pace.
    fn note(&mut self, permit: &Permit, outcome: Outcome, status: Option<u16>) {
        let started_at: Timestamp = permit.started_at();
        let took = self.pool.now().since(started_at);
        self.attempts.push(Attempt { started_at, took, outcome, status });
        let mut guards = self.pool.guards();
        if let Some(message) = guards.limits.attempted(outcome, permit.spacing()) {
            guards.tripped.get_or_insert((JobStep::Cancel, message));
            self.pool.poke.notify_one();
        }
    }

    pub(super) fn settle(self: Box<Self>, step: Step, tenant: Option<Tenant>) {
        let Self { pool, row, lane, hold, url, attempts, answered_at, .. } = *self;
        let answered = attempts.last().is_some_and(|attempt| attempt.outcome == Outcome::Answered);
        let settle = Settle { task: row.id, job: pool.job.id, hold, attempts, step };
        let answered_at = answered_at.unwrap_or_else(|| pool.now());
        let one = One { settle, row, lane, url, answered, answered_at, tenant };
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

/// An errand that could not join a line, or was sent away from one.
pub(super) fn put_back(errand: Box<dyn Errand>) {
    if let Ok(trip) = errand.into_any().downcast::<Trip>() {
        trip.put_down();
    }
}

/// Why a body is not in the archive.
enum Unkept {
    Body(TransportError),
    Archive(ArchiveError),
}

impl From<TransportError> for Unkept {
    fn from(cause: TransportError) -> Self {
        Self::Body(cause)
    }
}

/// Reads an answer to its end, for the records of it.
async fn read(mut answered: Answered, recording: Recording, permit: &mut Permit) -> Result<(), ArchiveError> {
    match read_on(&mut answered.body, permit, |_| Ok::<_, TransportError>(())).await {
        Ok(()) => recording.finish(Ending::Whole).await,
        Err(cause) => recording.finish(Ending::of(&cause)).await,
    }
}

/// Reads the rest of an answer that nobody wants, if there is little of it.
async fn drain(mut answered: Answered) {
    while let Some(Ok(_)) = answered.body.chunk().await {
        if answered.body.wire_bytes() > DRAIN_MAX {
            return;
        }
    }
}

const ASTRAY: &str = "redirected to something that isn't a valid http or https URL";
/// How often a file is tried to be opened without a descriptor for it: for about ten seconds.
const OPENED_AGAIN_MAX: u32 = 100;
/// Longer than this is not worth a connection,
const DRAIN: Duration = Duration::from_millis(50);
/// and neither is more than this.
const DRAIN_MAX: u64 = 64 << 10;
