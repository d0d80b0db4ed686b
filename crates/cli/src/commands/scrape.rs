//! `comity scrape`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use comity::core::enqueue::Enqueued;
use comity::jobs::{Ended, Pool};
use comity::pipeline::{ByHand, Counts, Left};
use comity::store::Store;
use comity::store::items::ItemId;
use serde_json::{Value, json};

use super::run::left;
use super::session::{Session, config};
use super::sources;
use crate::args::{Global, Scrape};
use crate::live::Beside;
use crate::signals::Signals;
use crate::{exit, output};

pub(crate) async fn run(global: &Global, scrape: Scrape) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let config = config(global, &scrape.keep)?;
    output::log(&config.log, global);
    let session = signals.unless_stopped(Session::begin(config, "scrape")).await?;
    let by_hand = enqueue(&session, &scrape).await?;
    let mut counts = Counts::default();
    by_hand.results.iter().for_each(|(_, result)| counts.count(result));
    if !global.json && !global.quiet {
        tell(&scrape, &by_hand, counts);
    }
    let mut halted = None;
    let mut interrupted = false;
    if counts.enqueued + counts.deferred + counts.already > 0 {
        let working = session.scrape();
        let asked = by_hand.results.iter().map(|(item, _)| *item).collect();
        let waiting =
            tokio::spawn(stop_when_done(session.store.clone(), session.pipeline.pool().clone(), asked));
        let done;
        (done, interrupted) = session.watch(global, "scrape", working, &mut signals, Beside::default).await;
        waiting.abort();
        match done.context("the workers ended by themselves")? {
            Ok(Ended::Halted(message)) => halted = Some(message),
            Ok(Ended::Left(until)) => output::remark(&left(&session, until).await),
            Ok(_) => {}
            Err(error) => {
                session.abandon().await;
                return Err(error.into());
            }
        }
    }
    session.end().await?;
    let (fetched, failed, skipped) = session.tasks();
    if global.json {
        let mut object = object(&session, &by_hand, counts);
        object["tasks"] = session.tasks_json().await;
        output::object(&object);
    } else if !global.quiet {
        output::line(&format!("{fetched} scraped, {failed} failed, {skipped} skipped"));
    }
    if global.quiet {
        session.failures.print(&session.pipeline.job().name);
    }
    if let Some(message) = &halted {
        output::remark(&format!("scraping stopped: {message}; what is left waits for the next run"));
    }
    Ok(match interrupted {
        true => exit::INTERRUPTED,
        // A source that is full is no failure: what is left comes next.
        false if failed > 0 || counts.refused > 0 && by_hand.left != Some(Left::Full) => exit::FAILURES,
        false if halted.is_some() => exit::FAILURES,
        false => exit::DONE,
    })
}

/// Stops when the items that were asked for are done: others may wait for hours.
async fn stop_when_done(store: Arc<dyn Store>, pool: Pool, mut items: Vec<ItemId>) {
    while let Some(item) = items.last() {
        match store.find_item(*item).await {
            Ok(Some(item)) if item.state.is_in_flight() => tokio::time::sleep(LOOK).await,
            Ok(_) => drop(items.pop()),
            Err(_) => return,
        }
    }
    pool.stop();
}

async fn enqueue(session: &Session, scrape: &Scrape) -> anyhow::Result<ByHand> {
    if !scrape.items.is_empty() {
        let ids = scrape.items.iter().copied().map(ItemId).collect();
        return Ok(session.pipeline.enqueue(ids).await?);
    }
    let source = match scrape.source {
        Some(id) => Some(sources::find_typed(&*session.store, "--source", id).await?.id),
        None => None,
    };
    Ok(session.pipeline.enqueue_unscraped(source).await?)
}

fn tell(scrape: &Scrape, by_hand: &ByHand, counts: Counts) {
    for (item, result) in &by_hand.results {
        let said = matches!(result, Enqueued::Enqueued | Enqueued::Already);
        if !scrape.items.is_empty() || !said {
            output::line(&format!("item {item}: {result}"));
        }
    }
    let Counts { enqueued, already, deferred, refused } = counts;
    output::line(&format!("{enqueued} enqueued, {already} already, {deferred} deferred, {refused} refused"));
    match by_hand.left {
        Some(Left::Batch) => output::line(
            "more are left; run it again for the next batch (scrape.max_bulk_batch_size sets its size)",
        ),
        Some(Left::Full) => output::line(
            "more are left; run it again when these are done (scrape.max_in_flight_per_source sets how many may wait)",
        ),
        None => {}
    }
}

fn object(session: &Session, by_hand: &ByHand, counts: Counts) -> Value {
    let results: Vec<Value> = by_hand
        .results
        .iter()
        .map(|(item, result)| {
            let word = match result {
                Enqueued::Enqueued => "enqueued",
                Enqueued::Already => "already",
                Enqueued::Deferred(_) => "deferred",
                Enqueued::Refused(_) => "refused",
            };
            let mut told = json!({ "item": item.0, "result": word, "message": result.to_string() });
            if let Enqueued::Deferred(deferred) = result {
                told["wait_seconds"] = json!(deferred.wait_seconds);
                told["interval"] = json!(deferred.interval.as_secs_f64());
                told["last_scrape_at"] = json!(deferred.last_scrape_at.map(|at| at.to_string()));
            }
            told
        })
        .collect();
    let Counts { enqueued, already, deferred, refused } = counts;
    json!({
        "items": { "enqueued": enqueued, "already": already, "deferred": deferred, "refused": refused },
        "left": by_hand.left.is_some(),
        "results": results,
        "elapsed_ms": session.elapsed().as_millis_up(),
    })
}

/// How often it is looked whether they are done.
const LOOK: Duration = Duration::from_millis(250);
