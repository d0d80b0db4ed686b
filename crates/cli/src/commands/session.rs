//! What `run` and `scrape` share: a gate, a pipeline and its workers, for one configuration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity::client;
use comity::config::{Config, Overrides};
use comity::core::time::{Span, Timestamp};
use comity::gate::{CloseMode, Gate};
use comity::jobs::StopReason;
use comity::pipeline::Pipeline;
use comity::request::JobRequest;
use comity::status::Status;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::Counts;
use comity::store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinHandle};

use super::failures::Failures;
use crate::args::{Global, ScrapeOptions};
use crate::live::{self, JobView, Limits, SideWork, Watched};
use crate::setup;
use crate::signals::Signals;

/// A pipeline at work.
pub(crate) struct Session {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) gate: Gate,
    pub(crate) pipeline: Pipeline,
    pub(crate) began: Timestamp,
    /// The counts of the scrape job when the session started.
    before: Counts,
    limits: Limits,
    /// What has failed so far.
    pub(crate) failures: Arc<Failures>,
    /// The site that delays the work most, and why.
    held_back: Mutex<Option<(String, String)>>,
}

/// The configuration, overridden by flags.
pub(crate) fn config(global: &Global, options: &ScrapeOptions) -> anyhow::Result<Config> {
    let given = Overrides {
        delay: options.delay.clone(),
        concurrency: options.concurrency.clone(),
        ..Overrides::default()
    };
    let mut config = setup::config(global, given)?;
    if let Some(out) = &options.out {
        config.scrape.out = out.clone();
    }
    if let Some(format) = options.format {
        config.scrape.format = format.into();
    }
    Ok(config)
}

impl Session {
    pub(crate) async fn begin(config: Config, name: &str) -> anyhow::Result<Self> {
        let store = setup::open_store_for_work(&config).await?;
        Self::on(store, config, name).await
    }

    /// Like [`Self::begin`], on a store that is already open.
    pub(crate) async fn on(store: Arc<dyn Store>, config: Config, name: &str) -> anyhow::Result<Self> {
        // Items store the path of their file, which must work from any folder.
        let out = std::path::absolute(&config.scrape.out).unwrap_or_else(|_| config.scrape.out.clone());
        let archive = setup::archive("scrape.out", config.scrape.format, &out, SCRAPE_JOB, &config)?;
        let transport = client::transport(&config)?;
        let gate = setup::gate(&config, store.clone(), name).await?;
        setup::warn_without_contact(&config);
        setup::warn_of_risks(&config, &JobRequest::default());
        let began = gate.clock().now();
        let limits = Limits::of(&config, &transport);
        let pipeline = Pipeline::new(config, gate.clone(), store.clone(), transport, archive).await?;
        let before = pipeline.job().counts;
        let failures = Arc::new(Failures::default());
        gate.events().listen(failures.clone());
        Ok(Self { store, gate, pipeline, began, before, limits, failures, held_back: Mutex::default() })
    }

    /// Starts the workers; they end when nothing is left and nobody adds more.
    pub(crate) fn scrape(&self) -> JoinHandle<Result<StopReason, StoreError>> {
        scrape(&self.pipeline)
    }

    /// Ends the session and releases all domains.
    pub(crate) async fn end(&self) -> anyhow::Result<()> {
        Ok(self.gate.close(CloseMode::Stop).await?)
    }

    /// Ends the session when another one follows in this process: backoff and other guesses are kept.
    pub(crate) async fn pass(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(5), self.gate.close(CloseMode::HandOver)).await;
    }

    /// Ends the session when the store is unavailable, with a short timeout.
    pub(crate) async fn abandon(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(2), self.gate.close(CloseMode::Stop)).await;
    }

    pub(crate) fn elapsed(&self) -> Span {
        self.gate.clock().now().since(self.began)
    }

    /// Scrapes of this process: fetched, failed, skipped.
    pub(crate) fn tasks(&self) -> (u64, u64, u64) {
        tasks(&self.gate)
    }

    /// Scrapes of this process as JSON, with how many are left for the next run.
    pub(crate) async fn tasks_json(&self) -> Value {
        let (fetched, failed, skipped) = self.tasks();
        json!({ "fetched": fetched, "failed": failed, "skipped": skipped, "left": self.left().await })
    }

    /// How many scrapes are left for the next run.
    pub(crate) async fn left(&self) -> u64 {
        let job = self.store.find_job(self.pipeline.job().name.clone()).await.ok().flatten();
        job.map_or(0, |job| job.counts.waiting())
    }

    /// Shows progress and listens for Ctrl-C until the work is done. Returns its result, and whether it was
    /// interrupted.
    pub(crate) async fn watch<T>(
        &self,
        global: &Global,
        title: &str,
        working: JoinHandle<T>,
        signals: &mut Signals,
        side_work: impl Fn() -> SideWork,
    ) -> (Result<T, JoinError>, bool) {
        let job = self.pipeline.job();
        let view = JobView::new(&self.gate, &self.store, job, self.before, self.limits.clone());
        let mut watched = Scraping { session: self, title, side_work, view };
        live::watch(global, &mut watched, working, signals).await
    }

    /// The site that delayed the work most when it was last looked at, and why.
    pub(crate) fn held_back(&self) -> Option<(String, String)> {
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The session as the live view watches it.
struct Scraping<'a, S> {
    session: &'a Session,
    title: &'a str,
    side_work: S,
    view: JobView,
}

impl<S: Fn() -> SideWork> Watched for Scraping<'_, S> {
    async fn status(&mut self) -> (Status, Timestamp) {
        let (status, now) = self.view.status(self.title, (self.side_work)()).await;
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
        let pending = self.view.stop().map(|pending| format!(", {pending}"));
        format!("{count} {what} in flight, plus requests to sources{}", pending.unwrap_or_default())
    }

    fn quit_message(&self) -> String {
        "Stopped; the next run repeats what was in flight".to_owned()
    }
}

/// Starts the workers of a pipeline.
pub(crate) fn scrape(pipeline: &Pipeline) -> JoinHandle<Result<StopReason, StoreError>> {
    let pool = pipeline.pool().clone();
    tokio::spawn(async move { pool.run().await })
}

/// Scrapes that went through this gate: fetched, failed, skipped.
pub(crate) fn tasks(gate: &Gate) -> (u64, u64, u64) {
    let counters = gate.events().counters();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (load(&counters.done), load(&counters.failed), load(&counters.skipped))
}
