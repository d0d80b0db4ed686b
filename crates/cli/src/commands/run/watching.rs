//! `comity run --watch`: one run after the other, over configurations that change.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity::config::Config;
use comity::core::time::Timestamp;
use comity::gate::Gate;
use comity::jobs::Ended;
use comity::pipeline::{Note, Report, RunListener, Scraping};
use comity::store::StoreError;
use serde_json::{Value, json};

use super::{check_sources, orders, start_hooks, tell};
use crate::args::{Global, Run};
use crate::commands::report::moment;
use crate::commands::session::{Session, config, tasks};
use crate::hooks::{self, Hook};
use crate::signals::{Asked, Signals};
use crate::{exit, output, setup};

/// Why a session ended.
enum Over {
    /// Somebody asked for it.
    Stopped,
    /// The configuration changed.
    Reloaded(Box<Config>),
    /// It is worth trying again after a while.
    Again,
    /// The store is given up.
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
    let mut told = String::new();
    loop {
        // A service goes on with the other sources, however many items of one fail.
        let mut settings = config.clone();
        settings.job.failure_threshold = 0;
        let begun = async {
            let store = stores.open(&settings).await?;
            Session::on(store, settings, "run --watch").await
        };
        let session = match signals.unless_stopped(begun).await {
            Ok(session) => session,
            // What does not work from the start is told at once; what worked before may again. For the store it was waited.
            Err(error) if !began || is_given_up(&error) => return Err(error),
            Err(error) => {
                // Once for each reason: it may take days.
                let why = format!("{error:#}");
                if why != told {
                    tracing::warn!("{why}; trying again until it works");
                    told = why;
                }
                match pause(global, run, &mut signals).await {
                    Over::Stopped => return Ok(exit::INTERRUPTED),
                    Over::Reloaded(new) => config = *new,
                    Over::Again | Over::Failed(_) => {}
                }
                continue;
            }
        };
        if !began {
            check_sources(&*session.store, run).await?;
        }
        began = true;
        told.clear();
        let hooks = hook.clone().map(|hook| start_hooks(hook, &session, run));
        let mut over = attend(global, run, &session, hooks, &mut signals).await?;
        drop(session);
        if let Over::Again = over {
            over = pause(global, run, &mut signals).await;
        }
        match over {
            Over::Stopped => return Ok(exit::INTERRUPTED),
            Over::Failed(error) => return Err(error.into()),
            Over::Reloaded(new) => config = *new,
            Over::Again => {}
        }
    }
}

/// Waits a while; what was asked for meanwhile.
async fn pause(global: &Global, run: &Run, signals: &mut Signals) -> Over {
    let sleeping = tokio::time::sleep(PAUSE);
    tokio::pin!(sleeping);
    loop {
        tokio::select! {
            () = &mut sleeping => return Over::Again,
            asked = signals.next() => match asked {
                Asked::Stop => return Over::Stopped,
                Asked::Reload => if let Some(over) = reload(global, run) {
                    return over;
                },
            },
        }
    }
}

/// Reads the configuration again; one that cannot be used changes nothing.
fn reload(global: &Global, run: &Run) -> Option<Over> {
    match config(global, &run.keep) {
        Ok(config) => {
            output::remark("the configuration was read again");
            Some(Over::Reloaded(Box::new(config)))
        }
        Err(error) => {
            output::remark(&format!("the configuration stays as it was: {error:#}"));
            None
        }
    }
}

/// Runs until somebody asks for something else.
async fn attend(
    global: &Global,
    run: &Run,
    session: &Session,
    hooks: Option<hooks::Running>,
    signals: &mut Signals,
) -> anyhow::Result<Over> {
    let orders = orders(run, session.began)?;
    let pool = session.pipeline.pool().clone();
    pool.set_filling(true);
    let mut scraping = (orders.scraping == Scraping::On).then(|| session.scrape());
    let (json, quiet, gate) = (global.json, global.quiet, session.gate.clone());
    let teller = Arc::new(Teller { json, quiet, gate, told: Mutex::default() });
    let mut watching = tokio::spawn({
        let pipeline = session.pipeline.clone();
        async move { pipeline.watch(&orders, teller).await }
    });
    let mut watched = None;
    let mut over = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => {
                    output::stopping("requests in flight are finished first");
                    session.gate.hurry();
                    break Over::Stopped;
                }
                Asked::Reload => if let Some(over) = reload(global, run) {
                    break over;
                },
            },
            done = &mut watching => {
                watched = Some(());
                break troubled("sources", done.ok().and_then(Result::err));
            }
            ended = ended(&mut scraping) => {
                scraping = None;
                break troubled("scraping", ended.err());
            }
        }
    };
    session.pipeline.stop();
    pool.stop();
    let passes = matches!(over, Over::Reloaded(_));
    let finishing = async {
        if let Some(scraping) = scraping {
            let _ = scraping.await;
        }
        if watched.is_none() {
            let _ = watching.await;
        }
        if let Some(hooks) = hooks {
            // What is ended here runs again with the next session.
            let _ = hooks.stop().await;
        }
        if passes { session.pass().await } else { session.abandon().await }
    };
    let mut again = None;
    tokio::pin!(finishing);
    loop {
        tokio::select! {
            () = &mut finishing => break,
            asked = signals.next() => match asked {
                // Whoever asks again does not want to wait.
                Asked::Stop => exit::at_once(),
                Asked::Reload => again = reload(global, run).or(again),
            },
        }
    }
    if let (Some(again), Over::Reloaded(_) | Over::Again) = (again, &over) {
        over = again;
    }
    Ok(over)
}

async fn ended(
    scraping: &mut Option<tokio::task::JoinHandle<Result<Ended, StoreError>>>,
) -> Result<Ended, StoreError> {
    match scraping {
        Some(scraping) => scraping.await.unwrap_or(Err(StoreError::Closed)),
        None => std::future::pending().await,
    }
}

/// What was at work ended. A store that was waited for in vain ends everything; the rest is tried again.
fn troubled(what: &str, error: Option<StoreError>) -> Over {
    if let Some(error) = error.as_ref().filter(|error| error.away().is_some()) {
        return Over::Failed(error.clone());
    }
    let error = error.map_or_else(|| "ended by itself".to_owned(), |error| error.to_string());
    tracing::warn!("{what}: {error}; trying again");
    Over::Again
}

/// Tells how the runs go.
struct Teller {
    json: bool,
    quiet: bool,
    gate: Gate,
    /// Scrapes that were told before: fetched, failed, skipped.
    told: Mutex<(u64, u64, u64)>,
}

impl Teller {
    /// Scrapes since the last run was told.
    fn tasks(&self) -> Value {
        let now = tasks(&self.gate);
        let before = std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), now);
        json!({ "fetched": now.0 - before.0, "failed": now.1 - before.1, "skipped": now.2 - before.2 })
    }
}

impl RunListener for Teller {
    fn asked(&self, note: &Note) {
        tell::log(note);
    }

    fn ran(&self, report: &Report) {
        let tasks = self.tasks();
        if self.json {
            let mut object = tell::object(report);
            object["tasks"] = tasks;
            output::object(&object);
        } else if !self.quiet {
            tell::lines(report).iter().for_each(|line| output::line(line));
            let count = |key: &str| tasks[key].as_u64().unwrap_or(0);
            let (fetched, failed) = (count("fetched"), count("failed"));
            if fetched + failed > 0 {
                output::line(&format!("items since: {fetched} scraped, {failed} failed"));
            }
        }
    }

    fn sleeps(&self, until: Option<Timestamp>) {
        match until {
            Some(until) => tracing::info!("the next source is due at {}", moment(until)),
            None => tracing::info!("no source is followed; comity sources add URL begins to"),
        }
    }
}

/// What did not work is tried again after this long.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether the store was waited for in vain.
fn is_given_up(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.away().is_some())
}
