//! `--exec`: a command for each new item, beside the run that finds them.
//!
//! Which items are to have it is in the store; an item is struck off when its command ran, so that a crash repeats a
//! command rather than losing it. What a command that runs looks like is in `process`.

mod process;

use std::sync::Arc;
use std::time::Duration;

use comity::core::time::Span;
use comity::gate::Gate;
use comity::store::hooks::Ripe;
use comity::store::items::{Item, ItemId};
use comity::store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::args::Exec;
use crate::commands::items::row;
use crate::{exit, output};
use process::{Command, Ended};

/// What is run, and within which limits.
#[derive(Debug, Clone)]
pub(crate) struct Hook {
    command: String,
    at_once: usize,
    limit: Duration,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) ran: u64,
    pub(crate) failed: u64,
}

/// How far the work is that finds items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Working,
    /// What is ripe is still run.
    Over,
    /// Nothing is begun any more, and what runs is ended.
    Stopped,
}

/// Hooks that run beside something.
pub(crate) struct Running {
    phase: watch::Sender<Phase>,
    task: JoinHandle<Result<Tally, StoreError>>,
}

impl Hook {
    /// What was typed; nothing when it was not.
    pub(crate) fn of(exec: &Exec) -> anyhow::Result<Option<Self>> {
        let Some(command) = exec.exec.clone() else { return Ok(None) };
        if command.trim().is_empty() {
            return Err(exit::usage("--exec: expected a command such as 'jq -r .url >> new.txt'".to_owned()));
        }
        let wrong = || {
            let text = &exec.exec_timeout;
            exit::usage(format!("--exec-timeout {text:?}: expected a duration above zero such as 60s or 5m"))
        };
        let limit =
            Span::parse(&exec.exec_timeout).ok().filter(|limit| !limit.is_zero()).ok_or_else(wrong)?;
        Ok(Some(Self { command, at_once: usize::from(exec.exec_jobs), limit: limit.into() }))
    }

    /// Begins to run it for items that are ripe.
    pub(crate) fn start(self, store: Arc<dyn Store>, gate: Gate, ripe: Ripe) -> Running {
        let (phase, phases) = watch::channel(Phase::Working);
        let task = tokio::spawn(attend(self, store, gate, ripe, phases));
        Running { phase, task }
    }
}

impl Running {
    /// Nothing new is found any more: what is ripe is still run.
    pub(crate) fn over(&self) {
        let _ = self.phase.send(Phase::Over);
    }

    /// Waits until there is nothing left to run.
    pub(crate) async fn ended(&mut self) -> Result<Tally, StoreError> {
        (&mut self.task).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Ends what runs; it is run again another time. How it went, and that it was stopped.
    pub(crate) async fn stop(mut self) -> Result<(Tally, bool), StoreError> {
        let _ = self.phase.send(Phase::Stopped);
        Ok((self.ended().await?, true))
    }
}

async fn attend(
    hook: Hook,
    store: Arc<dyn Store>,
    gate: Gate,
    ripe: Ripe,
    mut phases: watch::Receiver<Phase>,
) -> Result<Tally, StoreError> {
    let (mut tally, mut running) = (Tally::default(), JoinSet::new());
    loop {
        let phase = *phases.borrow_and_update();
        let free = hook.at_once - running.len();
        let mut begun = 0;
        if phase != Phase::Stopped
            && free > 0
            && let Some(holder) = gate.holder()
        {
            let items = store.claim_hooks(holder, ripe, free as u32).await?;
            begun = items.len();
            for item in items {
                let line = line(&*store, &item).await?;
                running.spawn(one(hook.clone(), item.id, line, phases.clone()));
            }
        }
        if running.is_empty() && begun == 0 && phase != Phase::Working {
            return Ok(tally);
        }
        tokio::select! {
            Some(ended) = running.join_next() => {
                let Ok((item, ended)) = ended else { continue };
                if ended == Ended::Stopped {
                    continue;
                }
                tally.ran += 1;
                tally.failed += u64::from(ended != Ended::Well);
                if let Some(holder) = gate.holder() {
                    store.end_hooks(holder, vec![item]).await?;
                }
            }
            () = tokio::time::sleep(LOOK) => {}
            _ = phases.changed() => {}
        }
    }
}

/// An item as its command reads it.
async fn line(store: &dyn Store, item: &Item) -> Result<String, StoreError> {
    let details = store.find_details(vec![item.id]).await?.pop().unwrap_or_default();
    Ok(output::json(&row::of(item, &details)) + "\n")
}

async fn one(hook: Hook, item: ItemId, line: String, mut phases: watch::Receiver<Phase>) -> (ItemId, Ended) {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let command = Command { text: hook.command, limit: hook.limit, stop: stop.clone() };
    let running = tokio::task::spawn_blocking(move || command.run(line));
    tokio::pin!(running);
    let (ended, said) = loop {
        tokio::select! {
            done = &mut running => break done.unwrap_or((Ended::Failed("it panicked".to_owned()), String::new())),
            Ok(()) = phases.changed() => {
                let stopped = *phases.borrow_and_update() == Phase::Stopped;
                stop.fetch_or(stopped, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    let item_id = item.0;
    match &ended {
        Ended::Well if said.is_empty() => tracing::debug!(item = item_id, "hook ran"),
        Ended::Well => tracing::info!(item = item_id, said, "hook ran"),
        Ended::Stopped => tracing::info!(item = item_id, "hook stopped; it runs again next time"),
        Ended::Failed(why) => tracing::warn!(item = item_id, why, said, "hook failed"),
    }
    (item, ended)
}

/// How often it is looked for items that are ripe.
const LOOK: Duration = Duration::from_millis(200);
