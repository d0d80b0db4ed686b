//! How long lists take in a store with a hundred thousand sites and ten thousand jobs. Only on demand, because the figures depend
//! on the machine: `cargo test --release -p comity-store --test it -- --ignored --nocapture measuring`.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::outcome::Outcome;
use comity_core::time::{Span, Timestamp};
use comity_store::Store;
use comity_store::activity::{
    DomainActivity, DomainQuery, DomainReport, DomainSort, INTERVAL, LastAnswer, Order, Sample, Traffic,
};
use comity_store::domains::{DomainKey, HolderId, Take};
use comity_store::jobs::{JobQuery, RetryFilter};
use comity_store::machine::{Machine, ThisMachine};
use comity_store::tasks::{Claim, NewTask, Settle, Step};
use serde_json::Value;

use crate::file::TestFile;

const DOMAINS: u64 = 100_000;
const JOBS: u64 = 10_000;
const FAILURES: u64 = 100_000;

/// Prints how long something took, at best and in the middle of nine times.
async fn timed<T>(what: &str, mut run: impl AsyncFnMut() -> T) -> T {
    let mut took = Vec::new();
    let mut last = None;
    for _ in 0..9 {
        let before = ThisMachine.up();
        last = Some(run().await);
        took.push(ThisMachine.up().less(before).as_micros());
    }
    took.sort_unstable();
    eprintln!("{what:<60} {:>9} µs at best, {:>9} µs median", took[0], took[4]);
    last.unwrap()
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_800_000_000 + secs as i64)
}

/// Numbers without order.
fn mixed(nth: u64) -> u64 {
    nth.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) % 1_000_003
}

async fn fill(store: &dyn Store) -> HolderId {
    let holder = store.register("a test".to_owned(), at(0)).await.unwrap();
    let before = ThisMachine.up();
    let mut reporting = Span::ZERO;
    for part in 0..DOMAINS / 1_000 {
        store.beat(holder, at(0)).await.unwrap();
        let names: Vec<Domain> = (0..1_000)
            .map(|nth| Domain::parse(&format!("host-{}.example", part * 1_000 + nth)).unwrap())
            .collect();
        let taken = store.take(holder, names, at(0)).await.unwrap();
        let reports = taken.into_iter().enumerate().map(|(nth, take)| {
            let Take::Taken(taken) = take else { panic!() };
            report(taken.tenure, mixed(part * 1_000 + nth as u64))
        });
        let (reports, since) = (reports.collect(), ThisMachine.up());
        store.report_activity(Traffic::default(), reports, at(1)).await.unwrap();
        reporting += ThisMachine.up().less(since);
    }
    let all = ThisMachine.up().less(before).as_micros();
    eprintln!("{DOMAINS} domains taken and reported in {} ms", all / 1_000);
    eprintln!("a first report of a domain takes {} µs", reporting.as_micros() / DOMAINS);
    holder
}

fn report(tenure: comity_store::domains::Tenure, value: u64) -> DomainReport {
    let activity = DomainActivity {
        delay: Span::from_millis(value),
        learned: Span::from_millis(value % 1_000),
        held_until: value.is_multiple_of(3).then(|| at(value)),
        limit: Some("min_delay".to_owned()),
        success_streak: 3,
        error_streak: 0,
        last: Some(LastAnswer { at: at(value), outcome: Outcome::Success, status: Some(200) }),
    };
    let from = Timestamp::from_micros(at(0).as_micros() - at(0).as_micros() % INTERVAL.as_micros() as i64);
    let (held, learned) = (Span::ZERO, Span::ZERO);
    let sample = Sample { from, span: INTERVAL, requests: 5, rate_limited: 0, failed: 0, held, learned };
    DomainReport { tenure, activity, samples: vec![sample] }
}

async fn list(store: &dyn Store) {
    for sort in DomainSort::ALL {
        for (order, like) in [
            (Order::Descending, ""),
            (Order::Ascending, ""),
            (Order::Descending, "-777"),
            (Order::Descending, "9"),
        ] {
            let first = DomainQuery { like: like.to_owned(), sort, order, after: None, limit: 100 };
            let what = format!("100 sites by {} {order:?} {like:?}", sort.as_str());
            let page = timed(&what, async || store.page_domains(first.clone()).await.unwrap()).await;
            assert_eq!(page.domains.len(), 100);
            let (mut query, mut seen) = (DomainQuery { after: page.next, ..first }, 100);
            if like.is_empty() && order == Order::Descending {
                while seen < 50_000 {
                    query.limit = 1_000;
                    let page = store.page_domains(query.clone()).await.unwrap();
                    (query.after, seen) = (page.next, seen + page.domains.len());
                }
                query.limit = 100;
                timed(&format!("  in the middle, by {}", sort.as_str()), async || {
                    store.page_domains(query.clone()).await.unwrap().domains.len()
                })
                .await;
            }
        }
    }
    let mut after = DomainKey(0);
    timed("counting the waiting tasks of 500 sites", async || {
        after = store.count_waiting(after, 500).await.unwrap().unwrap_or_default();
    })
    .await;
}

async fn jobs(store: &dyn Store, holder: HolderId) {
    for nth in 0..JOBS {
        let job = store.open_job(format!("job-{nth}"), Value::Null, at(nth)).await.unwrap().0;
        if nth % 2 == 0 {
            let step = comity_core::task::JobStep::Cancel;
            store.step_job(job.id, step, None, at(nth)).await.unwrap();
        }
    }
    for (like, state) in
        [("", None), ("", Some("stopped")), ("", Some("cancelled")), ("-99", None), ("", Some("running"))]
    {
        let query =
            JobQuery { like: like.to_owned(), state: state.map(str::to_owned), older_than: None, limit: 100 };
        timed(&format!("100 of {JOBS} jobs {like:?} {state:?}"), async || {
            store.search_jobs(query.clone()).await.unwrap().len()
        })
        .await;
    }
    timed("jobs by state", async || store.tally_jobs().await.unwrap()).await;

    let job = store.open_job("failures".to_owned(), Value::Null, at(0)).await.unwrap().0.id;
    for part in 0..FAILURES / 10_000 {
        store.beat(holder, at(0)).await.unwrap();
        let url = |nth: u64| format!("https://fails.example/{}", part * 10_000 + nth);
        let task = |nth| NewTask::listed(url(nth), Domain::parse("fails.example").unwrap());
        store.enqueue(job, (0..10_000).map(task).collect(), at(0)).await.unwrap();
    }
    let claimed =
        store.claim(holder, Claim { job, lanes: 1, tasks: FAILURES as u32 }, at(1)).await.unwrap().remove(0);
    let tenure = match claimed.take {
        Take::Taken(taken) => taken.tenure,
        other => panic!("{other:?}"),
    };
    for tasks in claimed.tasks.chunks(1_000) {
        store.beat(holder, at(0)).await.unwrap();
        let settle = |(nth, task): (usize, &comity_store::tasks::TaskRow)| Settle {
            task: task.id,
            url_key: None,
            job,
            tenure,
            attempts: Vec::new(),
            robots: None,
            facts: Arc::default(),
            step: match nth % 10 {
                9 => Step::Skipped { reason: "forbidden by robots.txt".to_owned() },
                nth => {
                    Step::Failed { error: format!("status {}", 500 + nth), status: Some(500 + nth as u16) }
                }
            },
        };
        let settles: Vec<Settle> = tasks.iter().enumerate().map(settle).collect();
        store.settle(holder, settles.into(), at(2)).await.unwrap();
    }
    let groups = timed(&format!("reasons of {FAILURES} failures"), async || {
        store.failure_groups(job, 3).await.unwrap()
    })
    .await;
    assert_eq!(groups.len(), 10);
    timed("counting a retry of one status", async || {
        let failures = vec![comity_store::jobs::FailureKind::Status(500)];
        let filter = RetryFilter { failures, ..RetryFilter::default() };
        store.count_retry(job, filter, 100_000).await.unwrap()
    })
    .await;
    timed("counting a retry of everything", async || {
        store.count_retry(job, RetryFilter::default(), 100_000).await.unwrap()
    })
    .await;
}

async fn measure(store: &dyn Store) {
    let holder = fill(store).await;
    list(store).await;
    jobs(store, holder).await;
    let mut reports = Vec::new();
    for nth in 0..1_000 {
        let name = Domain::parse(&format!("again-{nth}.example")).unwrap();
        let Take::Taken(taken) = store.take(holder, vec![name], at(0)).await.unwrap().remove(0) else {
            panic!()
        };
        reports.push(report(taken.tenure, nth));
    }
    timed("a report on 1,000 sites", async || {
        store.report_activity(Traffic::default(), reports.clone(), at(5)).await.unwrap();
    })
    .await;
}

#[tokio::test]
#[ignore = "measures"]
async fn lists_in_sqlite() {
    let file = TestFile::new();
    measure(&file.open()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn lists_in_postgresql() {
    let backend: Box<dyn comity_conformance::Backend> = Box::new(crate::postgres::schema().await);
    measure(&*backend.store().await).await;
}
