//! Enqueueing items: which ones, when, and with what result.

use comity_core::enqueue::{Enqueued, Trigger};
use comity_core::interval::{Deferred, SourceInterval};
use comity_core::task::JobStep;
use comity_core::time::{Span, Timestamp};
use comity_store::items::{ItemId, ItemQuery, Order, ScrapeTerms};
use comity_store::sources::{NewItem, NewSource, SourceChange};
use comity_store::tasks::{Lead, Settle, Settled};

use crate::backend::Backend;
use crate::follower::{Follower, every, feed, keep, page, scrape_request};
use crate::process::{at, done, failed, ms};

/// Document 0, enqueuer test 1
pub(crate) async fn the_first_scrape_of_a_source_is_enqueued(backend: &dyn Backend) {
    let one = Follower::start(backend, every(2_500), 2).await;
    assert_eq!(one.enqueue(&[0, 1], at(1)).await, "enqueued | enqueued");
    assert_eq!((one.state(0).await, one.logs(0).await), ("waiting".to_owned(), String::new()));
    assert_eq!(one.ready_items(at(1)).await, "0 1");
}

/// Document 0, enqueuer test 2
pub(crate) async fn a_scrape_after_the_interval_is_enqueued(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(2_500)).await;
    assert_eq!(one.enqueue(&[0], at(12) + ms(501)).await, "enqueued");
}

/// B52, E10: exactly the interval is long enough.
pub(crate) async fn a_scrape_exactly_at_the_interval_is_enqueued(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(2_500)).await;
    assert_eq!(one.enqueue(&[0], at(12) + ms(500)).await, "enqueued");
    let just_before = at(12) + Span::from_micros(499_999);
    assert_eq!(one.enqueue(&[1], just_before).await, "wait 1 until 13.499999");
}

/// B52, document 0, enqueuer test 3
pub(crate) async fn a_scrape_before_the_interval_is_deferred_with_its_numbers(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(2_500)).await;
    let now = at(11) + ms(200);
    let requests = vec![scrape_request(one.items[0], "a.example")];
    let terms = ScrapeTerms::default();
    let enqueued = one.store().enqueue_items(one.job, requests, Trigger::Manual, terms, now).await.unwrap();
    let expected = Deferred {
        wait_seconds: 2,
        interval: ms(2_500),
        last_scrape_at: Some(at(10)),
        elapsed: ms(1_200),
        due_first: None,
        wake_at: at(13) + ms(200),
    };
    assert_eq!(enqueued, [Enqueued::Deferred(expected)]);
    assert_eq!(enqueued[0].to_string(), "scraped 1.2 s ago, the interval is 2.5 s: deferred for 2 s");
    assert_eq!(one.state(0).await, "waiting until 13.2");
}

/// B52, B55, E10
pub(crate) async fn deferred_tasks_wake_spaced_by_the_interval(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(2_500)).await;
    let results = one.enqueue(&[0, 1, 2], at(11) + ms(200)).await;
    assert_eq!(results, "wait 2 until 13.2 | wait 5 until 16.2 | wait 8 until 19.2");
    // A later call is measured from the last reserved wake time too.
    assert_eq!(one.enqueue(&[3], at(12) + ms(500)).await, "wait 10 until 22.5");
    for (nth, expected) in
        ["waiting until 13.2", "waiting until 16.2", "waiting until 19.2"].iter().enumerate()
    {
        assert_eq!(one.state(nth).await, *expected);
    }
}

/// B50: the source's own interval is longer or shorter than the global one.
pub(crate) async fn a_sources_own_interval_overrides_the_global_one(backend: &dyn Backend) {
    let shorter = scraped_at_10(backend, every(2_500)).await;
    assert_eq!(with_global(&shorter, Some(60), at(13)).await, "enqueued");
    shorter.change(SourceChange { interval: Some(every(60_000)), ..SourceChange::default() }).await;
    assert_eq!(with_global(&shorter, Some(1), at(13)).await, "wait 57 until 70");
    assert_eq!(with_global(&shorter, None, at(13)).await, "wait 117 until 130", "the global one is off");
}

/// B50
pub(crate) async fn a_source_without_an_interval_uses_the_global_one(backend: &dyn Backend) {
    let one = scraped_at_10(backend, SourceInterval::Default).await;
    assert_eq!(with_global(&one, Some(60), at(13)).await, "wait 57 until 70");
    assert_eq!(with_global(&one, Some(1), at(13)).await, "wait 58 until 71", "from the reserved wake time");
}

/// B50, document 0, enqueuer test 5
pub(crate) async fn null_and_zero_switch_the_interval_off(backend: &dyn Backend) {
    let one = scraped_at_10(backend, SourceInterval::Default).await;
    assert_eq!(with_global(&one, None, at(10)).await, "enqueued", "neither has one");
    one.change(SourceChange { interval: Some(SourceInterval::Off), ..SourceChange::default() }).await;
    assert_eq!(with_global(&one, Some(60), at(10)).await, "enqueued", "the source's own is zero");
    one.change(SourceChange { interval: Some(SourceInterval::Default), ..SourceChange::default() }).await;
    assert_eq!(with_global(&one, Some(60), at(10)).await, "wait 60 until 70", "back to the global one");
}

/// B52, document 0, enqueuer test 6
pub(crate) async fn a_deferred_task_is_ready_exactly_at_its_wake_time(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(2_500)).await;
    one.enqueue(&[0, 1], at(11) + ms(200)).await;
    let (first, second) = (at(13) + ms(200), at(16) + ms(200));
    assert_eq!(one.one.claim(one.job, first - Span::from_micros(1)).await, []);
    assert_eq!(one.one.next_due(one.job).await, Some(first), "nobody checks earlier");
    assert_eq!(one.ready_items(first).await, "0");
    let task = one.task(0, first).await;
    one.begun(task, first).await;
    one.settle(task, done(), first).await;
    assert_eq!(one.ready_items(second - Span::from_micros(1)).await, "");
    assert_eq!(one.one.next_due(one.job).await, Some(second));
    assert_eq!(one.ready_items(second).await, "1");
}

/// B51, B55
pub(crate) async fn sources_do_not_defer_each_other(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(60_000)).await;
    let new = NewSource { interval: every(60_000), ..feed("https://b.example/feed") };
    let other = one.store().add_source(new, at(0)).await.unwrap().0.id;
    let theirs = keep(one.store(), other, &["https://a.example/0".to_owned()]).await[0];
    let batch = [one.items[0], theirs, one.items[1]];
    let results = one.enqueue_with(&batch, Trigger::Manual, ScrapeTerms::default(), at(11)).await;
    assert_eq!(results, "wait 59 until 70 | enqueued | wait 119 until 130");
}

/// B56: each obstacle is removed in turn, and the next one is reported.
pub(crate) async fn refusals_come_in_their_order(backend: &dyn Backend) {
    let one = scraped_at_10(backend, every(60_000)).await;
    assert_eq!(one.enqueue(&[0], at(11)).await, "wait 59 until 70");
    let full = ScrapeTerms { in_flight_max: Some(0), ..ScrapeTerms::default() };
    let off = Some(false);
    one.change(SourceChange { enabled: off, scraping: off, auto_scrape: off, ..SourceChange::default() })
        .await;
    let ask = async |item, trigger, terms| one.enqueue_with(&[item], trigger, terms, at(12)).await;
    let (in_flight, idle, missing) = (one.items[0], one.items[1], ItemId(99));
    assert_eq!(ask(missing, Trigger::Automatic, full).await, "refused: the item does not exist");
    let disabled = "refused: scraping is disabled for the source";
    assert_eq!(ask(in_flight, Trigger::Automatic, full).await, disabled);
    one.change(SourceChange { enabled: Some(true), ..SourceChange::default() }).await;
    assert_eq!(ask(in_flight, Trigger::Automatic, full).await, disabled);
    one.change(SourceChange { scraping: Some(true), enabled: off, ..SourceChange::default() }).await;
    assert_eq!(ask(in_flight, Trigger::Automatic, full).await, disabled, "the source itself is disabled");
    one.change(SourceChange { enabled: Some(true), ..SourceChange::default() }).await;
    let automatic = "refused: automatic scraping is disabled for the source";
    assert_eq!(ask(in_flight, Trigger::Automatic, full).await, automatic);
    assert_eq!(ask(in_flight, Trigger::Manual, full).await, "already");
    let cap = "refused: 0 items of the source are waiting or running, and at most 0 may";
    assert_eq!(ask(idle, Trigger::Manual, full).await, cap);
    assert_eq!(ask(idle, Trigger::Manual, ScrapeTerms::default()).await, "wait 118 until 130");
    assert_eq!(one.one.counts(one.job).await.tasks, 3, "refused items get no tasks");
}

/// B54
pub(crate) async fn an_item_that_is_waiting_deferred_or_running_is_already_enqueued(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 2).await;
    assert_eq!(one.enqueue(&[0, 0], at(1)).await, "enqueued | already", "within one call too");
    assert_eq!(one.enqueue(&[0], at(2)).await, "already");
    let task = one.task(0, at(10)).await;
    one.begun(task, at(10)).await;
    assert_eq!(one.enqueue(&[0, 1], at(11)).await, "already | wait 59 until 70");
    assert_eq!(one.enqueue(&[0, 1], at(12)).await, "already | already");
    assert_eq!(one.enqueue(&[1], at(100)).await, "already", "its wake time has come, but it has not run");
    assert_eq!(
        (one.state(0).await, one.state(1).await),
        ("running".to_owned(), "waiting until 70".to_owned())
    );
    assert_eq!(one.one.counts(one.job).await.tasks, 2);
    assert_eq!(one.ready_items(at(100)).await, "0 1");
}

/// B56, B57: the numbers are those at that moment.
pub(crate) async fn a_bulk_enqueue_stops_at_the_in_flight_limit(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 100).await;
    let terms = ScrapeTerms { in_flight_max: Some(3), ..ScrapeTerms::default() };
    let results = one.enqueue_with(&one.items, Trigger::Automatic, terms, at(1)).await;
    let refused = "refused: 3 items of the source are waiting or running, and at most 3 may";
    let expected = ["enqueued"; 3].into_iter().chain([refused; 97]).collect::<Vec<_>>();
    assert_eq!(results, expected.join(" | "));
    assert_eq!(one.one.counts(one.job).await.tasks, 3);

    let task = one.task(0, at(2)).await;
    one.begun(task, at(2)).await;
    let again = async |items: &[ItemId]| one.enqueue_with(items, Trigger::Automatic, terms, at(3)).await;
    assert_eq!(again(&one.items[3..4]).await, refused, "a running one counts");
    one.settle(task, done(), at(3)).await;
    let results = again(&one.items[1..6]).await;
    assert_eq!(results, format!("already | already | enqueued | {refused} | {refused}"));
}

/// B56: a deferred item does not count before its wake time; then it is waiting like any other.
pub(crate) async fn deferred_items_do_not_count_towards_the_limit_before_their_wake_time(
    backend: &dyn Backend,
) {
    let one = scraped_at_10(backend, every(60_000)).await;
    let terms = ScrapeTerms { in_flight_max: Some(2), ..ScrapeTerms::default() };
    let ask = async |nth: usize, now| one.enqueue_with(&[one.items[nth]], Trigger::Manual, terms, now).await;
    let wakes = ["wait 60 until 70", "wait 120 until 130", "wait 180 until 190"];
    for (nth, expected) in wakes.iter().enumerate() {
        assert_eq!(ask(nth, at(10)).await, *expected);
    }
    assert_eq!(ask(3, at(130) - Span::from_micros(1)).await, "wait 121 until 250.999999");
    let refused = "refused: 2 items of the source are waiting or running, and at most 2 may";
    assert_eq!(ask(4, at(130)).await, refused);
}

/// An item has one task: tasks of earlier scrapes do not pile up, and the counts of the job stay as they are.
pub(crate) async fn enqueueing_an_item_again_replaces_its_task(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 2).await;
    one.scrape(1, at(0)).await;
    for secs in 1..=5 {
        one.scrape(0, at(secs)).await;
    }
    assert_eq!(one.enqueue(&[0], at(6)).await, "enqueued");
    let task = one.task(0, at(6)).await;
    one.settle(task, failed(), at(6)).await;
    assert_eq!(one.enqueue(&[0], at(7)).await, "enqueued", "one that failed may be enqueued too");

    let counts = one.one.counts(one.job).await;
    assert_eq!((counts.tasks, counts.done, counts.failed, counts.waiting()), (8, 6, 1, 1));
    for (state, expected) in [("done", 1), ("failed", 0), ("waiting", 1)] {
        let tasks = one.store().list_tasks(one.job, state.to_owned(), 100).await.unwrap();
        assert_eq!(tasks.len(), expected, "{state}");
    }
    assert_eq!(one.ready_items(at(7)).await, "0");
    assert_eq!(one.store().list_scrapes(one.items[0], 100).await.unwrap().len(), 5, "the log stays");
}

/// B74: a process that still works on the task of an earlier scrape does not affect the new one.
pub(crate) async fn a_late_result_of_a_replaced_task_is_refused(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    one.enqueue(&[0], at(1)).await;
    let old = one.task(0, at(1)).await;
    one.begun(old, at(1)).await;
    one.one.step(one.job, JobStep::Cancel, at(2)).await;
    one.store().scrape_job(at(2)).await.unwrap();
    assert_eq!(one.enqueue(&[0], at(3)).await, "enqueued");

    let late = Settle {
        task: old,
        job: one.job,
        tenure: one.tenure,
        attempts: vec![],
        url_key: None,
        robots: None,
        facts: Default::default(),
        step: failed(),
    };
    let settled = one.store().settle(one.one.holder, [late].into(), at(4)).await.unwrap();
    assert_eq!(settled, [Settled::Fenced]);
    assert_eq!(one.state(0).await, "waiting");
    assert_ne!(one.task(0, at(4)).await, old, "task ids are not reused");
}

/// B76
pub(crate) async fn a_task_knows_its_item_and_where_its_url_comes_from(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 0).await;
    let found = vec![
        NewItem { identity: "listed".to_owned(), lead: Lead::Listed, ..page("https://a.example/page") },
        // Two items may point to the same page.
        NewItem { identity: "remote".to_owned(), lead: Lead::Remote, ..page("https://a.example/page") },
    ];
    crate::follower::found(one.store(), one.source, found, at(0)).await;
    let items = ItemQuery { limit: 9, order: Order::After(ItemId(0)), ..Default::default() };
    let ids: Vec<ItemId> =
        one.store().list_items(items).await.unwrap().into_iter().map(|item| item.id).collect();
    let results = one.enqueue_with(&ids, Trigger::Manual, ScrapeTerms::default(), at(1)).await;
    assert_eq!(results, "enqueued | enqueued");
    let tasks = one.ready(at(1)).await;
    let seen: Vec<_> = tasks.iter().map(|task| (task.url.as_str(), task.lead, task.scrapes)).collect();
    let url = "https://a.example/page";
    let scrapes = |nth: usize| Some((ids[nth], one.source));
    assert_eq!(seen, [(url, Lead::Listed, scrapes(0)), (url, Lead::Remote, scrapes(1))]);
}

/// B49: the job may end between finding it and enqueueing.
pub(crate) async fn an_item_enqueued_while_its_job_ended_is_not_lost(backend: &dyn Backend) {
    let one = Follower::start(backend, SourceInterval::Off, 1).await;
    one.one.step(one.job, JobStep::Cancel, at(1)).await;
    one.one.sweep(one.job, at(1)).await;
    one.enqueue(&[0], at(2)).await;
    assert_eq!(one.store().scrape_job(at(3)).await.unwrap().id, one.job);
    one.enqueue(&[0], at(3)).await;
    assert_eq!(one.ready_items(at(3)).await, "0");
    let task = one.task(0, at(3)).await;
    assert_eq!(one.begin(task, at(3)).await, "begun");
}

/// A source whose last scrape started at 10, with five items that were never scraped.
async fn scraped_at_10(backend: &dyn Backend, interval: SourceInterval) -> Follower {
    let one = Follower::start(backend, interval, 6).await;
    one.scrape(5, at(10)).await;
    one
}

/// Enqueues the next item that was not enqueued yet, with a global interval of this many seconds.
async fn with_global(one: &Follower, global: Option<u64>, now: Timestamp) -> String {
    let terms = ScrapeTerms { interval: global.map(Span::from_secs), ..ScrapeTerms::default() };
    for nth in 0..one.items.len() {
        if one.state(nth).await == "none" {
            return one.enqueue_with(&[one.items[nth]], Trigger::Manual, terms, now).await;
        }
    }
    panic!("all of them were enqueued")
}
