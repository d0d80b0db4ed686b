//! A process that follows one source and scrapes its items, and describes what it sees in short sentences.

use comity_core::domain::Domain;
use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::interval::SourceInterval;
use comity_core::task::{JobId, TaskId};
use comity_core::time::{Span, Timestamp};
use comity_store::details::Details;
use comity_store::domains::{HolderId, Tenure};
use comity_store::items::{
    Item, ItemId, ItemQuery, LogId, Order, ScrapeLog, ScrapeRequest, ScrapeTerms, Start, StartStep, Started,
};
use comity_store::sources::{
    Changed, FetchEnd, ItemChanges, Kind, NewItem, NewSource, SourceChange, SourceClaim, SourceId,
    SourceTenure,
};
use comity_store::tasks::{Attempt, Claim, Lead, Settle, Settled, Step, TaskRow};
use comity_store::{LEASE, Store};
use serde_json::Map;

use crate::backend::Backend;
use crate::process::{Process, at, done};

/// A process that holds `a.example`, the domain of its source's items.
pub struct Follower {
    /// The process.
    pub one: Process,
    /// Its tenure on `a.example`.
    pub tenure: Tenure,
    /// The source it follows.
    pub source: SourceId,
    /// The items of that source. Tests refer to them by index.
    pub items: Vec<ItemId>,
    /// The scrape job.
    pub job: JobId,
}

impl Follower {
    /// Follows a source with this interval and number of items.
    pub async fn start(backend: &dyn Backend, interval: SourceInterval, items: usize) -> Self {
        let one = Process::start(backend, "one", at(0)).await;
        let tenure = one.taken("a.example", at(0)).await.tenure;
        let feed = NewSource { interval, ..feed("https://feeds.example/a") };
        let source = one.store.add_source(feed, at(0)).await.unwrap().0.id;
        let urls: Vec<String> = (0..items).map(|nth| format!("https://a.example/{nth}")).collect();
        let items = keep(&*one.store, source, &urls).await;
        let job = one.store.scrape_job(at(0)).await.unwrap().id;
        Self { one, tenure, source, items, job }
    }

    /// A source with four items, and a task for the first one that is ready from 0 on.
    pub async fn enqueued(backend: &dyn Backend, interval: SourceInterval) -> (Self, TaskId) {
        let one = Self::start(backend, interval, 4).await;
        assert_eq!(one.enqueue(&[0], at(0)).await, "enqueued");
        let task = one.task(0, at(0)).await;
        (one, task)
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.one.store
    }

    /// Enqueues these items manually, and describes the result of each.
    pub async fn enqueue(&self, items: &[usize], now: Timestamp) -> String {
        let ids: Vec<ItemId> = items.iter().map(|nth| self.items[*nth]).collect();
        self.enqueue_with(&ids, Trigger::Manual, ScrapeTerms::default(), now).await
    }

    /// Enqueues items on these terms, and describes the result of each.
    pub async fn enqueue_with(
        &self,
        items: &[ItemId],
        trigger: Trigger,
        terms: ScrapeTerms,
        now: Timestamp,
    ) -> String {
        let requests = items.iter().map(|item| scrape_request(*item, "a.example")).collect();
        let enqueued = self.store().enqueue_items(self.job, requests, trigger, terms, now).await.unwrap();
        assert_eq!(enqueued.len(), items.len());
        enqueued.iter().map(describe_enqueued).collect::<Vec<_>>().join(" | ")
    }

    /// The tasks that can be claimed now. Their lanes are given back at once.
    pub async fn ready(&self, now: Timestamp) -> Vec<TaskRow> {
        let claim = Claim { job: self.job, lanes: 100, tasks: 200 };
        let lanes = self.store().claim(self.one.holder, claim, now).await.unwrap();
        let parked = lanes.iter().map(|lane| (lane.lane, now)).collect();
        self.store().park(self.one.holder, parked).await.unwrap();
        lanes.into_iter().flat_map(|lane| lane.tasks).filter(|task| task.ready_at <= now).collect()
    }

    /// The indexes of the items whose tasks are ready now: `0 2`.
    pub async fn ready_items(&self, now: Timestamp) -> String {
        let tasks = self.ready(now).await;
        let place = |task: &TaskRow| {
            let (item, source) = task.scrapes.expect("a task of an item");
            assert_eq!(source, self.source);
            self.items.iter().position(|known| *known == item).unwrap().to_string()
        };
        tasks.iter().map(place).collect::<Vec<_>>().join(" ")
    }

    /// The task of an item, which must be ready.
    pub async fn task(&self, nth: usize, now: Timestamp) -> TaskId {
        let tasks = self.ready(now).await;
        let of_item = tasks.iter().find(|task| task.scrapes == Some((self.items[nth], self.source)));
        of_item.unwrap_or_else(|| panic!("no task of item {nth} is ready: {tasks:?}")).id
    }

    /// A request to start a task, without patience and with no interval other than its source's.
    pub fn wants(&self, task: TaskId, step: StartStep) -> Start {
        Start { task, tenure: self.tenure, interval: None, patience: Span::ZERO, step }
    }

    /// Tries to start a task.
    pub async fn try_start(&self, start: Start, now: Timestamp) -> Started {
        self.store().start_scrape(self.one.holder, start, now).await.unwrap()
    }

    /// Asks whether a task may join the queue, and describes the answer.
    pub async fn ask(&self, task: TaskId, now: Timestamp) -> String {
        describe_started(&self.try_start(self.wants(task, StartStep::Ask), now).await)
    }

    /// Starts a scrape, and describes the answer.
    pub async fn begin(&self, task: TaskId, now: Timestamp) -> String {
        describe_started(&self.try_start(self.wants(task, StartStep::Begin), now).await)
    }

    /// Starts a scrape, which must succeed.
    pub async fn begun(&self, task: TaskId, now: Timestamp) -> LogId {
        match self.try_start(self.wants(task, StartStep::Begin), now).await {
            Started::Begun(log) => log,
            other => panic!("expected it to start, got {other:?}"),
        }
    }

    /// Settles a task without attempts.
    pub async fn settle(&self, task: TaskId, step: Step, now: Timestamp) {
        self.settle_with(task, Vec::new(), step, now).await;
    }

    /// Settles a task with its attempts.
    pub async fn settle_with(&self, task: TaskId, attempts: Vec<Attempt>, step: Step, now: Timestamp) {
        let settle = Settle {
            task,
            job: self.job,
            tenure: self.tenure,
            attempts,
            url_key: None,
            robots: None,
            facts: Default::default(),
            step,
        };
        let settled = self.store().settle(self.one.holder, [settle].into(), now).await.unwrap();
        assert_eq!(settled, [Settled::Yes]);
    }

    /// Enqueues an item and scrapes it at once.
    pub async fn scrape(&self, nth: usize, now: Timestamp) {
        assert_eq!(self.enqueue(&[nth], now).await, "enqueued");
        let task = self.task(nth, now).await;
        self.begun(task, now).await;
        self.settle(task, done(), now).await;
    }

    /// Changes the source.
    pub async fn change(&self, change: SourceChange) {
        let changed = self.store().change_source(self.source, change).await.unwrap();
        assert!(matches!(changed, Changed::Yes(_)), "{changed:?}");
    }

    /// An item as it is now.
    pub async fn item(&self, nth: usize) -> Item {
        self.store().find_item(self.items[nth]).await.unwrap().unwrap()
    }

    /// The state of an item: `waiting until 13.2`.
    pub async fn state(&self, nth: usize) -> String {
        let item = self.item(nth).await;
        let wake = item.wake_at.map(|wake| format!(" until {}", secs(wake)));
        format!("{}{}", item.state.as_str(), wake.unwrap_or_default())
    }

    /// The scrapes of an item, oldest first: `10 failed at 11 (status 500) | 20 running`.
    pub async fn logs(&self, nth: usize) -> String {
        let mut logs = self.store().list_scrapes(self.items[nth], 100).await.unwrap();
        assert!(logs.iter().all(|log| log.item == self.items[nth]));
        logs.reverse();
        logs.iter().map(describe_log).collect::<Vec<_>>().join(" | ")
    }
}

/// A feed to add, without its own interval.
pub fn feed(url: &str) -> NewSource {
    NewSource {
        name: "a feed".to_owned(),
        kind: Kind::Feed,
        url: url.to_owned(),
        lead: Lead::Listed,
        enabled: true,
        scraping: true,
        auto_scrape: true,
        interval: SourceInterval::Default,
        config: Map::new(),
    }
}

/// An item to save.
pub fn page(url: &str) -> NewItem {
    NewItem {
        identity: url.to_owned(),
        url: url.to_owned(),
        lead: Lead::Remote,
        title: None,
        published_at: None,
        content_hash: 1,
        details: Details::default(),
        page_key: None,
        wants_hook: false,
    }
}

/// An item to enqueue.
pub fn scrape_request(item: ItemId, domain: &str) -> ScrapeRequest {
    ScrapeRequest { item, domain: Domain::parse(domain).unwrap() }
}

/// A source's own interval, in milliseconds.
pub fn every(millis: u64) -> SourceInterval {
    SourceInterval::Every(Span::from_millis(millis))
}

/// Saves new items with these URLs, and returns their ids in that order.
pub async fn keep(store: &dyn Store, source: SourceId, urls: &[String]) -> Vec<ItemId> {
    let kept = found(store, source, urls.iter().map(|url| page(url)).collect(), at(0)).await;
    assert_eq!(kept.new as usize, urls.len());
    let all = ItemQuery {
        source: Some(source),
        order: Order::After(ItemId(0)),
        limit: u32::MAX,
        ..Default::default()
    };
    let items = store.list_items(all).await.unwrap();
    let number = |url: &String| items.iter().find(|item| item.url == *url).unwrap().id;
    urls.iter().map(number).collect()
}

/// Saves items as a process that fetches their source does.
pub async fn found(store: &dyn Store, source: SourceId, items: Vec<NewItem>, now: Timestamp) -> ItemChanges {
    let tenure = claimed(store, source).await;
    let kept = store.keep_items(tenure, items, now).await.unwrap();
    store.deregister(tenure.holder, now).await.unwrap();
    kept
}

/// Records how a fetch ended, as a process that fetched the source does.
pub async fn ended(store: &dyn Store, end: FetchEnd) -> bool {
    let tenure = claimed(store, end.tenure.source).await;
    let moved = store.end_fetch(FetchEnd { tenure, ..end }).await.unwrap();
    store.deregister(tenure.holder, at(0)).await.unwrap();
    moved
}

/// Claims a source for a process that does nothing else.
async fn claimed(store: &dyn Store, source: SourceId) -> SourceTenure {
    let holder = store.register("asks".to_owned(), at(0)).await.unwrap();
    // A process killed while exiting, after its lock file and before its row was removed, is known to be gone a lease
    // later.
    for now in [at(0), at(0) + LEASE] {
        match store.claim_source(source, holder, now).await.unwrap() {
            SourceClaim::Ours(_, tenure) => return tenure,
            SourceClaim::Missing => return SourceTenure { holder, ..unclaimed(source) },
            SourceClaim::Taken => {}
        }
    }
    panic!("somebody else has claimed it");
}

/// A claim that is not valid.
pub fn unclaimed(source: SourceId) -> SourceTenure {
    SourceTenure { source, holder: HolderId(0), epoch: 0 }
}

/// Seconds on the virtual clock.
pub fn secs(moment: Timestamp) -> f64 {
    (moment.as_micros() - at(0).as_micros()) as f64 / 1e6
}

/// Describes the result of enqueueing an item: `wait 3 until 13.2`.
pub fn describe_enqueued(enqueued: &Enqueued) -> String {
    match enqueued {
        Enqueued::Enqueued => "enqueued".to_owned(),
        Enqueued::Already => "already".to_owned(),
        Enqueued::Deferred(deferred) => {
            format!("wait {} until {}", deferred.wait_seconds, secs(deferred.wake_at))
        }
        Enqueued::Refused(refusal) => format!("refused: {refusal}"),
    }
}

/// Describes the answer to a task that wants to start.
pub fn describe_started(started: &Started) -> String {
    match started {
        Started::MayJoin => "may join".to_owned(),
        Started::Begun(_) => "begun".to_owned(),
        Started::Continues(_) => "continues".to_owned(),
        Started::Soon(at) => format!("soon at {}", secs(*at)),
        Started::Deferred(deferred) => describe_enqueued(&Enqueued::Deferred(*deferred)),
        Started::Gone(why) => format!("gone: {why}"),
        Started::Fenced => "fenced".to_owned(),
    }
}

fn describe_log(log: &ScrapeLog) -> String {
    let mut text = format!("{} {}", secs(log.started_at), log.status);
    if let Some(ended_at) = log.ended_at {
        text += &format!(" at {}", secs(ended_at));
    }
    if let Some(status) = log.http_status {
        text += &format!(" {status}");
    }
    if let Some(bytes) = log.bytes {
        text += &format!(" {bytes} bytes");
    }
    if let Some(error) = &log.error {
        text += &format!(" ({error})");
    }
    text
}
