//! Claiming lanes, reading more of their tasks, and giving lanes back.

use comity_store::domains::{LastHolderBuf, ReleaseMode, Take};
use comity_store::tasks::{Claim, Cursor, Refill, Settled, TaskRow};

use crate::backend::Backend;
use crate::process::{Process, at, done, listed, ms, retry, taken, tenure_of, urls_of};

pub(crate) async fn a_claim_returns_lanes_with_their_first_tasks(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls = ["https://a.example/1", "https://a.example/2", "https://a.example/3", "https://b.example/1"];
    let job = one.job_of("job", &urls, at(0)).await;
    one.enqueue(job, &["https://c.example/1"], at(1)).await;
    let claim = |lanes, tasks, now| one.store.claim(one.holder, Claim { job, lanes, tasks }, now);

    let first = claim(2, 2, at(1)).await.unwrap();
    assert_eq!(urls_of(&first), "a.example/1 a.example/2 | b.example/1");
    assert!(first.iter().all(|lane| lane.job == job && matches!(lane.take, Take::Taken(_))));
    assert_eq!(first[0].tasks[0].ready_at, at(0));
    assert_eq!(urls_of(&claim(2, 2, at(1)).await.unwrap()), "c.example/1");
    assert_eq!(claim(2, 2, at(1)).await.unwrap(), []);

    let again = one.job_of("again", &["https://a.example/1"], at(1)).await;
    assert_eq!(one.claim_one(again, at(1)).await.take, Take::Ours, "the domain was taken with the other job");
}

/// B9: a process that finds a lane served does not mark its domain as wanted.
pub(crate) async fn a_lane_is_served_by_one_process(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://a.example/2"], at(0)).await;
    one.claim_one(job, at(0)).await;
    assert_eq!(other.claim(job, at(1)).await, []);
    one.enqueue(job, &["https://a.example/3"], at(2)).await;
    assert_eq!(other.claim(job, at(2)).await, []);
    assert_eq!(one.wanted().await, []);
    assert_eq!(other.next_due(job).await, None);
}

/// B9
pub(crate) async fn a_lane_on_a_held_domain_is_parked_and_the_domain_wanted(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let job = other.job_of("job", &["https://a.example/1"], at(0)).await;

    assert_eq!(other.claim(job, at(1)).await, []);
    assert!(other.next_due(job).await.unwrap() > at(1), "it is not polled all the time");
    assert_eq!(one.wanted().await, [tenure.key]);

    one.release(tenure, b"pace", ReleaseMode::HandOver, at(1) + ms(1)).await;
    assert_eq!(other.next_due(job).await, Some(at(1) + ms(1)), "it is due as soon as the domain is free");
    let lane = other.claim_one(job, at(1) + ms(1)).await;
    assert_eq!(taken(lane.take).last_holder, LastHolderBuf::HandedOver(b"pace".to_vec()));
}

pub(crate) async fn a_lane_is_due_when_its_first_task_is_ready(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let tenure = tenure_of(&lane);
    one.settle(job, tenure, lane.tasks[0].id, retry(at(30)), at(1)).await;
    // With its domain released, the lane may look due, but its task is not ready.
    one.release(tenure, b"pace", ReleaseMode::Stop, at(2)).await;
    assert_eq!(one.claim(job, at(2)).await, []);
    assert_eq!(one.next_due(job).await, Some(at(30)));
    assert_eq!(one.row("a.example").await.holder, None, "no domain is taken without need");
    assert_eq!(one.claim(job, at(30) - ms(1)).await, []);
    assert_eq!(urls_of(&one.claim(job, at(30)).await), "a.example/1");
}

/// An operator dropped the deadline that they wait for.
pub(crate) async fn retries_of_a_domain_can_be_made_ready(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://b.example/1"], at(0)).await;
    let lanes = one.claim(job, at(0)).await;
    for lane in &lanes {
        one.settle(job, tenure_of(lane), lane.tasks[0].id, retry(at(30)), at(1)).await;
    }
    let domain = |name: &str| comity_core::domain::Domain::parse(name).unwrap();
    assert_eq!(one.store.retry_now(domain("a.example"), at(2)).await.unwrap(), 1);
    assert_eq!(one.store.retry_now(domain("a.example"), at(2)).await.unwrap(), 0, "it is ready already");
    assert_eq!(one.store.retry_now(domain("c.example"), at(2)).await.unwrap(), 0);
    for lane in &lanes {
        one.release(tenure_of(lane), b"pace", ReleaseMode::HandOver, at(2)).await;
    }
    assert_eq!(urls_of(&one.claim(job, at(2)).await), "a.example/1");
    assert_eq!(urls_of(&one.claim(job, at(30)).await), "b.example/1");
}

pub(crate) async fn an_empty_lane_is_due_again_when_a_task_is_added(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let tenure = tenure_of(&lane);
    assert_eq!(one.settle(job, tenure, lane.tasks[0].id, done(), at(1)).await, Settled::Yes);
    one.release(tenure, b"pace", ReleaseMode::Stop, at(1)).await;
    assert_eq!(one.claim(job, at(2)).await, []);
    assert_eq!(one.next_due(job).await, None);

    one.enqueue(job, &["https://a.example/1"], at(3)).await;
    assert_eq!(one.next_due(job).await, None, "it is already known");
    one.enqueue(job, &["https://a.example/2"], at(3)).await;
    assert_eq!(one.next_due(job).await, Some(at(3)));
    assert_eq!(urls_of(&one.claim(job, at(3)).await), "a.example/2");
}

/// B10: however few lanes a claim asks for, it reaches those that are free.
pub(crate) async fn blocked_lanes_do_not_hide_free_ones(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    one.taken("a.example", at(0)).await;
    one.taken("b.example", at(0)).await;
    let urls = ["https://a.example/1", "https://b.example/1", "https://c.example/1"];
    let job = other.job_of("job", &urls, at(0)).await;
    let mut brought = Vec::new();
    // A claim may see only blocked lanes. Then the job reports that more is due, and the next claim continues.
    while other.next_due(job).await.is_some_and(|due_at| due_at <= at(1)) {
        let claim = Claim { job, lanes: 1, tasks: 1 };
        brought.extend(other.store.claim(other.holder, claim, at(1)).await.unwrap());
    }
    assert_eq!(urls_of(&brought), "c.example/1");
}

pub(crate) async fn a_crowded_domain_is_one_lane(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    let crowd = (0..100_000).map(|nth| listed(&format!("https://crowded.example/{nth}"))).collect();
    assert_eq!(one.store.enqueue(job, crowd, at(0)).await.unwrap().new, 100_000);
    let others: Vec<String> = (0..20).map(|nth| format!("https://{nth}.example/")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    one.enqueue(job, &others, at(1)).await;

    let claim = Claim { job, lanes: 50, tasks: 4 };
    let claimed = one.store.claim(one.holder, claim, at(1)).await.unwrap();
    let sizes: Vec<usize> = claimed.iter().map(|lane| lane.tasks.len()).collect();
    assert_eq!(sizes, [&[4][..], &[1; 20]].concat());
}

pub(crate) async fn reading_a_lane_in_batches_returns_each_task_once(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.open_job("job").await;
    for batch in 0..5 {
        // Tasks added at the same time are ordered by id.
        let urls: Vec<String> = (0..7).map(|nth| format!("https://a.example/{batch}/{nth}")).collect();
        one.enqueue(job, &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(batch / 2)).await;
    }
    let claim = Claim { job, lanes: 1, tasks: 4 };
    let lane = one.store.claim(one.holder, claim, at(9)).await.unwrap().remove(0);
    let (tenure, id) = (tenure_of(&lane), lane.lane);
    let mut read = lane.tasks;
    loop {
        let more = refill(&one, Refill { lane: id, after: read.last().map(cursor), limit: 4 }).await;
        if more.is_empty() {
            break;
        }
        // Settling a task meanwhile must not shift the others.
        let first = read[read.len() / 2].id;
        one.settle(job, tenure, first, done(), at(9)).await;
        read.extend(more);
    }
    let urls: Vec<&str> = read.iter().map(|task| task.url.trim_start_matches("https://a.example/")).collect();
    let all: Vec<String> = (0..35).map(|nth| format!("{}/{}", nth / 7, nth % 7)).collect();
    assert_eq!(urls, all);
}

/// B41
pub(crate) async fn a_retried_task_is_read_after_those_ready_before_it(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let urls = ["https://a.example/1", "https://a.example/2", "https://a.example/3"];
    let job = one.job_of("job", &urls, at(0)).await;
    let claim = Claim { job, lanes: 1, tasks: 1 };
    let lane = one.store.claim(one.holder, claim, at(0)).await.unwrap().remove(0);
    let first = &lane.tasks[0];
    one.settle(job, tenure_of(&lane), first.id, retry(at(60)), at(1)).await;
    one.enqueue(job, &["https://a.example/4"], at(2)).await;

    let rest = refill(&one, Refill { lane: lane.lane, after: Some(cursor(first)), limit: 9 }).await;
    let read: Vec<_> = rest.iter().map(|task| (&task.url[18..], task.retries, task.ready_at)).collect();
    assert_eq!(read, [("2", 0, at(0)), ("3", 0, at(0)), ("4", 0, at(2)), ("1", 1, at(60))]);
    let head = refill(&one, Refill { lane: lane.lane, after: None, limit: 9 }).await;
    assert_eq!(head, rest, "reading from the start gives the same");
}

pub(crate) async fn a_parked_lane_is_due_at_the_given_time(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1", "https://b.example/1"], at(0)).await;
    assert_eq!(one.next_due(job).await, Some(at(0)));
    let lanes = one.claim(job, at(0)).await;
    assert_eq!(one.next_due(job).await, None, "all are served");

    one.store.park(one.holder, vec![(lanes[0].lane, at(20)), (lanes[1].lane, at(10))]).await.unwrap();
    assert_eq!(one.next_due(job).await, Some(at(10)));
    assert_eq!(one.claim(job, at(10) - ms(1)).await, []);
    assert_eq!(urls_of(&one.claim(job, at(10)).await), "b.example/1");
    assert_eq!(one.next_due(job).await, Some(at(20)));

    // A lane is not due before its first task is, and never without one.
    let lane = one.claim_one(job, at(20)).await;
    let tenure = tenure_of(&lanes[0]);
    one.settle(job, tenure, lane.tasks[0].id, retry(at(50)), at(20)).await;
    one.store.park(one.holder, vec![(lane.lane, at(21))]).await.unwrap();
    assert_eq!(one.next_due(job).await, Some(at(50)));
    one.claim_one(job, at(50)).await;
    one.settle(job, tenure, lane.tasks[0].id, done(), at(50)).await;
    one.store.park(one.holder, vec![(lane.lane, at(51))]).await.unwrap();
    assert_eq!(one.next_due(job).await, None);
}

pub(crate) async fn only_the_process_that_serves_a_lane_can_park_it(backend: &dyn Backend) {
    let one = Process::start(backend, "one", at(0)).await;
    let other = Process::start(backend, "other", at(0)).await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await.lane;
    other.store.park(other.holder, vec![(lane, at(1))]).await.unwrap();
    assert_eq!(other.next_due(job).await, None);
    assert_eq!(other.claim(job, at(1)).await, []);
}

async fn refill(process: &Process, refill: Refill) -> Vec<TaskRow> {
    let mut brought = process.store.refill(vec![refill]).await.unwrap();
    assert_eq!((brought.len(), brought[0].0), (1, refill.lane));
    brought.remove(0).1
}

fn cursor(task: &TaskRow) -> Cursor {
    Cursor { ready_at: task.ready_at, task: task.id }
}
