//! Two callers that work on the same jobs and tasks, the second while the first is about to commit.

use comity_core::task::{JobId, JobState, JobStep};
use comity_store::LEASE;
use comity_store::domains::Take;
use comity_store::jobs::{FillStep, Stepped};
use comity_store::tasks::{Claim, Enqueued, GAVE_UP, RemainingWork, Settle, Settled};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::process::{Process, at, done, listed, tenure_of, urls_of};

/// B9
pub(crate) async fn two_concurrent_claims_return_each_lane_once(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let urls: Vec<String> = (0..6).map(|nth| format!("https://{nth}.example/")).collect();
    let job = one.job_of("job", &urls.iter().map(String::as_str).collect::<Vec<_>>(), at(0)).await;
    let claim = async |process: &Process| {
        process.store.claim(process.holder, Claim { job, lanes: 4, tasks: 1 }, at(1)).await.unwrap()
    };
    let (first, second) = one.overlap(claim(&one), claim(&other)).await;
    assert!(!first.is_empty());
    let rest = [claim(&one).await, claim(&other).await].concat();
    let mut brought: Vec<_> =
        [first, second, rest].concat().into_iter().map(|claimed| claimed.lane).collect();
    assert_eq!(brought.len(), 6, "{brought:?}");
    brought.sort_unstable();
    brought.dedup();
    assert_eq!(brought.len(), 6, "a lane was claimed twice");
    assert_eq!(one.next_due(job).await, None, "all are served");
}

/// B9: lanes of two jobs are two lanes, but their domain is one.
pub(crate) async fn claims_of_two_jobs_take_their_domain_once(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let jobs = [
        one.job_of("first", &["https://a.example/1"], at(0)).await,
        one.job_of("second", &["https://a.example/2"], at(0)).await,
    ];
    let (first, second) = one.overlap(one.claim(jobs[0], at(1)), other.claim(jobs[1], at(1))).await;
    assert_eq!(first.len() + second.len(), 1, "{first:?} {second:?}");
    let (winner, loser, lost) = if second.is_empty() { (&one, &other, 1) } else { (&other, &one, 0) };
    assert_eq!(winner.take("a.example", at(1)).await, Take::Ours);
    assert!(loser.next_due(jobs[lost]).await.is_some(), "the other lane is not lost");
}

/// B54
pub(crate) async fn two_callers_adding_the_same_urls_add_each_once(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let job = one.open_job("job").await;
    let urls: Vec<String> = (0..15).map(|nth| format!("https://{}.example/{nth}", nth % 2)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let (first, second) =
        one.overlap(one.enqueue(job, &urls[..10], at(1)), other.enqueue(job, &urls[5..], at(1))).await;
    assert_eq!((first.new + second.new, first.known + second.known), (15, 5));
    assert_eq!(one.counts(job).await.tasks, 15);
    let lanes = one.claim(job, at(1)).await;
    assert_eq!(lanes.iter().map(|lane| lane.tasks.len()).sum::<usize>(), 15);
}

/// B74
pub(crate) async fn of_two_concurrent_settles_one_counts(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let job = one.job_of("job", &["https://a.example/1"], at(0)).await;
    let lane = one.claim_one(job, at(0)).await;
    let (tenure, task) = (tenure_of(&lane), lane.tasks[0].id);
    // A result that is sent twice, as after a timeout, may arrive on another connection.
    let again = async {
        let settle = Settle {
            task,
            job,
            tenure,
            attempts: Vec::new(),
            url_key: None,
            robots: None,
            facts: Default::default(),
            step: done(),
        };
        other.store.settle(one.holder, [settle].into(), at(1)).await.unwrap()[0]
    };
    let (first, second) = one.overlap(one.settle(job, tenure, task, done(), at(1)), again).await;
    assert!([(Settled::Yes, Settled::Fenced), (Settled::Fenced, Settled::Yes)].contains(&(first, second)));
    assert_eq!(one.counts(job).await.done, 1);
}

/// B74, B77: either the late result counts, or the process that finds the holder silent gets the task.
pub(crate) async fn a_settle_during_a_takeover_counts_or_is_fenced(backend: &dyn Backend) {
    for settles_first in [true, false] {
        let (silent, heir) = two(backend).await;
        let (name, late) = (format!("{settles_first}.example"), at(0) + LEASE);
        let url = format!("https://{name}/");
        let job = silent.job_of(&name, &[&url], at(0)).await;
        let lane = silent.claim_one(job, at(0)).await;
        heir.beat(at(0)).await.unwrap();
        let settle = silent.settle(job, tenure_of(&lane), lane.tasks[0].id, done(), late);
        let take_over = async {
            heir.beat(late).await.unwrap();
            urls_of(&heir.claim(job, late).await)
        };
        let (settled, claimed) = if settles_first {
            silent.overlap(settle, take_over).await
        } else {
            let (claimed, settled) = heir.overlap(take_over, settle).await;
            (settled, claimed)
        };
        let expected = if settled == Settled::Yes { "" } else { url.trim_start_matches("https://") };
        assert_eq!(claimed, expected, "settles first: {settles_first}, and was {settled:?}");
        assert_eq!(heir.counts(job).await.done, u64::from(settled == Settled::Yes));
        // Unregister, or the next round would notice these as silent.
        for process in [silent, heir] {
            process.store.deregister(process.holder, late).await.unwrap();
        }
    }
}

/// A lane that is given back empty, and filled at the same moment, is looked at again.
pub(crate) async fn a_task_added_while_its_lane_is_parked_is_not_lost(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    for parks_first in [true, false] {
        let (name, url) = (format!("{parks_first}"), format!("https://{parks_first}.example/2"));
        let job = one.job_of(&name, &[&format!("https://{parks_first}.example/1")], at(0)).await;
        let lane = one.claim_one(job, at(0)).await;
        one.settle(job, tenure_of(&lane), lane.tasks[0].id, done(), at(1)).await;
        let park = async { one.store.park(one.holder, vec![(lane.lane, at(1))]).await.unwrap() };
        let urls = [&url[..]];
        let enqueue = other.enqueue(job, &urls, at(1));
        if parks_first {
            one.overlap(park, enqueue).await;
        } else {
            other.overlap(enqueue, park).await;
        }
        assert_eq!(one.next_due(job).await, Some(at(1)), "parks first: {parks_first}");
        assert_eq!(urls_of(&one.claim(job, at(1)).await), url.trim_start_matches("https://"));
    }
}

/// B49: a job that finishes while a task is added is reopened by it, or was not finished yet.
pub(crate) async fn a_task_added_while_its_job_finishes_keeps_it_open(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    for finishes_first in [true, false] {
        let job = one.open_job(&format!("{finishes_first}")).await;
        let finish = one.step(job, JobStep::Finish, at(1));
        let enqueue = other.enqueue(job, &["https://a.example/"], at(1));
        let (stepped, enqueued) = if finishes_first {
            one.overlap(finish, enqueue).await
        } else {
            let (enqueued, stepped) = other.overlap(enqueue, finish).await;
            (stepped, enqueued)
        };
        // Either it was done and is reopened, or it was not done yet.
        assert!(!matches!(stepped, Stepped::Missing), "the job is gone");
        assert_eq!(enqueued, Enqueued { new: 1, ..Enqueued::default() }, "finishes first: {finishes_first}");
        let job = one.job(job).await;
        assert_eq!((job.state, job.ended_at, job.counts.waiting()), (JobState::Running, None, 1));
    }
}

/// The process that finishes its list last finds that nobody else is reading one.
pub(crate) async fn a_job_whose_lists_end_at_the_same_time_can_finish(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let job = one.open_job("job").await;
    let fill = async |process: &Process, step| {
        process.store.note_fill(job, process.holder, step, at(1)).await.unwrap();
    };
    fill(&one, FillStep::Started).await;
    fill(&other, FillStep::Started).await;
    one.overlap(fill(&one, FillStep::Finished), fill(&other, FillStep::Finished)).await;
    let stepped = one.step(job, JobStep::Finish, at(2)).await;
    assert!(matches!(stepped, Stepped::Yes(_)), "{stepped:?}");
}

/// B47: two processes give up on the last two domains of a job at once.
pub(crate) async fn giving_up_the_last_two_domains_at_once_leaves_nothing(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let job = one.job_of("job", &["https://a.example/1", "https://b.example/1"], at(0)).await;
    let first = claim_lane(&one, job).await;
    let second = claim_lane(&other, job).await;
    let give_up = async |process: &Process, lane| {
        process.store.give_up(process.holder, lane, format!("{GAVE_UP}it")).await.unwrap()
    };
    let (one, other) = one.overlap(give_up(&one, first), give_up(&other, second)).await;
    assert!(one == RemainingWork::Nothing || other == RemainingWork::Nothing, "{one:?} {other:?}");
}

pub(crate) async fn a_job_opened_by_two_is_created_once(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let open = async |process: &Process, options: Value| {
        process.store.open_job("job".to_owned(), options, at(1)).await.unwrap()
    };
    let ((first, made), (second, again)) =
        one.overlap(open(&one, json!("one")), open(&other, json!("other"))).await;
    assert_eq!((first.id, &first.options), (second.id, &second.options));
    assert_ne!(made, again);
}

/// A job is created with its tasks or not at all.
pub(crate) async fn of_two_that_create_a_job_one_succeeds(backend: &dyn Backend) {
    let (one, other) = two(backend).await;
    let make = async |process: &Process, url: &str| {
        let (name, tasks) = ("job".to_owned(), vec![listed(url)]);
        process.store.make_job(name, Value::Null, tasks, at(1)).await.unwrap()
    };
    let made = one.overlap(make(&one, "https://a.example/"), make(&other, "https://b.example/")).await;
    let (job, expected) = match made {
        (Some(job), None) => (job, "a.example/"),
        (None, Some(job)) => (job, "b.example/"),
        both => panic!("{both:?}"),
    };
    assert_eq!(urls_of(&one.claim(job.id, at(1)).await), expected);
}

async fn two(backend: &dyn Backend) -> (Process, Process) {
    (Process::start(backend, "one", at(0)).await, Process::start(backend, "other", at(0)).await)
}

async fn claim_lane(process: &Process, job: JobId) -> comity_store::tasks::LaneId {
    let claim = Claim { job, lanes: 1, tasks: 1 };
    process.store.claim(process.holder, claim, at(0)).await.unwrap()[0].lane
}
