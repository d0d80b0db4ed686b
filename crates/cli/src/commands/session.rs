//! What `run` and `scrape` work with: a gate, a pipeline and its workers, over one configuration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity::client;
use comity::config::{Config, Given};
use comity::core::time::{Span, Timestamp};
use comity::gate::{Gate, HandsOff};
use comity::jobs::Ended;
use comity::pipeline::Pipeline;
use comity::request::JobRequest;
use comity::status::Status;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::Counts;
use comity::store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinHandle};

use super::failures::Failures;
use crate::args::{Global, Keep};
use crate::live::{self, Beside, JobView, Limits, Watched};
use crate::setup;
use crate::signals::Signals;

/// A pipeline at work.
pub(crate) struct Session {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) gate: Gate,
    pub(crate) pipeline: Pipeline,
    pub(crate) began: Timestamp,
    /// How far the scrape job was.
    before: Counts,
    limits: Limits,
    /// What failed so far.
    pub(crate) failures: Arc<Failures>,
    /// The site that holds the work back most, and why.
    held_back: Mutex<Option<(String, String)>>,
}

/// The configuration that was typed, over the one that is there.
pub(crate) fn config(global: &Global, keep: &Keep) -> anyhow::Result<Config> {
    let given =
        Given { delay: keep.delay.clone(), concurrency: keep.concurrency.clone(), ..Given::default() };
    let mut config = setup::config(global, given)?;
    if let Some(out) = &keep.out {
        config.scrape.out = out.clone();
    }
    if let Some(format) = keep.format {
        config.scrape.format = format.into();
    }
    Ok(config)
}

impl Session {
    pub(crate) async fn begin(config: Config, name: &str) -> anyhow::Result<Self> {
        let store = setup::open_store_to_work(&config).await?;
        Self::on(store, config, name).await
    }

    /// The same on a store that is open.
    pub(crate) async fn on(store: Arc<dyn Store>, config: Config, name: &str) -> anyhow::Result<Self> {
        // Items name the file they are in: it is found from another folder too.
        let out = std::path::absolute(&config.scrape.out).unwrap_or_else(|_| config.scrape.out.clone());
        let archive = setup::archive("scrape.out", config.scrape.format, &out, SCRAPE_JOB, &config)?;
        let transport = client::transport(&config)?;
        let gate = setup::gate(&config, store.clone(), name).await?;
        setup::warn_without_contact(&config);
        setup::warn_of_risks(&config, &JobRequest::default());
        let began = gate.clock().now();
        let limits = Limits::of(&config);
        let pipeline = Pipeline::new(config, gate.clone(), store.clone(), transport, archive).await?;
        let before = pipeline.job().counts;
        let failures = Arc::new(Failures::default());
        gate.events().listen(failures.clone());
        Ok(Self { store, gate, pipeline, began, before, limits, failures, held_back: Mutex::default() })
    }

    /// The workers begin; they do not end before nothing is left and nobody adds anything.
    pub(crate) fn scrape(&self) -> JoinHandle<Result<Ended, StoreError>> {
        scrape(&self.pipeline)
    }

    /// Everything is handed back.
    pub(crate) async fn end(&self) -> anyhow::Result<()> {
        Ok(self.gate.close(HandsOff::Stop).await?)
    }

    /// The same for a session that follows in this very process: what was guessed goes on.
    pub(crate) async fn pass(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(5), self.gate.close(HandsOff::Pass)).await;
    }

    /// The same when the store does not work: not for long.
    pub(crate) async fn abandon(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(2), self.gate.close(HandsOff::Stop)).await;
    }

    pub(crate) fn elapsed(&self) -> Span {
        self.gate.clock().now().since(self.began)
    }

    /// Scrapes of this process: fetched, failed, skipped.
    pub(crate) fn tasks(&self) -> (u64, u64, u64) {
        tasks(&self.gate)
    }

    /// The same for machines, with how many wait for the next run.
    pub(crate) async fn tasks_json(&self) -> Value {
        let (fetched, failed, skipped) = self.tasks();
        json!({ "fetched": fetched, "failed": failed, "skipped": skipped, "left": self.left().await })
    }

    /// Scrapes that wait for the next run.
    pub(crate) async fn left(&self) -> u64 {
        let job = self.store.find_job(self.pipeline.job().name.clone()).await.ok().flatten();
        job.map_or(0, |job| job.counts.waiting())
    }

    /// Shows how far it is and listens for Ctrl-C until the work is done; what it came to, and whether it was
    /// interrupted.
    pub(crate) async fn watch<T>(
        &self,
        global: &Global,
        title: &str,
        working: JoinHandle<T>,
        signals: &mut Signals,
        beside: impl Fn() -> Beside,
    ) -> (Result<T, JoinError>, bool) {
        let job = self.pipeline.job();
        let view = JobView::new(&self.gate, &self.store, job, self.before, self.limits);
        let mut watched = Scraping { session: self, title, beside, view };
        live::watch(global, &mut watched, working, signals).await
    }

    /// What held the work back when it was left.
    pub(crate) fn held_back(&self) -> Option<(String, String)> {
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is shown while it runs.
struct Scraping<'a, B> {
    session: &'a Session,
    title: &'a str,
    beside: B,
    view: JobView,
}

impl<B: Fn() -> Beside> Watched for Scraping<'_, B> {
    async fn status(&mut self) -> (Status, Timestamp) {
        let (status, now) = self.view.status(self.title, (self.beside)()).await;
        let first = status.held_back.first().map(|held| (held.domain.clone(), held.why.clone()));
        *self.session.held_back.lock().unwrap_or_else(PoisonError::into_inner) = first;
        (status, now)
    }

    fn stop(&mut self) -> String {
        let pipeline = &self.session.pipeline;
        let count = pipeline.pool().in_flight();
        pipeline.stop();
        pipeline.pool().stop();
        self.session.gate.hurry();
        let what = if count == 1 { "scrape" } else { "scrapes" };
        format!("{count} {what} in flight, and requests for sources")
    }

    fn stopped_at_once(&self) -> String {
        "Stopped; what was in flight is done again by the next run".to_owned()
    }
}

/// The workers of a pipeline begin.
pub(crate) fn scrape(pipeline: &Pipeline) -> JoinHandle<Result<Ended, StoreError>> {
    let pool = pipeline.pool().clone();
    tokio::spawn(async move { pool.run().await })
}

/// Scrapes that passed a gate: fetched, failed, skipped.
pub(crate) fn tasks(gate: &Gate) -> (u64, u64, u64) {
    let counters = gate.events().counters();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (load(&counters.done), load(&counters.failed), load(&counters.skipped))
}
