//! How far a job is, looked up in its store as often as that is worth it.

use std::sync::Arc;
use std::time::Duration;

use comity::core::task::JobId;
use comity::core::time::{Span, Timestamp};
use comity::gate::Gate;
use comity::status::{Status, Work};
use comity::store::jobs::{Counts, Job};
use comity::store::status::Backlog;
use comity::store::{Reply, Store};

use super::forecast::{Counted, Forecast, Left, Limits, Rate};

/// A job that is watched.
pub(crate) struct JobView {
    gate: Gate,
    store: Arc<dyn Store>,
    job: JobId,
    name: String,
    /// How far it was before.
    before: Counts,
    counts: Counts,
    counted_at: Timestamp,
    backlog: Vec<Backlog>,
    forecast: Forecast,
    rate: Rate,
    /// When the rest will be done, whether that is the latest it can be, and when it was reckoned.
    ends_at: Option<Timestamp>,
    is_latest: bool,
    reckoned_at: Timestamp,
    status: Status,
    looked_at: Timestamp,
    /// How long the last look took: a look at many domains is taken less often.
    look_took: Span,
}

/// What is done beside a job, and counted with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    pub(crate) done: u64,
    pub(crate) all: u64,
    pub(crate) doing: String,
}

impl JobView {
    /// A job in the store; what was settled in `before` is not counted.
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
            is_latest: false,
            reckoned_at: Timestamp::MIN,
            status: Status::default(),
            looked_at: Timestamp::MIN,
            look_took: Span::ZERO,
        }
    }

    /// What it is at; `title` is what people call it.
    pub(crate) async fn status(&mut self, title: &str, beside: Beside) -> (Status, Timestamp) {
        let now = self.gate.clock().now();
        if now.since(self.counted_at) >= COUNT
            && let Some(Some(job)) = self.ask(self.store.find_job(self.name.clone())).await
        {
            (self.counts, self.counted_at) = (job.counts, now);
        }
        let settled = |counts: &Counts| counts.tasks - counts.waiting();
        let done = settled(&self.counts).saturating_sub(settled(&self.before));
        let rate = self.rate.at(now, done + beside.done);
        self.reckon(rate, now).await;
        let since = |count: fn(&Counts) -> u64| count(&self.counts).saturating_sub(count(&self.before));
        let work = Work {
            name: title.to_owned(),
            unit: "pages".to_owned(),
            done: done + beside.done,
            all: Some(done + self.counts.waiting() + beside.all),
            failed: since(|counts| counts.failed),
            skipped: since(|counts| counts.skipped),
            refused: since(|counts| counts.rate_limited),
            retries: since(|counts| counts.retries),
            rate,
            left_ms: self.ends_at.map(|ends_at| ends_at.since(now).as_millis_up()),
            left_is_most: self.is_latest,
            note: beside.doing,
        };
        self.gate.set_work(work.clone());
        if now.since(self.looked_at) >= self.look_took.times(LOOK_SHARE) {
            self.status = self.gate.status(SHOWN);
            self.looked_at = now;
            self.look_took = self.gate.clock().now().since(now);
        }
        self.status.work = Some(work);
        (self.status.clone(), now)
    }

    /// Asks the store; one that is away is not waited for, since somebody watches.
    async fn ask<T>(&self, reply: Reply<'_, T>) -> Option<T> {
        if self.gate.store_away().is_some() {
            return None;
        }
        tokio::time::timeout(BRIEFLY, reply).await.ok()?.ok()
    }

    /// When the rest will be done.
    async fn reckon(&mut self, rate: Option<f64>, now: Timestamp) {
        if now.since(self.reckoned_at) < RECKON {
            return;
        }
        self.reckoned_at = now;
        // One lane more than is looked at tells whether there are more.
        if let Some(backlog) = self.ask(self.store.backlog(self.job, LANES + 1, TASKS)).await {
            self.backlog = backlog;
            self.gate.set_backlog(self.backlog.clone());
        }
        let counted = Counted {
            backlog: &self.backlog,
            limit: u64::from(TASKS),
            is_all: self.backlog.len() <= LANES as usize,
            waiting: self.counts.waiting(),
        };
        self.forecast.look_elsewhere(&self.gate, &self.backlog);
        (self.ends_at, self.is_latest) = match self.forecast.left(&self.gate, &counted, rate) {
            Some(Left::About(left)) => (Some(now + left), false),
            Some(Left::AtMost(left)) => (Some(now + left), true),
            Some(Left::Unknown) | None => (None, false),
        };
    }
}

/// The counts of a job are looked up this often,
const COUNT: Span = Span::from_millis(500);
/// and what waits for which domain this often,
const RECKON: Span = Span::from_secs(2);
/// for so many domains,
const LANES: u32 = 200;
/// and so many tasks of each.
const TASKS: u32 = 1_000;
/// Domains that are told of.
const SHOWN: usize = 20;
/// A look takes no more than this part of the time.
const LOOK_SHARE: u64 = 50;
/// Whoever watches does not wait longer for the store than this.
const BRIEFLY: Duration = Duration::from_millis(500);
