//! Whether a scrape may start, and what its start commits.

use comity_core::interval::SourceInterval;
use comity_core::task::{JobStep, TaskId};
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{ReleaseMode, Tenure};
use comity_store::items::{ItemState, Start, StartStep, Started};
use comity_store::sources::SourceChange;
use comity_store::tasks::{RedirectBody, Settled, Step};

use crate::backend::Backend;
use crate::follower::{Follower, describe_started, every};
use crate::process::{Process, at, domain, done, moved, ms, retry, skipped, tenure_of};

/// B51, document 0, job test 1: the row exists before the request is sent.
pub(crate) async fn a_scrape_that_begins_has_a_row_from_its_start(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(60_000)).await;
    assert_eq!(one.ask(task, at(10)).await, "may join");
    assert_eq!(
        (one.state(0).await, one.logs(0).await),
        ("waiting".to_owned(), String::new()),
        "it has only asked"
    );
    assert_eq!(one.begin(task, at(10) + ms(250)).await, "begun");
    assert_eq!((one.state(0).await, one.logs(0).await), ("running".to_owned(), "10.25 running".to_owned()));
}

/// B52, B53, document 0, job tests 2 and 3: postponed in the store, with no request and no row.
pub(crate) async fn a_task_that_runs_too_soon_is_deferred(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, every(2_500)).await;
    for step in [StartStep::Ask, StartStep::Begin] {
        let started = one.try_start(one.wants(task, step), at(11) + ms(200)).await;
        let Started::Deferred(deferred) = started else { panic!("{started:?}") };
        assert_eq!(deferred.to_string(), "scraped 1.2 s ago, the interval is 2.5 s: deferred for 2 s");
        assert_eq!((one.state(0).await, one.logs(0).await), ("waiting until 13.2".to_owned(), String::new()));
    }
    let wake = at(13) + ms(200);
    assert_eq!(one.ready_items(wake - Span::from_micros(1)).await, "");
    assert_eq!(one.one.next_due(one.job).await, Some(wake));
    assert_eq!(one.task(0, wake).await, task);
    assert_eq!(one.begin(task, wake).await, "begun");
    assert_eq!(one.state(0).await, "running", "its wake time is used up");
    let counts = one.one.counts(one.job).await;
    assert_eq!((counts.retries, counts.waiting()), (0, 1), "no retry was used");
}

/// B50: a running task also obeys its source's own interval, or else the global one.
pub(crate) async fn a_running_task_obeys_the_interval_in_force(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, SourceInterval::Off).await;
    let asks = async |interval, global: Option<u64>| {
        one.change(SourceChange { interval: Some(interval), ..SourceChange::default() }).await;
        let wants = one.wants(task, StartStep::Ask);
        let start = Start { interval: global.map(Span::from_secs), patience: Span::from_secs(99), ..wants };
        describe_started(&one.try_start(start, at(11)).await)
    };
    assert_eq!(asks(SourceInterval::Off, Some(60)).await, "may join");
    assert_eq!(asks(SourceInterval::Default, Some(60)).await, "soon at 70");
    assert_eq!(asks(SourceInterval::Default, None).await, "may join");
    assert_eq!(asks(every(30_000), Some(60)).await, "soon at 40");
    assert_eq!(asks(every(90_000), Some(60)).await, "soon at 100");
    assert_eq!(asks(every(1_000), Some(60)).await, "may join", "exactly at the interval");
}

/// B52: a wait that the task may just as well spend in the queue.
pub(crate) async fn a_short_wait_is_reported_and_changes_nothing(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, every(2_500)).await;
    let before = one.ready(at(12)).await;
    for step in [StartStep::Ask, StartStep::Begin] {
        let start = Start { patience: ms(500), ..one.wants(task, step) };
        assert_eq!(describe_started(&one.try_start(start, at(12)).await), "soon at 12.5");
        assert_eq!((one.state(0).await, one.logs(0).await), ("waiting".to_owned(), String::new()));
    }
    assert_eq!(one.ready(at(12)).await, before);
    assert_eq!(one.begin(task, at(12) + ms(500)).await, "begun", "the reported time was right");
}

/// B52
pub(crate) async fn a_wait_beyond_patience_is_deferred(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, every(2_500)).await;
    let start = Start { patience: Span::from_micros(499_999), ..one.wants(task, StartStep::Begin) };
    assert_eq!(describe_started(&one.try_start(start, at(12)).await), "wait 1 until 13");
}

/// B53, B55: however they were enqueued, one starts and the others wake one after another.
pub(crate) async fn tasks_enqueued_together_wake_spaced_by_the_interval(backend: &dyn Backend) {
    let one = Follower::start(backend, every(2_500), 5).await;
    assert_eq!(one.enqueue(&[0, 1, 2, 3, 4], at(0)).await, ["enqueued"; 5].join(" | "));
    let tasks: Vec<TaskId> = one.ready(at(10)).await.iter().map(|task| task.id).collect();
    assert_eq!(one.begin(tasks[0], at(10)).await, "begun");
    one.settle(tasks[0], done(), at(10)).await;
    let now = at(11) + ms(200);
    let waits = ["wait 2 until 13.2", "wait 5 until 16.2", "wait 8 until 19.2", "wait 11 until 22.2"];
    for (task, wait) in std::iter::zip(&tasks[1..], waits) {
        assert_eq!(one.begin(*task, now).await, wait);
    }
    // Each starts at its own wake time, and the wake times of those after it do not defer it again.
    for (nth, wake) in [(1, 13_200), (2, 16_200), (3, 19_200), (4, 22_200)] {
        let wake = at(0) + ms(wake);
        assert_eq!(one.ready_items(wake).await, nth.to_string());
        assert_eq!(one.begin(tasks[nth], wake).await, "begun");
        one.settle(tasks[nth], done(), wake).await;
    }
}

/// B7, B55: a wake time reserved while the clock was a year ahead deferred all others for a year.
pub(crate) async fn a_wake_time_from_a_clock_that_was_ahead_defers_nobody_for_long(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 3).await;
    let year = at(365 * 86_400);
    one.enqueue(&[0, 1], year).await;
    let task = one.task(0, year).await;
    one.begun(task, year).await;
    one.settle(task, done(), year).await;
    let ahead = one.task(1, year).await;
    assert_eq!(one.begin(ahead, year).await, "wait 60 until 31536060");
    assert_eq!(one.enqueue(&[2], at(10)).await, "wait 121 until 131");
}

/// B41, B53: a 429 asked for a minute, but the interval of five seconds made the retry ready after five.
pub(crate) async fn a_deferred_retry_is_not_ready_earlier(backend: &dyn Backend) {
    let one = Follower::start(backend, every(5_000), 2).await;
    one.enqueue(&[0, 1], at(0)).await;
    let (task, other) = (one.task(0, at(0)).await, one.task(1, at(0)).await);
    one.begun(task, at(10)).await;
    one.settle(task, retry(at(70)), at(10)).await;
    one.begun(other, at(20)).await;
    one.settle(other, done(), at(20)).await;
    for step in [StartStep::Ask, StartStep::Begin] {
        let started = one.try_start(one.wants(task, step), at(21)).await;
        assert!(matches!(started, Started::Deferred(_)), "{started:?}");
        assert_eq!(one.ready_items(at(70) - Span::from_micros(1)).await, "");
    }
    assert_eq!(one.task(0, at(70)).await, task);
    assert_eq!(one.begin(task, at(70)).await, "begun");
}

/// B55: a task deferred while it runs comes after the wake times reserved when others were enqueued.
pub(crate) async fn a_task_deferred_while_running_comes_after_reserved_wake_times(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, every(60_000)).await;
    assert_eq!(one.enqueue(&[2, 3], at(11)).await, "wait 59 until 70 | wait 119 until 130");
    assert_eq!(one.begin(task, at(12)).await, "wait 178 until 190");
    // Asked again meanwhile, it does not move further: the last wake time is its own.
    assert_eq!(one.begin(task, at(13)).await, "wait 177 until 190");
}

/// B7, B52
pub(crate) async fn after_a_clock_step_back_a_task_waits_one_interval(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 3).await;
    one.enqueue(&[0, 1], at(0)).await;
    let (first, second) = (one.task(0, at(0)).await, one.task(1, at(0)).await);
    one.begun(first, at(5_000)).await;
    let start = Start { patience: Span::from_secs(60), ..one.wants(second, StartStep::Begin) };
    assert_eq!(describe_started(&one.try_start(start, at(10)).await), "soon at 70");
    assert_eq!(one.begin(second, at(10)).await, "wait 60 until 70");
    assert_eq!(one.enqueue(&[2], at(10)).await, "wait 120 until 130");
    assert_eq!(one.begin(second, at(70)).await, "begun", "a start in the future counts as now, once");
}

/// B58
pub(crate) async fn a_task_whose_item_was_deleted_is_a_no_op(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.store().remove_source(one.source).await.unwrap();
    assert_eq!(one.ask(task, at(10)).await, "gone: the item is gone");
    assert_eq!(one.begin(task, at(10)).await, "gone: the item is gone");
    one.settle(task, skipped(), at(10)).await;
    assert_eq!(one.store().find_item(one.items[0]).await.unwrap(), None);
    assert_eq!(one.store().list_scrapes(one.items[0], 9).await.unwrap(), []);
    let counts = one.one.counts(one.job).await;
    assert_eq!((counts.skipped, counts.waiting()), (1, 0));
}

/// B58
pub(crate) async fn a_task_whose_source_was_disabled_is_a_no_op(backend: &dyn Backend) {
    let change = SourceChange { enabled: Some(false), ..SourceChange::default() };
    is_a_no_op(backend, change, "gone: the source is disabled").await;
}

/// B58
pub(crate) async fn a_task_whose_source_is_not_scraped_any_more_is_a_no_op(backend: &dyn Backend) {
    let change = SourceChange { scraping: Some(false), ..SourceChange::default() };
    is_a_no_op(backend, change, "gone: scraping is disabled for the source").await;
}

/// B56: what was requested is scraped, although runs would not request it any more.
pub(crate) async fn a_task_whose_source_is_no_longer_scraped_automatically_continues(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.change(SourceChange { auto_scrape: Some(false), ..SourceChange::default() }).await;
    assert_eq!(one.begin(task, at(10)).await, "begun");
}

/// B49, B58
pub(crate) async fn a_task_whose_job_ended_is_a_no_op(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.one.step(one.job, JobStep::Cancel, at(9)).await;
    assert_eq!(one.ask(task, at(10)).await, "gone: the job ended");
    assert_eq!(one.begin(task, at(10)).await, "gone: the job ended");
    assert_eq!(one.logs(0).await, "");
    one.one.sweep(one.job, at(10)).await;
    assert_eq!(one.state(0).await, "failed");
    assert_eq!(one.begin(task, at(11)).await, "fenced");
}

/// B58: an item that was enqueued again meanwhile belongs to its new task.
pub(crate) async fn settling_a_no_op_does_not_affect_a_later_request(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.change(SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(one.ask(task, at(10)).await, "gone: the source is disabled");
    one.change(SourceChange { enabled: Some(true), ..SourceChange::default() }).await;
    assert_eq!(one.enqueue(&[0], at(11)).await, "enqueued");
    one.settle(task, skipped(), at(12)).await;
    assert_eq!(one.state(0).await, "waiting");
    let new = one.task(0, at(12)).await;
    assert_ne!(new, task);
    assert_eq!(one.begin(new, at(12)).await, "begun");
}

/// B54, B58, B74: the process that got this answer died before it could settle, and the source was enabled again.
pub(crate) async fn a_no_op_that_was_never_settled_does_not_strand_its_item(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.change(SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(one.ask(task, at(10)).await, "gone: the source is disabled");
    one.change(SourceChange { enabled: Some(true), ..SourceChange::default() }).await;

    assert_eq!(one.task(0, at(20)).await, task, "it is claimed again");
    let started = one.begin(task, at(20)).await;
    let step = if started == "begun" { done() } else { skipped() };
    one.settle(task, step, at(21)).await;
    let state = one.item(0).await.state;
    assert!(!state.is_in_flight(), "after {started} it is {state:?}, and no task of it is left");
    assert_eq!(one.enqueue(&[0], at(22)).await, "enqueued");
}

/// B54
pub(crate) async fn an_item_is_scraped_by_its_latest_task_only(backend: &dyn Backend) {
    let (one, old) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.change(SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    assert_eq!(one.ask(old, at(10)).await, "gone: the source is disabled");
    one.change(SourceChange { enabled: Some(true), ..SourceChange::default() }).await;
    assert_eq!(one.enqueue(&[0], at(11)).await, "enqueued");
    let tasks: Vec<TaskId> = one.ready(at(12)).await.iter().map(|task| task.id).collect();
    let mut begun = 0;
    for task in tasks {
        let started = one.begin(task, at(12)).await;
        begun += usize::from(started == "begun");
        one.settle(task, if started == "begun" { done() } else { skipped() }, at(12)).await;
    }
    assert_eq!(begun, 1, "one request to scrape, one request sent");
    assert_eq!(one.state(0).await, "done");
}

/// B74: callers that are no longer allowed to start it, or never were.
pub(crate) async fn a_start_without_a_valid_tenure_is_fenced(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    let other = Process::start(backend, "other", at(0)).await;
    let elsewhere = other.taken("b.example", at(0)).await.tenure;
    for step in [StartStep::Ask, StartStep::Begin] {
        let start = one.wants(task, step);
        let ask = async |process: &Process, start| {
            describe_started(&process.store.start_scrape(process.holder, start, at(10)).await.unwrap())
        };
        assert_eq!(ask(&other, start).await, "fenced", "another's tenure");
        let tenure = Tenure { epoch: one.tenure.epoch - 1, ..one.tenure };
        assert_eq!(ask(&one.one, Start { tenure, ..start }).await, "fenced", "an earlier take");
        assert_eq!(ask(&other, Start { tenure: elsewhere, ..start }).await, "fenced", "another domain");
        assert_eq!(ask(&one.one, Start { task: TaskId(999), ..start }).await, "fenced", "no such task");
    }
    let plain = one.one.job_of("plain", &["https://a.example/plain"], at(0)).await;
    let lane = one.one.claim_one(plain, at(1)).await;
    assert_eq!(one.begin(lane.tasks[0].id, at(10)).await, "fenced", "it scrapes no item");
    assert_eq!((one.state(0).await, one.logs(0).await), ("waiting".to_owned(), String::new()));

    one.one.release(one.tenure, b"pace", ReleaseMode::HandOver, at(11)).await;
    assert_eq!(one.begin(task, at(12)).await, "fenced", "it released the domain");
    let tenure = other.taken("a.example", at(12)).await.tenure;
    assert_eq!(one.begin(task, at(12)).await, "fenced", "it was taken");
    let start = Start { tenure, ..one.wants(task, StartStep::Begin) };
    let started = other.store.start_scrape(other.holder, start, at(12)).await.unwrap();
    assert_eq!(describe_started(&started), "begun");
}

/// B74
pub(crate) async fn a_task_that_ended_cannot_start(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, SourceInterval::Off).await;
    one.begun(task, at(10)).await;
    one.settle(task, done(), at(11)).await;
    assert_eq!(one.ask(task, at(12)).await, "fenced");
    assert_eq!(one.begin(task, at(12)).await, "fenced");
    assert_eq!(
        (one.state(0).await, one.logs(0).await),
        ("done".to_owned(), "10 ok at 11 200 10 bytes".to_owned())
    );
}

/// B51: a request that was not sent does not count.
pub(crate) async fn a_cancelled_scrape_leaves_no_row(backend: &dyn Backend) {
    let one = Follower::start(backend, every(60_000), 2).await;
    one.enqueue(&[0, 1], at(0)).await;
    let (first, second) = (one.task(0, at(0)).await, one.task(1, at(0)).await);
    let log = one.begun(first, at(10)).await;
    one.store().cancel_scrape(log).await.unwrap();
    assert_eq!((one.state(0).await, one.logs(0).await), ("waiting".to_owned(), String::new()));
    assert_eq!(one.ready_items(at(10)).await, "0 1");
    assert_eq!(one.begin(second, at(10)).await, "begun", "as if it had never started");
    one.settle(second, done(), at(11)).await;
    let log = one.begun(first, at(70)).await;
    one.settle(first, done(), at(71)).await;
    one.store().cancel_scrape(log).await.unwrap();
    let actual = (one.state(0).await, one.logs(0).await);
    assert_eq!(actual, ("done".to_owned(), "70 ok at 71 200 10 bytes".to_owned()), "finished scrapes stay");
}

/// B44, B51: a redirect belongs to its scrape: one row, and no interval in between.
pub(crate) async fn a_redirect_continues_in_the_same_row(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(60_000)).await;
    let log = one.begun(task, at(10)).await;
    one.settle(task, moved("b.example"), at(11)).await;
    assert_eq!((one.state(0).await, one.logs(0).await), ("running".to_owned(), "10 running".to_owned()));

    let other = Process::start(backend, "other", at(0)).await;
    let there = other.claim_one(one.job, at(12)).await;
    assert_eq!((there.domain.as_str(), there.tasks[0].id), ("b.example", task));
    let tenure = tenure_of(&there);
    let start = |step| Start { tenure, ..one.wants(task, step) };
    let ask = async |step| other.store.start_scrape(other.holder, start(step), at(12)).await.unwrap();
    assert_eq!(ask(StartStep::Ask).await, Started::MayJoin);
    assert_eq!(ask(StartStep::Begin).await, Started::Continues(log));
    assert_eq!(one.begin(task, at(12)).await, "fenced", "it moved to another domain");
    assert_eq!(other.settle(one.job, tenure, task, done(), at(13)).await, Settled::Yes);
    let actual = (one.state(0).await, one.logs(0).await);
    assert_eq!(actual, ("done".to_owned(), "10 ok at 13 200 10 bytes".to_owned()));
}

/// B44: a task that moved to another domain before it was sent starts there like any other.
pub(crate) async fn a_move_without_a_redirect_does_not_count_as_a_start(backend: &dyn Backend) {
    let (one, task) = enqueued_beside_a_scrape_at_10(backend, every(60_000)).await;
    let step = Step::Moved { domain: domain("b.example"), at_url: None, hops: 0, body: RedirectBody::Kept };
    one.settle(task, step, at(11)).await;
    let tenure = one.one.taken("b.example", at(11)).await.tenure;
    let there = Follower { tenure, ..one };
    assert_eq!(there.begin(task, at(12)).await, "wait 58 until 70");
    assert_eq!(there.begin(task, at(70)).await, "begun");
    assert_eq!(there.logs(0).await, "70 running");
}

/// B51, B74: it may have been sent before its holder died, so it counts.
pub(crate) async fn an_interrupted_scrape_is_closed_and_counts(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(60_000)).await;
    one.begun(task, at(10)).await;
    let heir = inherit(backend, one, at(20)).await;
    assert_eq!(heir.task(0, at(20)).await, task);
    assert_eq!(heir.ask(task, at(20)).await, "wait 50 until 70");
    let actual = (heir.state(0).await, heir.logs(0).await);
    assert_eq!(actual, ("waiting until 70".to_owned(), "10 interrupted at 20".to_owned()));
    assert_eq!(heir.begin(task, at(70)).await, "begun");
    heir.settle(task, done(), at(71)).await;
    let actual = (heir.state(0).await, heir.logs(0).await);
    assert_eq!(actual, ("done".to_owned(), "10 interrupted at 20 | 70 ok at 71 200 10 bytes".to_owned()));
}

/// B74
pub(crate) async fn a_scrape_interrupted_long_ago_restarts_at_once(backend: &dyn Backend) {
    let (one, task) = Follower::enqueued(backend, every(5_000)).await;
    one.begun(task, at(10)).await;
    let heir = inherit(backend, one, at(20)).await;
    assert_eq!(heir.begin(task, at(20)).await, "begun");
    let actual = (heir.state(0).await, heir.logs(0).await);
    assert_eq!(actual, ("running".to_owned(), "10 interrupted at 20 | 20 running".to_owned()));
}

/// A task as if it had been enqueued directly: another item of its source was scraped at 10.
async fn enqueued_beside_a_scrape_at_10(
    backend: &dyn Backend,
    interval: SourceInterval,
) -> (Follower, TaskId) {
    let (one, task) = Follower::enqueued(backend, interval).await;
    one.scrape(1, at(10)).await;
    (one, task)
}

async fn is_a_no_op(backend: &dyn Backend, change: SourceChange, why: &str) {
    let one = Follower::start(backend, every(60_000), 3).await;
    one.enqueue(&[0], at(0)).await;
    one.scrape(2, at(5)).await;
    assert_eq!(one.enqueue(&[1], at(6)).await, "wait 59 until 65");
    one.change(change).await;
    let (now, tasks) = (at(65), [one.task(0, at(65)).await, one.task(1, at(65)).await]);
    for (nth, (task, step)) in std::iter::zip(tasks, [StartStep::Ask, StartStep::Begin]).enumerate() {
        assert_eq!(describe_started(&one.try_start(one.wants(task, step), now).await), why);
        assert_eq!((one.state(nth).await, one.logs(nth).await), ("none".to_owned(), String::new()));
        one.settle(task, skipped(), now).await;
        let item = one.item(nth).await;
        assert_eq!((item.state, item.error), (ItemState::None, None), "as if it had never been enqueued");
    }
    let counts = one.one.counts(one.job).await;
    assert_eq!((counts.skipped, counts.waiting()), (2, 0));
    let on = Some(true);
    one.change(SourceChange { enabled: on, scraping: on, ..SourceChange::default() }).await;
    assert_eq!(one.enqueue(&[0, 1], now).await, "enqueued | enqueued");
}

/// The process dies, and another one continues its work.
async fn inherit(backend: &dyn Backend, dead: Follower, now: Timestamp) -> Follower {
    let Follower { one, source, items, job, .. } = dead;
    backend.kill(one, now).await;
    let one = Process::start(backend, "heir", now).await;
    let tenure = one.taken("a.example", now).await.tenure;
    Follower { one, tenure, source, items, job }
}
