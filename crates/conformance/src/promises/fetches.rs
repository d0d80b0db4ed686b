//! How a fetch ends, and what that means for the source's cursor and failures.

use comity_core::cadence::RunWindow;
use comity_core::time::{Span, Timestamp};
use comity_store::Store;
use comity_store::sources::{FetchEnd, FetchResult, FetchRun, ItemChanges, Source, SourceClaim, SourceId};
use comity_store::tasks::Lead;
use serde_json::{Map, Value, json};

use crate::backend::Backend;
use crate::follower::{ended, feed, page, unclaimed};
use crate::process::{Process, at};

/// B60, document 4: only ok and partial move `last_fetch_at`, to the end of the run's window.
pub(crate) async fn a_successful_fetch_moves_last_fetch_at_to_the_window_end(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    for (secs, whole) in [(10, true), (20, false)] {
        let read = FetchResult::Read { whole, cursor: Map::new(), moved_to: None };
        let source = fetched(&*store, source.id, secs, read).await;
        let expected = json!({ "last_fetch_at": at(secs).to_string() });
        assert_eq!(cursor_of(&source), expected, "whole: {whole}");
    }
    assert_eq!(at(0).to_string(), "2027-01-15T08:00:00Z", "an ISO timestamp");
}

/// B60, document 4
pub(crate) async fn a_failed_fetch_leaves_the_cursor_byte_for_byte(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let fields =
        object(json!({ "z": [1.50, "ä\u{2028}"], "a": { "y": null, "b": 1e300 }, "etag": "W/\"x\"" }));
    let read = FetchResult::Read { whole: true, cursor: fields, moved_to: None };
    let before = fetched(&*store, source.id, 10, read).await.cursor_json;
    for result in [failed(99), FetchResult::Held { until: at(99) }, FetchResult::Gone] {
        let after = fetched(&*store, source.id, 20, result.clone()).await;
        assert_eq!(after.cursor_json, before, "{result:?}");
        let run = runs(&*store, source.id).await.remove(0);
        assert_eq!((run.cursor_in, run.cursor_out), (before.clone(), before.clone()), "{result:?}");
    }
}

/// B60, B64: neither a backfilled window nor a slow run that ends after a later one moves it back.
pub(crate) async fn an_earlier_window_never_moves_the_last_fetch_back(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    fetched(&*store, source.id, 100, ok()).await;
    let fields = object(json!({ "etag": "\"old\"" }));
    let read = FetchResult::Read { whole: true, cursor: fields, moved_to: None };
    let source = fetched(&*store, source.id, 50, read).await;
    assert_eq!(
        cursor_of(&source),
        json!({ "last_fetch_at": at(100).to_string(), "etag": "\"old\"" }),
        "the rest of the cursor is what was read last"
    );
}

/// B60, B66
pub(crate) async fn other_fields_of_the_cursor_survive(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let read = |fields: Value| FetchResult::Read { whole: true, cursor: object(fields), moved_to: None };
    fetched(&*store, source.id, 10, read(json!({ "etag": "W/\"a'b\"", "page": 3, "deep": { "n": null } })))
        .await;
    let kept = fetched(&*store, source.id, 20, ok()).await;
    let last = at(20).to_string();
    assert_eq!(
        cursor_of(&kept),
        json!({ "etag": "W/\"a'b\"", "page": 3, "deep": { "n": null }, "last_fetch_at": last })
    );
    let changed =
        fetched(&*store, source.id, 30, read(json!({ "etag": null, "page": 4, "gone": null }))).await;
    let last = at(30).to_string();
    assert_eq!(cursor_of(&changed), json!({ "page": 4, "deep": { "n": null }, "last_fetch_at": last }));
}

/// B63
pub(crate) async fn failures_count_up_until_something_was_read(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    for nth in 1..=3 {
        let source = fetched(&*store, source.id, nth, failed(nth + 60)).await;
        assert_eq!(i64::from(source.failures), nth);
        assert_eq!((source.retry_at, source.error.as_deref()), (Some(at(nth + 60)), Some("why")));
    }
    let held = fetched(&*store, source.id, 4, FetchResult::Held { until: at(99) }).await;
    assert_eq!((held.failures, held.retry_at), (3, Some(at(63))), "it was not fetched");
    for whole in [true, false] {
        fetched(&*store, source.id, 5, failed(60)).await;
        let read = FetchResult::Read { whole, cursor: Map::new(), moved_to: None };
        let source = fetched(&*store, source.id, 6, read).await;
        assert_eq!((source.failures, source.retry_at, source.error), (0, None, None), "whole: {whole}");
    }
}

pub(crate) async fn a_source_that_is_gone_is_disabled(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let gone = fetched(&*store, source.id, 10, FetchResult::Gone).await;
    let expected = Source { enabled: false, failures: 1, error: Some("why".to_owned()), ..source };
    assert_eq!(gone, expected);
}

/// B76: a URL that a server redirected to was not listed by the operator, however often the source moves.
pub(crate) async fn a_source_that_moved_is_fetched_at_its_new_url(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let mut expected = source.clone();
    for (secs, url) in [(10, "https://b.example/feed"), (20, "https://c.example/feed")] {
        let read = FetchResult::Read {
            whole: true,
            cursor: Map::new(),
            moved_to: Some((url.to_owned(), Lead::Remote)),
        };
        let moved = fetched(&*store, source.id, secs, read).await;
        expected = Source {
            url: url.to_owned(),
            lead: Lead::Remote,
            cursor_json: json!({ "last_fetch_at": at(secs).to_string() }).to_string(),
            ..expected
        };
        assert_eq!(moved, expected, "listed_url stays");
    }
    let (_, added) = store.add_source(feed(&source.url), at(30)).await.unwrap();
    assert!(added, "its old URL is free");
}

pub(crate) async fn a_move_to_the_url_of_another_source_is_skipped(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let (other, _) = store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let read = FetchResult::Read {
        whole: true,
        cursor: Map::new(),
        moved_to: Some((other.url.clone(), Lead::Remote)),
    };
    let stayed = fetched(&*store, source.id, 10, read).await;
    let cursor_json = json!({ "last_fetch_at": at(10).to_string() }).to_string();
    assert_eq!(stayed, Source { cursor_json, ..source }, "its cursor advances all the same");
    assert_eq!(store.find_source(other.id).await.unwrap(), Some(other));
    assert_eq!(runs(&*store, stayed.id).await.len(), 1);
}

/// B61
pub(crate) async fn a_fetch_is_listed_with_its_numbers(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let cursor = object(json!({ "etag": "\"1\"" }));
    let end = FetchEnd {
        http_status: Some(200),
        found: 10,
        changes: ItemChanges { new: 5, known: 3, changed: 2 },
        error: Some("two entries have no link".to_owned()),
        ..end(source.id, 10, FetchResult::Read { whole: false, cursor, moved_to: None })
    };
    ended(&*store, end).await;
    let out = store.find_source(source.id).await.unwrap().unwrap().cursor_json;
    let expected = FetchRun {
        started_at: at(1_010),
        ended_at: at(1_011),
        status: "partial".to_owned(),
        window_end: at(10),
        cursor_in: "{}".to_owned(),
        cursor_out: out.clone(),
        http_status: Some(200),
        found: 10,
        changes: ItemChanges { new: 5, known: 3, changed: 2 },
        error: Some("two entries have no link".to_owned()),
    };
    assert_eq!(runs(&*store, source.id).await, [expected]);

    for result in [ok(), failed(99), FetchResult::Held { until: at(99) }, FetchResult::Gone] {
        fetched(&*store, source.id, 20, result).await;
    }
    let seen = runs(&*store, source.id).await;
    let words: Vec<&str> = seen.iter().map(|run| run.status.as_str()).collect();
    assert_eq!(words, ["error", "held", "error", "ok", "partial"], "newest first");
    assert_eq!(seen[3].cursor_in, out);
    assert_eq!(store.list_fetches(source.id, 2).await.unwrap(), seen[..2]);
}

/// The history of each source is bounded independently of the others.
pub(crate) async fn old_fetches_are_deleted(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let (other, _) = store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    fetched(&*store, other.id, 1, ok()).await;
    for secs in 0..250 {
        ended(&*store, end(source.id, secs, ok())).await;
    }
    let seen = runs(&*store, source.id).await;
    let ends: Vec<Timestamp> = seen.iter().map(|run| run.window_end).collect();
    assert_eq!(ends, (50..250).rev().map(at).collect::<Vec<_>>());
    assert_eq!(runs(&*store, other.id).await.len(), 1);
}

/// B60: items are saved as they are found, but the fetch is only recorded at its end.
pub(crate) async fn a_fetch_killed_before_its_end_keeps_items_and_moves_nothing(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let before = one.store.add_source(feed("https://feeds.example/"), at(0)).await.unwrap().0;
    let found = || (0..3).map(|nth| page(&format!("https://a.example/{nth}"))).collect::<Vec<_>>();
    let claim = one.store.claim_source(before.id, one.holder, at(1)).await.unwrap();
    let SourceClaim::Ours(_, tenure) = claim else { panic!("{claim:?}") };
    one.store.keep_items(tenure, found(), at(1)).await.unwrap();
    backend.kill(one, at(2)).await;

    let heir = Process::start(backend, "heir", at(3)).await;
    let after = heir.store.find_source(before.id).await.unwrap();
    assert_eq!(after.as_ref(), Some(&before), "it is still due");
    assert_eq!(heir.store.list_fetches(before.id, 9).await.unwrap(), []);
    assert_eq!(heir.store.count_items(before.id).await.unwrap().items, 3);
    let again = crate::follower::found(&*heir.store, before.id, found(), at(4)).await;
    assert_eq!(again, ItemChanges { new: 0, known: 3, changed: 0 }, "fetched again, they are known");
}

pub(crate) async fn added(backend: &dyn Backend) -> (std::sync::Arc<dyn Store>, Source) {
    let store = backend.store().await;
    let (source, _) = store.add_source(feed("https://a.example/feed"), at(0)).await.unwrap();
    (store, source)
}

/// Ends a fetch in a window that ended at `secs`, and returns the source as it is then.
pub(crate) async fn fetched(store: &dyn Store, source: SourceId, secs: i64, result: FetchResult) -> Source {
    ended(store, end(source, secs, result)).await;
    store.find_source(source).await.unwrap().unwrap()
}

pub(crate) fn end(source: SourceId, secs: i64, result: FetchResult) -> FetchEnd {
    let error = matches!(result, FetchResult::Failed { .. } | FetchResult::Gone).then(|| "why".to_owned());
    let started_at = at(secs) + Span::from_secs(1_000);
    FetchEnd {
        tenure: unclaimed(source),
        window: RunWindow::ending(at(secs), started_at).unwrap(),
        started_at,
        ended_at: started_at + Span::from_secs(1),
        result,
        http_status: None,
        found: 0,
        changes: ItemChanges::default(),
        error,
    }
}

pub(crate) fn ok() -> FetchResult {
    FetchResult::Read { whole: true, cursor: Map::new(), moved_to: None }
}

pub(crate) fn failed(secs: i64) -> FetchResult {
    FetchResult::Failed { retry_at: at(secs) }
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn cursor_of(source: &Source) -> Value {
    serde_json::from_str(&source.cursor_json).unwrap()
}

pub(crate) async fn runs(store: &dyn Store, source: SourceId) -> Vec<FetchRun> {
    store.list_fetches(source, 1_000).await.unwrap()
}
