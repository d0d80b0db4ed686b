//! `comity run --watch`: one run after the other, over configurations that change and stores that go and come back.

use std::time::Duration;

use comity::config::Config;
use comity::core::time::Timestamp;
use comity::jobs::Ended;
use comity::pipeline::{Listener, Note, Report, Scraping};
use comity::store::StoreError;
use tokio::sync::watch;

use super::{Session, check_sources, config, orders, tell};
use crate::args::{Global, Run};
use crate::commands::report::moment;
use crate::signals::{Asked, Signals};
use crate::{exit, output};

/// Why a session ended.
enum Over {
    /// Somebody asked for it.
    Stopped,
    /// The configuration changed.
    Reloaded(Box<Config>),
    /// It is worth trying again after this long.
    Pause(Duration),
}

pub(super) async fn run(
    global: &Global,
    run: &Run,
    mut config: Config,
    mut signals: Signals,
) -> anyhow::Result<u8> {
    let mut began = false;
    loop {
        let session = match Session::begin(config.clone(), "run --watch").await {
            Ok(session) => session,
            // What does not work from the start is told at once; what worked before may again.
            Err(error) if !began => return Err(error),
            Err(error) => {
                tracing::warn!("{error:#}; trying again");
                if pause(&mut signals, STORE_PAUSE).await {
                    return Ok(exit::INTERRUPTED);
                }
                continue;
            }
        };
        if !began {
            check_sources(&*session.store, run).await?;
        }
        began = true;
        match attend(global, run, &session, &mut signals).await? {
            Over::Stopped => return Ok(exit::INTERRUPTED),
            Over::Reloaded(new) => config = *new,
            Over::Pause(pause_for) => {
                drop(session);
                if pause(&mut signals, pause_for).await {
                    return Ok(exit::INTERRUPTED);
                }
            }
        }
    }
}

/// Sleeps; true when somebody asked to stop meanwhile.
async fn pause(signals: &mut Signals, pause_for: Duration) -> bool {
    let sleeping = tokio::time::sleep(pause_for);
    tokio::pin!(sleeping);
    loop {
        tokio::select! {
            () = &mut sleeping => return false,
            asked = signals.next() => if asked == Asked::Stop {
                return true;
            },
        }
    }
}

/// Runs until somebody asks for something else.
async fn attend(
    global: &Global,
    run: &Run,
    session: &Session,
    signals: &mut Signals,
) -> anyhow::Result<Over> {
    let orders = orders(run, session.began)?;
    let pool = session.pipeline.pool().clone();
    pool.set_filling(true);
    let mut scraping = (orders.scraping == Scraping::On).then(|| session.scrape());
    let (stop, stopped) = watch::channel(false);
    let mut watching = tokio::spawn({
        let (pipeline, orders) = (session.pipeline.clone(), orders.clone());
        let teller = Teller { json: global.json, quiet: global.quiet };
        async move { pipeline.watch(&orders, stopped, &teller).await }
    });
    let over = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => {
                    output::remark("stopping: what is in flight is finished first");
                    break Over::Stopped;
                }
                Asked::Reload => match config(global, &run.keep) {
                    Ok(config) => {
                        output::remark("the configuration was read again");
                        break Over::Reloaded(Box::new(config));
                    }
                    Err(error) => output::remark(&format!("the configuration stays as it was: {error:#}")),
                },
            },
            watched = &mut watching => {
                break troubled("sources", watched.ok().and_then(Result::err));
            }
            ended = ended(&mut scraping) => {
                scraping = None;
                break match ended {
                    Ok(Ended::Halted(message)) => {
                        output::remark(&format!("scraping stopped: {message}; it goes on later"));
                        Over::Pause(HALT_PAUSE)
                    }
                    Ok(_) => Over::Pause(STORE_PAUSE),
                    Err(error) => troubled("scraping", Some(error)),
                };
            }
        }
    };
    stop.send_replace(true);
    pool.stop();
    let finishing = async {
        if let Some(scraping) = scraping {
            let _ = scraping.await;
        }
        watching.abort();
        session.abandon().await;
    };
    tokio::select! {
        () = finishing => {}
        // Whoever asks again does not want to wait.
        asked = signals.next() => if asked == Asked::Stop {
            std::process::exit(exit::INTERRUPTED.into());
        },
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

fn troubled(what: &str, error: Option<StoreError>) -> Over {
    let error = error.map_or_else(|| "ended by itself".to_owned(), |error| error.to_string());
    tracing::warn!("{what}: {error}; trying again");
    Over::Pause(STORE_PAUSE)
}

/// Tells how the runs go.
struct Teller {
    json: bool,
    quiet: bool,
}

impl Listener for Teller {
    fn asked(&self, note: &Note) {
        tell::log(note);
    }

    fn ran(&self, report: &Report) {
        if self.json {
            output::object(&tell::object(report));
        } else if !self.quiet {
            tell::lines(report).iter().for_each(|line| output::line(line));
        }
    }

    fn sleeps(&self, until: Option<Timestamp>) {
        match until {
            Some(until) => tracing::info!("the next source is due at {}", moment(until)),
            None => tracing::info!("no source is followed; comity sources add URL begins to"),
        }
    }
}

/// A store that did not work is tried again after this long.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// Scraping that failed too often in a row goes on after this long.
const HALT_PAUSE: Duration = Duration::from_secs(300);
