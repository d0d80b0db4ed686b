//! The ingest run: sources that are due are asked, what they lead to become items, and those are scraped by the
//! workers of [`crate::jobs`].
//!
//! - here: one run, host by host
//! - `plan`: which sources a run asks
//! - `fetch`: one source is asked
//! - `follow`: the sitemaps that a sitemap names
//! - `cursor`: what is kept of its last answer
//! - `caching`, `hints`: what its server and the feed itself say about when to ask again
//! - `later`: backoff and jitter
//! - `enqueue`: items become tasks
//! - `watching`: one run after the other
//!
//! How answers are read is in [`crate::connectors`].

mod caching;
mod cursor;
mod enqueue;
mod fetch;
mod follow;
mod hints;
mod later;
mod plan;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comity_core::cadence::RunWindow;
use comity_core::domain::Domain;
use comity_core::task::JobId;
use comity_core::time::Timestamp;
use comity_store::items::ScrapeTerms;
use comity_store::jobs::Job;
use comity_store::sources::{Asking, FetchResult, Source, SourceClaim, SourceId};
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

pub use enqueue::{ByHand, Counts, Left};
pub use plan::{Cadences, Plan, cadence, next_at, plan};
pub use watching::UNPACED;

use fetch::Fetched;

/// Asks sources and enqueues what they lead to. Clones are the same pipeline.
#[derive(Clone)]
pub struct Pipeline(Arc<Inner>);

/// What a pipeline is made of.
struct Inner {
    gate: Gate,
    store: Arc<dyn Store>,
    client: Client,
    pool: Pool,
    job: Job,
    terms: ScrapeTerms,
    batch_max: u32,
    stopping: watch::Sender<bool>,
    nowhere: Domain,
    /// Whether new items are to have a hook.
    hooks: AtomicBool,
}

/// What a run is to do.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Its window: the `now` of what is due.
    pub window: RunWindow,
    /// Only these sources.
    pub sources: Option<Vec<SourceId>>,
    /// Whether cadences count.
    pub cadences: Cadences,
    /// Whether items are enqueued.
    pub scraping: Scraping,
}

impl Orders {
    fn wants(&self, source: SourceId) -> bool {
        self.sources.as_ref().is_none_or(|ids| ids.contains(&source))
    }
}

/// Whether a run enqueues items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scraping {
    /// It does.
    On,
    /// They are kept for a later run.
    Off,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The end of its window.
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
    /// Items seen for the first time.
    pub new: u64,
    /// Items that changed.
    pub changed: u64,
    /// What became of items to be scraped.
    pub items: Counts,
    /// Each source that was looked at, in the order of their numbers.
    pub notes: Vec<Note>,
}

/// What became of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Which.
    pub source: SourceId,
    /// What people call it.
    pub name: String,
    /// What became of it.
    pub outcome: SourceEnd,
}

/// What became of a source in a run.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceEnd {
    /// It was read.
    Fetched {
        /// Items it named,
        found: u64,
        /// those that are new,
        new: u64,
        /// and those that changed.
        changed: u64,
        /// What could not be read of it.
        problem: Option<String>,
        /// Where it is asked from now on.
        moved_to: Option<String>,
    },
    /// It was not due.
    NotDue {
        /// The first window end at which it is.
        due_at: Timestamp,
    },
    /// It was due, and held back.
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
        /// When it is asked again; never, when it was disabled.
        retry_at: Option<Timestamp>,
    },
}

/// What a look at a source came to.
enum Seen {
    /// With what is odd about that.
    Due(Option<String>),
    NotDue(Timestamp),
    Ended(Fetched),
    Disabled,
}

/// Somebody who is told how runs go.
pub trait RunListener: Send + Sync {
    /// So many sources are due.
    fn planned(&self, _due: u64) {}
    /// A source was asked, or is held back.
    fn asked(&self, _note: &Note) {}
    /// A run of many ended.
    fn ran(&self, _report: &Report) {}
    /// Nothing is due until then.
    fn sleeps(&self, _until: Option<Timestamp>) {}
}

impl Pipeline {
    /// A pipeline that goes by `config`, on a gate that holds its domains in `store`. Must be made inside a tokio
    /// runtime.
    pub async fn new(
        config: Config,
        gate: Gate,
        store: Arc<dyn Store>,
        transport: Transport,
        archive: Archive,
    ) -> Result<Self, StoreError> {
        let job = store.scrape_job(gate.clock().now()).await?;
        gate.begin_job(ASKING, config.job.concurrency);
        let terms = ScrapeTerms {
            interval: config.scrape.min_interval,
            in_flight_max: config.scrape.max_in_flight_per_source,
        };
        let batch_max = config.scrape.max_bulk_batch_size;
        let stopping = watch::Sender::new(false);
        let patience = config.scrape.max_wait;
        let nowhere = Domain::parse("unreadable.invalid").unwrap_or_else(|_| unreachable!("a valid name"));
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
        let client = Client::keeping(&config, gate.clone(), transport, pool.keeper(), Some(ASKING));
        let hooks = AtomicBool::new(false);
        let inner = Inner { gate, store, client, pool, job, terms, batch_max, stopping, nowhere, hooks };
        Ok(Self(Arc::new(inner)))
    }

    /// The workers that scrape items; they work when [`Pool::run`] is called.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The job that scrapes go into.
    pub fn job(&self) -> &Job {
        &self.0.job
    }

    /// Items that are new from now on are to have a hook ([`comity_store::hooks`]); whoever asks for that runs them.
    pub fn want_hooks(&self) {
        self.0.hooks.store(true, Ordering::Relaxed);
    }

    /// Asks no further source; requests on the wire are finished.
    pub fn stop(&self) {
        self.0.stopping.send_replace(true);
    }

    fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Asks the sources that are due, host by host, and enqueues what they lead to. One that fails stops nobody
    /// else (B63).
    pub async fn run(&self, orders: &Orders, listener: &dyn RunListener) -> Result<Report, StoreError> {
        let now = self.0.gate.clock().now();
        let mut report = Report::new(orders.window);
        let mut hosts: BTreeMap<String, Vec<SourceId>> = BTreeMap::new();
        for source in self.wanted(orders).await? {
            match plan(&source, orders.window.looked_at(now), orders.cadences, now) {
                Plan::Disabled => {}
                Plan::NotDue { due_at } => report.note(&source, SourceEnd::NotDue { due_at }),
                Plan::Fetch { .. } => hosts.entry(self.pace_of(&source.url)).or_default().push(source.id),
                Plan::Held { .. } | Plan::Invalid { .. } => {
                    let (nobody_waits, _) = oneshot::channel();
                    let (tell, asked) = oneshot::channel();
                    let tell = |seen| drop(tell.send(seen));
                    let asking = self.spawn_asking(source.id, orders, nobody_waits, tell);
                    asking.await.unwrap_or(Err(StoreError::Closed))?;
                    match asked.await.ok() {
                        Some((source, Seen::Ended(fetched))) => {
                            listener.asked(report.take(&source, fetched));
                        }
                        Some((source, Seen::NotDue(due_at))) => {
                            report.note(&source, SourceEnd::NotDue { due_at });
                        }
                        _ => {}
                    }
                }
            }
        }
        listener.planned(report.due + hosts.values().map(|sources| sources.len() as u64).sum::<u64>());
        self.ask_hosts(hosts, orders, &mut report, listener).await?;
        if orders.scraping == Scraping::On && !self.is_stopping() {
            report.items.add(self.enqueue_left(orders).await?);
        }
        report.notes.sort_by_key(|note| note.source);
        Ok(report)
    }

    async fn wanted(&self, orders: &Orders) -> Result<Vec<Source>, StoreError> {
        let mut sources = self.0.store.list_sources().await?;
        sources.retain(|source| orders.wants(source.id));
        Ok(sources)
    }

    /// What a run does about a source; what holds it back, or is wrong with it, is committed.
    async fn look(
        &self,
        source: &Source,
        asking: Asking,
        orders: &Orders,
        now: Timestamp,
    ) -> Result<Seen, StoreError> {
        let fetched = match plan(source, orders.window.looked_at(now), orders.cadences, now) {
            Plan::Disabled => return Ok(Seen::Disabled),
            Plan::NotDue { due_at } => return Ok(Seen::NotDue(due_at)),
            Plan::Fetch { warning } => return Ok(Seen::Due(warning)),
            Plan::Held { until, why } => self.held(source, until, &why),
            Plan::Invalid { error } => self.invalid(source, &error),
        };
        self.end(asking, orders.window, now, &fetched).await?;
        Ok(Seen::Ended(fetched))
    }

    /// Asks a source in a task of its own: it is left in any case, also when nobody waits for the run any more. What is on
    /// the wire then is finished.
    fn spawn_asking(
        &self,
        id: SourceId,
        orders: &Orders,
        turn: Turn,
        tell: impl FnOnce((Source, Seen)) + Send + 'static,
    ) -> JoinHandle<Result<(), StoreError>> {
        let (pipeline, orders) = (self.clone(), orders.clone());
        tokio::spawn(async move {
            if let Some(seen) = pipeline.ask_source(id, &orders, turn).await? {
                tell(seen);
            }
            Ok(())
        })
    }

    /// Asks a source when its turn came, unless another process does, or did meanwhile.
    async fn ask_source(
        &self,
        id: SourceId,
        orders: &Orders,
        turn: Turn,
    ) -> Result<Option<(Source, Seen)>, StoreError> {
        let Some(holder) = self.0.gate.holder() else { return Err(StoreError::Closed) };
        let now = self.0.gate.clock().now();
        let (source, asking) = match self.0.store.claim_source(id, holder, now).await? {
            SourceClaim::Ours(source, asking) => (*source, asking),
            SourceClaim::Taken | SourceClaim::Missing => return Ok(None),
        };
        let seen = match self.ask_claimed(&source, asking, orders, turn).await {
            // This process was silent for too long: whoever claims the source next says what comes of it.
            Err(StoreError::Lost) => {
                tracing::warn!(source = id.0, name = source.name, "another process took this source over");
                None
            }
            seen => seen?,
        };
        self.0.store.leave_source(asking).await?;
        Ok(seen.map(|seen| (source, seen)))
    }

    async fn ask_claimed(
        &self,
        source: &Source,
        asking: Asking,
        orders: &Orders,
        turn: Turn,
    ) -> Result<Option<Seen>, StoreError> {
        match self.look(source, asking, orders, self.0.gate.clock().now()).await? {
            Seen::Due(warning) => {
                if let Some(warning) = warning {
                    tracing::warn!(source = source.id.0, name = source.name, "{warning}");
                }
                Ok(self.fetch(source, asking, orders.window, turn).await?.map(Seen::Ended))
            }
            seen => Ok(Some(seen)),
        }
    }

    /// Whose pace a URL goes by: sources of one domain are asked one after the other (B66).
    fn pace_of(&self, url: &str) -> String {
        let host = Url::parse(url).ok().and_then(|url| Domain::of(&url));
        host.map_or_else(String::new, |host| self.0.gate.rules().domain(&host).as_str().to_owned())
    }

    async fn ask_hosts(
        &self,
        hosts: BTreeMap<String, Vec<SourceId>>,
        orders: &Orders,
        report: &mut Report,
        listener: &dyn RunListener,
    ) -> Result<(), StoreError> {
        let mut asking: JoinSet<Result<(), StoreError>> = JoinSet::new();
        let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
        for sources in hosts.into_values() {
            let (pipeline, sender, orders) = (self.clone(), sender.clone(), orders.clone());
            asking.spawn(async move {
                let mut asking = Vec::new();
                for id in sources {
                    if pipeline.is_stopping() {
                        break;
                    }
                    let (turn, ended) = oneshot::channel();
                    let sender = sender.clone();
                    asking.push(
                        pipeline.spawn_asking(id, &orders, turn, move |asked| drop(sender.send(asked))),
                    );
                    let _ = ended.await;
                }
                for asking in asking {
                    asking.await.unwrap_or(Err(StoreError::Closed))?;
                }
                Ok(())
            });
        }
        drop(sender);
        while let Some((source, seen)) = asked.recv().await {
            let fetched = match seen {
                Seen::Ended(fetched) => fetched,
                Seen::NotDue(due_at) => {
                    report.note(&source, SourceEnd::NotDue { due_at });
                    continue;
                }
                Seen::Due(_) | Seen::Disabled => continue,
            };
            let kept = fetched.kept;
            listener.asked(report.take(&source, fetched));
            if orders.scraping == Scraping::On {
                let counts = match source.scraping && source.auto_scrape {
                    true => self.enqueue_found(source.id).await?,
                    // Nobody asked for them to be scraped, which is a refusal too (B56).
                    false => Counts { refused: kept.new, ..Counts::default() },
                };
                report.items.add(counts);
            }
        }
        all(asking).await
    }
}

async fn all(mut asking: JoinSet<Result<(), StoreError>>) -> Result<(), StoreError> {
    while let Some(joined) = asking.join_next().await {
        joined.unwrap_or(Err(StoreError::Closed))?;
    }
    Ok(())
}

/// The sources of one domain are asked one after the other: the next when this is dropped.
type Turn = oneshot::Sender<()>;

impl Report {
    /// A run that did nothing yet.
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
            items: Counts::default(),
            notes: Vec::new(),
        }
    }

    /// Counts what became of a source.
    fn take(&mut self, source: &Source, fetched: Fetched) -> &Note {
        self.new += fetched.kept.new;
        self.changed += fetched.kept.changed;
        let Fetched { result, found, kept, error, .. } = fetched;
        let outcome = match result {
            FetchResult::Read { moved_to, .. } => SourceEnd::Fetched {
                found,
                new: kept.new,
                changed: kept.changed,
                problem: error,
                moved_to: moved_to.map(|(url, _)| url),
            },
            FetchResult::Held { until } => SourceEnd::Held { until, why: error.unwrap_or_default() },
            FetchResult::Failed { retry_at } => {
                SourceEnd::Failed { error: error.unwrap_or_default(), retry_at: Some(retry_at) }
            }
            FetchResult::Gone => SourceEnd::Failed { error: error.unwrap_or_default(), retry_at: None },
        };
        self.note(source, outcome);
        &self.notes[self.notes.len() - 1]
    }

    fn note(&mut self, source: &Source, outcome: SourceEnd) {
        match &outcome {
            SourceEnd::NotDue { .. } => self.not_due += 1,
            SourceEnd::Fetched { problem: None, .. } => self.fetched += 1,
            SourceEnd::Fetched { problem: Some(_), .. } => self.partial += 1,
            SourceEnd::Held { .. } => self.held += 1,
            SourceEnd::Failed { .. } => self.failed += 1,
        }
        self.due += u64::from(!matches!(outcome, SourceEnd::NotDue { .. }));
        self.notes.push(Note { source: source.id, name: source.name.clone(), outcome });
    }
}

/// The requests for sources take their room as those of a job do. No job of a store has this number.
const ASKING: JobId = JobId(0);
