//! Sources: their settings, and the items found via them.

use std::collections::BTreeMap;

use comity_core::enqueue::Trigger;
use comity_core::interval::SourceInterval;
use comity_store::Store;
use comity_store::items::{Item, ItemId, ItemQuery, ItemState, Order, ScrapeTerms, SourceScope};
use comity_store::sources::{
    Changed, FetchResult, ItemChanges, Kind, NewItem, NewSource, Rename, Source, SourceChange, SourceId,
};
use comity_store::tasks::{Lead, Step};
use serde_json::{Map, Value, json};

use super::fetches::{added, end, failed, fetched, object, ok, runs};
use crate::backend::Backend;
use crate::follower::{Follower, ended, every, feed, found, keep, page};
use crate::process::{at, failed as failed_step, skipped};

pub(crate) async fn a_source_is_added_once_per_url(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let config = object(json!({ "cadence": { "mode": "interval", "every_minutes": 480 } }));
    let new = NewSource { config: config.clone(), interval: every(2_500), ..feed("https://a.example/feed") };
    let (first, added) = one.add_source(new, at(1)).await.unwrap();
    assert!(added);
    let expected = Source {
        id: first.id,
        name: "a feed".to_owned(),
        kind: Kind::Feed,
        url: "https://a.example/feed".to_owned(),
        listed_url: "https://a.example/feed".to_owned(),
        lead: Lead::Listed,
        enabled: true,
        scraping: true,
        auto_scrape: true,
        interval: every(2_500),
        config_json: Value::Object(config).to_string(),
        cursor_json: "{}".to_owned(),
        added_at: at(1),
        failures: 0,
        retry_at: None,
        error: None,
        requested_at: None,
    };
    assert_eq!(first, expected);

    let again = NewSource {
        name: "another name".to_owned(),
        kind: Kind::Page,
        lead: Lead::Remote,
        scraping: false,
        auto_scrape: false,
        ..feed("https://a.example/feed")
    };
    assert_eq!(other.add_source(again, at(9)).await.unwrap(), (first.clone(), false));
    let on_demand = NewSource { auto_scrape: false, ..feed("https://b.example/feed") };
    let (second, added) = other.add_source(on_demand, at(9)).await.unwrap();
    assert!(added);
    assert_eq!((second.scraping, second.auto_scrape), (true, false));
    assert_eq!(one.list_sources().await.unwrap(), [first.clone(), second], "in the order they were added");
    assert_eq!(one.find_source(first.id).await.unwrap(), Some(first));
    assert_eq!(one.find_source(SourceId(99)).await.unwrap(), None);
}

pub(crate) async fn a_change_sets_only_the_given_fields(backend: &dyn Backend) {
    let (store, mut source) = added(backend).await;
    let mut expect = async |change: SourceChange, set: &dyn Fn(&mut Source)| {
        set(&mut source);
        let changed = store.change_source(source.id, change).await.unwrap();
        assert_eq!(changed, Changed::Yes(source.clone()));
        assert_eq!(store.find_source(source.id).await.unwrap().as_ref(), Some(&source));
    };
    expect(SourceChange::default(), &|_| {}).await;
    let change = SourceChange { name: Some("news".to_owned()), ..SourceChange::default() };
    expect(change, &|source| source.name = "news".to_owned()).await;
    let change = SourceChange { kind: Some(Kind::Sitemap), ..SourceChange::default() };
    expect(change, &|source| source.kind = Kind::Sitemap).await;
    let change = SourceChange { enabled: Some(false), ..SourceChange::default() };
    expect(change, &|source| source.enabled = false).await;
    let change = SourceChange { scraping: Some(false), ..SourceChange::default() };
    expect(change, &|source| source.scraping = false).await;
    let change = SourceChange { auto_scrape: Some(false), ..SourceChange::default() };
    expect(change, &|source| source.auto_scrape = false).await;
    let change = SourceChange { interval: Some(every(5_000)), ..SourceChange::default() };
    expect(change, &|source| source.interval = every(5_000)).await;
    let config = object(json!({ "cadence": { "mode": "interval", "every_minutes": 0.5 }, "x": "ä" }));
    let change = SourceChange { config: Some(config.clone()), ..SourceChange::default() };
    expect(change, &|source| source.config_json = Value::Object(config.clone()).to_string()).await;
    // The whole configuration is replaced: that is how a cadence is cleared.
    let change = SourceChange { config: Some(Map::new()), ..SourceChange::default() };
    expect(change, &|source| source.config_json = "{}".to_owned()).await;
    let change = SourceChange { scraping: Some(true), auto_scrape: Some(true), ..SourceChange::default() };
    expect(change, &|source| (source.scraping, source.auto_scrape) = (true, true)).await;

    let missing = store.change_source(SourceId(99), SourceChange::default()).await.unwrap();
    assert_eq!(missing, Changed::Missing);
}

/// A source gets the title of its feed as its name, unless somebody named it meanwhile.
pub(crate) async fn a_name_is_replaced_unless_it_was_changed(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    for (from, to, name) in
        [("another", "x", "a feed"), ("a feed", "News", "News"), ("a feed", "Late", "News")]
    {
        let rename = Some(Rename { from: from.to_owned(), to: to.to_owned() });
        let change = SourceChange { rename, ..SourceChange::default() };
        let changed = store.change_source(source.id, change).await.unwrap();
        assert_eq!(changed, Changed::Yes(Source { name: name.to_owned(), ..source.clone() }), "{from}");
    }
}

/// B50: `numeric(10,2)`, from its smallest to its largest value; null is not zero.
pub(crate) async fn an_interval_comes_back_exactly(backend: &dyn Backend) {
    let store = backend.store().await;
    let texts = ["default", "0", "-3", "2.5", "0.01", "0.29", "1.15", "4.35", "1", "99999999.99"];
    for (nth, text) in texts.into_iter().enumerate() {
        let interval = SourceInterval::parse(text).unwrap();
        let new = NewSource { interval, ..feed(&format!("https://a.example/{nth}")) };
        let (source, _) = store.add_source(new, at(0)).await.unwrap();
        assert_eq!(source.interval, interval, "{text}");
        for other in texts {
            let other = SourceInterval::parse(other).unwrap();
            let change = SourceChange { interval: Some(other), ..SourceChange::default() };
            let Changed::Yes(source) = store.change_source(source.id, change).await.unwrap() else {
                panic!("it exists")
            };
            assert_eq!(source.interval, other, "after {text}");
        }
    }
}

/// A different URL has a different cursor, and failures at the old one do not count.
pub(crate) async fn a_new_url_clears_the_cursor_and_counts_as_listed(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let moved_to = Some(("https://moved.example/feed".to_owned(), Lead::Remote));
    let cursor = object(json!({ "etag": "\"1\"" }));
    fetched(&*store, source.id, 10, FetchResult::Read { whole: true, cursor, moved_to }).await;
    fetched(&*store, source.id, 20, failed(60)).await;
    let change = SourceChange { url: Some("https://new.example/feed".to_owned()), ..SourceChange::default() };
    let changed = store.change_source(source.id, change).await.unwrap();
    let url = "https://new.example/feed".to_owned();
    assert_eq!(changed, Changed::Yes(Source { url: url.clone(), listed_url: url, ..source }));
}

/// B76: if the operator sets the URL it moved to, that URL counts as listed. Nothing else changes.
pub(crate) async fn the_operator_can_list_the_url_that_a_source_moved_to(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let url = "https://moved.example/feed".to_owned();
    let read = FetchResult::Read {
        whole: true,
        cursor: object(json!({ "k": 1 })),
        moved_to: Some((url.clone(), Lead::Remote)),
    };
    let moved = fetched(&*store, source.id, 10, read).await;
    assert_eq!(moved.lead, Lead::Remote);
    let change = SourceChange { url: Some(url.clone()), ..SourceChange::default() };
    let changed = store.change_source(source.id, change).await.unwrap();
    assert_eq!(changed, Changed::Yes(Source { lead: Lead::Listed, listed_url: url, ..moved }));
}

/// The change is refused as a whole: nothing else is changed either.
pub(crate) async fn a_url_that_another_source_has_is_refused(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let (other, _) = store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let change = SourceChange {
        url: Some("https://b.example/feed".to_owned()),
        name: Some("b".to_owned()),
        ..SourceChange::default()
    };
    assert_eq!(store.change_source(source.id, change).await.unwrap(), Changed::Taken(other.id));
    assert_eq!(store.list_sources().await.unwrap(), [source.clone(), other]);
    let own = SourceChange { url: Some(source.url.clone()), ..SourceChange::default() };
    assert_eq!(store.change_source(source.id, own).await.unwrap(), Changed::Yes(source));
}

/// B58
pub(crate) async fn a_removed_source_takes_everything_with_it(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 2).await;
    let (other, _) = one.store().add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    found(one.store(), other.id, vec![page("https://a.example/0")], at(0)).await;
    one.scrape(0, at(1)).await;
    fetched(one.store(), one.source, 10, ok()).await;
    fetched(one.store(), other.id, 10, ok()).await;

    assert!(one.store().remove_source(one.source).await.unwrap());
    assert_eq!(one.store().find_source(one.source).await.unwrap(), None);
    assert_eq!(one.store().find_item(one.items[0]).await.unwrap(), None);
    assert_eq!(one.store().list_scrapes(one.items[0], 9).await.unwrap(), []);
    assert_eq!(runs(one.store(), one.source).await, []);
    assert!(!one.store().remove_source(one.source).await.unwrap());

    assert_eq!(one.store().count_items(other.id).await.unwrap().items, 1, "another source keeps its own");
    assert_eq!(runs(one.store(), other.id).await.len(), 1);
    let (again, added) = one.store().add_source(feed("https://feeds.example/a"), at(2)).await.unwrap();
    assert!(added && again.id != one.source, "ids are not reused");
    assert_eq!(one.store().count_items(again.id).await.unwrap().items, 0);
}

/// B58: the tasks of finished scrapes used to be left behind forever.
pub(crate) async fn settled_tasks_are_removed_with_their_source_and_waiting_ones_stay(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 3).await;
    let (other, _) = one.store().add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let kept = keep(one.store(), other.id, &["https://a.example/other".to_owned()]).await;
    one.scrape(0, at(1)).await;
    let (source, items) = (one.source, one.items.clone());
    let theirs = Follower { source: other.id, items: kept, ..one };
    theirs.scrape(0, at(1)).await;
    let one = Follower { source, items, ..theirs };
    one.enqueue(&[1], at(2)).await;
    let failing = one.task(1, at(2)).await;
    one.begun(failing, at(2)).await;
    one.settle(failing, failed_step(), at(2)).await;
    one.enqueue(&[2], at(3)).await;
    let waiting = one.task(2, at(3)).await;
    let tasks = async |state: &str| {
        let tasks = one.store().list_tasks(one.job, state.to_owned(), 9).await.unwrap();
        tasks.into_iter().map(|task| task.url).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(tasks("failed").await, "https://a.example/1");
    assert!(one.store().remove_source(one.source).await.unwrap());
    assert_eq!(tasks("done").await, "https://a.example/other", "another source keeps its own");
    assert_eq!(tasks("failed").await, "");
    assert_eq!(tasks("waiting").await, "https://a.example/2");
    assert_eq!(one.begin(waiting, at(4)).await, "gone: the item is gone");
    one.settle(waiting, skipped(), at(4)).await;
    assert_eq!(one.one.counts(one.job).await.waiting(), 0, "no task waits for what is gone");
}

/// B62, B63: the cause of the failures is fixed; setting a valid configuration again fixes nothing.
pub(crate) async fn fixing_an_invalid_config_clears_failures(backend: &dyn Backend) {
    let store = backend.store().await;
    let cadence =
        |minutes: i64| object(json!({ "cadence": { "mode": "interval", "every_minutes": minutes } }));
    let with = |config| SourceChange { config: Some(config), ..SourceChange::default() };
    for (url, minutes, forgets) in [("https://a.example/", 60, false), ("https://b.example/", 0, true)] {
        let new = NewSource { config: cadence(minutes), ..feed(url) };
        let (source, _) = store.add_source(new, at(0)).await.unwrap();
        let failed = fetched(&*store, source.id, 10, failed(60)).await;
        let renamed = SourceChange { name: Some("new".to_owned()), ..SourceChange::default() };
        store.change_source(source.id, renamed).await.unwrap();
        let Changed::Yes(after) = store.change_source(source.id, with(cadence(30))).await.unwrap() else {
            panic!("{url} exists")
        };
        let expected =
            if forgets { (0, None, None) } else { (failed.failures, failed.retry_at, failed.error) };
        assert_eq!((after.failures, after.retry_at, after.error), expected, "{url}");
    }
}

/// A feed's cursor must not make the request for a sitemap conditional.
pub(crate) async fn changing_the_kind_clears_the_cursor(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let cursor = object(json!({ "etag": "\"1\"" }));
    let read = FetchResult::Read { whole: true, cursor, moved_to: None };
    let read = fetched(&*store, source.id, 10, read).await;
    let of = |kind| SourceChange { kind: Some(kind), ..SourceChange::default() };
    let same = store.change_source(source.id, of(Kind::Feed)).await.unwrap();
    assert_eq!(same, Changed::Yes(read.clone()), "it is a feed already");
    let other = store.change_source(source.id, of(Kind::Sitemap)).await.unwrap();
    assert_eq!(other, Changed::Yes(Source { kind: Kind::Sitemap, cursor_json: "{}".to_owned(), ..read }));
}

/// B63
pub(crate) async fn enabling_a_source_clears_its_failures(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    fetched(&*store, source.id, 10, failed(60)).await;
    let gone = fetched(&*store, source.id, 20, FetchResult::Gone).await;
    assert_eq!((gone.enabled, gone.failures), (false, 2));
    let change = |enabled| SourceChange { enabled: Some(enabled), ..SourceChange::default() };
    let kept = store.change_source(source.id, change(false)).await.unwrap();
    assert_eq!(kept, Changed::Yes(gone), "disabling clears nothing");
    let enabled = store.change_source(source.id, change(true)).await.unwrap();
    assert_eq!(enabled, Changed::Yes(source));
}

/// A fetch in flight when its source was removed brings nothing back.
pub(crate) async fn a_fetch_of_a_removed_source_saves_nothing(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    store.remove_source(source.id).await.unwrap();
    let kept = found(&*store, source.id, vec![page("https://a.example/1")], at(1)).await;
    assert_eq!(kept, ItemChanges::default());
    ended(&*store, end(source.id, 10, ok())).await;
    assert_eq!(runs(&*store, source.id).await, []);
    assert_eq!(store.list_items(ItemQuery { limit: 9, ..ItemQuery::default() }).await.unwrap(), []);
}

pub(crate) async fn items_are_new_known_or_changed_by_their_hash(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let first = NewItem {
        title: Some("Erste".to_owned()),
        published_at: Some(at(-60)),
        content_hash: u64::MAX,
        ..page("https://a.example/1")
    };
    let second = page("https://a.example/2");
    let items = vec![first.clone(), second.clone()];
    let kept = found(&*store, source.id, items.clone(), at(1)).await;
    assert_eq!(kept, ItemChanges { new: 2, known: 0, changed: 0 });
    let again = found(&*store, source.id, items, at(2)).await;
    assert_eq!(again, ItemChanges { new: 0, known: 2, changed: 0 });

    let renamed = NewItem { title: Some("Zweite".to_owned()), content_hash: 7, ..second.clone() };
    let third = page("https://a.example/3");
    // An item that appears twice in a feed is one item.
    let items = vec![first, renamed, third.clone(), third];
    let kept = found(&*store, source.id, items, at(3)).await;
    assert_eq!(kept, ItemChanges { new: 1, known: 2, changed: 1 });
    let seen = listed(&*store, source.id).await;
    let actual: Vec<_> = seen
        .values()
        .map(|item| (item.title.as_deref(), item.content_hash, item.seen_at, item.changed_at))
        .collect();
    assert_eq!(
        actual,
        [
            (Some("Erste"), u64::MAX, at(1), None),
            (Some("Zweite"), 7, at(1), Some(at(3))),
            (None, 1, at(3), None),
        ]
    );
    assert_eq!(seen.values().next().unwrap().published_at, Some(at(-60)));
    assert!(seen.values().all(|item| item.state == ItemState::None && item.lead == Lead::Remote));
}

pub(crate) async fn the_same_identity_in_two_sources_is_two_items(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let (other, _) = store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    for id in [source.id, other.id] {
        let kept = found(&*store, id, vec![page("https://a.example/1")], at(1)).await;
        assert_eq!(kept.new, 1);
    }
    let changed =
        NewItem { content_hash: 2, url: "https://a.example/moved".to_owned(), ..page("https://a.example/1") };
    let kept = found(&*store, other.id, vec![changed], at(2)).await;
    assert_eq!(kept.changed, 1, "its identity is not its URL");
    let urls = async |id| {
        let items = listed(&*store, id).await.into_values();
        items.map(|item| item.url).collect::<Vec<_>>()
    };
    assert_eq!(urls(source.id).await, ["https://a.example/1"]);
    assert_eq!(urls(other.id).await, ["https://a.example/moved"]);
}

/// If a source changes what it says about an item, the result of its scrape stays.
pub(crate) async fn an_item_that_changed_keeps_its_state(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 4).await;
    one.scrape(0, at(1)).await;
    one.enqueue(&[1], at(2)).await;
    for nth in [0, 1, 2] {
        let before = one.item(nth).await;
        let changed = NewItem { content_hash: 2, title: Some("new".to_owned()), ..page(&before.url) };
        found(one.store(), one.source, vec![changed], at(3)).await;
        let after = one.item(nth).await;
        let (title, changed_at) = (Some("new".to_owned()), Some(at(3)));
        let expected = Item { title, content_hash: 2, changed_at, ..before };
        assert_eq!(after, expected, "item {nth}");
    }
    assert_eq!(
        [one.state(0).await, one.state(1).await, one.state(2).await],
        ["done", "waiting until 61", "none"]
    );
}

/// A page is followed for its changes; what was saved stays until there is something newer.
pub(crate) async fn a_changed_page_is_scraped_again(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 4).await;
    one.change(SourceChange { kind: Some(Kind::Page), ..SourceChange::default() }).await;
    let kept = Step::Done { status: 200, bytes: 10, file: Some("a page".to_owned()), content_type: None };
    for (nth, step) in [(0, kept), (2, failed_step())] {
        one.enqueue(&[nth], at(1)).await;
        let task = one.task(nth, at(1)).await;
        one.begun(task, at(1)).await;
        one.settle(task, step, at(2)).await;
    }
    one.enqueue(&[1], at(3)).await;
    let states = async || [one.state(0).await, one.state(1).await, one.state(2).await, one.state(3).await];
    let same = (0..4).map(|nth| page(&format!("https://a.example/{nth}")));
    found(one.store(), one.source, same.clone().collect(), at(4)).await;
    assert_eq!(states().await, ["done", "waiting", "failed", "none"], "they are the same");
    let changed = same.map(|page| NewItem { content_hash: 2, ..page });
    let kept = found(one.store(), one.source, changed.collect(), at(5)).await;
    assert_eq!((kept.changed, states().await), (4, ["none", "waiting", "none", "none"].map(str::to_owned)));
    let item = one.item(0).await;
    let was = (item.scraped_at, item.status, item.file.as_deref());
    assert_eq!(was, (Some(at(2)), Some(200), Some("a page")));
    let again = one.enqueue_with(&one.items[..2], Trigger::Automatic, ScrapeTerms::default(), at(6)).await;
    assert_eq!(again, "enqueued | already");
}

/// B57: a source that is not scraped blocked the others in each batch.
pub(crate) async fn items_that_may_not_be_scraped_are_left_out(backend: &dyn Backend) {
    let store = backend.store().await;
    let mut sources = Vec::new();
    for name in ["disabled", "unscraped", "kept", "by hand"] {
        let (source, _) = store.add_source(feed(&format!("https://a.example/{name}")), at(0)).await.unwrap();
        found(&*store, source.id, vec![page("https://a.example/1")], at(0)).await;
        sources.push(source.id);
    }
    let changes = [
        SourceChange { enabled: Some(false), ..SourceChange::default() },
        SourceChange { scraping: Some(false), ..SourceChange::default() },
        SourceChange::default(),
        SourceChange { auto_scrape: Some(false), ..SourceChange::default() },
    ];
    for (id, change) in sources.iter().zip(changes) {
        store.change_source(*id, change).await.unwrap();
    }
    let listed = async |items: ItemQuery| {
        let items = store.list_items(items).await.unwrap().into_iter();
        items.map(|item| item.source).collect::<Vec<_>>()
    };
    let any = ItemQuery { order: Order::After(ItemId(0)), limit: 9, ..ItemQuery::default() };
    let scrapable = ItemQuery { sources: SourceScope::Scrapable, ..any };
    assert_eq!(listed(any).await, sources);
    assert_eq!(listed(scrapable).await, sources[2..]);
    assert_eq!(
        listed(ItemQuery { limit: 1, ..scrapable }).await,
        sources[2..3],
        "they do not take up the limit"
    );
    assert_eq!(listed(ItemQuery { source: Some(sources[0]), ..scrapable }).await, []);
}

/// B57: the first items that failed were retried over and over, and the others never.
pub(crate) async fn failed_items_are_listed_by_their_last_attempt(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 4).await;
    let fails = async |nth, secs| {
        one.enqueue(&[nth], at(secs)).await;
        let task = one.task(nth, at(secs)).await;
        one.begun(task, at(secs)).await;
        one.settle(task, failed_step(), at(secs)).await;
    };
    let tried = async |limit| {
        let state = Some(ItemState::Failed);
        let items = ItemQuery { state, order: Order::LeastTried, limit, ..ItemQuery::default() };
        let items = one.store().list_items(items).await.unwrap();
        let place = |item: &Item| one.items.iter().position(|id| *id == item.id).unwrap();
        items.iter().map(place).collect::<Vec<_>>()
    };
    for (nth, secs) in [(2, 1), (0, 2), (1, 3)] {
        fails(nth, secs).await;
    }
    one.scrape(3, at(4)).await;
    assert_eq!(tried(9).await, [2, 0, 1]);
    fails(2, 5).await;
    assert_eq!(tried(9).await, [0, 1, 2]);
    assert_eq!(tried(1).await, [0]);
}

pub(crate) async fn items_are_listed_in_pages(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 5).await;
    let (other, _) = one.store().add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    found(one.store(), other.id, vec![page("https://b.example/1")], at(0)).await;
    one.scrape(1, at(1)).await;
    one.enqueue(&[3], at(1)).await;
    let list = async |items: ItemQuery| {
        let items = one.store().list_items(items).await.unwrap();
        items.into_iter().map(|item| item.id).collect::<Vec<_>>()
    };
    let all = ItemQuery { source: Some(one.source), limit: 2, ..ItemQuery::default() };
    let ids = &one.items;
    assert_eq!(list(all).await, [ids[4], ids[3]], "newest first");
    assert_eq!(list(ItemQuery { order: Order::After(ItemId(0)), ..all }).await, ids[..2]);
    assert_eq!(list(ItemQuery { order: Order::After(ids[3]), ..all }).await, ids[4..]);
    let of_state = |state| ItemQuery { state: Some(state), limit: 9, ..all };
    assert_eq!(list(of_state(ItemState::Done)).await, [ids[1]]);
    assert_eq!(list(of_state(ItemState::Waiting)).await, [ids[3]]);
    assert_eq!(list(of_state(ItemState::None)).await, [ids[4], ids[2], ids[0]]);
    assert_eq!(list(ItemQuery { limit: 9, ..ItemQuery::default() }).await.len(), 6, "of all sources");
    let counts = one.store().count_items(one.source).await.unwrap();
    let counts = (counts.items, counts.none, counts.in_flight, counts.done, counts.failed);
    assert_eq!(counts, (5, 3, 1, 1, 0));
}

/// B56: the items that a run enqueues automatically.
pub(crate) async fn runs_find_the_sources_that_have_unscraped_items(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    one.store().add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let unscraped = async || one.store().sources_with_unscraped().await.unwrap();
    assert_eq!(unscraped().await, [one.source], "the other has no items");
    for change in [
        SourceChange { enabled: Some(false), ..SourceChange::default() },
        SourceChange { scraping: Some(false), ..SourceChange::default() },
        SourceChange { auto_scrape: Some(false), ..SourceChange::default() },
    ] {
        one.change(change.clone()).await;
        assert_eq!(unscraped().await, [], "{change:?}");
        let on = Some(true);
        one.change(SourceChange { enabled: on, scraping: on, auto_scrape: on, ..change }).await;
    }
    one.enqueue(&[0], at(1)).await;
    assert_eq!(unscraped().await, [], "it is enqueued");
}

async fn listed(store: &dyn Store, source: SourceId) -> BTreeMap<ItemId, Item> {
    let items = ItemQuery { source: Some(source), limit: 100, ..ItemQuery::default() };
    store.list_items(items).await.unwrap().into_iter().map(|item| (item.id, item)).collect()
}

/// Whatever comes of the fetch, it is not asked for any more; a source that is held was not fetched.
pub(crate) async fn a_requested_fetch_is_seen_until_it_ended(backend: &dyn Backend) {
    let (one, other) = (backend.store().await, backend.store().await);
    let (source, _) = one.add_source(feed("https://a.example/feed"), at(0)).await.unwrap();
    let requested_at = async || other.find_source(source.id).await.unwrap().unwrap().requested_at;
    let read = || FetchResult::Read { whole: true, cursor: Map::new(), moved_to: None };
    for (secs, result) in [(10, read()), (20, failed(30)), (40, FetchResult::Gone)] {
        assert!(one.request_fetch(source.id, at(secs)).await.unwrap());
        assert_eq!(requested_at().await, Some(at(secs)));
        let held = fetched(&*one, source.id, secs + 1, FetchResult::Held { until: at(secs + 5) }).await;
        assert_eq!(held.requested_at, Some(at(secs)), "it was not fetched");
        assert_eq!(fetched(&*one, source.id, secs + 2, result).await.requested_at, None);
    }
    assert!(!one.request_fetch(SourceId(source.id.0 + 1), at(50)).await.unwrap(), "there is no such source");
}
