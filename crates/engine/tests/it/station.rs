//! A process that follows sources, and test feeds, for the tests of runs and scrapes.

use std::sync::{Arc, Mutex};

use comity::archive::Archive;
use comity::client;
use comity::clock::Clock;
use comity::event::{self, Event, Events, TaskEvent};
use comity::gate::{CloseMode, Gate};
use comity::jobs::StopReason;
use comity::pipeline::{
    Cadences, Pipeline, RunListener, RunOptions, RunReport, Scraping, SourceOutcome, SourceReport,
};
use comity::store::Store;
use comity::store::details::Details;
use comity::store::items::{Item, ItemId, ItemQuery, Order, ScrapeLog};
use comity::store::jobs::Job;
use comity::store::sources::{
    FetchRun, Kind, NewItem, NewSource, Source, SourceChange, SourceClaim, SourceId, SourceTenure,
};
use comity::store::tasks::Lead;
use comity_core::cadence::RunWindow;
use comity_core::enqueue::Enqueued;
use comity_core::interval::{Deferred, SourceInterval};
use comity_core::time::{Span, Timestamp};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::client::{LOOPBACK, QUICK};
use crate::support::{config, soon};

/// A process: a gate and a pipeline on a store.
pub(crate) struct Station {
    pub(crate) pipeline: Pipeline,
    pub(crate) gate: Gate,
    pub(crate) store: Arc<dyn Store>,
    deferrals: Arc<Deferrals>,
}

/// A fast configuration for loopback with `more`: first keys of a rule, then other tables.
pub(crate) fn quick(more: &str) -> String {
    format!("{QUICK}{more}{LOOPBACK}")
}

/// The same without a delay between requests, for a clock that stands still.
pub(crate) fn still(more: &str) -> String {
    quick(more).replace("min_delay = \"10ms\"", "min_delay = \"0s\"")
}

/// The same with an interval between scrapes of a source.
pub(crate) fn every(seconds: &str, more: &str) -> String {
    quick(&format!("{more}[scrape]\nmin_interval = {seconds}\n"))
}

pub(crate) fn memory() -> Arc<dyn Store> {
    comity::store::open("memory:").unwrap()
}

impl Station {
    pub(crate) async fn start(toml: &str) -> Self {
        Self::with(toml, memory(), Clock::new()).await
    }

    /// A process whose clock stands still, so that what it does depends on nothing else.
    pub(crate) async fn at(toml: &str, store: &Arc<dyn Store>, now: Timestamp) -> Self {
        Self::with(toml, store.clone(), Clock::manual(now).0).await
    }

    pub(crate) async fn with(toml: &str, store: Arc<dyn Store>, clock: Clock) -> Self {
        let config = config(toml);
        let (events, deferrals) = (Events::new(), Arc::new(Deferrals::default()));
        events.listen(deferrals.clone());
        let rules = config.rules().clone();
        let gate = Gate::with_store(rules, clock, events, store.clone(), "a station").await.unwrap();
        let transport = client::transport(&config).unwrap();
        let pipeline =
            Pipeline::new(config, gate.clone(), store.clone(), transport, Archive::Nothing).await.unwrap();
        Self { pipeline, gate, store, deferrals }
    }

    /// Another pipeline of this process, as its next command would create.
    pub(crate) async fn again(&self, toml: &str) -> Self {
        let (config, store, gate) = (config(toml), self.store.clone(), self.gate.clone());
        let transport = client::transport(&config).unwrap();
        let pipeline =
            Pipeline::new(config, gate.clone(), store.clone(), transport, Archive::Nothing).await.unwrap();
        Self { pipeline, gate, store, deferrals: self.deferrals.clone() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.gate.clock().now()
    }

    pub(crate) async fn close(self) {
        self.gate.close(CloseMode::Stop).await.unwrap();
    }

    // Sources.

    pub(crate) async fn follow(&self, url: &str) -> SourceId {
        self.follow_as(url, Kind::Feed, SourceInterval::Default, json!({})).await
    }

    pub(crate) async fn follow_as(
        &self,
        url: &str,
        kind: Kind,
        interval: SourceInterval,
        config: Value,
    ) -> SourceId {
        let Value::Object(config) = config else { panic!("{config} is not an object") };
        let source = NewSource {
            name: url.to_owned(),
            kind,
            url: url.to_owned(),
            lead: Lead::Listed,
            enabled: true,
            scraping: true,
            auto_scrape: true,
            interval,
            config,
        };
        let (source, added) = self.store.add_source(source, self.now()).await.unwrap();
        assert!(added, "{url} already exists");
        source.id
    }

    pub(crate) async fn source(&self, id: SourceId) -> Source {
        self.store.find_source(id).await.unwrap().unwrap()
    }

    pub(crate) async fn cursor(&self, id: SourceId) -> Map<String, Value> {
        serde_json::from_str(&self.source(id).await.cursor_json).unwrap()
    }

    pub(crate) async fn change(&self, id: SourceId, change: SourceChange) {
        self.store.change_source(id, change).await.unwrap();
    }

    /// The fetches of a source, the last first.
    pub(crate) async fn fetches(&self, id: SourceId) -> Vec<FetchRun> {
        self.store.list_fetches(id, 100).await.unwrap()
    }

    // Runs.

    pub(crate) fn run_options(&self) -> RunOptions {
        self.run_options_until(self.now())
    }

    pub(crate) fn run_options_until(&self, end: Timestamp) -> RunOptions {
        let window = RunWindow::ending(end, self.now()).unwrap();
        RunOptions { window, sources: None, cadences: Cadences::Respected, scraping: Scraping::Off }
    }

    /// One run of all sources; nothing is scraped.
    pub(crate) async fn run(&self) -> RunReport {
        self.run_as(&self.run_options()).await
    }

    pub(crate) async fn run_as(&self, options: &RunOptions) -> RunReport {
        soon("the run", self.pipeline.run(options, &Silent)).await.unwrap()
    }

    /// Claims a source as another process.
    pub(crate) async fn claimed(&self, source: SourceId) -> SourceTenure {
        let another = self.store.register("another".to_owned(), self.now()).await.unwrap();
        match self.store.claim_source(source, another, self.now()).await.unwrap() {
            SourceClaim::Ours(_, asking) => asking,
            other => panic!("{other:?}"),
        }
    }

    // Items.

    /// Adds items with these URLs, as a fetch would.
    pub(crate) async fn found(&self, source: SourceId, urls: &[String]) -> Vec<ItemId> {
        let items = urls.iter().map(|url| NewItem {
            identity: format!("link:{url}"),
            url: url.clone(),
            lead: Lead::Remote,
            title: None,
            published_at: None,
            content_hash: 1,
            details: Details::default(),
            page_key: None,
            wants_hook: false,
        });
        let asking = self.claimed(source).await;
        let kept = self.store.keep_items(asking, items.collect(), self.now()).await.unwrap();
        self.store.leave_source(asking).await.unwrap();
        assert_eq!(kept.new, urls.len() as u64);
        let items = self.items(source).await;
        items[items.len() - urls.len()..].iter().map(|item| item.id).collect()
    }

    /// The items of a source, in the order they were found.
    pub(crate) async fn items(&self, source: SourceId) -> Vec<Item> {
        let items = ItemQuery {
            source: Some(source),
            state: None,
            order: Order::After(ItemId(0)),
            limit: 1_000,
            ..ItemQuery::default()
        };
        self.store.list_items(items).await.unwrap()
    }

    pub(crate) async fn item(&self, id: ItemId) -> Item {
        self.store.find_item(id).await.unwrap().unwrap()
    }

    /// The states of a source's items, in the order they were found.
    pub(crate) async fn states(&self, source: SourceId) -> String {
        let states: Vec<_> =
            self.items(source).await.into_iter().map(|item| item.state.as_str().to_owned()).collect();
        states.join(" ")
    }

    /// The scrapes of an item, the first first.
    pub(crate) async fn scrapes(&self, id: ItemId) -> Vec<ScrapeLog> {
        let mut scrapes = self.store.list_scrapes(id, 100).await.unwrap();
        scrapes.reverse();
        scrapes
    }

    /// The results of the scrapes of an item, the first one first.
    pub(crate) async fn scraped(&self, id: ItemId) -> String {
        let scrapes = self.scrapes(id).await;
        scrapes.into_iter().map(|scrape| scrape.status).collect::<Vec<_>>().join(" ")
    }

    pub(crate) async fn enqueue(&self, items: &[ItemId]) -> Vec<Enqueued> {
        let enqueued = self.pipeline.enqueue(items.to_vec()).await.unwrap();
        enqueued.results.into_iter().map(|(_, result)| result).collect()
    }

    /// Scrapes until nothing is left.
    pub(crate) async fn scrape(&self) -> StopReason {
        soon("the scrapes", self.pipeline.pool().run()).await.unwrap()
    }

    /// Scrapes in the background.
    pub(crate) fn scraping(&self) -> tokio::task::JoinHandle<StopReason> {
        let pool = self.pipeline.pool().clone();
        tokio::spawn(async move { pool.run().await.unwrap() })
    }

    pub(crate) async fn job(&self) -> Job {
        self.store.find_job(self.pipeline.job().name.clone()).await.unwrap().unwrap()
    }

    /// The scrapes that this process deferred, in order.
    pub(crate) fn deferrals(&self) -> Vec<Deferred> {
        self.deferrals.0.lock().unwrap().clone()
    }
}

/// A store on disk that several processes open.
pub(crate) struct DiskStore(TempDir);

impl DiskStore {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        comity::store::open(&format!("sqlite:{}", self.0.path().join("comity.db").display())).unwrap()
    }

    /// The database, for what another program would write.
    pub(crate) fn sql(&self) -> rusqlite::Connection {
        let sql = rusqlite::Connection::open(self.0.path().join("comity.db")).unwrap();
        sql.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        sql
    }

    pub(crate) async fn process(&self, toml: &str) -> Station {
        Station::with(toml, self.open(), Clock::new()).await
    }
}

/// The outcome of the only source of a run.
pub(crate) fn only(report: &RunReport) -> &SourceOutcome {
    let [SourceReport { outcome, .. }] = &report.sources[..] else { panic!("{:?}", report.sources) };
    outcome
}

/// The outcome of one source of a run.
pub(crate) fn of(report: &RunReport, source: SourceId) -> &SourceOutcome {
    let note = report.sources.iter().find(|note| note.source == source);
    &note.unwrap_or_else(|| panic!("source {source}: {:?}", report.sources)).outcome
}

/// A fixed noon, for tests on a clock that stands still.
pub(crate) fn noon() -> Timestamp {
    Timestamp::parse("2026-11-15T12:00:00Z").unwrap()
}

pub(crate) fn mins(minutes: u64) -> Span {
    Span::from_mins(minutes)
}

/// A cadence of this many minutes.
pub(crate) fn cadence(minutes: u64) -> Value {
    json!({ "cadence": { "mode": "interval", "every_minutes": minutes } })
}

/// A feed with these links, and `more` in its header.
pub(crate) fn rss(more: &str, links: &[&str]) -> String {
    let items: String = links
        .iter()
        .map(|link| format!("<item><guid isPermaLink='false'>{link}</guid><link>{link}</link></item>"))
        .collect();
    format!("<rss version='2.0'><channel><title>News</title>{more}{items}</channel></rss>")
}

/// Ignores all events of a run.
pub(crate) struct Silent;

impl RunListener for Silent {}

/// Collects deferred scrapes.
#[derive(Default)]
struct Deferrals(Mutex<Vec<Deferred>>);

impl event::Listener for Deferrals {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Task { step: TaskEvent::Deferred { deferred }, .. } = event {
            self.0.lock().unwrap().push(**deferred);
        }
    }
}
