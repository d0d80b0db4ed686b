//! Claims and settles, as the workers of a job make them, without fetching anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comity_core::domain::Domain;
use comity_core::outcome::Outcome as AttemptOutcome;
use comity_core::time::Span;
use comity_store::domains::{Take, Tenure};
use comity_store::tasks::{Attempt, Claim, NewTask, Settle, Step};

use crate::{Outcome, clock, site};

pub(crate) fn fill(store: &str, tasks: &str, sites: &str) -> Outcome<()> {
    let (tasks, sites): (u64, u32) = (tasks.parse()?, sites.parse()?);
    let url = store.to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let store = comity_store::open(&url)?;
        let now = store.time().await?.now;
        let (job, _) = store.open_job(JOB.to_owned(), Default::default(), now).await?;
        let began = clock();
        let mut random = fastrand::Rng::with_seed(10);
        let mut added = 0;
        while added < tasks {
            let batch = (added..tasks.min(added + BATCH))
                .map(|nth| {
                    let url = format!("http://{}/{nth}", site(random.u32(0..sites)).0);
                    let domain = Domain::of_url(&url).unwrap_or_else(|_| unreachable!("a valid URL"));
                    NewTask::listed(url, domain)
                })
                .collect();
            added += store.enqueue(job.id, batch, now).await?.new;
        }
        let rate = tasks as f64 / began.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({ "tasks": tasks, "rate": rate }));
        Ok(())
    })
}

pub(crate) fn work(store: &str, process: &str, seconds: &str) -> Outcome<()> {
    let (url, seconds): (_, u64) = (store.to_owned(), seconds.parse()?);
    let name = format!("bench {process}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let store = comity_store::open(&url)?;
        let now = store.time().await?.now;
        let holder = store.register(name, now).await?;
        let start = store.join_time(holder).await?.now;
        let (job, _) = store.open_job(JOB.to_owned(), Default::default(), start).await?;
        let began = clock();
        let now = || start + Span::from_micros(began.elapsed().as_micros() as u64);
        let (mut pages, mut tenures, mut beaten_at) = (0_u64, HashMap::<Domain, Tenure>::new(), began);
        while began.elapsed() < Duration::from_secs(seconds) {
            if beaten_at.elapsed() >= HEARTBEAT {
                store.beat(holder, now()).await?;
                beaten_at = clock();
            }
            let claim = Claim { job: job.id, lanes: LANES, tasks: TASKS };
            let claimed = store.claim(holder, claim, now()).await?;
            if claimed.is_empty() {
                break;
            }
            let (mut settles, mut lanes) = (Vec::new(), Vec::new());
            for claimed in claimed {
                lanes.push((claimed.lane, now()));
                if let Take::Taken(taken) = &claimed.take {
                    tenures.insert(claimed.domain.clone(), taken.tenure);
                }
                let Some(tenure) = tenures.get(&claimed.domain).copied() else { continue };
                settles.extend(claimed.tasks.iter().map(|task| Settle {
                    task: task.id,
                    url_key: None,
                    job: job.id,
                    tenure,
                    robots: None,
                    attempts: vec![Attempt {
                        started_at: now(),
                        took: Span::from_millis(5),
                        outcome: AttemptOutcome::Success,
                        status: Some(200),
                    }],
                    facts: Arc::default(),
                    step: Step::Done { status: 200, bytes: 1_000, file: None, content_type: None },
                }));
            }
            for some in settles.chunks(SETTLES) {
                store.settle(holder, some.to_vec().into(), now()).await?;
                pages += some.len() as u64;
            }
            store.park(holder, lanes).await?;
        }
        let seconds = began.elapsed().as_secs_f64();
        store.deregister(holder, now()).await?;
        println!("{}", serde_json::json!({ "pages": pages, "seconds": seconds }));
        Ok(())
    })
}

const JOB: &str = "bench";
const BATCH: u64 = 20_000;
const LANES: u32 = 256;
const TASKS: u32 = 4;
const SETTLES: usize = 512;
/// How often a process renews its lease.
const HEARTBEAT: Duration = Duration::from_secs(2);
