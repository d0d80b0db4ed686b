//! Two callers that work on the same sources, wikis, secrets or counters, the second while the first is about to
//! commit.

use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::interval::SourceInterval;
use comity_core::time::Span;
use comity_store::items::{ItemId, ScrapeTerms, Start, StartStep, Started};
use comity_store::sources::{NewSource, SourceClaim};
use comity_store::wiki::WikiClaim;

use crate::backend::Backend;
use crate::follower::{Follower, every, feed, keep, scrape_request};
use crate::process::{Process, at, taken};

/// B51: two processes work on two tasks of one source, on two domains.
pub(crate) async fn of_two_scrapes_of_a_source_one_starts(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let job = one.store.scrape_job(at(0)).await.unwrap().id;
    let new = NewSource { interval: every(60_000), ..feed("https://feeds.example/") };
    let source = one.store.add_source(new, at(0)).await.unwrap().0.id;
    let urls = ["https://a.example/".to_owned(), "https://b.example/".to_owned()];
    let items = keep(&*one.store, source, &urls).await;
    let requests = vec![scrape_request(items[0], "a.example"), scrape_request(items[1], "b.example")];
    let terms = ScrapeTerms::default();
    let enqueued = one.store.enqueue_items(job, requests, Trigger::Manual, terms, at(0)).await.unwrap();
    assert_eq!(enqueued, [Enqueued::Enqueued; 2], "nothing was scraped yet");
    let start = async |process: &Process, start| {
        process.store.start_scrape(process.holder, start, at(1)).await.unwrap()
    };
    let mut starts = Vec::new();
    for process in [&one, &other] {
        let claim = comity_store::tasks::Claim { job, lanes: 1, tasks: 1 };
        let lane = process.store.claim(process.holder, claim, at(0)).await.unwrap().remove(0);
        let (task, tenure) = (lane.tasks[0].id, taken(lane.take).tenure);
        starts.push(Start { task, tenure, interval: None, patience: Span::ZERO, step: StartStep::Begin });
    }
    let started = one.overlap(start(&one, starts[0]), start(&other, starts[1])).await;
    match started {
        (Started::Begun(_), Started::Deferred(later)) | (Started::Deferred(later), Started::Begun(_)) => {
            assert_eq!(later.wake_at, at(61));
        }
        both => panic!("{both:?}"),
    }
}

/// B54
pub(crate) async fn an_item_enqueued_by_two_has_one_task(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    let (first, second) = enqueue_both(backend, &one, [one.items[0], one.items[0]]).await;
    let once = [(Enqueued::Enqueued, Enqueued::Already), (Enqueued::Already, Enqueued::Enqueued)];
    assert!(once.contains(&(first, second)), "{first:?} {second:?}");
    assert_eq!(one.one.counts(one.job).await.tasks, 1);
    assert_eq!(one.ready(at(20)).await.len(), 1);
}

/// B55
pub(crate) async fn wakes_reserved_by_two_are_spaced_by_the_interval(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 3).await;
    one.scrape(2, at(10)).await;
    let (first, second) = enqueue_both(backend, &one, [one.items[0], one.items[1]]).await;
    let wake = |enqueued: Enqueued| match enqueued {
        Enqueued::Deferred(deferred) => deferred.wake_at,
        other => panic!("{other:?}"),
    };
    let mut wakes = [wake(first), wake(second)];
    wakes.sort_unstable();
    assert_eq!(wakes, [at(70), at(130)]);
}

/// B57: the limit on items in flight applies to both together.
pub(crate) async fn items_enqueued_by_two_stay_within_the_limit(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 2).await;
    let other = Process::start(backend, "other", at(0)).await;
    let terms = ScrapeTerms { in_flight_max: Some(1), ..ScrapeTerms::default() };
    let enqueue = async |process: &Process, item| {
        let requests = vec![scrape_request(item, "a.example")];
        process.store.enqueue_items(one.job, requests, Trigger::Automatic, terms, at(20)).await.unwrap()[0]
    };
    let both = one.one.overlap(enqueue(&one.one, one.items[0]), enqueue(&other, one.items[1])).await;
    let made = [both.0, both.1].iter().filter(|enqueued| **enqueued == Enqueued::Enqueued).count();
    assert_eq!(made, 1, "{both:?}");
}

/// B60
pub(crate) async fn a_source_claimed_by_two_is_fetched_by_one(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let source = one.store.add_source(feed("https://feeds.example/"), at(0)).await.unwrap().0.id;
    let claim =
        async |process: &Process| process.store.claim_source(source, process.holder, at(1)).await.unwrap();
    let claims = one.overlap(claim(&one), claim(&other)).await;
    let winner = match &claims {
        (SourceClaim::Ours(_, tenure), SourceClaim::Taken) => (tenure, one.holder),
        (SourceClaim::Taken, SourceClaim::Ours(_, tenure)) => (tenure, other.holder),
        _ => panic!("{claims:?}"),
    };
    assert_eq!(winner.0.holder, winner.1);
}

pub(crate) async fn a_source_added_by_two_exists_once(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let add = async |process: &Process| {
        process.store.add_source(feed("https://feeds.example/"), at(1)).await.unwrap()
    };
    let ((first, new), (second, again)) = one.overlap(add(&one), add(&other)).await;
    assert_eq!(first, second);
    assert_ne!(new, again);
    assert_eq!(one.store.list_sources().await.unwrap().len(), 1);
}

/// B83
pub(crate) async fn a_wiki_claimed_by_two_is_archived_by_one(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let claim = async |process: &Process| {
        let api = "https://wiki.example/api.php".to_owned();
        process.store.claim_wiki(api, Some(process.holder), at(1)).await.unwrap()
    };
    let claims = one.overlap(claim(&one), claim(&other)).await;
    assert!(
        matches!(claims, (WikiClaim::Ours(..), WikiClaim::Taken) | (WikiClaim::Taken, WikiClaim::Ours(..))),
        "{claims:?}"
    );
}

pub(crate) async fn a_secret_created_by_two_is_the_same(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let secret = async |process: &Process, fresh| {
        process.store.secret("permits".to_owned(), vec![fresh; 32]).await.unwrap()
    };
    let (first, second) = one.overlap(secret(&one, 1), secret(&other, 2)).await;
    assert_eq!(first, second);
}

/// B73
pub(crate) async fn concurrent_counts_are_summed(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let add = async |process: &Process, count| {
        process.store.add_counts(vec![("a".to_owned(), count)]).await.unwrap();
    };
    add(&one, 1).await;
    one.overlap(add(&one, 10), add(&other, 100)).await;
    assert_eq!(one.store.counts().await.unwrap(), [("a".to_owned(), 111)]);
}

async fn two(backend: &dyn Backend) -> (Process, Process) {
    (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await)
}

/// Enqueues an item from each of two processes at 20.
async fn enqueue_both(backend: &dyn Backend, one: &Follower, items: [ItemId; 2]) -> (Enqueued, Enqueued) {
    let other = Process::start(backend, "other", at(0)).await;
    let enqueue = async |process: &Process, item| {
        let (requests, terms) = (vec![scrape_request(item, "a.example")], ScrapeTerms::default());
        process.store.enqueue_items(one.job, requests, Trigger::Manual, terms, at(20)).await.unwrap()[0]
    };
    one.one.overlap(enqueue(&one.one, items[0]), enqueue(&other, items[1])).await
}
