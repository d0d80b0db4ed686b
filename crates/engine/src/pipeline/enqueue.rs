//! Enqueues items as tasks of the scrape job, unless a limit or setting refuses it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use comity_core::domain::Domain;
use comity_core::enqueue::{Enqueued, Refusal, Trigger};
use comity_core::interval::Deferred;
use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::items::{Item, ItemId, ItemQuery, ItemState, Order, ScrapeRequest, SourceScope};
use comity_store::sources::SourceId;
use url::Url;

use super::{Pipeline, RunOptions};
use crate::event::{self, Event, Events, TaskEvent};

/// The results of enqueuing items, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnqueueCounts {
    /// Items that were enqueued and are ready.
    pub enqueued: u64,
    /// Items that were enqueued already.
    pub already: u64,
    /// Items that were enqueued for later.
    pub deferred: u64,
    /// Items that were refused.
    pub refused: u64,
}

/// The result of enqueuing items manually.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManualEnqueue {
    /// The items with their results.
    pub results: Vec<(ItemId, Enqueued)>,
    /// The limit because of which some items are missing from `results`.
    pub limit_reached: Option<LimitReached>,
}

/// Why items were left for another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// The batch is full.
    Batch,
    /// A source has the maximum number of items waiting or running.
    InFlight,
}

/// An item to enqueue.
struct Asked {
    item: ItemId,
    /// `None` if the item doesn't exist.
    source: Option<SourceId>,
    url: String,
}

impl From<Item> for Asked {
    fn from(item: Item) -> Self {
        Self { item: item.id, source: Some(item.source), url: item.url }
    }
}

/// The items of each source that were deferred: how many, the first of them, and when the last one will run.
#[derive(Default)]
struct Deferrals(BTreeMap<SourceId, (u64, Deferred, Timestamp)>);

impl EnqueueCounts {
    /// Counts one result.
    pub fn count(&mut self, result: &Enqueued) {
        match result {
            Enqueued::Enqueued => self.enqueued += 1,
            Enqueued::Already => self.already += 1,
            Enqueued::Deferred(_) => self.deferred += 1,
            Enqueued::Refused(_) => self.refused += 1,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.enqueued += other.enqueued;
        self.already += other.already;
        self.deferred += other.deferred;
        self.refused += other.refused;
    }
}

impl Pipeline {
    /// Enqueues these items manually.
    pub async fn enqueue(&self, items: Vec<ItemId>) -> Result<ManualEnqueue, StoreError> {
        let mut asked = Vec::with_capacity(items.len());
        for id in items {
            let missing = Asked { item: id, source: None, url: String::new() };
            asked.push(self.0.store.find_item(id).await?.map_or(missing, Asked::from));
        }
        let mut deferrals = Deferrals::default();
        let results = self.enqueue_all(&asked, Trigger::Manual, &mut deferrals).await?;
        deferrals.emit(self.0.gate.events());
        Ok(ManualEnqueue { results, limit_reached: None })
    }

    /// Manually enqueues items that were not scraped or failed, of one source or of all, up to the batch size.
    pub async fn enqueue_unscraped(&self, source: Option<SourceId>) -> Result<ManualEnqueue, StoreError> {
        let limit = self.0.batch_max;
        let mut items: Vec<Item> = Vec::new();
        let orders = [(ItemState::None, Order::After(ItemId(0))), (ItemState::Failed, Order::LeastTried)];
        for (state, order) in orders {
            let more = limit + 1 - (items.len() as u32).min(limit + 1);
            // Items of a source that may not be scraped would block the others forever.
            let sources = if source.is_some() { SourceScope::Any } else { SourceScope::Scrapable };
            let page =
                ItemQuery { source, state: Some(state), sources, order, limit: more, ..ItemQuery::default() };
            items.extend(self.0.store.list_items(page).await?);
        }
        let mut limit_reached = (items.len() > limit as usize).then_some(LimitReached::Batch);
        items.truncate(limit as usize);
        let of: HashMap<ItemId, SourceId> = items.iter().map(|item| (item.id, item.source)).collect();
        let asked: Vec<_> = items.into_iter().map(Asked::from).collect();
        let mut deferrals = Deferrals::default();
        let mut results = self.enqueue_all(&asked, Trigger::Manual, &mut deferrals).await?;
        deferrals.emit(self.0.gate.events());
        // Report only once per source that it is full.
        let mut full: HashSet<SourceId> = HashSet::new();
        let mut is_first =
            |(item, result): &(ItemId, Enqueued)| match of.get(item).filter(|_| is_full(result)) {
                Some(source) => full.insert(*source),
                None => true,
            };
        results.retain(|result| is_first(result));
        if !full.is_empty() {
            limit_reached = Some(LimitReached::InFlight);
        }
        Ok(ManualEnqueue { results, limit_reached })
    }

    /// Enqueues the items of a source that were not enqueued yet.
    pub(super) async fn enqueue_found(&self, source: SourceId) -> Result<EnqueueCounts, StoreError> {
        let mut deferrals = Deferrals::default();
        let counts = self.enqueue_pages(source, &mut deferrals).await;
        deferrals.emit(self.0.gate.events());
        counts
    }

    async fn enqueue_pages(
        &self,
        source: SourceId,
        deferrals: &mut Deferrals,
    ) -> Result<EnqueueCounts, StoreError> {
        let mut counts = EnqueueCounts::default();
        let mut after = ItemId(0);
        loop {
            let page = ItemQuery {
                source: Some(source),
                state: Some(ItemState::None),
                order: Order::After(after),
                limit: BATCH,
                ..ItemQuery::default()
            };
            let items = self.0.store.list_items(page).await?;
            let Some(last) = items.last() else { return Ok(counts) };
            after = last.id;
            let asked: Vec<_> = items.into_iter().map(Asked::from).collect();
            let results = self.enqueue_all(&asked, Trigger::Automatic, deferrals).await?;
            for (_, result) in &results {
                counts.count(result);
                // The items after it would be refused for the same reason.
                if is_full(result) {
                    return Ok(counts);
                }
            }
        }
    }

    /// Enqueues items that earlier runs found but did not enqueue, or had no room for.
    pub async fn enqueue_pending(&self, options: &RunOptions) -> Result<EnqueueCounts, StoreError> {
        let mut counts = EnqueueCounts::default();
        for source in self.0.store.sources_with_unscraped().await? {
            if options.includes(source) {
                counts.add(self.enqueue_found(source).await?);
            }
        }
        Ok(counts)
    }

    /// Like [`Self::enqueue_pending`], but waits for room, until nothing is left or no running task would make room.
    pub async fn enqueue_all_pending(&self, options: &RunOptions) -> Result<EnqueueCounts, StoreError> {
        let mut all = EnqueueCounts::default();
        loop {
            let counts = self.enqueue_pending(options).await?;
            all.enqueued += counts.enqueued;
            all.deferred += counts.deferred;
            let job = self.0.store.find_job(self.0.job.name.clone()).await?;
            let waits = job.is_some_and(|job| job.counts.waiting() > 0);
            // Refused items are only waited for while there are tasks that will make room.
            if counts.refused == 0 || !waits {
                return Ok(all);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until no item of these sources is waiting or running.
    pub async fn until_scraped(&self, sources: &[SourceId]) -> Result<(), StoreError> {
        for source in sources {
            for state in [ItemState::Waiting, ItemState::Running] {
                let one =
                    ItemQuery { source: Some(*source), state: Some(state), limit: 1, ..ItemQuery::default() };
                while !self.0.store.list_items(one).await?.is_empty() {
                    tokio::time::sleep(POLL).await;
                }
            }
        }
        Ok(())
    }

    /// Enqueues items. Each deferral is emitted as an event, like that of a running task, and added to `deferrals`.
    async fn enqueue_all(
        &self,
        items: &[Asked],
        trigger: Trigger,
        deferrals: &mut Deferrals,
    ) -> Result<Vec<(ItemId, Enqueued)>, StoreError> {
        let mut results: Vec<(ItemId, Enqueued)> = Vec::with_capacity(items.len());
        for part in items.chunks(BATCH as usize) {
            let now = self.0.gate.clock().now();
            let requests = part.iter().map(|asked| self.scrape_request(asked.item, &asked.url)).collect();
            let enqueued =
                self.0.store.enqueue_items(self.0.job.id, requests, trigger, self.0.terms, now).await?;
            for (asked, result) in part.iter().zip(enqueued) {
                if let Enqueued::Deferred(deferred) = &result {
                    let step = TaskEvent::Deferred { deferred };
                    let url = &event::redacted_text(&asked.url);
                    self.0.gate.events().emit(&Event::Task { url, final_url: None, step });
                    deferrals.add(asked.source, deferred);
                }
                results.push((asked.item, result));
            }
            self.0.pool.poke();
        }
        Ok(results)
    }

    fn scrape_request(&self, item: ItemId, url: &str) -> ScrapeRequest {
        let host = Url::parse(url).ok().and_then(|url| Domain::of(&url));
        // A URL without a host fails when its turn comes; until then it needs some lane.
        let host = host.unwrap_or_else(|| self.0.placeholder.clone());
        ScrapeRequest { item, domain: self.0.gate.rules().domain(&host) }
    }
}

impl Deferrals {
    fn add(&mut self, source: Option<SourceId>, deferred: &Deferred) {
        let Some(source) = source else { return };
        let (items, _, last_at) = self.0.entry(source).or_insert((0, *deferred, deferred.wake_at));
        *items += 1;
        *last_at = (*last_at).max(deferred.wake_at);
    }

    /// Emits one event per source.
    fn emit(self, events: &Events) {
        for (source, (items, first, last_at)) in self.0 {
            events.emit(&Event::Deferred { source: source.0, items, first: &first, last_at });
        }
    }
}

/// Whether a source has no room for more.
fn is_full(result: &Enqueued) -> bool {
    matches!(result, Enqueued::Refused(Refusal::InFlightMax { .. }))
}

/// How often to check whether there is room, or nothing left.
const POLL: Duration = Duration::from_millis(500);
/// Items enqueued in one transaction.
const BATCH: u32 = 500;
