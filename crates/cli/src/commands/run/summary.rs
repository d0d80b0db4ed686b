//! Prints and logs what a run did, as text and as JSON.

use comity::core::time::Timestamp;
use comity::jobs::StopReason;
use comity::pipeline::{RunReport, Scraping, SourceOutcome, SourceReport};
use comity::redact::without_user;
use serde_json::{Value, json};

use super::Session;
use crate::args::Global;
use crate::commands::report::{moment, readable};
use crate::hooks::Tally;
use crate::output;

/// Logs the result of one source.
pub(super) fn log(note: &SourceReport) {
    let (source, name) = (note.source.0, &note.name);
    match &note.outcome {
        SourceOutcome::Fetched { found, new, changed, problem: None, .. } => {
            tracing::debug!(source, name, found, new, changed, "source fetched");
        }
        SourceOutcome::Fetched { found, new, changed, problem: Some(problem), .. } => {
            tracing::warn!(source, name, found, new, changed, problem, "source partially read");
        }
        SourceOutcome::Held { until, why } => {
            tracing::info!(source, name, until = until_when(*until), why, "source held");
        }
        SourceOutcome::Failed { error, retry_at: Some(retry_at) } => {
            tracing::warn!(source, name, error, again = %moment(*retry_at), "source failed");
        }
        SourceOutcome::Failed { error, retry_at: None } => {
            tracing::warn!(source, name, error, "source disabled");
        }
        SourceOutcome::NotDue { due_at } => tracing::debug!(source, name, %due_at, "source not due"),
    }
}

/// A time, or "further notice" if it is unknown.
fn until_when(until: Timestamp) -> String {
    if until == Timestamp::MAX { "further notice".to_owned() } else { moment(until) }
}

/// How a run ended.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) ended: Option<&'a StopReason>,
    pub(super) interrupted: bool,
    pub(super) hooks: Option<Tally>,
}

/// Prints the summary of a run.
pub(super) async fn print(
    global: &Global,
    session: &Session,
    scraping: Scraping,
    report: &RunReport,
    end: &End<'_>,
) {
    let End { ended, interrupted, hooks } = *end;
    if global.json {
        let mut object = object(report);
        object["tasks"] = session.tasks_json().await;
        object["elapsed_ms"] = json!(session.elapsed().as_millis_up());
        if let Some(Tally { ran, failed }) = hooks {
            object["hooks"] = json!({ "run": ran, "failed": failed });
        }
        output::object(&object);
    } else if !global.quiet {
        lines(report).iter().for_each(|line| output::line(line));
        if scraping == Scraping::On {
            output::line(&scraped(session, report));
        }
        if let Some(Tally { ran, failed }) = hooks {
            output::line(&format!("--exec commands: {ran} run, {failed} failed"));
        }
        output::line(&format!("done in {}", session.elapsed().prose()));
    }
    if global.quiet {
        // Failures are printed even with --quiet.
        let failed =
            || report.sources.iter().filter(|note| matches!(note.outcome, SourceOutcome::Failed { .. }));
        failed().filter_map(line).take(SHOWN).for_each(|line| output::failure(line.trim_start()));
        if let more @ 1.. = failed().count().saturating_sub(SHOWN) {
            output::failure(&format!("and {more} more; list them with: comity sources list --failing"));
        }
        session.failures.print(&session.pipeline.job().name);
    }
    if let Some(StopReason::Halted(message)) = ended {
        output::warning(&format!("Scraping stopped: {message}; the rest waits for the next run"));
    }
    if let Some(StopReason::NotDueUntil(until)) = ended {
        output::warning(&left_over(session, *until).await);
    }
    if let Some(StopReason::Job(state)) = ended {
        output::warning(&format!("The job that scrapes items is {state}; waiting items were skipped"));
    }
    if interrupted {
        output::remark("Interrupted; comity run resumes with the rest");
    }
}

/// The object that `run --json` ends with; scripts rely on its keys.
pub(super) fn object(report: &RunReport) -> Value {
    let RunReport { due, fetched, partial, not_due, held, failed, .. } = report;
    let items = &report.items;
    let details = report.sources.iter().filter_map(detail).collect::<Vec<Value>>();
    json!({
        "window_end": report.window_end.to_string(),
        "sources": {
            "due": due, "fetched": fetched, "partial": partial, "not_due": not_due, "held": held, "failed": failed,
        },
        "items": {
            "new": report.new,
            "changed": report.changed,
            "enqueued": items.enqueued,
            "already": items.already,
            "deferred": items.deferred,
            "refused": items.refused,
        },
        "details": details,
    })
}

/// A source that was not simply fetched, as JSON.
fn detail(note: &SourceReport) -> Option<Value> {
    let (outcome, at, why) = match &note.outcome {
        SourceOutcome::Fetched { problem: Some(problem), .. } => ("partial", None, problem),
        SourceOutcome::Held { until, why } => {
            ("held", Some(*until).filter(|until| *until != Timestamp::MAX), why)
        }
        SourceOutcome::Failed { error, retry_at } => ("failed", *retry_at, error),
        SourceOutcome::Fetched { problem: None, .. } | SourceOutcome::NotDue { .. } => return None,
    };
    let again_at = at.map(|at| at.to_string());
    let (source, name) = (note.source.0, &note.name);
    Some(json!({ "source": source, "name": name, "outcome": outcome, "why": why, "again_at": again_at }))
}

/// The summary of a run as lines of text.
pub(super) fn lines(report: &RunReport) -> Vec<String> {
    let mut lines = Vec::new();
    let sources = |count: u64| if count == 1 { "1 source".to_owned() } else { format!("{count} sources") };
    if report.sources.is_empty() {
        lines.push(
            "No sources to fetch; list them with comity sources list, add one with comity sources add URL"
                .to_owned(),
        );
        return lines;
    }
    let mut parts = vec![format!("{} fetched", report.fetched)];
    for (count, word) in [(report.partial, "partial"), (report.held, "held"), (report.failed, "failed")] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    lines.push(format!("{} due: {}", sources(report.due), parts.join(", ")));
    lines.extend(report.sources.iter().filter_map(line).take(SHOWN));
    let next = report.sources.iter().filter_map(|note| match note.outcome {
        SourceOutcome::NotDue { due_at } => Some((due_at, note)),
        _ => None,
    });
    if let Some((due_at, note)) = next.min_by_key(|(due_at, _)| *due_at) {
        lines.push(format!(
            "{} not due, next at {} ({} {})",
            sources(report.not_due),
            moment(due_at),
            note.source,
            note.name
        ));
    }
    lines
}

/// A line about one source, if anything is worth reporting.
fn line(note: &SourceReport) -> Option<String> {
    let (id, name) = (note.source, &note.name);
    let what = match &note.outcome {
        SourceOutcome::NotDue { .. } => return None,
        SourceOutcome::Fetched { new: 0, changed: 0, problem: None, moved_to: None, .. } => return None,
        SourceOutcome::Fetched { found, new, changed, problem, moved_to } => {
            let items = if *found == 1 { "item" } else { "items" };
            let mut what = format!("{found} {items}, {new} new");
            if *changed > 0 {
                what += &format!(", {changed} changed");
            }
            if let Some(problem) = problem {
                what += &format!("; partial: {problem}");
            }
            if let Some(url) = moved_to {
                what += &format!("; moved permanently to {}", without_user(url));
            }
            what
        }
        SourceOutcome::Held { until, why } => {
            format!("held until {}: {}", until_when(*until), readable(why))
        }
        SourceOutcome::Failed { error, retry_at: Some(retry_at) } => {
            format!("failed: {error}; will retry after {}", moment(*retry_at))
        }
        SourceOutcome::Failed { error, retry_at: None } => format!("disabled: {error}"),
    };
    Some(format!("  {id} {name}: {what}"))
}

/// How many items are left for the next run, and why.
pub(crate) async fn left_over(session: &Session, until: Timestamp) -> String {
    let (count, until) = (session.left().await, moment(until));
    let items = if count == 1 { "1 item".to_owned() } else { format!("{count} items") };
    let why =
        session.held_back().map_or_else(String::new, |(domain, reason)| format!("; {domain}: {reason}"));
    format!("{items} left for the next run; the first is due at {until} (scrape.max_wait){why}")
}

fn scraped(session: &Session, report: &RunReport) -> String {
    let (fetched, failed, skipped) = session.tasks();
    let mut parts = vec![format!("{} new", report.new), format!("{fetched} scraped")];
    for (count, word) in [
        (report.changed, "changed"),
        (report.items.deferred, "deferred (source's minimum interval)"),
        (report.unscraped, "left for comity scrape (their source isn't scraped automatically)"),
        (report.items.refused.saturating_sub(report.unscraped), "refused"),
        (failed, "failed"),
        (skipped, "skipped"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    format!("items: {}", parts.join(", "))
}

/// Maximum number of sources to print.
const SHOWN: usize = 50;
