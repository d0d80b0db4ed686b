//! `comity run`: fetches the sources that are due and scrapes their items, once. `--watch` is in `watch`, printing in
//! `summary`.

mod summary;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use comity::core::cadence::{RunWindow, WindowInFuture};
use comity::core::time::Timestamp;
use comity::jobs::StopReason;
use comity::pipeline::{Cadences, Pipeline, RunListener, RunOptions, RunReport, Scraping, SourceReport};
use comity::store::hooks::HookTiming;
use comity::store::sources::SourceId;
use comity::store::{Store, StoreError};

pub(super) use summary::left_over;

use super::session::{self, Session, config};
use super::sources;
use crate::args::{Global, Run};
use crate::hooks::{self, Hook, Tally};
use crate::live::SideWork;
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, run: Run) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let hook = Hook::of(&run.exec)?;
    let config = config(global, &run.options)?;
    if run.watch {
        output::log_of_service(&config.log, global);
        return watch::run(global, &run, hook, config, signals.with_reload()?).await;
    }
    output::log(&config.log, global);
    once(global, &run, hook, config, signals).await
}

/// A single run, without `--watch`.
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
    let asked = Arc::new(SourceProgress::default());
    let working = tokio::spawn(work(session.pipeline.clone(), orders.clone(), limited, asked.clone()));
    let side_work = || asked.so_far();
    let (done, interrupted) = session.watch(global, "run", working, &mut signals, side_work).await;
    let (report, ended) = match done.context("the run ended unexpectedly")? {
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
    let end = summary::End { ended: ended.as_ref(), interrupted, hooks: hooks.map(|(tally, _)| tally) };
    summary::print(global, &session, orders.scraping, &report, &end).await;
    let interrupted = interrupted || hooks.is_some_and(|(_, stopped)| stopped);
    Ok(match ended {
        _ if interrupted => exit::INTERRUPTED,
        Some(StopReason::Halted(_) | StopReason::Job(_)) => exit::FAILURES,
        _ if report.failed > 0 || session.tasks().1 > 0 => exit::FAILURES,
        _ if hooks.is_some_and(|(tally, _)| tally.failed > 0) => exit::FAILURES,
        _ => exit::DONE,
    })
}

/// Starts running hooks alongside a session.
fn start_hooks(hook: Hook, session: &Session, run: &Run) -> hooks::Running {
    session.pipeline.want_hooks();
    let ripe = if run.no_scrape { HookTiming::OnceSeen } else { HookTiming::AfterScrape };
    hook.start(session.store.clone(), session.gate.clone(), ripe)
}

/// Runs the remaining hooks; also returns whether they were interrupted.
async fn finished(mut hooks: hooks::Running, signals: &mut Signals) -> Result<(Tally, bool), StoreError> {
    hooks.finish();
    tokio::select! {
        tally = hooks.ended() => return Ok((tally?, false)),
        _ = signals.next() => {}
    }
    Ok((hooks.stop().await?.0, true))
}

/// Fetches sources while workers scrape their items.
async fn work(
    pipeline: Pipeline,
    orders: RunOptions,
    limited: bool,
    asked: Arc<SourceProgress>,
) -> Result<(RunReport, Option<StopReason>), StoreError> {
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
                // Once the workers have ended, no room will be made for the rest.
                tokio::select! {
                    rest = pipeline.enqueue_all_pending(&orders) => {
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
    // With --source, don't wait for the items of other sources.
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

/// Counts the sources that were fetched, for the live view.
#[derive(Default)]
struct SourceProgress {
    planned: AtomicU64,
    count: AtomicU64,
}

impl SourceProgress {
    fn so_far(&self) -> SideWork {
        let (all, done) = (self.planned.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        SideWork { done, all, doing: format!("{done} of {all} sources") }
    }
}

impl RunListener for SourceProgress {
    fn planned(&self, due: u64) {
        self.planned.store(due, Ordering::Relaxed);
    }

    fn source_done(&self, note: &SourceReport) {
        self.count.fetch_add(1, Ordering::Relaxed);
        summary::log(note);
    }
}

/// The pipeline's orders for these flags.
fn orders(run: &Run, now: Timestamp) -> anyhow::Result<RunOptions> {
    let end = match &run.window_end {
        None => now,
        Some(text) => Timestamp::parse(text)
            .or_else(|error| Timestamp::parse(&format!("{text}T00:00:00Z")).map_err(|_| error))
            .map_err(|error| {
                let expected = error.expected;
                exit::usage(format!(
                    "--window-end = {text:?}: expected {expected}, or a date such as 2026-01-05"
                ))
            })?,
    };
    let window = RunWindow::ending(end, now).map_err(|WindowInFuture { window_end, now }| {
        let expected = format!("a time that is not in the future (it is now {now})");
        exit::usage(format!("--window-end = \"{window_end}\": expected {expected}"))
    })?;
    let sources = run.source.iter().copied().map(SourceId).collect::<Vec<_>>();
    Ok(RunOptions {
        window,
        sources: (!sources.is_empty()).then_some(sources),
        cadences: if run.force { Cadences::Ignored } else { Cadences::Respected },
        scraping: if run.no_scrape { Scraping::Off } else { Scraping::On },
    })
}

/// Checks that the sources given with `--source` exist.
async fn check_sources(store: &dyn Store, run: &Run) -> anyhow::Result<()> {
    for id in &run.source {
        sources::find_by_flag(store, "--source", *id).await?;
    }
    Ok(())
}
