//! `comity prune`: deletes old rows, a few per transaction. What is old is decided in `comity::retention`.

use std::time::Duration;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::time::Span;
use comity::retention::{self, More, Sweep, Swept};
use serde_json::json;

use crate::args::{Global, Prune};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, prune: &Prune) -> anyhow::Result<u8> {
    let keep = keep(config, prune)?;
    let store = setup::open_existing_store_for_work(config).await?;
    let (rules, clock) = (config.rules(), Clock::of(&*store).await?);
    let swept = match prune.dry_run {
        true => retention::count(&*store, rules, Some(keep), clock.now()).await?,
        false => {
            let (mut sweep, mut swept, now) = (Sweep::default(), Swept::default(), clock.now());
            loop {
                let (more, left) = sweep.step(&*store, rules, Some(keep), now).await?;
                swept += more;
                if left == More::No {
                    break swept;
                }
                // Let other processes write in between.
                tokio::time::sleep(BETWEEN).await;
            }
        }
    };
    print_summary(global, prune, keep, &swept);
    Ok(exit::DONE)
}

fn keep(config: &Config, prune: &Prune) -> anyhow::Result<Span> {
    let Some(text) = &prune.keep else {
        return config.upkeep.keep.ok_or_else(|| {
            exit::usage("no age given: pass --keep 30d, or set upkeep.keep in comity.toml".to_owned())
        });
    };
    Span::parse(text).ok().filter(|keep| !keep.is_zero()).ok_or_else(|| {
        exit::usage(format!("--keep = {text:?}: expected a duration above zero such as 30d or 12h"))
    })
}

fn print_summary(global: &Global, prune: &Prune, keep: Span, swept: &Swept) {
    let Swept { rows, domains } = swept;
    if global.json {
        output::object(&json!({
            "dry_run": prune.dry_run,
            "keep": keep.to_string(),
            "jobs": rows.jobs,
            "tasks": rows.tasks,
            "attempts": rows.attempts,
            "scrape_logs": rows.scrapes,
            "fetch_runs": rows.fetches,
            "audit": rows.changes,
            "domains": domains,
        }));
        return;
    }
    if global.quiet {
        return;
    }
    let verb = if prune.dry_run { "Would delete" } else { "Deleted" };
    output::line(&format!("{verb} data older than {}:", keep.prose()));
    let counts = [
        (rows.tasks, format!("URLs of {} ended {}", rows.jobs, if rows.jobs == 1 { "job" } else { "jobs" })),
        (rows.attempts, "attempts for those URLs".to_owned()),
        (rows.scrapes, "scrape logs".to_owned()),
        (rows.fetches, "fetch runs".to_owned()),
        (rows.changes, "entries of the audit list".to_owned()),
        (*domains, "unused sites without a learned delay".to_owned()),
    ];
    for (count, what) in counts {
        output::line(&format!("  {count:>9} {what}"));
    }
}

/// The pause between two transactions.
const BETWEEN: Duration = Duration::from_millis(2);
