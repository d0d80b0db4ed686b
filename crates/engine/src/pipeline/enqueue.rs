//! Items become tasks of the scrape job, as far as B56 lets them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use comity_core::domain::Domain;
use comity_core::enqueue::{Asker, Enqueued, Refusal};
use comity_store::StoreError;
use comity_store::items::{Item, ItemId, ItemState, Items, Only, Order, Wish};
use comity_store::sources::SourceId;
use url::Url;

use super::{Orders, Pipeline};
use crate::event::{self, Event, TaskEvent};

/// How many of the items that were to be enqueued became what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks that are ready.
    pub enqueued: u64,
    /// Items that had a task already.
    pub already: u64,
    /// Tasks that are ready later.
    pub deferred: u64,
    /// Items that get none.
    pub refused: u64,
}

/// What became of items that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByHand {
    /// Each of them with what became of it.
    pub results: Vec<(ItemId, Enqueued)>,
    /// Why not all of them are there.
    pub left: Option<Left>,
}

/// Why items are left for another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The batch is full.
    Batch,
    /// As many items of a source wait or run as may.
    Full,
}

impl Counts {
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
    /// Enqueues these items, because somebody asks.
    pub async fn enqueue(&self, items: Vec<ItemId>) -> Result<ByHand, StoreError> {
        let mut asked = Vec::with_capacity(items.len());
        for id in items {
            let url = self.0.store.find_item(id).await?.map(|item| item.url);
            asked.push((id, url.unwrap_or_default()));
        }
        let results = self.enqueue_all(&asked, Asker::Manual).await?;
        Ok(ByHand { results, left: None })
    }

    /// Enqueues items that were not scraped, or failed, because somebody asks: those of one source, or of all. At
    /// most a batch of them (B57).
    pub async fn enqueue_unscraped(&self, source: Option<SourceId>) -> Result<ByHand, StoreError> {
        let limit = self.0.batch_max;
        let mut items: Vec<Item> = Vec::new();
        let orders = [(ItemState::None, Order::After(ItemId(0))), (ItemState::Failed, Order::LeastTried)];
        for (state, order) in orders {
            let more = limit + 1 - (items.len() as u32).min(limit + 1);
            // One that may not be scraped would stand before the others for ever.
            let only = if source.is_some() { Only::Any } else { Only::Scrapable };
            let page = Items { source, state: Some(state), only, order, limit: more, ..Items::default() };
            items.extend(self.0.store.list_items(page).await?);
        }
        let mut left = (items.len() > limit as usize).then_some(Left::Batch);
        items.truncate(limit as usize);
        let of: HashMap<ItemId, SourceId> = items.iter().map(|item| (item.id, item.source)).collect();
        let asked: Vec<_> = items.into_iter().map(|item| (item.id, item.url)).collect();
        let mut results = self.enqueue_all(&asked, Asker::Manual).await?;
        // A source that is full says so once.
        let mut full: HashSet<SourceId> = HashSet::new();
        let mut told_once =
            |(item, result): &(ItemId, Enqueued)| match of.get(item).filter(|_| is_full(result)) {
                Some(source) => full.insert(*source),
                None => true,
            };
        results.retain(|result| told_once(result));
        if !full.is_empty() {
            left = Some(Left::Full);
        }
        Ok(ByHand { results, left })
    }

    /// Enqueues what a run found in a source and was not enqueued yet.
    pub(super) async fn enqueue_found(&self, source: SourceId) -> Result<Counts, StoreError> {
        let mut counts = Counts::default();
        let mut after = ItemId(0);
        loop {
            let page = Items {
                source: Some(source),
                state: Some(ItemState::None),
                order: Order::After(after),
                limit: BATCH,
                ..Items::default()
            };
            let items = self.0.store.list_items(page).await?;
            let Some(last) = items.last() else { return Ok(counts) };
            after = last.id;
            let asked: Vec<_> = items.into_iter().map(|item| (item.id, item.url)).collect();
            let results = self.enqueue_all(&asked, Asker::Automatic).await?;
            for (_, result) in &results {
                counts.count(result);
                // Those behind are not asked about: they would hear the same.
                if is_full(result) {
                    return Ok(counts);
                }
            }
        }
    }

    /// Enqueues what earlier runs found and did not come to enqueue, or had no room for.
    pub async fn enqueue_left(&self, orders: &Orders) -> Result<Counts, StoreError> {
        let mut counts = Counts::default();
        for source in self.0.store.sources_with_unscraped().await? {
            if orders.wants(source) {
                counts.add(self.enqueue_found(source).await?);
            }
        }
        Ok(counts)
    }

    /// The same as there is room again, until nothing is left or nobody makes room.
    pub async fn enqueue_rest(&self, orders: &Orders) -> Result<Counts, StoreError> {
        let mut all = Counts::default();
        loop {
            let counts = self.enqueue_left(orders).await?;
            all.enqueued += counts.enqueued;
            all.deferred += counts.deferred;
            let job = self.0.store.find_job(self.0.job.name.clone()).await?;
            let waits = job.is_some_and(|job| job.counts.waiting() > 0);
            // Whoever is refused is not waited for when nothing is on its way that would make room.
            if counts.refused == 0 || !waits {
                return Ok(all);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until no item of these sources waits or runs.
    pub async fn until_scraped(&self, sources: &[SourceId]) -> Result<(), StoreError> {
        for source in sources {
            for state in [ItemState::Waiting, ItemState::Running] {
                let one = Items { source: Some(*source), state: Some(state), limit: 1, ..Items::default() };
                while !self.0.store.list_items(one).await?.is_empty() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
        Ok(())
    }

    /// Enqueues items, given with their URLs. Deferrals are reported as those of a running task are (B72, B73).
    async fn enqueue_all(
        &self,
        items: &[(ItemId, String)],
        asker: Asker,
    ) -> Result<Vec<(ItemId, Enqueued)>, StoreError> {
        let mut results: Vec<(ItemId, Enqueued)> = Vec::with_capacity(items.len());
        for part in items.chunks(BATCH as usize) {
            let now = self.0.gate.clock().now();
            let wishes = part.iter().map(|(id, url)| self.wish(*id, url)).collect();
            let enqueued =
                self.0.store.enqueue_items(self.0.job.id, wishes, asker, self.0.terms, now).await?;
            for ((id, url), result) in part.iter().zip(enqueued) {
                if let Enqueued::Deferred(deferred) = &result {
                    let step = TaskEvent::Deferred { deferred };
                    self.0.gate.events().tell(&Event::Task { url: &event::shown_text(url), step });
                }
                results.push((*id, result));
            }
            self.0.pool.poke();
        }
        Ok(results)
    }

    fn wish(&self, item: ItemId, url: &str) -> Wish {
        let host = Url::parse(url).ok().and_then(|url| Domain::of(&url));
        // What has no host is settled as failed when its turn comes; until then it needs some lane.
        let host = host.unwrap_or_else(|| self.0.nowhere.clone());
        Wish { item, domain: self.0.gate.rules().domain(&host) }
    }
}

/// Whether a source has no room for more.
fn is_full(result: &Enqueued) -> bool {
    matches!(result, Enqueued::Refused(Refusal::InFlightMax { .. }))
}

/// How often it is looked whether there is room, or nothing left.
const LOOK: Duration = Duration::from_millis(500);
/// Items enqueued in one transaction.
const BATCH: u32 = 500;
