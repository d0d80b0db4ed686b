//! Items of several sources that point to the same page share one task and its result.

use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::interval::SourceInterval;
use comity_core::task::TaskId;
use comity_core::time::Span;
use comity_store::items::{Item, ItemId, ItemQuery, SHARED_FOR, ScrapeTerms};
use comity_store::sources::{Changed, NewItem, NewSource, SourceChange, SourceId};
use comity_store::tasks::{Lead, Step};

use crate::backend::Backend;
use crate::follower::{Follower, every, feed, found, page, scrape_request};
use crate::process::{Process, at, failed, retry};

/// Two sources that both point to `https://a.example/page`: one without an interval, one with a minute.
struct Two {
    one: Follower,
    other: SourceId,
    /// The item of the first source, and that of the second.
    items: [ItemId; 2],
}

impl Two {
    async fn start(backend: &dyn Backend) -> Self {
        let one = Follower::start(backend, SourceInterval::Off, 0).await;
        let new = NewSource { interval: every(60_000), ..feed("https://feeds.example/b") };
        let other = one.store().add_source(new, at(0)).await.unwrap().0.id;
        let items = [named(&one, one.source, "first").await, named(&one, other, "second").await];
        Self { one, other, items }
    }

    async fn enqueue(&self, nth: usize, trigger: Trigger, secs: i64) -> Enqueued {
        enqueue(&self.one.one, &self.one, self.items[nth], trigger, secs).await
    }

    async fn item(&self, nth: usize) -> Item {
        self.one.store().find_item(self.items[nth]).await.unwrap().unwrap()
    }

    async fn states(&self) -> [String; 2] {
        [self.item(0).await.state.as_str().to_owned(), self.item(1).await.state.as_str().to_owned()]
    }

    /// The only task that is ready.
    async fn only_task(&self, secs: i64) -> TaskId {
        let ready = self.one.ready(at(secs)).await;
        assert_eq!(ready.len(), 1, "{ready:?}");
        ready[0].id
    }

    /// Both wait for the task of the first.
    async fn both_waiting(backend: &dyn Backend) -> (Self, TaskId) {
        let two = Self::start(backend).await;
        assert_eq!(two.enqueue(0, Trigger::Automatic, 1).await, Enqueued::Enqueued);
        assert_eq!(two.enqueue(1, Trigger::Automatic, 1).await, Enqueued::Already);
        assert_eq!(two.states().await, ["waiting", "waiting"]);
        let task = two.only_task(1).await;
        (two, task)
    }
}

async fn named(one: &Follower, source: SourceId, identity: &str) -> ItemId {
    let new =
        NewItem { identity: identity.to_owned(), page_key: Some([7; 16]), ..page("https://a.example/page") };
    found(one.store(), source, vec![new], at(0)).await;
    let listed = ItemQuery { source: Some(source), limit: 1, ..ItemQuery::default() };
    one.store().list_items(listed).await.unwrap()[0].id
}

async fn enqueue(process: &Process, one: &Follower, item: ItemId, trigger: Trigger, secs: i64) -> Enqueued {
    let requests = vec![scrape_request(item, "a.example")];
    process.store.enqueue_items(one.job, requests, trigger, ScrapeTerms::default(), at(secs)).await.unwrap()
        [0]
}

fn kept() -> Step {
    Step::Done {
        status: 200,
        bytes: 10,
        file: Some("/pages/a".to_owned()),
        content_type: Some("text/html".to_owned()),
    }
}

pub(crate) async fn one_task_fetches_the_page_for_both_items(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    two.one.begun(task, at(2)).await;
    two.one.settle(task, kept(), at(3)).await;
    let (first, second) = (two.item(0).await, two.item(1).await);
    let result = |item: &Item| {
        (item.state, item.status, item.bytes, item.file.clone(), item.content_type.clone(), item.scraped_at)
    };
    assert_eq!(result(&first), result(&second));
    assert_eq!((first.scraped_at, first.file.as_deref()), (Some(at(3)), Some("/pages/a")));
    assert_eq!((first.scraped_as, second.scraped_as), (None, Some(first.id)));
    assert_eq!(two.one.one.counts(two.one.job).await.tasks, 1);
}

/// B51: the fetch counts for the source that made it.
pub(crate) async fn the_scrape_belongs_to_the_source_that_owns_the_task(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    two.one.begun(task, at(2)).await;
    two.one.settle(task, kept(), at(3)).await;
    assert_eq!(two.one.store().list_scrapes(two.items[0], 9).await.unwrap().len(), 1);
    assert_eq!(two.one.store().list_scrapes(two.items[1], 9).await.unwrap(), []);
    let next = named_page(&two, "https://a.example/next").await;
    assert_eq!(
        enqueue(&two.one.one, &two.one, next, Trigger::Automatic, 4).await,
        Enqueued::Enqueued,
        "not deferred"
    );
}

async fn named_page(two: &Two, url: &str) -> ItemId {
    found(two.one.store(), two.other, vec![page(url)], at(0)).await;
    let listed = ItemQuery { source: Some(two.other), limit: 1, ..ItemQuery::default() };
    two.one.store().list_items(listed).await.unwrap()[0].id
}

pub(crate) async fn a_failure_or_a_retry_applies_to_both_items(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    two.one.begun(task, at(2)).await;
    two.one.settle(task, retry(at(5)), at(3)).await;
    assert_eq!(two.states().await, ["waiting", "waiting"]);
    let task = two.only_task(5).await;
    two.one.begun(task, at(5)).await;
    two.one.settle(task, failed(), at(6)).await;
    assert_eq!(two.states().await, ["failed", "failed"]);
    assert_eq!(two.item(1).await.error, two.item(0).await.error);
    // Enqueued manually, one of them is fetched again, and the other stays as it is.
    assert_eq!(two.enqueue(1, Trigger::Manual, 7).await, Enqueued::Enqueued);
    assert_eq!(two.states().await, ["failed", "waiting"]);
    assert_eq!(two.enqueue(0, Trigger::Manual, 7).await, Enqueued::Already);
    let task = two.only_task(7).await;
    two.one.begun(task, at(8)).await;
    two.one.settle(task, kept(), at(9)).await;
    assert_eq!(two.states().await, ["done", "done"]);
}

/// B54: of two concurrent callers, only one gets a task.
pub(crate) async fn two_concurrent_enqueues_create_one_task(backend: &dyn Backend) {
    let two = Two::start(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let first = enqueue(&two.one.one, &two.one, two.items[0], Trigger::Automatic, 20);
    let second = enqueue(&other, &two.one, two.items[1], Trigger::Automatic, 20);
    let both = two.one.one.overlap(first, second).await;
    assert!(both.0 == Enqueued::Already || both.1 == Enqueued::Already, "{both:?}");
    assert_eq!(two.one.one.counts(two.one.job).await.tasks, 1);
    two.only_task(20).await;
    assert_eq!(two.states().await, ["waiting", "waiting"]);
}

/// An item enqueued while the result is being written gets that result, or a task of its own.
pub(crate) async fn an_item_enqueued_as_its_page_arrives_is_not_stranded(backend: &dyn Backend) {
    let two = Two::start(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    two.enqueue(0, Trigger::Automatic, 1).await;
    let task = two.only_task(1).await;
    two.one.begun(task, at(2)).await;
    let late = enqueue(&other, &two.one, two.items[1], Trigger::Automatic, 3);
    let (_, late) = two.one.one.overlap(two.one.settle(task, kept(), at(3)), late).await;
    assert_eq!(late, Enqueued::Already);
    assert_eq!(two.states().await, ["done", "done"]);
}

/// B58
pub(crate) async fn a_task_whose_item_is_gone_passes_to_the_other(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    assert!(two.one.store().remove_source(two.one.source).await.unwrap());
    two.one.begun(task, at(2)).await;
    assert_eq!(
        two.one.store().list_scrapes(two.items[1], 9).await.unwrap().len(),
        1,
        "it is its source's scrape now"
    );
    two.one.settle(task, kept(), at(3)).await;
    let second = two.item(1).await;
    assert_eq!((second.file.as_deref(), second.scraped_as), (Some("/pages/a"), None));
}

/// B58
pub(crate) async fn a_task_whose_source_was_disabled_passes_to_the_other(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    let off = SourceChange { enabled: Some(false), ..SourceChange::default() };
    two.one.change(off.clone()).await;
    assert_eq!(two.one.ask(task, at(2)).await, "may join");
    assert_eq!(two.states().await, ["none", "waiting"]);
    // If that one must not be scraped either, no item is left waiting.
    let changed = two.one.store().change_source(two.other, off).await.unwrap();
    assert!(matches!(changed, Changed::Yes(_)));
    assert_eq!(two.one.begin(task, at(2)).await, "gone: the source is disabled");
    assert_eq!(two.states().await, ["none", "none"]);
}

pub(crate) async fn a_sharing_item_that_is_removed_is_dropped(backend: &dyn Backend) {
    let (two, task) = Two::both_waiting(backend).await;
    assert!(two.one.store().remove_source(two.other).await.unwrap());
    two.one.begun(task, at(2)).await;
    two.one.settle(task, kept(), at(3)).await;
    assert_eq!(two.item(0).await.state.as_str(), "done");
    assert_eq!(two.one.store().find_item(two.items[1]).await.unwrap(), None);
}

pub(crate) async fn a_recently_fetched_page_is_not_fetched_again(backend: &dyn Backend) {
    let two = Two::start(backend).await;
    two.enqueue(0, Trigger::Automatic, 1).await;
    let task = two.only_task(1).await;
    two.one.begun(task, at(2)).await;
    two.one.settle(task, kept(), at(3)).await;
    assert_eq!(two.enqueue(1, Trigger::Automatic, 60).await, Enqueued::Already);
    let second = two.item(1).await;
    assert_eq!((second.state.as_str(), second.scraped_as), ("done", Some(two.items[0])));
    assert_eq!((second.file.as_deref(), second.scraped_at), (Some("/pages/a"), Some(at(3))));
    // Enqueued manually, it is fetched.
    assert_eq!(two.enqueue(1, Trigger::Manual, 61).await, Enqueued::Enqueued);
}

pub(crate) async fn a_page_that_was_fetched_long_ago_is_fetched_again(backend: &dyn Backend) {
    let two = Two::start(backend).await;
    two.enqueue(0, Trigger::Automatic, 1).await;
    let task = two.only_task(1).await;
    two.one.begun(task, at(2)).await;
    two.one.settle(task, kept(), at(3)).await;
    let later = at(3) + SHARED_FOR + Span::from_secs(1);
    let requests = vec![scrape_request(two.items[1], "a.example")];
    let terms = ScrapeTerms::default();
    let enqueued =
        two.one.store().enqueue_items(two.one.job, requests, Trigger::Automatic, terms, later).await.unwrap();
    assert_eq!(enqueued, [Enqueued::Enqueued]);
}

/// B76: a URL that the operator listed may go where a remote one may not.
pub(crate) async fn items_with_different_leads_do_not_share_a_task(backend: &dyn Backend) {
    let two = Two::start(backend).await;
    let listed = NewItem {
        identity: "second".to_owned(),
        lead: Lead::Listed,
        page_key: Some([7; 16]),
        content_hash: 2,
        ..page("https://a.example/page")
    };
    found(two.one.store(), two.other, vec![listed], at(0)).await;
    assert_eq!(two.enqueue(0, Trigger::Automatic, 1).await, Enqueued::Enqueued);
    assert_eq!(two.enqueue(1, Trigger::Automatic, 1).await, Enqueued::Enqueued);
}
