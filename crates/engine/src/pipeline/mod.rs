//! The ingest run: fetches the sources that are due and enqueues the items they contain, which the workers of
//! [`crate::jobs`] scrape.
//!
//! - this file: one run, host by host
//! - `plan`: which sources a run fetches
//! - `fetch`: fetches one source
//! - `follow`: fetches the sitemaps listed in a sitemap index
//! - `cursor`: what is stored about the last response
//! - `names`: names of sources that nobody named
//! - `caching`, `hints`: what the server and the feed say about when to fetch again
//! - `backoff`: backoff and jitter
//! - `enqueue`: turns items into tasks
//! - `continuous`: one run after the other
//!
//! Responses are parsed in [`crate::connectors`].

mod backoff;
mod caching;
mod continuous;
mod cursor;
mod enqueue;
mod fetch;
mod follow;
mod hints;
mod names;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comity_core::cadence::RunWindow;
use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use comity_store::items::ScrapeTerms;
use comity_store::jobs::Job;
use comity_store::sources::{FetchResult, Source, SourceClaim, SourceId, SourceTenure};
use comity_store::{Store, StoreError};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

use crate::archive::Archive;
use crate::client::Client;
use crate::config::Config;
use crate::gate::Gate;
use crate::jobs::{self, Pool, Rows, Until};
use crate::transport::Transport;

pub use continuous::DEFAULT_CADENCE;
pub use enqueue::{EnqueueCounts, LimitReached, ManualEnqueue};
pub use names::{is_generic, name_of};
pub use plan::{Cadences, Outlook, Plan, cadence, next_at, outlook, plan};

use fetch::Fetched;

/// Fetches sources and enqueues their items. Clones share the same pipeline.
#[derive(Clone)]
pub struct Pipeline(Arc<Inner>);

/// The parts of a pipeline.
struct Inner {
    gate: Gate,
    store: Arc<dyn Store>,
    client: Client,
    pool: Pool,
    job: Job,
    terms: ScrapeTerms,
    batch_max: u32,
    stopping: watch::Sender<bool>,
    /// A domain for URLs without a host.
    placeholder: Domain,
    /// Whether new items get a hook.
    hooks: AtomicBool,
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The window, whose end counts as "now" when deciding what is due.
    pub window: RunWindow,
    /// If set, only these sources are fetched.
    pub sources: Option<Vec<SourceId>>,
    /// Whether cadences are respected.
    pub cadences: Cadences,
    /// Whether items are enqueued.
    pub scraping: Scraping,
}

impl RunOptions {
    fn includes(&self, source: SourceId) -> bool {
        self.sources.as_ref().is_none_or(|ids| ids.contains(&source))
    }
}

/// Whether a run enqueues items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scraping {
    /// Items are enqueued.
    On,
    /// Items are left for a later run.
    Off,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// The end of the window.
    pub window_end: Timestamp,
    /// Sources that were due.
    pub due: u64,
    /// Sources that were read.
    pub fetched: u64,
    /// Sources that were read in part.
    pub partial: u64,
    /// Sources that were not due.
    pub not_due: u64,
    /// Sources that were due and held back.
    pub held: u64,
    /// Sources that failed.
    pub failed: u64,
    /// Items found for the first time.
    pub new: u64,
    /// Items that changed.
    pub changed: u64,
    /// The results of enqueuing items.
    pub items: EnqueueCounts,
    /// How many of the refused items are new ones whose source isn't scraped automatically.
    pub unscraped: u64,
    /// The sources that were checked, sorted by id.
    pub sources: Vec<SourceReport>,
}

/// The result for one source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceReport {
    /// The id of the source.
    pub source: SourceId,
    /// The name of the source.
    pub name: String,
    /// The outcome.
    pub outcome: SourceOutcome,
}

/// The outcome of a source in a run.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceOutcome {
    /// It was read.
    Fetched {
        /// The number of items in it.
        found: u64,
        /// The number of new items.
        new: u64,
        /// The number of changed items.
        changed: u64,
        /// What could not be read.
        problem: Option<String>,
        /// The new URL, if it moved.
        moved_to: Option<String>,
    },
    /// It was not due.
    NotDue {
        /// The first window end at which it is due.
        due_at: Timestamp,
    },
    /// It was due, but held back.
    Held {
        /// Until when.
        until: Timestamp,
        /// Why.
        why: String,
    },
    /// It failed.
    Failed {
        /// Why.
        error: String,
        /// When it will be retried; `None` if it was disabled.
        retry_at: Option<Timestamp>,
    },
}

/// The state of a source when its turn comes.
enum SourceState {
    /// Due, with a warning if something is odd.
    Due(Option<String>),
    NotDue(Timestamp),
    Ended(Fetched),
    Disabled,
}

/// Gets the progress of runs.
pub trait RunListener: Send + Sync {
    /// This many sources are due.
    fn planned(&self, _due: u64) {}
    /// A source was fetched, or is held back.
    fn source_done(&self, _source: &SourceReport) {}
    /// One of many runs ended.
    fn run_done(&self, _report: &RunReport) {}
    /// Nothing is due until then.
    fn sleeping(&self, _until: Option<Timestamp>) {}
}

impl Pipeline {
    /// A pipeline with this configuration, on a gate that holds its domains in `store`. Must be called inside a tokio
    /// runtime.
    pub async fn new(
        config: Config,
        gate: Gate,
        store: Arc<dyn Store>,
        transport: Transport,
        archive: Archive,
    ) -> Result<Self, StoreError> {
        let job = store.scrape_job(gate.clock().now()).await?;
        gate.begin_job(SOURCE_FETCHES, config.job.concurrency);
        let terms = ScrapeTerms {
            interval: config.scrape.min_interval,
            in_flight_max: config.scrape.max_in_flight_per_source,
        };
        let batch_max = config.scrape.max_bulk_batch_size;
        let stopping = watch::Sender::new(false);
        let patience = config.scrape.max_wait;
        let placeholder =
            Domain::parse("unreadable.invalid").unwrap_or_else(|_| unreachable!("a valid name"));
        let parts = jobs::Parts {
            gate: gate.clone(),
            store: store.clone(),
            transport: transport.clone(),
            archive,
            config: config.clone(),
            job: job.clone(),
            until: Until::Idle { patience },
            rows: Rows::default(),
        };
        let pool = Pool::new(parts);
        let client = Client::with_robots_cache(
            &config,
            gate.clone(),
            transport,
            pool.robots_cache(),
            Some(SOURCE_FETCHES),
        );
        let hooks = AtomicBool::new(false);
        let inner = Inner { gate, store, client, pool, job, terms, batch_max, stopping, placeholder, hooks };
        Ok(Self(Arc::new(inner)))
    }

    /// The workers that scrape items; they start when [`Pool::run`] is called.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The job whose tasks scrape the items.
    pub fn job(&self) -> &Job {
        &self.0.job
    }

    /// From now on, new items get a hook ([`comity_store::hooks`]). The caller has to run the hooks.
    pub fn want_hooks(&self) {
        self.0.hooks.store(true, Ordering::Relaxed);
    }

    /// Stops fetching sources; requests in flight are finished.
    pub fn stop(&self) {
        self.0.stopping.send_replace(true);
    }

    fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Fetches the sources that are due, host by host, and enqueues their items. A failed source does not affect the
    /// others.
    pub async fn run(
        &self,
        options: &RunOptions,
        listener: &dyn RunListener,
    ) -> Result<RunReport, StoreError> {
        let now = self.0.gate.clock().now();
        let mut report = RunReport::new(options.window);
        let mut hosts: BTreeMap<String, Vec<SourceId>> = BTreeMap::new();
        for source in self.selected(options).await? {
            match plan(&source, options.window.looked_at(now), options.cadences, now) {
                Plan::Disabled => {}
                Plan::NotDue { due_at } => report.add_outcome(&source, SourceOutcome::NotDue { due_at }),
                Plan::Fetch { .. } => hosts.entry(self.domain_of(&source.url)).or_default().push(source.id),
                Plan::Held { .. } | Plan::Invalid { .. } => {
                    let (unused_turn, _) = oneshot::channel();
                    let (sender, checked) = oneshot::channel();
                    let on_done = |state| drop(sender.send(state));
                    let task = self.spawn_fetch(source.id, options, unused_turn, on_done);
                    task.await.unwrap_or(Err(StoreError::Closed))?;
                    match checked.await.ok() {
                        Some((source, SourceState::Ended(fetched))) => {
                            listener.source_done(report.add(&source, fetched));
                        }
                        Some((source, SourceState::NotDue(due_at))) => {
                            report.add_outcome(&source, SourceOutcome::NotDue { due_at });
                        }
                        _ => {}
                    }
                }
            }
        }
        listener.planned(report.due + hosts.values().map(|sources| sources.len() as u64).sum::<u64>());
        self.fetch_hosts(hosts, options, &mut report, listener).await?;
        if options.scraping == Scraping::On && !self.is_stopping() {
            report.items.add(self.enqueue_pending(options).await?);
        }
        report.sources.sort_by_key(|source| source.source);
        Ok(report)
    }

    async fn selected(&self, options: &RunOptions) -> Result<Vec<Source>, StoreError> {
        let mut sources = self.0.store.list_sources().await?;
        sources.retain(|source| options.includes(source.id));
        Ok(sources)
    }

    /// Checks what to do about a source. If it is held back or invalid, that is committed.
    async fn check(
        &self,
        source: &Source,
        tenure: SourceTenure,
        options: &RunOptions,
        now: Timestamp,
    ) -> Result<SourceState, StoreError> {
        let fetched = match plan(source, options.window.looked_at(now), options.cadences, now) {
            Plan::Disabled => return Ok(SourceState::Disabled),
            Plan::NotDue { due_at } => return Ok(SourceState::NotDue(due_at)),
            Plan::Fetch { warning } => return Ok(SourceState::Due(warning)),
            Plan::Held { until, why } => self.held(source, until, &why),
            Plan::Invalid { error } => self.invalid(source, &error),
        };
        self.end_fetch(tenure, options.window, now, &fetched).await?;
        Ok(SourceState::Ended(fetched))
    }

    /// Fetches a source in its own task, so that the request is finished and the source released even if the run is
    /// dropped.
    fn spawn_fetch(
        &self,
        id: SourceId,
        options: &RunOptions,
        turn: Turn,
        on_done: impl FnOnce((Source, SourceState)) + Send + 'static,
    ) -> JoinHandle<Result<(), StoreError>> {
        let (pipeline, options) = (self.clone(), options.clone());
        tokio::spawn(async move {
            if let Some(state) = pipeline.fetch_source(id, &options, turn).await? {
                on_done(state);
            }
            Ok(())
        })
    }

    /// Claims and fetches a source, unless another process is fetching it or has done so in the meantime.
    async fn fetch_source(
        &self,
        id: SourceId,
        options: &RunOptions,
        turn: Turn,
    ) -> Result<Option<(Source, SourceState)>, StoreError> {
        let Some(holder) = self.0.gate.holder() else { return Err(StoreError::Closed) };
        let now = self.0.gate.clock().now();
        let (source, tenure) = match self.0.store.claim_source(id, holder, now).await? {
            SourceClaim::Ours(source, tenure) => (*source, tenure),
            SourceClaim::Taken | SourceClaim::Missing => return Ok(None),
        };
        let state = match self.fetch_claimed(&source, tenure, options, turn).await {
            // This process missed its heartbeats; the process that claims the source next commits a result.
            Err(StoreError::Lost) => {
                tracing::warn!(source = id.0, name = source.name, "another process took over this source");
                None
            }
            state => state?,
        };
        self.0.store.leave_source(tenure).await?;
        Ok(state.map(|state| (source, state)))
    }

    async fn fetch_claimed(
        &self,
        source: &Source,
        tenure: SourceTenure,
        options: &RunOptions,
        turn: Turn,
    ) -> Result<Option<SourceState>, StoreError> {
        match self.check(source, tenure, options, self.0.gate.clock().now()).await? {
            SourceState::Due(warning) => {
                if let Some(warning) = warning {
                    tracing::warn!(source = source.id.0, name = source.name, "{warning}");
                }
                Ok(self.fetch(source, tenure, options.window, turn).await?.map(SourceState::Ended))
            }
            state => Ok(Some(state)),
        }
    }

    /// The domain of a URL: the sources of one domain are fetched one after the other.
    fn domain_of(&self, url: &str) -> String {
        let host = Url::parse(url).ok().and_then(|url| Domain::of(&url));
        host.map_or_else(String::new, |host| self.0.gate.rules().domain(&host).as_str().to_owned())
    }

    async fn fetch_hosts(
        &self,
        hosts: BTreeMap<String, Vec<SourceId>>,
        options: &RunOptions,
        report: &mut RunReport,
        listener: &dyn RunListener,
    ) -> Result<(), StoreError> {
        let mut tasks: JoinSet<Result<(), StoreError>> = JoinSet::new();
        let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
        for sources in hosts.into_values() {
            let (pipeline, sender, options) = (self.clone(), sender.clone(), options.clone());
            tasks.spawn(async move {
                let mut fetches = Vec::new();
                for id in sources {
                    if pipeline.is_stopping() {
                        break;
                    }
                    let (turn, ended) = oneshot::channel();
                    let sender = sender.clone();
                    fetches.push(
                        pipeline.spawn_fetch(id, &options, turn, move |state| drop(sender.send(state))),
                    );
                    let _ = ended.await;
                }
                for fetch in fetches {
                    fetch.await.unwrap_or(Err(StoreError::Closed))?;
                }
                Ok(())
            });
        }
        drop(sender);
        while let Some((source, state)) = done.recv().await {
            let fetched = match state {
                SourceState::Ended(fetched) => fetched,
                SourceState::NotDue(due_at) => {
                    report.add_outcome(&source, SourceOutcome::NotDue { due_at });
                    continue;
                }
                SourceState::Due(_) | SourceState::Disabled => continue,
            };
            let kept = fetched.kept;
            listener.source_done(report.add(&source, fetched));
            if options.scraping == Scraping::On {
                let counts = match source.scraping && source.auto_scrape {
                    true => self.enqueue_found(source.id).await?,
                    // The source isn't scraped automatically, which counts as a refusal.
                    false => {
                        report.unscraped += kept.new;
                        EnqueueCounts { refused: kept.new, ..EnqueueCounts::default() }
                    }
                };
                report.items.add(counts);
            }
        }
        join_all(tasks).await
    }
}

async fn join_all(mut tasks: JoinSet<Result<(), StoreError>>) -> Result<(), StoreError> {
    while let Some(joined) = tasks.join_next().await {
        joined.unwrap_or(Err(StoreError::Closed))?;
    }
    Ok(())
}

/// The sources of one domain are fetched one after the other: the next one starts when this is dropped.
type Turn = oneshot::Sender<()>;

impl RunReport {
    /// The report of a run that has not done anything yet.
    pub fn new(window: RunWindow) -> Self {
        Self {
            window_end: window.end(),
            due: 0,
            fetched: 0,
            partial: 0,
            not_due: 0,
            held: 0,
            failed: 0,
            new: 0,
            changed: 0,
            items: EnqueueCounts::default(),
            unscraped: 0,
            sources: Vec::new(),
        }
    }

    /// Adds the result of a fetch.
    fn add(&mut self, source: &Source, fetched: Fetched) -> &SourceReport {
        self.new += fetched.kept.new;
        self.changed += fetched.kept.changed;
        let Fetched { result, found, kept, error, .. } = fetched;
        let outcome = match result {
            FetchResult::Read { moved_to, .. } => SourceOutcome::Fetched {
                found,
                new: kept.new,
                changed: kept.changed,
                problem: error,
                moved_to: moved_to.map(|(url, _)| url),
            },
            FetchResult::Held { until } => SourceOutcome::Held { until, why: error.unwrap_or_default() },
            FetchResult::Failed { retry_at } => {
                SourceOutcome::Failed { error: error.unwrap_or_default(), retry_at: Some(retry_at) }
            }
            FetchResult::Gone => SourceOutcome::Failed { error: error.unwrap_or_default(), retry_at: None },
        };
        self.add_outcome(source, outcome);
        &self.sources[self.sources.len() - 1]
    }

    fn add_outcome(&mut self, source: &Source, outcome: SourceOutcome) {
        match &outcome {
            SourceOutcome::NotDue { .. } => self.not_due += 1,
            SourceOutcome::Fetched { problem: None, .. } => self.fetched += 1,
            SourceOutcome::Fetched { problem: Some(_), .. } => self.partial += 1,
            SourceOutcome::Held { .. } => self.held += 1,
            SourceOutcome::Failed { .. } => self.failed += 1,
        }
        self.due += u64::from(!matches!(outcome, SourceOutcome::NotDue { .. }));
        self.sources.push(SourceReport { source: source.id, name: source.name.clone(), outcome });
    }
}

/// Fetching sources counts as a job for concurrency. No job in a store has this id.
const SOURCE_FETCHES: JobId = JobId(0);
