//! Claiming a source to fetch it: one process at a time, until it reports the result or dies.

use comity_core::time::Timestamp;
use comity_store::StoreError;
use comity_store::sources::{FetchEnd, FetchResult, SourceChange, SourceClaim, SourceId, SourceTenure};
use comity_store::tasks::Lead;
use serde_json::{Map, json};

use super::fetches::{end, failed, fetched, object, ok, runs};
use crate::backend::Backend;
use crate::follower::{ended, feed, page};
use crate::process::{Process, at};

/// B60: two runs that were due at once fetched the same source twice, the second with an old cursor.
pub(crate) async fn a_source_is_fetched_by_one_process_at_a_time(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    assert_eq!(claim(&other, source, at(1)).await, "taken");
    assert_eq!(claim(&one, source, at(2)).await, "ours", "the owner may claim it again");
    assert_eq!(claim(&other, source, at(2)).await, "taken");
    assert_eq!(claim(&one, SourceId(99), at(2)).await, "missing");
    let (second, _) = one.store.add_source(feed("https://b.example/feed"), at(2)).await.unwrap();
    assert_eq!(claim(&other, second.id, at(2)).await, "ours", "another source can be claimed");
}

/// What was known before the claim may be out of date: the row at the time of the claim counts.
pub(crate) async fn a_claim_returns_the_source_as_it_is_now(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    let change = SourceChange { name: Some("renamed".to_owned()), ..SourceChange::default() };
    other.store.change_source(source, change).await.unwrap();
    let cursor = object(json!({ "etag": "\"1\"" }));
    let read = FetchResult::Read { whole: true, cursor, moved_to: None };
    let tenure = tenure(&one, source, at(2)).await;
    one.store.end_fetch(FetchEnd { tenure, ..end(source, 10, read) }).await.unwrap();
    let now = one.store.find_source(source).await.unwrap().unwrap();
    assert_eq!(claim(&other, source, at(11)).await, "taken", "until the claim ends");
    one.store.leave_source(tenure).await.unwrap();
    let claimed = other.store.claim_source(source, other.holder, at(11)).await.unwrap();
    let SourceClaim::Ours(claimed, _) = claimed else { panic!("{claimed:?}") };
    assert_eq!(*claimed, now);
    assert!(now.name == "renamed" && now.cursor_json.contains("etag"), "{now:?}");
}

/// A process that does not fetch the source after all ends its claim, and cannot end another's.
pub(crate) async fn only_the_owner_of_a_claim_can_end_it(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    let first = tenure(&one, source, at(1)).await;
    other.store.leave_source(SourceTenure { holder: other.holder, ..first }).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "taken", "it was another process's claim");
    let second = tenure(&one, source, at(1)).await;
    one.store.leave_source(first).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "taken", "it was claimed again since");
    one.store.leave_source(second).await.unwrap();
    assert_eq!(claim(&other, source, at(1)).await, "ours");
    one.store.leave_source(second).await.unwrap();
    assert_eq!(claim(&one, source, at(1)).await, "taken", "it had ended its claim before");
    assert_eq!(runs(&*one.store, source).await, [], "nothing was fetched");
}

/// B74
pub(crate) async fn a_claim_of_a_dead_process_blocks_nobody(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    assert_eq!(claim(&other, source, at(2)).await, "taken");
    backend.kill(one, at(3)).await;
    assert_eq!(claim(&other, source, at(3)).await, "ours");
}

/// B74: a process that hangs for longer than its lease counts as dead.
pub(crate) async fn a_claim_of_a_silent_process_ends_with_its_lease(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    assert_eq!(claim(&one, source, at(1)).await, "ours");
    let now = other.outlive(at(1)).await;
    assert_eq!(claim(&other, source, now).await, "ours");
}

/// B83: a process that was silent for too long cannot report on a source that another one is fetching by now.
pub(crate) async fn a_report_after_losing_the_claim_changes_nothing(backend: &dyn Backend) {
    let (one, other, source) = two(backend).await;
    let first = tenure(&one, source, at(1)).await;
    let again = tenure(&one, source, at(1)).await;
    assert!(again.epoch > first.epoch, "each claim has its own epoch");
    let now = other.outlive(at(1)).await;
    let before = one.store.find_source(source).await.unwrap();
    let fenced = async |tenure, now| {
        let kept = one.store.keep_items(tenure, vec![page("https://a.example/1")], now).await;
        assert!(matches!(kept, Err(StoreError::Lost)), "{kept:?}");
        let ended = one.store.end_fetch(FetchEnd { tenure, ..end(source, 10, ok()) }).await;
        assert!(matches!(ended, Err(StoreError::Lost)), "{ended:?}");
    };
    fenced(again, now).await;
    let theirs = tenure(&other, source, now).await;
    fenced(again, now).await;
    fenced(SourceTenure { holder: other.holder, ..first }, now).await;
    assert_eq!(one.store.find_source(source).await.unwrap(), before, "its cursor stays");
    assert_eq!(one.store.count_items(source).await.unwrap().items, 0);
    assert_eq!(runs(&*one.store, source).await, []);
    let kept = other.store.keep_items(theirs, vec![page("https://a.example/1")], now).await.unwrap();
    assert_eq!(kept.new, 1);
    other.store.end_fetch(FetchEnd { tenure: theirs, ..end(source, 10, ok()) }).await.unwrap();
    assert_eq!(runs(&*one.store, source).await.len(), 1);
}

/// Runs used to report moves that did not happen, because another source has that URL.
pub(crate) async fn a_move_is_reported_only_if_the_source_moved(backend: &dyn Backend) {
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
    assert!(!ends(to(&other.url)).await, "another source has that URL");
    assert!(ends(to("https://c.example/feed")).await);
    assert!(!ends(to("https://c.example/feed")).await, "it has that URL already");
    assert!(!ended(&*one.store, end(SourceId(99), 10, to("https://d.example/"))).await);
}

/// A source that was held for a day filled its history with that.
pub(crate) async fn repeated_holds_are_one_row(backend: &dyn Backend) {
    let (one, _, source) = two(backend).await;
    let (other, _) = one.store.add_source(feed("https://b.example/feed"), at(0)).await.unwrap();
    let held = || FetchResult::Held { until: at(99) };
    let history = async |id| {
        let rows = runs(&*one.store, id).await.into_iter().rev();
        let runs = rows.map(|run| format!("{} {}", run.status, since(run.window_end)));
        runs.collect::<Vec<_>>().join(" | ")
    };
    for secs in [1, 2, 3] {
        fetched(&*one.store, source, secs, held()).await;
        fetched(&*one.store, other.id, secs, held()).await;
    }
    assert_eq!(history(source).await, "held 3", "the latest one");
    fetched(&*one.store, source, 4, ok()).await;
    fetched(&*one.store, source, 5, held()).await;
    fetched(&*one.store, source, 6, held()).await;
    fetched(&*one.store, source, 7, failed(60)).await;
    fetched(&*one.store, source, 8, held()).await;
    assert_eq!(history(source).await, "held 3 | ok 4 | held 6 | error 7 | held 8");
    assert_eq!(history(other.id).await, "held 3", "another source has its own row");
}

/// Two processes and a source.
async fn two(backend: &dyn Backend) -> (Process, Process, SourceId) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let (source, _) = one.store.add_source(feed("https://a.example/feed"), at(0)).await.unwrap();
    (one, other, source.id)
}

async fn tenure(process: &Process, source: SourceId, now: Timestamp) -> SourceTenure {
    match process.store.claim_source(source, process.holder, now).await.unwrap() {
        SourceClaim::Ours(_, tenure) => tenure,
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
