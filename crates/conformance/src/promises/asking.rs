//! Who may ask a source: one process at a time, until it said how that ended, or died.

use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::sources::{Asking, FetchEnd, FetchResult, SourceChange, SourceClaim, SourceId};
use comity_store::tasks::Lead;
use serde_json::{Map, json};

use super::fetches::{end, failed, fetched, object, ok, runs};
use crate::backend::Backend;
use crate::following::{ended, feed, page};
use crate::process::{Process, at};

/// B60: two runs that were due at once asked the same source twice, the second with a cursor that was old.
pub(crate) async fn a_source_is_asked_by_one_at_a_time(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    assert_eq!(claim(&other, source, at(1)).await, "taken");
    assert_eq!(claim(&one, source, at(2)).await, "ours", "whoever has it may ask again");
    assert_eq!(claim(&other, source, at(2)).await, "taken");
    assert_eq!(claim(&one, SourceId(99), at(2)).await, "missing");
    let (second, _) = one.store.add_source(feed("https://b.example/feed"), at(2)).await.unwrap();
    assert_eq!(claim(&other, second.id, at(2)).await, "ours", "another source is another's");
}

/// What was known before the claim may be old: what counts is the row at the claim.
pub(crate) async fn a_claim_brings_the_source_as_it_is_now(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    let change = SourceChange { name: Some("renamed".to_owned()), ..SourceChange::default() };
    other.store.change_source(source, change).await.unwrap();
    let cursor = object(json!({ "etag": "\"1\"" }));
    let read = FetchResult::Read { whole: true, cursor, moved_to: None };
    let asking = asking(&one, source, at(2)).await;
    one.store.end_fetch(FetchEnd { asking, ..end(source, 10, read) }).await.unwrap();
    let now = one.store.find_source(source).await.unwrap().unwrap();
    assert_eq!(claim(&other, source, at(11)).await, "taken", "until it is left");
    one.store.leave_source(asking).await.unwrap();
    let claimed = other.store.claim_source(source, other.holder, at(11)).await.unwrap();
    let SourceClaim::Ours(claimed, _) = claimed else { panic!("{claimed:?}") };
    assert_eq!(*claimed, now);
    assert!(now.name == "renamed" && now.cursor_json.contains("etag"), "{now:?}");
}

/// Whoever does not ask after all leaves it to others, and only its own.
pub(crate) async fn a_source_is_left_by_whoever_has_it(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    let first = asking(&one, source, at(1)).await;
    other.store.leave_source(Asking { holder: other.holder, ..first }).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "taken", "it was not its to leave");
    let second = asking(&one, source, at(1)).await;
    one.store.leave_source(first).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "taken", "it was claimed again since");
    one.store.leave_source(second).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "ours");
    one.store.leave_source(second).await.unwrap();
    assert_eq!(claim(&one, source, at(1)).await, "taken", "it left it before");
    assert_eq!(runs(&*one.store, source).await, [], "nothing was asked");
}

/// B74
pub(crate) async fn the_claim_of_the_dead_holds_nobody_up(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    assert_eq!(claim(&other, source, at(2)).await, "taken");
    backend.kill(one, at(3)).await;
    assert_eq!(claim(&other, source, at(3)).await, "ours");
}

/// B74: one that hangs for longer than its lease counts as dead.
pub(crate) async fn the_claim_of_the_silent_ends_with_their_lease(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    let now = other.outlive(at(1)).await;
    assert_eq!(claim(&other, source, now).await, "ours");
}

/// B83: one that was silent for too long, and whose source another asks by now, says nothing of it any more.
pub(crate) async fn what_comes_after_the_claim_was_lost_changes_nothing(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    let first = asking(&one, source, at(1)).await;
    let again = asking(&one, source, at(1)).await;
    assert!(again.epoch > first.epoch, "each claim is its own");
    let now = other.outlive(at(1)).await;
    let before = one.store.find_source(source).await.unwrap();
    let fenced = async |asking, now| {
        let kept = one.store.keep_items(asking, vec![page("https://a.example/1")], now).await;
        assert!(matches!(kept, Err(StoreError::Lost)), "{kept:?}");
        let ended = one.store.end_fetch(FetchEnd { asking, ..end(source, 10, ok()) }).await;
        assert!(matches!(ended, Err(StoreError::Lost)), "{ended:?}");
    };
    fenced(again, now).await;
    let theirs = asking(&other, source, now).await;
    fenced(again, now).await;
    fenced(Asking { holder: other.holder, ..first }, now).await;
    assert_eq!(one.store.find_source(source).await.unwrap(), before, "its cursor stays");
    assert_eq!(one.store.count_items(source).await.unwrap().items, 0);
    assert_eq!(runs(&*one.store, source).await, []);
    let kept = other.store.keep_items(theirs, vec![page("https://a.example/1")], now).await.unwrap();
    assert_eq!(kept.new, 1);
    other.store.end_fetch(FetchEnd { asking: theirs, ..end(source, 10, ok()) }).await.unwrap();
    assert_eq!(runs(&*one.store, source).await.len(), 1);
}

/// The run told of moves that were none, where another source is already.
pub(crate) async fn only_a_source_that_moved_is_reported_to_have(backend: &dyn Backend) {
    let (one, _, source) = two(backend).await;
    let (other, _) = one.store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let ends = async |result| ended(&*one.store, end(source, 10, result)).await;
    let to = |url: &str| {
        let moved_to = Some((url.to_owned(), Lead::Remote));
        FetchResult::Read { whole: true, cursor: Map::new(), moved_to }
    };
    assert!(!ends(ok()).await);
    assert!(!ends(failed(60)).await);
    assert!(!ends(FetchResult::Held { until: at(60) }).await);
    assert!(!ends(to(&other.url)).await, "another is there");
    assert!(ends(to("https://c.example/feed")).await);
    assert!(!ends(to("https://c.example/feed")).await, "it is there already");
    assert!(!ended(&*one.store, end(SourceId(99), 10, to("https://d.example/"))).await);
}

/// A source that is held for a day filled its history with that.
pub(crate) async fn held_again_and_again_is_one_row(backend: &dyn Backend) {
    let (one, _, source) = two(backend).await;
    let (other, _) = one.store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let held = || FetchResult::Held { until: at(99) };
    let told = async |id| {
        let rows = runs(&*one.store, id).await.into_iter().rev();
        let told = rows.map(|run| format!("{} {}", run.status, since(run.window_end)));
        told.collect::<Vec<_>>().join(" | ")
    };
    for secs in [1, 2, 3] {
        fetched(&*one.store, source, secs, held()).await;
        fetched(&*one.store, other.id, secs, held()).await;
    }
    assert_eq!(told(source).await, "held 3", "the last one");
    fetched(&*one.store, source, 4, ok()).await;
    fetched(&*one.store, source, 5, held()).await;
    fetched(&*one.store, source, 6, held()).await;
    fetched(&*one.store, source, 7, failed(60)).await;
    fetched(&*one.store, source, 8, held()).await;
    assert_eq!(told(source).await, "held 3 | ok 4 | held 6 | error 7 | held 8");
    assert_eq!(told(other.id).await, "held 3", "that of another is its own");
}

/// Two processes and a source.
async fn two(backend: &dyn Backend) -> (Process, Process, SourceId) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let (source, _) = one.store.add_source(feed("https://a.example/feed"), at(0)).await.unwrap();
    (one, other, source.id)
}

async fn asking(process: &Process, source: SourceId, now: Timestamp) -> Asking {
    match process.store.claim_source(source, process.holder, now).await.unwrap() {
        SourceClaim::Ours(_, asking) => asking,
        other => panic!("{other:?}"),
    }
}

async fn claim(process: &Process, source: SourceId, now: Timestamp) -> &'static str {
    match process.store.claim_source(source, process.holder, now).await.unwrap() {
        SourceClaim::Ours(claimed, _) => {
            assert_eq!(claimed.id, source);
            "ours"
        }
        SourceClaim::Taken => "taken",
        SourceClaim::Missing => "missing",
    }
}

/// Seconds on the virtual clock.
fn since(moment: Timestamp) -> u64 {
    moment.since(at(0)).as_secs_up()
}
