//! Domains that nobody uses any more are deleted, and tasks of jobs that ended long ago.

use std::sync::Arc;

use comity::clock::{Clock, ClockControl};
use comity::event::Events;
use comity::gate::Gate;
use comity::store::Store;
use comity::store::domains::{ReleaseMode, Released, Saved, Steering, Take};
use comity::store::robots::RobotsRow;
use comity::store::tasks::{Lead, NewTask, TaskFilter};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Pace, SavedLimits, Terms};
use comity_core::task::{JobId, JobStep};
use comity_core::time::Span;

use crate::support::{at, config, domain, eventually};

/// B82: 400,000 random names that somebody had asked about used to stay in the database.
#[tokio::test]
async fn domains_without_anything_learned_are_deleted_after_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        comity::store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    let rules = config("[domains.\"slow.example\"]\nmin_delay = \"72h\"\n").rules().clone();
    let names: Vec<Domain> = (0..NAMES).map(|nth| domain(&format!("random-{nth}.example"))).collect();
    let worth = ["asked.example", "slow.example", "learned.example", "crawled.example"].map(domain);
    let crawled = RobotsRow {
        origin: "https://www.crawled.example".to_owned(),
        fetched_at: at(0),
        status: 200,
        body: b"User-agent: *\nCrawl-delay: 259200".to_vec(),
        crawl_delay: Span::from_hours(72),
    };
    store.keep_robots(crawled).await.unwrap();
    let holder = store.register("before".to_owned(), at(0)).await.unwrap();
    for some in names.iter().chain(&worth).collect::<Vec<_>>().chunks(1_000) {
        let some: Vec<Domain> = some.iter().map(|name| (*name).clone()).collect();
        let released = store.take(holder, some, at(0)).await.unwrap().into_iter().map(|take| {
            let Take::Taken(taken) = take else { panic!("{take:?}") };
            let mut pace = Pace::default();
            let terms = Terms { rule: rules.rule_of(&taken.domain), crawl_delay: Span::ZERO };
            pace.admit(terms, Intent::Fetch, at(0));
            let mut kept = SavedLimits::default();
            match taken.domain.as_str() {
                "asked.example" => kept.server = Some((at(0) + Span::from_hours(48), at(0))),
                "learned.example" => kept.delay = Span::from_secs(3),
                _ => {}
            }
            let saved = Saved { tenure: taken.tenure, kept, steering: Steering::default() };
            Released { saved, pace: pace.encode(), mode: ReleaseMode::HandOver }
        });
        let released = released.collect();
        store.release(holder, released, at(0)).await.unwrap();
    }
    store.deregister(holder, at(0)).await.unwrap();
    assert_eq!(count(&store).await, NAMES + 4);

    let (clock, control) = Clock::manual(at(0) + Span::from_hours(24));
    let gate = Gate::with_store(rules, clock, Events::new(), store.clone(), "a test").await.unwrap();
    until(&store, &control, NAMES + 4).await;
    until(&store, &control, 4).await;
    let left: Vec<String> = store
        .list_domains(String::new(), String::new(), 100)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.domain)
        .collect();
    assert_eq!(left, ["asked.example", "crawled.example", "learned.example", "slow.example"]);
    // The clock may have run ahead of the heartbeats; now it stands still.
    eventually("a heartbeat", || gate.is_open()).await;
}

/// Old tasks are deleted in the background, a few per transaction, once somebody says how long to keep them. What a
/// resume needs stays.
#[tokio::test]
async fn upkeep_deletes_old_tasks_in_batches_and_only_if_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        comity::store::open(&format!("sqlite:{}", folder.path().join("comity.db").display())).unwrap();
    let (job, stopped) = (job_of(&store, "old").await, job_of(&store, "stopped").await);
    // Cancelled, so that all its tasks are skipped; the other one waits to be resumed.
    store.step_job(job, JobStep::Cancel, None, at(0)).await.unwrap();
    while store.sweep(job, 10_000, at(0)).await.unwrap() {}
    let left = async |job: JobId| {
        let all = TaskFilter { state: None, settled_since: None };
        store.page_tasks(job, all, None, u32::MAX).await.unwrap().len()
    };

    let (clock, control) = Clock::manual(at(0) + Span::from_hours(31 * 24));
    let rules = config("").rules().clone();
    let gate = Gate::with_store(rules, clock, Events::new(), store.clone(), "a test").await.unwrap();
    for _ in 0..100 {
        control.advance(Span::from_secs(2));
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(left(job).await, TASKS, "without a setting everything is kept");

    gate.set_keep(Some(Span::from_hours(30 * 24)));
    let mut counts = vec![TASKS];
    for _ in 0..20_000 {
        // An hour passes until it looks for old rows again.
        control.advance(Span::from_secs(2));
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        let now = left(job).await;
        if Some(&now) != counts.last() {
            counts.push(now);
        }
        if now == 0 {
            break;
        }
    }
    assert_eq!(counts.last(), Some(&0), "{counts:?}");
    assert!(counts.len() > 2, "not all at once: {counts:?}");
    assert_eq!(left(stopped).await, TASKS, "a stopped job can be resumed");
    let counts = store.find_job("old".to_owned()).await.unwrap().unwrap().counts;
    assert_eq!((counts.tasks, counts.skipped), (TASKS as u64, TASKS as u64), "its counts stay");
    // The clock may have run ahead of the heartbeats; now it stands still.
    eventually("a heartbeat", || gate.is_open()).await;
}

/// A job with [`TASKS`] waiting tasks.
async fn job_of(store: &Arc<dyn Store>, name: &str) -> JobId {
    let task = |nth| NewTask {
        url: format!("https://{name}.example/{nth}"),
        domain: domain(&format!("{name}.example")),
        lead: Lead::Listed,
        sends: None,
    };
    let (job, _) = store.open_job(name.to_owned(), serde_json::json!({}), at(0)).await.unwrap();
    store.enqueue(job.id, (0..TASKS).map(task).collect(), at(0)).await.unwrap();
    job.id
}

const TASKS: usize = 3_500;

/// Advances the clock until this many domains are left.
async fn until(store: &Arc<dyn Store>, control: &ClockControl, expected: usize) {
    for _ in 0..2_000 {
        if count(store).await == expected {
            return;
        }
        // No faster than its heartbeats.
        control.advance(Span::from_secs(2));
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    panic!("{} domains, not {expected}", count(store).await);
}

async fn count(store: &Arc<dyn Store>) -> usize {
    store.list_domains(String::new(), String::new(), u32::MAX).await.unwrap().len()
}

const NAMES: usize = 20_000;
