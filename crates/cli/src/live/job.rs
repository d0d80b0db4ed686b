//! The progress of a job for the live view, read from the store every now and then.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use comity::core::domain::Domain;
use comity::core::task::JobId;
use comity::core::time::{Span, Timestamp};
use comity::gate::Gate;
use comity::status::{HeldBack, Status, Work};
use comity::store::jobs::{Counts, Job};
use comity::store::status::Backlog;
use comity::store::{Reply, Store};

use super::draw::{duration, thousands};
use super::forecast::{BacklogCounts, Forecast, Limits, Rate, TimeLeft};

/// A job that is watched.
pub(crate) struct JobView {
    gate: Gate,
    store: Arc<dyn Store>,
    job: JobId,
    name: String,
    /// The counts that are left out, from before this session.
    before: Counts,
    counts: Counts,
    counted_at: Timestamp,
    backlog: Vec<Backlog>,
    forecast: Forecast,
    rate: Rate,
    /// The estimated end.
    ends_at: Option<Timestamp>,
    /// Says which sites other processes are in charge of; empty if there are none.
    elsewhere: String,
    /// Whether `ends_at` is an upper bound.
    is_latest: bool,
    estimated_at: Timestamp,
    /// Whether only the requests in flight are waited for.
    is_stopping: bool,
    status: Status,
    status_at: Timestamp,
    /// How long it took to get the status: with many domains, it is read less often.
    status_took: Span,
}

/// Work alongside a job that is counted with it, such as fetching sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct SideWork {
    pub(crate) done: u64,
    pub(crate) all: u64,
    pub(crate) doing: String,
}

impl JobView {
    /// A view of a job; what was already settled in `before` is not counted.
    pub(crate) fn new(
        gate: &Gate,
        store: &Arc<dyn Store>,
        job: &Job,
        before: Counts,
        limits: Limits,
    ) -> Self {
        let forecast = Forecast::new(gate, limits);
        Self {
            gate: gate.clone(),
            store: store.clone(),
            job: job.id,
            name: job.name.clone(),
            before,
            counts: before,
            counted_at: Timestamp::MIN,
            backlog: Vec::new(),
            forecast,
            rate: Rate::default(),
            ends_at: None,
            elsewhere: String::new(),
            is_latest: false,
            estimated_at: Timestamp::MIN,
            is_stopping: false,
            status: Status::default(),
            status_at: Timestamp::MIN,
            status_took: Span::ZERO,
        }
    }

    /// The current status, shown under `title`.
    pub(crate) async fn status(&mut self, title: &str, side_work: SideWork) -> (Status, Timestamp) {
        let now = self.gate.clock().now();
        if now.since(self.counted_at) >= COUNT_EVERY
            && let Some(Some(job)) = self.ask(self.store.find_job(self.name.clone())).await
        {
            (self.counts, self.counted_at) = (job.counts, now);
        }
        let settled = |counts: &Counts| counts.tasks - counts.waiting();
        let done = settled(&self.counts).saturating_sub(settled(&self.before));
        let rate = self.rate.at(now, done + side_work.done);
        self.estimate(rate, now).await;
        let elsewhere =
            if self.is_stopping { self.pending().unwrap_or_default() } else { self.elsewhere.clone() };
        let since = |count: fn(&Counts) -> u64| count(&self.counts).saturating_sub(count(&self.before));
        let work = Work {
            name: title.to_owned(),
            unit: "pages".to_owned(),
            done: done + side_work.done,
            all: Some(done + self.counts.waiting() + side_work.all),
            failed: since(|counts| counts.failed),
            skipped: since(|counts| counts.skipped),
            rate_limited: since(|counts| counts.rate_limited),
            retries: since(|counts| counts.retries),
            rate,
            left_ms: self
                .ends_at
                .filter(|_| !self.is_stopping)
                .map(|ends_at| ends_at.since(now).as_millis_up()),
            left_is_most: self.is_latest,
            note: match (side_work.doing, elsewhere.as_str()) {
                (doing, "") => doing,
                (doing, elsewhere) if doing.is_empty() => elsewhere.to_owned(),
                (doing, elsewhere) => format!("{doing}, {elsewhere}"),
            },
        };
        self.gate.set_work(work.clone());
        if now.since(self.status_at) >= self.status_took.times(STATUS_SHARE) {
            self.status = self.gate.status(SHOWN);
            self.status_at = now;
            self.status_took = self.gate.clock().now().since(now);
        }
        self.status.work = Some(work);
        (self.status.clone(), now)
    }

    /// Has the view show what the requests in flight wait for, instead of how long the rest of the work would take. Returns
    /// the same.
    pub(crate) fn stop(&mut self) -> Option<String> {
        self.is_stopping = true;
        self.pending()
    }

    /// Which sites have not responded yet, and how long that may take.
    fn pending(&self) -> Option<String> {
        let pending = self.forecast.pending(&self.gate, &self.backlog);
        let sites = match pending.as_slice() {
            [] => return None,
            [(domain, _)] => domain.to_string(),
            several => format!("{} sites", several.len()),
        };
        // The slowest of them decides.
        let left =
            pending.iter().map(|(_, left)| *left).min_by_key(|left| Reverse(left.unwrap_or(Span::MAX)));
        Some(match left.flatten() {
            Some(left) => format!("waiting up to {} for {sites}", duration(left)),
            None => format!("waiting for {sites}"),
        })
    }

    /// The domains that delayed the work when the status was last read, the longest waits first.
    pub(crate) fn held_back(&self) -> Vec<HeldBack> {
        self.status.held_back.clone()
    }

    /// Asks the store, with a short timeout: the view must not freeze while the store is unavailable.
    async fn ask<T>(&self, reply: Reply<'_, T>) -> Option<T> {
        if self.gate.store_unavailable().is_some() {
            return None;
        }
        tokio::time::timeout(STORE_TIMEOUT, reply).await.ok()?.ok()
    }

    /// Estimates when the rest will be done.
    async fn estimate(&mut self, rate: Option<f64>, now: Timestamp) {
        if self.estimated_at == Timestamp::MIN {
            // Nothing is known in the first moments: the sites are just being claimed.
            self.estimated_at = now - ESTIMATE_EVERY.less(FIRST_ESTIMATE);
        }
        if now.since(self.estimated_at) < ESTIMATE_EVERY {
            return;
        }
        self.estimated_at = now;
        // Read one lane more than needed, to know whether there are more.
        if let Some(backlog) = self.ask(self.store.backlog(self.job, LANES + 1, TASKS)).await {
            self.backlog = backlog;
        }
        let counts = BacklogCounts {
            backlog: &self.backlog,
            limit: u64::from(TASKS),
            is_all: self.backlog.len() <= LANES as usize,
            waiting: self.counts.waiting(),
        };
        self.gate.set_backlog(counts.known());
        if let Some(elsewhere) = self.forecast.domains_elsewhere(&self.gate, counts.backlog) {
            self.elsewhere = in_charge(&elsewhere);
            self.forecast.ask_holders(&self.gate, elsewhere);
        }
        (self.ends_at, self.is_latest) = match self.forecast.time_left(&self.gate, &counts, rate) {
            Some(TimeLeft::About(left)) => (Some(now + left), false),
            Some(TimeLeft::AtMost(left)) => (Some(now + left), true),
            Some(TimeLeft::Unknown) | None => (None, false),
        };
    }
}

/// Says that other processes are in charge of these domains.
fn in_charge(elsewhere: &[Domain]) -> String {
    match elsewhere {
        [] => String::new(),
        [domain] => format!("another process is in charge of {domain}"),
        // Only so many are read.
        domains if domains.len() >= LANES as usize => {
            format!("other processes are in charge of {}+ sites", thousands(LANES.into()))
        }
        domains => format!("other processes are in charge of {} sites", domains.len()),
    }
}

/// How often the counts of the job are read.
const COUNT_EVERY: Span = Span::from_millis(500);
/// How often the backlog is read and the end estimated.
const ESTIMATE_EVERY: Span = Span::from_secs(2);
/// How soon the end is estimated for the first time.
const FIRST_ESTIMATE: Span = Span::from_secs(1);
/// How many lanes of the backlog are read.
const LANES: u32 = 200;
/// Up to how many tasks are counted per lane.
pub(super) const TASKS: u32 = 1_000;
/// Maximum number of domains in a status.
const SHOWN: usize = 20;
/// Reading the status takes at most one part in this many of the time.
const STATUS_SHARE: u64 = 50;
/// How long to wait for the store.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);
