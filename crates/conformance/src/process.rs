//! A process as the promises play it: a store it opened, the holder it is, and short names for what it does.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::pace::Kept;
use comity_core::task::{JobId, JobStep, TaskId};
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{
    DomainKey, DomainRow, Hold, HolderId, LeftBehind, Parting, Released, Saved, Steering, Take, Taken,
};
use comity_store::jobs::{Counts, Job, Stepped};
use comity_store::machine::Machine;
use comity_store::tasks::{Claim, Claimed, Enqueued, NewTask, Onward, Settle, Settled, Step};
use comity_store::{LEASE, Store, StoreError};
use serde_json::Value;

use crate::backend::{Backend, Opened};
use crate::pause::{Pause, overlap};

/// A process: a store it opened, and the holder it is.
pub struct Process {
    /// The store, as this process opened it.
    pub store: Arc<dyn Store>,
    /// The holder it is.
    pub holder: HolderId,
    /// Stops its transactions.
    pub pause: Pause,
}

impl Process {
    /// A process that opens the store of `backend` and registers.
    pub async fn start(backend: &dyn Backend, name: &str, now: Timestamp) -> Self {
        Self::with(backend.open().await, name, now).await
    }

    /// A process on that machine.
    pub async fn start_on(
        backend: &dyn Backend,
        machine: Arc<dyn Machine>,
        name: &str,
        now: Timestamp,
    ) -> Self {
        Self::with(backend.open_on(machine).await, name, now).await
    }

    /// A process that registers with a store it opened.
    pub async fn with(opened: Opened, name: &str, now: Timestamp) -> Self {
        let Opened { store, pause } = opened;
        let holder = store.register(name.to_owned(), now).await.unwrap();
        Self { store, holder, pause }
    }

    /// Runs `first`, which this process asks, up to its commit, then `second` until it has answered or waits, and then both
    /// to their ends. Both must ask only when they are polled: see [`overlap`].
    pub async fn overlap<A, B>(
        &self,
        first: impl Future<Output = A>,
        second: impl Future<Output = B>,
    ) -> (A, B) {
        overlap(&self.pause, first, second).await
    }

    /// Reports that it lives.
    pub async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        self.store.beat(self.holder, now).await
    }

    /// Looks at the others twice, a lease apart: whoever is silent meanwhile is lost.
    pub async fn outlive(&self, from: Timestamp) -> Timestamp {
        self.beat(from).await.unwrap();
        self.beat(from + LEASE).await.unwrap();
        from + LEASE
    }

    /// Asks for one domain.
    pub async fn take(&self, name: &str, now: Timestamp) -> Take {
        let mut taken = self.store.take(self.holder, vec![domain(name)], now).await.unwrap();
        assert_eq!(taken.len(), 1);
        taken.remove(0)
    }

    /// Takes a domain, which must be free.
    pub async fn taken(&self, name: &str, now: Timestamp) -> Taken {
        taken(self.take(name, now).await)
    }

    /// Its domains that others want.
    pub async fn wanted(&self) -> Vec<DomainKey> {
        self.store.wanted(self.holder).await.unwrap()
    }

    /// Saves, and returns what was skipped.
    pub async fn save(&self, saved: Saved) -> Vec<Hold> {
        self.store.save(self.holder, vec![saved]).await.unwrap()
    }

    /// Gives a domain back with that pace, and nothing learned.
    pub async fn release(&self, hold: Hold, pace: &[u8], parting: Parting, now: Timestamp) {
        let released = Released { saved: nothing_learned(hold), pace: pace.to_owned(), parting };
        self.store.release(self.holder, vec![released], now).await.unwrap();
    }

    /// A domain as people see it.
    pub async fn row(&self, name: &str) -> DomainRow {
        self.store.find_domain(domain(name)).await.unwrap().unwrap()
    }

    /// Opens a job, making it if needed.
    pub async fn open_job(&self, name: &str) -> JobId {
        self.store.open_job(name.to_owned(), Value::Null, at(0)).await.unwrap().0.id
    }

    /// A job with these URLs.
    pub async fn job_of(&self, name: &str, urls: &[&str], now: Timestamp) -> JobId {
        let job = self.open_job(name).await;
        let enqueued = self.enqueue(job, urls, now).await;
        assert_eq!(enqueued.new as usize, urls.len(), "{name} had some of them: {enqueued:?}");
        job
    }

    /// A job as it is now.
    pub async fn job(&self, job: JobId) -> Job {
        let jobs = self.store.list_jobs().await.unwrap();
        jobs.into_iter().find(|found| found.id == job).unwrap()
    }

    /// How far a job is.
    pub async fn counts(&self, job: JobId) -> Counts {
        self.job(job).await.counts
    }

    /// A job ends or is reopened.
    pub async fn step(&self, job: JobId, step: JobStep, now: Timestamp) -> Stepped {
        self.store.step_job(job, step, None, now).await.unwrap()
    }

    /// Sweeps until there is no more to do.
    pub async fn sweep(&self, job: JobId, now: Timestamp) {
        while self.store.sweep(job, 100, now).await.unwrap() {}
    }

    /// Adds URLs that the operator listed to a job.
    pub async fn enqueue(&self, job: JobId, urls: &[&str], now: Timestamp) -> Enqueued {
        let tasks = urls.iter().map(|url| listed(url)).collect();
        self.store.enqueue(job, tasks, now).await.unwrap()
    }

    /// Claims every lane that is due, with up to ten tasks of each.
    pub async fn claim(&self, job: JobId, now: Timestamp) -> Vec<Claimed> {
        let claim = Claim { job, lanes: 100, tasks: 10 };
        self.store.claim(self.holder, claim, now).await.unwrap()
    }

    /// Claims the one lane that is due.
    pub async fn claim_one(&self, job: JobId, now: Timestamp) -> Claimed {
        let mut claimed = self.claim(job, now).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// Settles one task without attempts.
    pub async fn settle(&self, job: JobId, hold: Hold, task: TaskId, step: Step, now: Timestamp) -> Settled {
        let settle = Settle { task, job, hold, attempts: Vec::new(), facts: Arc::default(), step };
        self.store.settle(self.holder, vec![settle], now).await.unwrap()[0]
    }

    /// When the next lane of a job is due.
    pub async fn next_due(&self, job: JobId) -> Option<Timestamp> {
        self.store.next_due(job).await.unwrap()
    }
}

/// A moment of the virtual clock.
pub fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(1_800_000_000 + secs)
}

/// A number of milliseconds.
pub fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

/// A domain by its name.
pub fn domain(name: &str) -> Domain {
    Domain::parse(name).unwrap()
}

/// A task that the operator listed.
pub fn listed(url: &str) -> NewTask {
    NewTask::listed(url.to_owned(), Domain::of_url(url).unwrap())
}

/// What `take` brought, which must be the domain.
pub fn taken(take: Take) -> Taken {
    match take {
        Take::Taken(taken) => *taken,
        other => panic!("expected the domain, got {other:?}"),
    }
}

/// The hold that a claim took with its lane.
pub fn hold_of(claimed: &Claimed) -> Hold {
    taken(claimed.take.clone()).hold
}

/// When the last holder of a domain died, which it must have.
pub fn died_at(taken: &Taken) -> Timestamp {
    match taken.left {
        LeftBehind::Died { latest } => latest,
        ref other => panic!("expected a death, got {other:?}"),
    }
}

/// The URLs that a claim brought, lane by lane: `a.example/1 a.example/2 | b.example/1`.
pub fn urls_of(claimed: &[Claimed]) -> String {
    let lane = |claimed: &Claimed| {
        let urls = claimed.tasks.iter().map(|task| task.url.trim_start_matches("https://"));
        urls.collect::<Vec<_>>().join(" ")
    };
    claimed.iter().map(lane).collect::<Vec<_>>().join(" | ")
}

/// What a holder saves that learned nothing.
pub fn nothing_learned(hold: Hold) -> Saved {
    Saved { hold, kept: Kept::default(), steering: Steering::default() }
}

/// A task was fetched.
pub fn done() -> Step {
    Step::Done { status: 200, bytes: 10, file: None, content_type: None }
}

/// A task was given up.
pub fn failed() -> Step {
    Step::Failed { error: "status 500".to_owned(), status: Some(500) }
}

/// A task is not to be fetched.
pub fn skipped() -> Step {
    Step::Skipped { reason: "robots.txt".to_owned() }
}

/// A task is retried, for the first time.
pub fn retry(ready_at: Timestamp) -> Step {
    Step::Retry { ready_at, retries: 1, forgiven: 0, error: "status 429".to_owned() }
}

/// A task was redirected to another domain.
pub fn moved(to: &str) -> Step {
    Step::Moved { domain: domain(to), at_url: Some(format!("https://{to}/")), hops: 1, sends: Onward::Kept }
}
