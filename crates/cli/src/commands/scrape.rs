//! `comity scrape`: enqueues items on demand and waits until they are scraped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use comity::core::enqueue::{Enqueued, Refusal};
use comity::jobs::{Pool, StopReason};
use comity::pipeline::{EnqueueCounts, LimitReached, ManualEnqueue};
use comity::store::Store;
use comity::store::items::ItemId;
use serde_json::{Value, json};

use super::run::left_over;
use super::session::{Session, config};
use super::sources;
use crate::args::{Global, Scrape};
use crate::live::SideWork;
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, scrape: Scrape) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let config = config(global, &scrape.options)?;
    output::log(&config.log, global);
    let beginning = async {
        let store = setup::open_existing_store_for_work(&config).await?;
        Session::on(store, config, "scrape").await
    };
    let session = signals.unless_stopped(beginning).await?;
    let by_hand = enqueue(&session, &scrape).await?;
    let mut counts = EnqueueCounts::default();
    by_hand.results.iter().for_each(|(_, result)| counts.count(result));
    if !global.json && !global.quiet {
        print_enqueued(&scrape, &by_hand, counts);
        suggest_enabling(&*session.store, &by_hand).await?;
    }
    let mut halted = None;
    let mut interrupted = false;
    if counts.enqueued + counts.deferred + counts.already > 0 {
        let working = session.scrape();
        let asked = by_hand.results.iter().map(|(item, _)| *item).collect();
        let waiting =
            tokio::spawn(stop_when_done(session.store.clone(), session.pipeline.pool().clone(), asked));
        let done;
        (done, interrupted) = session.watch(global, "scrape", working, &mut signals, SideWork::default).await;
        waiting.abort();
        match done.context("the workers ended unexpectedly")? {
            Ok(StopReason::Halted(message)) => halted = Some(message),
            Ok(StopReason::NotDueUntil(until)) => output::warning(&left_over(&session, until).await),
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
        output::warning(&format!("Scraping stopped: {message}; the rest waits for the next run"));
    }
    Ok(match interrupted {
        true => exit::INTERRUPTED,
        // A source at its in-flight limit is not a failure: the rest comes next.
        false
            if failed > 0 || counts.refused > 0 && by_hand.limit_reached != Some(LimitReached::InFlight) =>
        {
            exit::FAILURES
        }
        false if halted.is_some() => exit::FAILURES,
        false => exit::DONE,
    })
}

/// Stops the pool when the requested items are done: other items may wait for hours.
async fn stop_when_done(store: Arc<dyn Store>, pool: Pool, mut items: Vec<ItemId>) {
    while let Some(item) = items.last() {
        match store.find_item(*item).await {
            Ok(Some(item)) if item.state.is_in_flight() => tokio::time::sleep(POLL).await,
            Ok(_) => drop(items.pop()),
            Err(_) => return,
        }
    }
    pool.stop();
}

async fn enqueue(session: &Session, scrape: &Scrape) -> anyhow::Result<ManualEnqueue> {
    if !scrape.items.is_empty() {
        let ids = scrape.items.iter().copied().map(ItemId).collect();
        return Ok(session.pipeline.enqueue(ids).await?);
    }
    let source = match scrape.source {
        Some(id) => Some(sources::find_by_flag(&*session.store, "--source", id).await?.id),
        None => None,
    };
    Ok(session.pipeline.enqueue_unscraped(source).await?)
}

/// Prints what was enqueued, and why other items were not.
fn print_enqueued(scrape: &Scrape, by_hand: &ManualEnqueue, counts: EnqueueCounts) {
    for (item, result) in &by_hand.results {
        let is_usual = matches!(result, Enqueued::Enqueued | Enqueued::Already);
        if !scrape.items.is_empty() || !is_usual {
            output::line(&format!("item {item}: {result}"));
        }
    }
    let EnqueueCounts { enqueued, already, deferred, refused } = counts;
    output::line(&format!(
        "{enqueued} enqueued, {already} already enqueued, {deferred} deferred, {refused} refused"
    ));
    match by_hand.limit_reached {
        Some(LimitReached::Batch) => output::line(
            "More items are left; run it again for the next batch (its size is scrape.max_bulk_batch_size)",
        ),
        Some(LimitReached::InFlight) => output::line(
            "More items are left; run it again when these are done (the limit is scrape.max_in_flight_per_source)",
        ),
        None => {}
    }
}

/// Prints how to enable scraping for the sources of items that were refused because it is disabled.
async fn suggest_enabling(store: &dyn Store, by_hand: &ManualEnqueue) -> anyhow::Result<()> {
    let mut sources = BTreeSet::new();
    for (item, result) in &by_hand.results {
        if *result == Enqueued::Refused(Refusal::ScrapingDisabled) {
            sources.extend(store.find_item(*item).await?.map(|item| item.source));
        }
    }
    for source in sources {
        output::remark(&format!("To enable it: comity sources set {source} --scrape on"));
    }
    Ok(())
}

fn object(session: &Session, by_hand: &ManualEnqueue, counts: EnqueueCounts) -> Value {
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
            let mut object = json!({ "item": item.0, "result": word, "message": result.to_string() });
            if let Enqueued::Deferred(deferred) = result {
                object["wait_seconds"] = json!(deferred.wait_seconds);
                object["interval"] = json!(deferred.interval.as_secs_f64());
                object["last_scrape_at"] = json!(deferred.last_scrape_at.map(|at| at.to_string()));
            }
            object
        })
        .collect();
    let EnqueueCounts { enqueued, already, deferred, refused } = counts;
    json!({
        "items": { "enqueued": enqueued, "already": already, "deferred": deferred, "refused": refused },
        "left": by_hand.limit_reached.is_some(),
        "results": results,
        "elapsed_ms": session.elapsed().as_millis_up(),
    })
}

/// How often the store is checked for whether the items are done.
const POLL: Duration = Duration::from_millis(250);
