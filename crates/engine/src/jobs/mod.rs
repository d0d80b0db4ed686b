//! Lists of URLs that are fetched to their end: over restarts, beside other processes, and politely.
//!
//! A [`Pool`] works on one job. It claims lanes from the store, puts their tasks into the gate's lines, fetches
//! those that are let go, and settles what became of them; nobody sleeps for a task. What is not settled when a
//! process ends is waiting again.
//!
//! - here: starting, running and stopping
//! - `claimer`: brings in lanes and tasks, and ends the work
//! - `lanes`: the lanes in hand and what is known of them
//! - `sending`: what a task sends beside a plain GET
//! - `errand`: one task on its way; `page`: where its page goes; `ended`: what became of its request
//! - `scrape`: what is special about the task of an item
//! - `settler`: commits what became of tasks, many at a time; `rows`: tells it to whoever wants rows
//! - `fill`: reading a list of URLs into a job; `sitemaps`: the pages that sitemaps lead to

mod claimer;
mod ended;
mod errand;
mod fill;
mod lanes;
mod page;
mod rows;
mod scrape;
mod sending;
mod settler;
mod sitemaps;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use comity_core::guard::{CancelGuard, FailureGuard, ReachGuard};
use comity_core::task::{JobState, JobStep};
use comity_core::time::{Span, Timestamp};
use comity_store::jobs::Job;
use comity_store::tasks::LaneId;
use comity_store::{Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::archive::{Archive, ArchiveError};
use crate::client::{Client, Keeper};
use crate::config::{Config, JobSettings};
use crate::gate::{Gate, Parted};
use crate::lock;
use crate::transport::Transport;

use claimer::{Claimer, LOOK};
use errand::Trip;
pub use fill::{BadLine, Filled, Go, Lists, OnBad, URL_MAX, read_url};
use lanes::Lanes;
use rows::Telling;
pub use rows::{Extras, RowSink, Rows};
use scrape::Turns;
use settler::Settling;
pub use sitemaps::OnProblem;

/// Works on one job. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// What a pool is made of.
pub struct Parts {
    /// Who may send.
    pub gate: Gate,
    /// Where the job is kept; the one the gate holds its domains in.
    pub store: Arc<dyn Store>,
    /// How requests are sent.
    pub transport: Transport,
    /// Where bodies are kept.
    pub archive: Archive,
    /// What everything goes by.
    pub config: Config,
    /// What is worked on.
    pub job: Job,
    /// When the work is over.
    pub until: Until,
    /// Who wants to hear what became of URLs, besides the archive.
    pub rows: Rows,
}

/// When the work on a job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Until {
    /// When all its tasks are settled: then the job is done.
    #[default]
    Done,
    /// The same, but the job stays open for more.
    Idle {
        /// What cannot leave for longer than this, at once or again and again, is left for later.
        patience: Option<Span>,
    },
}

/// Why a pool stopped working.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The job ended, here or elsewhere.
    Job(JobState),
    /// It was told to stop; what is left waits.
    Stopped,
    /// Everything that is there is settled, but a list was not read to its end: the job stays open for the rest.
    Unread,
    /// Everything that is there is settled; the job stays open for more.
    Idle,
    /// Nothing that is left can leave before then, which is too long to wait; the job stays open.
    Left(Timestamp),
    /// Too much failed in a row on the domains that are left; the job stays open, and what is left waits.
    Halted(String),
}

struct Inner {
    gate: Gate,
    store: Arc<dyn Store>,
    transport: Transport,
    keeper: Option<Arc<Keeper>>,
    /// Asks for sitemaps.
    client: Client,
    archive: Arc<Archive>,
    job: Job,
    settings: JobSettings,
    until: Until,
    scrape_interval: Option<Span>,
    redirects_max: u32,
    rows: Rows,
    /// Which rows are still to be written.
    telling: Mutex<Telling>,
    lanes: Mutex<Lanes>,
    /// Tasks that wait for the robots.txt of their origin, in the order they came.
    asking: Mutex<HashMap<String, Vec<Trip>>>,
    /// Tasks of items that wait until another of their source has asked.
    turns: Mutex<Turns>,
    guards: Mutex<Guards>,
    settles: mpsc::UnboundedSender<Settling>,
    /// Something happened that the pool should look at.
    poke: Notify,
    /// There may be lanes that were not there when the store was last asked.
    fresh: AtomicBool,
    filling: AtomicBool,
    /// How many tasks were settled.
    settled: AtomicU64,
    over: watch::Sender<bool>,
    /// What is on the wire.
    fetches: TaskTracker,
    settler: Mutex<Option<JoinHandle<()>>>,
    runtime: Handle,
}

struct Guards {
    /// How many failures in a row give a domain up; 0 is off.
    failures_max: u32,
    failures: HashMap<LaneId, FailureGuard>,
    /// Domains where nobody was there lately.
    unreached: HashMap<LaneId, ReachGuard>,
    /// Why the last domain was given up, while nothing of another one was settled since and more may come.
    given_up: Option<String>,
    /// Why a domain was last left for the next run, by a job that stays open.
    left: Option<String>,
    limits: CancelGuard,
    /// The step that a guard asks for.
    tripped: Option<(JobStep, String)>,
}

impl Pool {
    /// A pool for a job. Must be made inside a tokio runtime.
    pub fn new(parts: Parts) -> Self {
        let Parts { gate, store, transport, archive, config, job, until, rows } = parts;
        let archive = Arc::new(archive);
        let (kept, recorded) = (Some(store.clone()), Some(archive.clone()));
        let keeper = Keeper::new(gate.clone(), transport.clone(), &config, kept, recorded);
        let client = Client::keeping(&config, gate.clone(), transport.clone(), keeper.clone(), None);
        let (settles, settling) = mpsc::unbounded_channel();
        let guards = Guards {
            failures_max: config.job.failure_threshold,
            failures: HashMap::new(),
            unreached: HashMap::new(),
            given_up: None,
            left: None,
            limits: CancelGuard::new(config.job.cancel_streak, config.job.cancel_delay),
            tripped: None,
        };
        let inner = Arc::new(Inner {
            gate,
            store,
            transport,
            keeper,
            client,
            archive,
            job,
            settings: config.job,
            until,
            scrape_interval: config.scrape.min_interval,
            redirects_max: config.http.redirects_max,
            rows,
            telling: Mutex::default(),
            lanes: Mutex::default(),
            asking: Mutex::default(),
            turns: Mutex::default(),
            guards: Mutex::new(guards),
            settles,
            poke: Notify::new(),
            fresh: AtomicBool::new(true),
            filling: AtomicBool::new(false),
            settled: AtomicU64::new(0),
            over: watch::Sender::new(false),
            fetches: TaskTracker::new(),
            settler: Mutex::default(),
            runtime: Handle::current(),
        });
        let settler = tokio::spawn(settler::run(Arc::downgrade(&inner), settling));
        *lock(&inner.settler) = Some(settler);
        Self(inner)
    }

    /// Works until the job ends or the pool is stopped. Then nothing of it is on the wire and everything that
    /// was fetched is settled. Whoever drops this stops the pool: in the background it finishes what is on the wire,
    /// settles it and gives back what it had claimed.
    pub async fn run(&self) -> Result<Ended, StoreError> {
        let (pool, _stop) = (self.clone(), StopOnDrop(self));
        let work = self.0.runtime.spawn(async move { pool.work().await });
        work.await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Its runtime is shutting down.
            Err(_) => Err(StoreError::Closed),
        })
    }

    async fn work(&self) -> Result<Ended, StoreError> {
        let inner = &self.0;
        // One at a time: a pool that nobody waits for any more may still be putting down what it had in hand.
        let work = inner.gate.work_on(inner.job.id);
        let _alone = work.lock().await;
        inner.gate.begin_job(inner.job.id, inner.settings.concurrency);
        let mut parted = inner.gate.parted();
        let mut failure = inner.gate.failure();
        let changed = inner.gate.store_changed();
        let mut claimer = Claimer::new(inner);
        let began = inner.now();
        let ended = loop {
            if inner.is_over() {
                break Ok(Ended::Stopped);
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
            let idle_for = claimer.look_at.since(inner.gate.clock().now()).min(LOOK);
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
                () = inner.until_over() => {}
                () = tokio::time::sleep(idle_for.into()) => {}
            }
        };
        self.put_down(ended.is_ok()).await;
        let told = match &ended {
            Ok(ended) => inner.last_rows(ended, began).await,
            // What is not told is told by whoever works on the job next.
            Err(_) => Ok(()),
        };
        let closed = inner.archive.close().map_err(unwritable);
        ended.and_then(|ended| told.and(closed).map(|()| ended))
    }

    /// Writes the rows that somebody who died did not get to, of a job that is not worked on any more.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let inner = &self.0;
        let work = inner.gate.work_on(inner.job.id);
        let _alone = work.lock().await;
        inner.register().await?;
        inner.leave().await
    }

    /// The robots.txt files that it goes by.
    pub(crate) fn keeper(&self) -> Option<Arc<Keeper>> {
        self.0.keeper.clone()
    }

    /// Stops claiming and sending; what is on the wire is finished.
    pub fn stop(&self) {
        self.0.over.send_replace(true);
    }

    /// How many requests are on the wire.
    pub fn in_flight(&self) -> usize {
        self.0.fetches.len()
    }

    /// Tasks are being added from here: the job does not finish meanwhile.
    pub fn set_filling(&self, filling: bool) {
        self.0.filling.store(filling, Ordering::Relaxed);
        self.poke();
    }

    /// Looks for new tasks.
    pub fn poke(&self) {
        self.0.fresh.store(true, Ordering::Relaxed);
        self.0.poke.notify_one();
    }

    /// Waits for what is on the wire and settles it.
    async fn put_down(&self, settle: bool) {
        let inner = &self.0;
        inner.over.send_replace(true);
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
        // Others may work on what is left, and so may the next pool of this process.
        let (lanes, now) = (inner.lanes().take_all(), inner.now());
        if let Some(holder) = inner.gate.holder() {
            let _ = inner.store.park(holder, lanes.into_iter().map(|lane| (lane, now)).collect()).await;
        }
    }
}

/// Stops a pool that nobody waits for any more.
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

    fn asking(&self) -> MutexGuard<'_, HashMap<String, Vec<Trip>>> {
        lock(&self.asking)
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

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits until the pool is told to stop.
    async fn until_over(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Domains went to other processes, and the lanes on them with them.
    fn part(&self, parted: &Parted) {
        self.lanes().drop_holds(parted);
        self.fresh.store(true, Ordering::Relaxed);
    }
}

/// An archive that nothing can be written to ends the work, as a store does.
fn unwritable(error: ArchiveError) -> StoreError {
    let (place, what) = (error.place.display().to_string(), error.cause.to_string());
    StoreError::Unavailable { place, what, away: None }
}

/// The identity of a job's pool, for tests and logs.
impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("job", &self.0.job.id).finish_non_exhaustive()
    }
}
