//! `comity run --watch`: runs until it is stopped. A reload ends the current session and starts another one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity::config::Config;
use comity::core::time::Timestamp;
use comity::gate::Gate;
use comity::jobs::StopReason;
use comity::pipeline::{RunListener, RunReport, Scraping, SourceReport};
use comity::store::StoreError;
use serde_json::{Value, json};

use super::{check_sources, orders, start_hooks, summary};
use crate::args::{Global, Run};
use crate::commands::report::moment;
use crate::commands::session::{Session, config, tasks};
use crate::hooks::{self, Hook};
use crate::signals::{Signal, Signals};
use crate::{exit, output, setup};

/// Why a session ended.
enum SessionEnd {
    /// A signal asked for it.
    Stopped,
    /// The configuration was reloaded.
    Reloaded(Box<Config>),
    /// Something failed that is worth retrying after a while.
    Retry,
    /// The store stayed unavailable for too long.
    Failed(StoreError),
}

pub(super) async fn run(
    global: &Global,
    run: &Run,
    hook: Option<Hook>,
    mut config: Config,
    mut signals: Signals,
) -> anyhow::Result<u8> {
    let mut began = false;
    let mut stores = setup::Stores::default();
    let mut last_error = String::new();
    loop {
        // However many items of one source fail, a service continues with the other sources.
        let mut settings = config.clone();
        settings.job.failure_threshold = 0;
        let begun = async {
            let store = stores.open(&settings).await?;
            Session::on(store, settings, "run --watch").await
        };
        let session = match signals.unless_stopped(begun).await {
            Ok(session) => session,
            // An error at startup is reported at once; what worked before may work again. A store that stayed
            // unavailable for too long is final.
            Err(error) if !began || is_given_up(&error) => return Err(error),
            Err(error) => {
                // Log each error once: this may take days.
                let why = format!("{error:#}");
                if why != last_error {
                    tracing::warn!("{why}; retrying until it works");
                    last_error = why;
                }
                match pause(global, run, &mut signals).await {
                    SessionEnd::Stopped => return Ok(exit::INTERRUPTED),
                    SessionEnd::Reloaded(new) => config = *new,
                    SessionEnd::Retry | SessionEnd::Failed(_) => {}
                }
                continue;
            }
        };
        if !began {
            check_sources(&*session.store, run).await?;
        }
        began = true;
        last_error.clear();
        let hooks = hook.clone().map(|hook| start_hooks(hook, &session, run));
        let mut over = run_session(global, run, &session, hooks, &mut signals).await?;
        drop(session);
        if let SessionEnd::Retry = over {
            over = pause(global, run, &mut signals).await;
        }
        match over {
            SessionEnd::Stopped => return Ok(exit::INTERRUPTED),
            SessionEnd::Failed(error) => return Err(error.into()),
            SessionEnd::Reloaded(new) => config = *new,
            SessionEnd::Retry => {}
        }
    }
}

/// Waits a while, unless a signal ends the wait.
async fn pause(global: &Global, run: &Run, signals: &mut Signals) -> SessionEnd {
    let sleeping = tokio::time::sleep(PAUSE);
    tokio::pin!(sleeping);
    loop {
        tokio::select! {
            () = &mut sleeping => return SessionEnd::Retry,
            signal = signals.next() => match signal {
                Signal::Stop => return SessionEnd::Stopped,
                Signal::Reload => if let Some(over) = reload(global, run) {
                    return over;
                },
            },
        }
    }
}

/// Reloads the configuration; an invalid one changes nothing.
fn reload(global: &Global, run: &Run) -> Option<SessionEnd> {
    match config(global, &run.options) {
        Ok(config) => {
            output::remark("Configuration reloaded");
            Some(SessionEnd::Reloaded(Box::new(config)))
        }
        Err(error) => {
            output::failure(&format!("Configuration not reloaded: {error:#}"));
            None
        }
    }
}

/// Runs a session until it is stopped, reloaded or fails.
async fn run_session(
    global: &Global,
    run: &Run,
    session: &Session,
    hooks: Option<hooks::Running>,
    signals: &mut Signals,
) -> anyhow::Result<SessionEnd> {
    let orders = orders(run, session.began)?;
    let pool = session.pipeline.pool().clone();
    pool.set_filling(true);
    let mut scraping = (orders.scraping == Scraping::On).then(|| session.scrape());
    let (json, quiet, gate) = (global.json, global.quiet, session.gate.clone());
    let reporter = Arc::new(Reporter { json, quiet, gate, reported: Mutex::default() });
    let mut watching = tokio::spawn({
        let pipeline = session.pipeline.clone();
        async move { pipeline.watch(&orders, reporter).await }
    });
    let mut watched = None;
    let mut over = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::Stop => {
                    output::stopping("finishing requests in flight");
                    session.gate.hurry();
                    break SessionEnd::Stopped;
                }
                Signal::Reload => if let Some(over) = reload(global, run) {
                    break over;
                },
            },
            done = &mut watching => {
                watched = Some(());
                break after_failure("sources", done.ok().and_then(Result::err));
            }
            ended = ended(&mut scraping) => {
                scraping = None;
                break after_failure("scraping", ended.err());
            }
        }
    };
    session.pipeline.stop();
    pool.stop();
    let passes = matches!(over, SessionEnd::Reloaded(_));
    let finishing = async {
        if let Some(scraping) = scraping {
            let _ = scraping.await;
        }
        if watched.is_none() {
            let _ = watching.await;
        }
        if let Some(hooks) = hooks {
            // Hooks that are stopped here run again in the next session.
            let _ = hooks.stop().await;
        }
        if passes { session.pass().await } else { session.abandon().await }
    };
    let mut again = None;
    tokio::pin!(finishing);
    loop {
        tokio::select! {
            () = &mut finishing => break,
            signal = signals.next() => match signal {
                // A second Ctrl-C means: don't wait.
                Signal::Stop => exit::quit_now(),
                Signal::Reload => again = reload(global, run).or(again),
            },
        }
    }
    if let (Some(again), SessionEnd::Reloaded(_) | SessionEnd::Retry) = (again, &over) {
        over = again;
    }
    Ok(over)
}

async fn ended(
    scraping: &mut Option<tokio::task::JoinHandle<Result<StopReason, StoreError>>>,
) -> Result<StopReason, StoreError> {
    match scraping {
        Some(scraping) => scraping.await.unwrap_or(Err(StoreError::Closed)),
        None => std::future::pending().await,
    }
}

/// What to do after a part of the session failed: give up if the store stayed unavailable, otherwise retry.
fn after_failure(what: &str, error: Option<StoreError>) -> SessionEnd {
    if let Some(error) = error.as_ref().filter(|error| error.outage().is_some()) {
        return SessionEnd::Failed(error.clone());
    }
    let error = error.map_or_else(|| "ended unexpectedly".to_owned(), |error| error.to_string());
    tracing::warn!("{what}: {error}; retrying");
    SessionEnd::Retry
}

/// Prints the summary of each run.
struct Reporter {
    json: bool,
    quiet: bool,
    gate: Gate,
    /// Scrapes that were already reported: fetched, failed, skipped.
    reported: Mutex<(u64, u64, u64)>,
}

impl Reporter {
    /// Scrapes since the last report.
    fn tasks(&self) -> Value {
        let now = tasks(&self.gate);
        let before =
            std::mem::replace(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner), now);
        json!({ "fetched": now.0 - before.0, "failed": now.1 - before.1, "skipped": now.2 - before.2 })
    }
}

impl RunListener for Reporter {
    fn source_done(&self, note: &SourceReport) {
        summary::log(note);
    }

    fn run_done(&self, report: &RunReport) {
        let tasks = self.tasks();
        if self.json {
            let mut object = summary::object(report);
            object["tasks"] = tasks;
            output::object(&object);
        } else if !self.quiet {
            summary::lines(report).iter().for_each(|line| output::line(line));
            let count = |key: &str| tasks[key].as_u64().unwrap_or(0);
            let (fetched, failed) = (count("fetched"), count("failed"));
            if fetched + failed > 0 {
                output::line(&format!("items since the last run: {fetched} scraped, {failed} failed"));
            }
        }
    }

    fn sleeping(&self, until: Option<Timestamp>) {
        match until {
            Some(until) => tracing::info!("next source due at {}", moment(until)),
            None => tracing::info!("no sources yet; add one with comity sources add URL"),
        }
    }
}

/// The wait before a retry.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether the store stayed unavailable for too long.
fn is_given_up(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.outage().is_some())
}
