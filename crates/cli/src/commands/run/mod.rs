//! `comity run`.

mod tell;
mod watching;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use comity::core::cadence::RunWindow;
use comity::core::time::Timestamp;
use comity::jobs::Ended;
use comity::pipeline::{Cadences, Note, Orders, Pipeline, Report, RunListener, Scraping};
use comity::store::hooks::Ripe;
use comity::store::sources::SourceId;
use comity::store::{Store, StoreError};

pub(super) use tell::left;

use super::session::{self, Session, config};
use super::sources;
use crate::args::{Global, Run};
use crate::hooks::{self, Hook, Tally};
use crate::live::Beside;
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, run: Run) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let hook = Hook::of(&run.exec)?;
    let config = config(global, &run.keep)?;
    if run.watch {
        output::log_of_service(&config.log, global);
        return watching::run(global, &run, hook, config, signals.with_reload()?).await;
    }
    output::log(&config.log, global);
    once(global, &run, hook, config, signals).await
}

/// One run.
async fn once(
    global: &Global,
    run: &Run,
    hook: Option<Hook>,
    config: comity::config::Config,
    mut signals: Signals,
) -> anyhow::Result<u8> {
    let limited = config.scrape.max_in_flight_per_source.is_some();
    let session = signals.unless_stopped(Session::begin(config, "run")).await?;
    let orders = orders(run, session.began)?;
    check_sources(&*session.store, run).await?;
    let hooks = hook.map(|hook| start_hooks(hook, &session, run));
    let asked = Arc::new(Asking::default());
    let working = tokio::spawn(work(session.pipeline.clone(), orders.clone(), limited, asked.clone()));
    let beside = || asked.so_far();
    let (done, interrupted) = session.watch(global, "run", working, &mut signals, beside).await;
    let (report, ended) = match done.context("the run ended by itself")? {
        Ok(done) => done,
        Err(error) => {
            if let Some(hooks) = hooks {
                let _ = hooks.stop().await;
            }
            session.abandon().await;
            return Err(error.into());
        }
    };
    let hooks = match hooks {
        None => None,
        Some(hooks) => {
            Some(if interrupted { hooks.stop().await? } else { finished(hooks, &mut signals).await? })
        }
    };
    session.end().await?;
    let end = tell::End { ended: ended.as_ref(), interrupted, hooks: hooks.map(|(tally, _)| tally) };
    tell::summary(global, &session, orders.scraping, &report, &end).await;
    let interrupted = interrupted || hooks.is_some_and(|(_, stopped)| stopped);
    Ok(match ended {
        _ if interrupted => exit::INTERRUPTED,
        Some(Ended::Halted(_) | Ended::Job(_)) => exit::FAILURES,
        _ if report.failed > 0 || session.tasks().1 > 0 => exit::FAILURES,
        _ if hooks.is_some_and(|(tally, _)| tally.failed > 0) => exit::FAILURES,
        _ => exit::DONE,
    })
}

/// Hooks begin to run beside a session.
fn start_hooks(hook: Hook, session: &Session, run: &Run) -> hooks::Running {
    session.pipeline.want_hooks();
    let ripe = if run.no_scrape { Ripe::Seen } else { Ripe::Scraped };
    hook.start(session.store.clone(), session.gate.clone(), ripe)
}

/// Runs the hooks that are left; whether somebody asked to stop meanwhile.
async fn finished(mut hooks: hooks::Running, signals: &mut Signals) -> Result<(Tally, bool), StoreError> {
    hooks.over();
    tokio::select! {
        tally = hooks.ended() => return Ok((tally?, false)),
        _ = signals.next() => {}
    }
    Ok((hooks.stop().await?.0, true))
}

/// Asks sources, while workers scrape what they lead to.
async fn work(
    pipeline: Pipeline,
    orders: Orders,
    limited: bool,
    asked: Arc<Asking>,
) -> Result<(Report, Option<Ended>), StoreError> {
    if orders.scraping == Scraping::Off {
        return Ok((pipeline.run(&orders, &*asked).await?, None));
    }
    let pool = pipeline.pool().clone();
    pool.set_filling(true);
    let mut scraping = session::scrape(&pipeline);
    let mut ended = None;
    let report = match pipeline.run(&orders, &*asked).await {
        Ok(mut report) => {
            if limited {
                // Nobody makes room any more once the workers ended.
                tokio::select! {
                    rest = pipeline.enqueue_rest(&orders) => {
                        let rest = rest?;
                        report.items.enqueued += rest.enqueued;
                        report.items.deferred += rest.deferred;
                    }
                    done = &mut scraping => ended = Some(done),
                }
            }
            Ok(report)
        }
        Err(error) => {
            pool.stop();
            Err(error)
        }
    };
    pool.set_filling(false);
    // Whoever named sources does not wait for the items of others.
    if let (Ok(_), None, Some(sources)) = (&report, &ended, &orders.sources) {
        tokio::select! {
            done = &mut scraping => ended = Some(done),
            scraped = pipeline.until_scraped(sources) => {
                scraped?;
                pool.stop();
            }
        }
    }
    let ended = match ended {
        Some(ended) => ended,
        None => scraping.await,
    };
    let ended = ended.unwrap_or(Err(StoreError::Closed));
    Ok((report?, Some(ended?)))
}

/// Counts sources that were asked.
#[derive(Default)]
struct Asking {
    planned: AtomicU64,
    count: AtomicU64,
}

impl Asking {
    fn so_far(&self) -> Beside {
        let (all, done) = (self.planned.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        Beside { done, all, doing: format!("{done} of {all} sources") }
    }
}

impl RunListener for Asking {
    fn planned(&self, due: u64) {
        self.planned.store(due, Ordering::Relaxed);
    }

    fn asked(&self, note: &Note) {
        self.count.fetch_add(1, Ordering::Relaxed);
        tell::log(note);
    }
}

/// What was typed, as orders.
fn orders(run: &Run, now: Timestamp) -> anyhow::Result<Orders> {
    let end = match &run.window_end {
        None => now,
        Some(text) => Timestamp::parse(text)
            .map_err(|error| exit::usage(format!("--window-end {text:?}: expected {}", error.expected)))?,
    };
    let window =
        RunWindow::ending(end, now).map_err(|error| exit::usage(format!("--window-end: {error}")))?;
    let sources = run.source.iter().copied().map(SourceId).collect::<Vec<_>>();
    Ok(Orders {
        window,
        sources: (!sources.is_empty()).then_some(sources),
        cadences: if run.force { Cadences::Ignored } else { Cadences::Kept },
        scraping: if run.no_scrape { Scraping::Off } else { Scraping::On },
    })
}

/// Sources that were named have to be there.
async fn check_sources(store: &dyn Store, run: &Run) -> anyhow::Result<()> {
    for id in &run.source {
        sources::find_typed(store, "--source", *id).await?;
    }
    Ok(())
}
