//! Hooks (`run --exec`): runs a command for each new item, alongside the run that finds them.
//!
//! The store keeps which items still need their command. An item is crossed off after its command has run, so a crash
//! repeats a command rather than losing it. Running one command is in `process`.

mod process;

use std::sync::Arc;
use std::time::Duration;

use comity::core::time::Span;
use comity::gate::Gate;
use comity::redact;
use comity::store::hooks::HookTiming;
use comity::store::items::{Item, ItemId};
use comity::store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::args::Exec;
use crate::commands::items::row;
use crate::{exit, output};
use process::{Command, Ended};

/// The command to run, and its limits.
#[derive(Debug, Clone)]
pub(crate) struct Hook {
    command: String,
    /// Maximum number of commands to run at once.
    concurrency: usize,
    timeout: Duration,
}

/// How many commands ran, and how many of them failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) ran: u64,
    pub(crate) failed: u64,
}

/// The phase of the run that finds items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It finds items.
    Running,
    /// It has ended: run the commands that remain.
    Finishing,
    /// It was stopped: start nothing, and end the commands that run.
    Stopped,
}

/// Hooks that run in the background.
pub(crate) struct Running {
    phase: watch::Sender<Phase>,
    task: JoinHandle<Result<Tally, StoreError>>,
}

impl Hook {
    /// The hook that the flags describe, if any.
    pub(crate) fn of(exec: &Exec) -> anyhow::Result<Option<Self>> {
        let Some(command) = exec.exec.clone() else { return Ok(None) };
        if command.trim().is_empty() {
            return Err(exit::usage(format!(
                "--exec = {command:?}: expected a command such as 'jq -r .url >> new.txt'"
            )));
        }
        let wrong = || {
            let text = &exec.exec_timeout;
            exit::usage(format!(
                "--exec-timeout = {text:?}: expected a duration above zero such as 60s or 5m"
            ))
        };
        let timeout =
            Span::parse(&exec.exec_timeout).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(wrong)?;
        Ok(Some(Self { command, concurrency: usize::from(exec.exec_jobs), timeout: timeout.into() }))
    }

    /// Starts running the command for items that are ready for it.
    pub(crate) fn start(self, store: Arc<dyn Store>, gate: Gate, ripe: HookTiming) -> Running {
        let (phase, phases) = watch::channel(Phase::Running);
        let task = tokio::spawn(run_hooks(self, store, gate, ripe, phases));
        Running { phase, task }
    }
}

impl Running {
    /// Reports that no more items will be found: the commands that remain are still run.
    pub(crate) fn finish(&self) {
        let _ = self.phase.send(Phase::Finishing);
    }

    /// Waits until there is nothing left to run.
    pub(crate) async fn ended(&mut self) -> Result<Tally, StoreError> {
        (&mut self.task).await.unwrap_or(Err(StoreError::Closed))
    }

    /// Ends the commands that run; they run again next time. Returns the tally, and true for "stopped".
    pub(crate) async fn stop(mut self) -> Result<(Tally, bool), StoreError> {
        let _ = self.phase.send(Phase::Stopped);
        Ok((self.ended().await?, true))
    }
}

async fn run_hooks(
    hook: Hook,
    store: Arc<dyn Store>,
    gate: Gate,
    ripe: HookTiming,
    mut phases: watch::Receiver<Phase>,
) -> Result<Tally, StoreError> {
    let (mut tally, mut running) = (Tally::default(), JoinSet::new());
    loop {
        let phase = *phases.borrow_and_update();
        let free = hook.concurrency - running.len();
        let mut started = 0;
        if phase != Phase::Stopped
            && free > 0
            && let Some(holder) = gate.holder()
        {
            let items = store.claim_hooks(holder, ripe, free as u32).await?;
            started = items.len();
            for item in items {
                let line = line(&*store, &item).await?;
                running.spawn(run_one(hook.clone(), item.id, line, phases.clone()));
            }
        }
        if running.is_empty() && started == 0 && phase != Phase::Running {
            return Ok(tally);
        }
        tokio::select! {
            Some(ended) = running.join_next() => {
                let Ok((item, ended)) = ended else { continue };
                if ended == Ended::Stopped {
                    continue;
                }
                tally.ran += 1;
                tally.failed += u64::from(ended != Ended::Succeeded);
                if let Some(holder) = gate.holder() {
                    store.end_hooks(holder, vec![item]).await?;
                }
            }
            () = tokio::time::sleep(POLL) => {}
            _ = phases.changed() => {}
        }
    }
}

/// An item as the JSON line that its command reads.
async fn line(store: &dyn Store, item: &Item) -> Result<String, StoreError> {
    let details = store.find_details(vec![item.id]).await?.pop().unwrap_or_default();
    Ok(output::json(&row::of(item, &details)) + "\n")
}

/// Runs the command for one item, and logs how it ended.
async fn run_one(
    hook: Hook,
    item: ItemId,
    line: String,
    mut phases: watch::Receiver<Phase>,
) -> (ItemId, Ended) {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // A command line may contain secrets and may be long.
    let shown = redact::text(&hook.command);
    let command = Command { text: hook.command, timeout: hook.timeout, stop: stop.clone() };
    let running = tokio::task::spawn_blocking(move || command.run(line));
    tokio::pin!(running);
    let (ended, said) = loop {
        tokio::select! {
            done = &mut running => break done.unwrap_or((Ended::Failed("internal error".to_owned()), String::new())),
            Ok(()) = phases.changed() => {
                let stopped = *phases.borrow_and_update() == Phase::Stopped;
                stop.fetch_or(stopped, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    let item_id = item.0;
    match &ended {
        Ended::Succeeded if said.is_empty() => tracing::debug!(item = item_id, "--exec command ran"),
        Ended::Succeeded => tracing::info!(item = item_id, output = said, "--exec command ran"),
        Ended::Stopped => tracing::info!(item = item_id, "hook stopped; it will run again"),
        // An error, because the command doesn't run again: with --quiet, this line is all that reports it.
        Ended::Failed(why) => {
            tracing::error!(item = item_id, command = shown, why, output = said, "--exec command failed")
        }
    }
    (item, ended)
}

/// How often the store is checked for items that are ready.
const POLL: Duration = Duration::from_millis(200);
