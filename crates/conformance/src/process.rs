//! A simulated process: the store it opened, its holder, and short names for what it does.

use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::pace::SavedLimits;
use comity_core::task::{JobId, JobStep, TaskId};
use comity_core::time::{Span, Timestamp};
use comity_store::domains::{
    DomainKey, DomainRow, HolderId, LastHolderBuf, ReleaseMode, Released, Saved, Steering, Take, Taken,
    Tenure,
};
use comity_store::jobs::{Counts, Job, Stepped};
use comity_store::machine::Machine;
use comity_store::tasks::{Claim, Claimed, Enqueued, NewTask, RedirectBody, Settle, Settled, Step};
use comity_store::{LEASE, Store, StoreError};
use serde_json::Value;

use crate::backend::{Backend, Opened};
use crate::pause::{Pause, overlap};

/// A process: a store it opened, and its holder.
pub struct Process {
    /// The store, as this process opened it.
    pub store: Arc<dyn Store>,
    /// The process's holder.
    pub holder: HolderId,
    /// Pauses its transactions.
    pub pause: Pause,
}

impl Process {
    /// Starts a process that opens the store of `backend` and registers.
    pub async fn start(backend: &dyn Backend, name: &str, now: Timestamp) -> Self {
        Self::with(backend.open().await, name, now).await
    }

    /// Starts a process on that machine.
    pub async fn start_on(
        backend: &dyn Backend,
        machine: Arc<dyn Machine>,
        name: &str,
        now: Timestamp,
    ) -> Self {
        Self::with(backend.open_on(machine).await, name, now).await
    }

    /// Registers a process with a store it has opened.
    pub async fn with(opened: Opened, name: &str, now: Timestamp) -> Self {
        let Opened { store, pause } = opened;
        let holder = store.register(name.to_owned(), now).await.unwrap();
        Self { store, holder, pause }
    }

    /// Runs `first`, a call of this process, up to its commit, then `second` until it has an answer or is blocked, and
    /// then both to the end. Neither may call a store before it is polled: see [`overlap`].
    pub async fn overlap<A, B>(
        &self,
        first: impl Future<Output = A>,
        second: impl Future<Output = B>,
    ) -> (A, B) {
        overlap(&self.pause, first, second).await
    }

    /// Sends a heartbeat.
    pub async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        self.store.beat(self.holder, now).await
    }

    /// Checks on the others twice, a lease apart: whoever is silent meanwhile is lost. Returns the time.
    pub async fn outlive(&self, from: Timestamp) -> Timestamp {
        self.beat(from).await.unwrap();
        self.beat(from + LEASE).await.unwrap();
        from + LEASE
    }

    /// Tries to take a domain.
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
    pub async fn save(&self, saved: Saved) -> Vec<Tenure> {
        self.store.save(self.holder, vec![saved]).await.unwrap()
    }

    /// Releases a domain with that pace, and nothing learned.
    pub async fn release(&self, tenure: Tenure, pace: &[u8], mode: ReleaseMode, now: Timestamp) {
        let released = Released { saved: nothing_learned(tenure), pace: pace.to_owned(), mode };
        self.store.release(self.holder, vec![released], now).await.unwrap();
    }

    /// A domain as shown to people.
    pub async fn row(&self, name: &str) -> DomainRow {
        self.store.find_domain(domain(name)).await.unwrap().unwrap()
    }

    /// Opens a job, creating it if needed.
    pub async fn open_job(&self, name: &str) -> JobId {
        self.store.open_job(name.to_owned(), Value::Null, at(0)).await.unwrap().0.id
    }

    /// Creates a job with these URLs.
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

    /// The progress of a job.
    pub async fn counts(&self, job: JobId) -> Counts {
        self.job(job).await.counts
    }

    /// Ends or reopens a job.
    pub async fn step(&self, job: JobId, step: JobStep, now: Timestamp) -> Stepped {
        self.store.step_job(job, step, None, now).await.unwrap()
    }

    /// Sweeps until nothing is left to do.
    pub async fn sweep(&self, job: JobId, now: Timestamp) {
        while self.store.sweep(job, 100, now).await.unwrap() {}
    }

    /// Adds URLs that the operator listed to a job.
    pub async fn enqueue(&self, job: JobId, urls: &[&str], now: Timestamp) -> Enqueued {
        let tasks = urls.iter().map(|url| listed(url)).collect();
        self.store.enqueue(job, tasks, now).await.unwrap()
    }

    /// Claims every lane that is due, with up to ten tasks each.
    pub async fn claim(&self, job: JobId, now: Timestamp) -> Vec<Claimed> {
        let claim = Claim { job, lanes: 100, tasks: 10 };
        self.store.claim(self.holder, claim, now).await.unwrap()
    }

    /// Claims the only lane that is due.
    pub async fn claim_one(&self, job: JobId, now: Timestamp) -> Claimed {
        let mut claimed = self.claim(job, now).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// Settles one task without attempts.
    pub async fn settle(
        &self,
        job: JobId,
        tenure: Tenure,
        task: TaskId,
        step: Step,
        now: Timestamp,
    ) -> Settled {
        let settle = Settle {
            task,
            job,
            tenure,
            attempts: Vec::new(),
            url_key: None,
            robots: None,
            facts: Arc::default(),
            step,
        };
        self.store.settle(self.holder, [settle].into(), now).await.unwrap()[0]
    }

    /// When the next lane of a job is due.
    pub async fn next_due(&self, job: JobId) -> Option<Timestamp> {
        self.store.next_due(job).await.unwrap()
    }
}

/// A time on the virtual clock.
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

/// The result of a take that must have succeeded.
pub fn taken(take: Take) -> Taken {
    match take {
        Take::Taken(taken) => *taken,
        other => panic!("expected the domain, got {other:?}"),
    }
}

/// The tenure that came with a claimed lane.
pub fn tenure_of(claimed: &Claimed) -> Tenure {
    taken(claimed.take.clone()).tenure
}

/// When the last holder of a domain died, which it must have.
pub fn died_at(taken: &Taken) -> Timestamp {
    match taken.last_holder {
        LastHolderBuf::Died { latest } => latest,
        ref other => panic!("expected a death, got {other:?}"),
    }
}

/// The URLs of claimed lanes: `a.example/1 a.example/2 | b.example/1`.
pub fn urls_of(claimed: &[Claimed]) -> String {
    let lane = |claimed: &Claimed| {
        let urls = claimed.tasks.iter().map(|task| task.url.trim_start_matches("https://"));
        urls.collect::<Vec<_>>().join(" ")
    };
    claimed.iter().map(lane).collect::<Vec<_>>().join(" | ")
}

/// What a holder saves if nothing was learned.
pub fn nothing_learned(tenure: Tenure) -> Saved {
    Saved { tenure, kept: SavedLimits::default(), steering: Steering::default() }
}

/// The task was fetched.
pub fn done() -> Step {
    Step::Done { status: 200, bytes: 10, file: None, content_type: None }
}

/// The task was given up.
pub fn failed() -> Step {
    Step::Failed { error: "status 500".to_owned(), status: Some(500) }
}

/// The task is not to be fetched.
pub fn skipped() -> Step {
    Step::Skipped { reason: "robots.txt".to_owned() }
}

/// The task is retried for the first time.
pub fn retry(ready_at: Timestamp) -> Step {
    Step::Retry { ready_at, retries: 1, forgiven: 0, error: "status 429".to_owned() }
}

/// The task was redirected to another domain.
pub fn moved(to: &str) -> Step {
    Step::Moved {
        domain: domain(to),
        at_url: Some(format!("https://{to}/")),
        hops: 1,
        body: RedirectBody::Kept,
    }
}
