//! Jobs: lists of URLs that are fetched politely to the end, across restarts and together with other processes.
//!
//! A [`Pool`] works on one job. It claims lanes from the store, puts their tasks into the gate's lines, fetches those
//! that get a permit, and settles the results. No worker sleeps for a task. Tasks that are not settled when a process
//! ends are waiting again.
//!
//! - here: starting, running and stopping
//! - `claimer`: claims lanes and tasks, and ends the work
//! - `lanes`: the claimed lanes and their state
//! - `active_task`: one task from its claim to its result; `page`: where its page is saved; `judge`: what follows from
//!   its response; `task_request`: what it sends if it isn't a plain GET
//! - `scrape`: the extra steps for tasks that scrape an item
//! - `settler`: commits results in batches; `rows`: writes them as rows
//! - `fill`: reads URL lists; `decoded`: UTF-16 and gzip; `meant`: what other lines may have meant; `sitemaps`: pages in them

mod active_task;
mod claimer;
mod decoded;
mod fill;
mod judge;
mod lanes;
mod meant;
mod page;
mod rows;
mod scrape;
mod settler;
mod sitemaps;
mod task_request;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use comity_core::dispatch::IN_FLIGHT_FACTOR;
use comity_core::guard::{CancelGuard, FailureGuard, ReachGuard};
use comity_core::task::{JobState, JobStep};
use comity_core::time::{Span, Timestamp};
use comity_store::jobs::Job;
use comity_store::tasks::LaneId;
use comity_store::{Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::archive::{Archive, ArchiveError};
use crate::client::{Client, RobotsCache};
use crate::config::{Config, JobSettings};
use crate::gate::{EndedTenures, Gate};
use crate::transport::Transport;
use crate::{FastMap, lock};

use active_task::ActiveTask;
use claimer::{CHECK_EVERY, Claimer};
pub use decoded::decoded;
pub use fill::{BadLine, Filled, Flow, ListCheck, OnBadLine, URL_MAX, UrlLists, check_list, read_url};
use lanes::Lanes;
pub use meant::meant_url;
use rows::PendingRows;
pub use rows::{Extras, RowSink, Rows};
use scrape::Turns;
use settler::Settling;
pub use sitemaps::OnProblem;

/// Works on one job. Clones share one pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// What a pool needs.
pub struct Parts {
    /// The gate, which decides when requests may leave.
    pub gate: Gate,
    /// The store of the job; the same one that the gate uses.
    pub store: Arc<dyn Store>,
    /// Sends the requests.
    pub transport: Transport,
    /// Saves the bodies.
    pub archive: Archive,
    /// The configuration.
    pub config: Config,
    /// The job.
    pub job: Job,
    /// When to stop working.
    pub until: Until,
    /// Who receives result rows, besides the archive.
    pub rows: Rows,
}

/// When to stop working on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When all its tasks are settled. Then the job is done.
    Done {
        /// Stop, and leave the job open, if no task can be sent for longer than this.
        patience: Option<Span>,
    },
    /// When all its tasks are settled, but the job stays open for more.
    Idle {
        /// Stop if no task can be sent for longer than this, whether due far in the future or deferred again and again.
        patience: Option<Span>,
    },
}

impl Until {
    /// When all tasks of the job are settled, however long that takes.
    pub const DONE: Self = Self::Done { patience: None };

    fn patience(self) -> Option<Span> {
        match self {
            Self::Done { patience } | Self::Idle { patience } => patience,
        }
    }
}

impl Default for Until {
    fn default() -> Self {
        Self::DONE
    }
}

/// Why a pool stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The job ended, here or elsewhere.
    Job(JobState),
    /// The pool was asked to stop. Unfinished tasks are waiting.
    Requested,
    /// All known tasks are settled, but a list was not read to its end. The job stays open for the rest.
    Unread,
    /// All tasks are settled. The job stays open for more.
    Idle,
    /// No remaining task can be sent before this time, which is too long to wait. The job stays open.
    NotDueUntil(Timestamp),
    /// Too many tasks in a row failed on the remaining domains. The job stays open, and the remaining tasks are
    /// waiting.
    Halted(String),
}

/// What became of the tasks that a pool settled. Tasks that are skipped together, because their job ended or gave up on
/// their domain, are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCounts {
    /// Pages that were fetched and are new, or have another body than before.
    pub changed: u64,
    /// Pages that were asked for again and are as before: the site said so (304), or the body is the same.
    pub unchanged: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Responses that were rate limited (429).
    pub rate_limited: u64,
    /// Attempts that were followed by a retry.
    pub retries: u64,
}

impl RunCounts {
    /// Pages that were fetched, whether they had changed or not.
    pub fn fetched(&self) -> u64 {
        self.changed + self.unchanged
    }
}

struct Inner {
    gate: Gate,
    store: Arc<dyn Store>,
    transport: Transport,
    robots_cache: Option<Arc<RobotsCache>>,
    /// Fetches sitemaps.
    client: Client,
    archive: Arc<Archive>,
    job: Job,
    settings: JobSettings,
    until: Until,
    scrape_interval: Option<Span>,
    redirects_max: u32,
    rows: Rows,
    /// Which rows have not been written yet.
    pending_rows: Mutex<PendingRows>,
    lanes: Mutex<Lanes>,
    /// Tasks that wait for the robots.txt of their origin, in order of arrival.
    awaiting_robots: Mutex<HashMap<String, Vec<ActiveTask>>>,
    /// Tasks of items that wait until another task of their source has had its turn.
    turns: Mutex<Turns>,
    guards: Mutex<Guards>,
    settles: mpsc::UnboundedSender<Settling>,
    /// Wakes up the pool to check for work.
    poke: Notify,
    /// Whether there may be new lanes since the store was last asked.
    fresh: AtomicBool,
    filling: AtomicBool,
    /// How many tasks have been settled.
    settled: AtomicU64,
    run_counts: Mutex<RunCounts>,
    stopping: watch::Sender<bool>,
    /// Room for pages that were requested and whose results aren't committed.
    uncommitted: Arc<Semaphore>,
    /// The requests in flight.
    fetches: TaskTracker,
    settler: Mutex<Option<JoinHandle<()>>>,
    runtime: Handle,
}

struct Guards {
    /// After how many failures in a row a domain is given up; 0 means never.
    failures_max: u32,
    failures: FastMap<LaneId, FailureGuard>,
    /// Domains that could not be reached recently.
    unreached: FastMap<LaneId, ReachGuard>,
    /// Why the last domain was given up. Set while more tasks may come and no task of another domain has been settled
    /// since.
    given_up: Option<String>,
    /// Why a domain was left for the next run, in a job that stays open.
    left_for_later: Option<String>,
    limits: CancelGuard,
    /// The job step requested by a guard, and why.
    tripped: Option<(JobStep, String)>,
}

impl Guards {
    /// Forgets what was counted for lanes that are given back, unless something failed there.
    fn forget_successful(&mut self, lanes: impl Iterator<Item = LaneId>) {
        for lane in lanes {
            if self.failures.get(&lane).is_some_and(|guard| guard.streak() == 0 && !guard.is_tripped()) {
                self.failures.remove(&lane);
            }
        }
    }
}

impl Pool {
    /// Creates a pool for a job. Must be called within a tokio runtime.
    pub fn new(parts: Parts) -> Self {
        let Parts { gate, store, transport, archive, config, job, until, rows } = parts;
        let archive = Arc::new(archive);
        let (kept, recorded) = (Some(store.clone()), Some(archive.clone()));
        let robots_cache = RobotsCache::new(gate.clone(), transport.clone(), &config, kept, recorded);
        let client =
            Client::with_robots_cache(&config, gate.clone(), transport.clone(), robots_cache.clone(), None);
        let (settles, settling) = mpsc::unbounded_channel();
        let guards = Guards {
            failures_max: config.job.failure_threshold,
            failures: FastMap::default(),
            unreached: FastMap::default(),
            given_up: None,
            left_for_later: None,
            limits: CancelGuard::new(config.job.cancel_streak, config.job.cancel_delay),
            tripped: None,
        };
        let uncommitted = Arc::new(Semaphore::new(uncommitted_max(config.job.concurrency)));
        let inner = Arc::new(Inner {
            gate,
            store,
            transport,
            robots_cache,
            client,
            archive,
            job,
            settings: config.job,
            until,
            scrape_interval: config.scrape.min_interval,
            redirects_max: config.http.redirects_max,
            rows,
            pending_rows: Mutex::default(),
            lanes: Mutex::default(),
            awaiting_robots: Mutex::default(),
            turns: Mutex::default(),
            guards: Mutex::new(guards),
            settles,
            poke: Notify::new(),
            fresh: AtomicBool::new(true),
            filling: AtomicBool::new(false),
            settled: AtomicU64::new(0),
            run_counts: Mutex::default(),
            stopping: watch::Sender::new(false),
            uncommitted,
            fetches: TaskTracker::new(),
            settler: Mutex::default(),
            runtime: Handle::current(),
        });
        let settler = tokio::spawn(settler::run(Arc::downgrade(&inner), settling));
        *lock(&inner.settler) = Some(settler);
        Self(inner)
    }

    /// Works until the job ends or the pool is stopped. Afterwards none of its requests is in flight, and everything
    /// fetched is settled. Dropping the future stops the pool: in the background it finishes the requests in flight,
    /// settles them and gives back its claims.
    pub async fn run(&self) -> Result<StopReason, StoreError> {
        let (pool, _stop) = (self.clone(), StopOnDrop(self));
        let work = self.0.runtime.spawn(async move { pool.work().await });
        work.await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Err(StoreError::Closed),
        })
    }

    async fn work(&self) -> Result<StopReason, StoreError> {
        let inner = &self.0;
        // One pool at a time: a pool that was dropped may still be shutting down.
        let work = inner.gate.job_lock(inner.job.id);
        let _alone = work.lock().await;
        inner.gate.begin_job(inner.job.id, inner.settings.concurrency);
        let mut parted = inner.gate.ended_tenures();
        let mut failure = inner.gate.failure();
        let changed = inner.gate.store_changed();
        let mut claimer = Claimer::new(inner);
        let began = inner.now();
        let ended = loop {
            if inner.is_stopping() {
                break Ok(StopReason::Requested);
            }
            match inner.register().await {
                Ok(()) | Err(StoreError::Lost) => {}
                Err(error) => break Err(error),
            }
            if let Some(error) = failure.as_ref().and_then(|failure| failure.borrow().clone()) {
                break Err(error);
            }
            let poked = inner.poke.notified();
            match claimer.work().await {
                Ok(None) => {}
                Ok(Some(ended)) => break Ok(ended),
                Err(StoreError::Lost) => {}
                Err(error) => break Err(error),
            }
            let idle_for = claimer.check_at.since(inner.gate.clock().now()).min(CHECK_EVERY);
            tokio::select! {
                () = poked => {}
                Some(parted) = parted.recv() => {
                    inner.part(&parted);
                    claimer.others_wrote();
                }
                () = changed.notified() => claimer.others_wrote(),
                () = async { match &mut failure {
                    Some(failure) => drop(failure.changed().await),
                    None => std::future::pending().await,
                }} => {}
                () = inner.until_stopping() => {}
                () = tokio::time::sleep(idle_for.into()) => {}
            }
        };
        self.shut_down(ended.is_ok()).await;
        let ended = claimer.after_stop(ended).await;
        let written = match &ended {
            Ok(ended) => inner.last_rows(ended, began).await,
            // Missing rows are written by whoever works on the job next.
            Err(_) => Ok(()),
        };
        let closed = inner.archive.close().map_err(archive_error);
        ended.and_then(|ended| written.and(closed).map(|()| ended))
    }

    /// Writes the rows that a killed process did not get to write, for a job that nobody works on any more.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let inner = &self.0;
        let work = inner.gate.job_lock(inner.job.id);
        let _alone = work.lock().await;
        inner.register().await?;
        inner.leave().await
    }

    /// The cache of robots.txt files.
    pub(crate) fn robots_cache(&self) -> Option<Arc<RobotsCache>> {
        self.0.robots_cache.clone()
    }

    /// Stops claiming and sending. Requests in flight are finished.
    pub fn stop(&self) {
        self.0.stopping.send_replace(true);
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.0.fetches.len()
    }

    /// What became of the tasks settled so far.
    pub fn run_counts(&self) -> RunCounts {
        *lock(&self.0.run_counts)
    }

    /// Sets whether tasks are being added from here, which keeps the job from finishing.
    pub fn set_filling(&self, filling: bool) {
        self.0.filling.store(filling, Ordering::Relaxed);
        self.poke();
    }

    /// Checks for new tasks.
    pub fn poke(&self) {
        self.0.fresh.store(true, Ordering::Relaxed);
        self.0.poke.notify_one();
    }

    /// Waits for the requests in flight and settles them.
    async fn shut_down(&self, settle: bool) {
        let inner = &self.0;
        inner.stopping.send_replace(true);
        inner.gate.end_job(inner.job.id);
        inner.lanes().clear_waiting();
        if !settle {
            // Nothing can be settled any more, so there is nothing to wait for.
            return;
        }
        inner.fetches.close();
        inner.fetches.wait().await;
        let _ = inner.settles.send(Settling::Last);
        let settler = lock(&inner.settler).take();
        if let Some(settler) = settler {
            let _ = settler.await;
        }
        // Other processes may continue with the remaining lanes, and so may the next pool of this process.
        let (lanes, now) = (inner.lanes().take_all(), inner.now());
        let Some(holder) = inner.gate.holder() else { return };
        for lanes in lanes.chunks(PARKED_AT_ONCE) {
            let _ = inner.store.park(holder, lanes.iter().map(|lane| (*lane, now)).collect()).await;
        }
    }
}

/// Stops the pool when its `run` is dropped.
struct StopOnDrop<'a>(&'a Pool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Inner {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.lanes)
    }

    fn awaiting_robots(&self) -> MutexGuard<'_, HashMap<String, Vec<ActiveTask>>> {
        lock(&self.awaiting_robots)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        lock(&self.turns)
    }

    fn guards(&self) -> MutexGuard<'_, Guards> {
        lock(&self.guards)
    }

    fn now(&self) -> Timestamp {
        self.gate.clock().now()
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits while too many results aren't committed: after a crash, their pages would be fetched again. `None` if the
    /// pool is asked to stop.
    async fn room_for_result(&self) -> Option<OwnedSemaphorePermit> {
        let room = self.uncommitted.clone().acquire_owned();
        tokio::select! {
            biased;
            room = room => room.ok(),
            () = self.until_stopping() => None,
        }
    }

    /// Waits until the pool is asked to stop.
    async fn until_stopping(&self) {
        let _ = self.stopping.subscribe().wait_for(|over| *over).await;
    }

    /// Drops the lanes whose domains are no longer held here.
    fn part(&self, parted: &EndedTenures) {
        self.lanes().drop_tenures(parted);
        self.fresh.store(true, Ordering::Relaxed);
    }
}

/// How many pages may be requested without a committed result. Enough for a full batch while the next one is fetched, and
/// the most that a crash can cost if the store is slow.
fn uncommitted_max(concurrency: u32) -> usize {
    UNCOMMITTED_MAX.max(2 * IN_FLIGHT_FACTOR as usize * concurrency as usize)
}

/// Turns an archive error into a store error: an archive that can't be written ends the work, like a failed store.
fn archive_error(error: ArchiveError) -> StoreError {
    let (place, what) = (error.path.display().to_string(), error.cause.to_string());
    StoreError::Output { location: place, what }
}

/// The identity of a job's pool, for tests and logs.
impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("job", &self.0.job.id).finish_non_exhaustive()
    }
}

/// How many lanes are given back at once, so that nobody waits long for the store.
const PARKED_AT_ONCE: usize = 1_000;
/// How many results may be uncommitted, in a job of common concurrency.
const UNCOMMITTED_MAX: usize = 1_024;
