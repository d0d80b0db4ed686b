//! How a run is told, to people and to machines.

use comity::core::time::Timestamp;
use comity::jobs::Ended;
use comity::pipeline::{Note, Report, Scraping, SourceEnd};
use comity::shown::without_user;
use serde_json::{Value, json};

use super::Session;
use crate::args::Global;
use crate::commands::report::moment;
use crate::hooks::Tally;
use crate::output;

/// What became of one source, in the log.
pub(super) fn log(note: &Note) {
    let (source, name) = (note.source.0, &note.name);
    match &note.outcome {
        SourceEnd::Fetched { found, new, changed, problem: None, .. } => {
            tracing::debug!(source, name, found, new, changed, "source read");
        }
        SourceEnd::Fetched { found, new, changed, problem: Some(problem), .. } => {
            tracing::warn!(source, name, found, new, changed, problem, "source read in part");
        }
        SourceEnd::Held { until, why } => {
            tracing::info!(source, name, until = until_when(*until), why, "source held back");
        }
        SourceEnd::Failed { error, retry_at: Some(retry_at) } => {
            tracing::warn!(source, name, error, again = %moment(*retry_at), "source failed");
        }
        SourceEnd::Failed { error, retry_at: None } => {
            tracing::warn!(source, name, error, "source disabled");
        }
        SourceEnd::NotDue { due_at } => tracing::debug!(source, name, %due_at, "source not due"),
    }
}

/// A moment, or that nobody knows it.
fn until_when(until: Timestamp) -> String {
    if until == Timestamp::MAX { "somebody lifts that".to_owned() } else { moment(until) }
}

/// How a run ended.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) ended: Option<&'a Ended>,
    pub(super) interrupted: bool,
    pub(super) hooks: Option<Tally>,
}

/// What a run came to.
pub(super) async fn summary(
    global: &Global,
    session: &Session,
    scraping: Scraping,
    report: &Report,
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
            output::line(&format!("hooks: {ran} run, {failed} failed"));
        }
        output::line(&format!("done in {}", session.elapsed().about()));
    }
    if global.quiet {
        // Quiet is not silent about what went wrong.
        let failed = || report.notes.iter().filter(|note| matches!(note.outcome, SourceEnd::Failed { .. }));
        failed().filter_map(line).take(SHOWN).for_each(|line| output::remark(line.trim_start()));
        if let more @ 1.. = failed().count().saturating_sub(SHOWN) {
            output::remark(&format!("and {more} more; comity sources list --failing"));
        }
        session.failures.print(&session.pipeline.job().name);
    }
    if let Some(Ended::Halted(message)) = ended {
        output::remark(&format!("scraping stopped: {message}; what is left waits for the next run"));
    }
    if let Some(Ended::Left(until)) = ended {
        output::remark(&left(session, *until).await);
    }
    if let Some(Ended::Job(state)) = ended {
        output::remark(&format!("the job that scrapes items is {state}: what waited was skipped"));
    }
    if interrupted {
        output::remark("interrupted: comity run continues with what is left");
    }
}

/// The object that ends `run --json`; its keys are relied on.
pub(super) fn object(report: &Report) -> Value {
    let Report { due, fetched, partial, not_due, held, failed, .. } = report;
    let items = &report.items;
    let details = report.notes.iter().filter_map(detail).collect::<Vec<Value>>();
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

/// A source that did not go as it should, for machines.
fn detail(note: &Note) -> Option<Value> {
    let (outcome, at, why) = match &note.outcome {
        SourceEnd::Fetched { problem: Some(problem), .. } => ("partial", None, problem),
        SourceEnd::Held { until, why } => {
            ("held", Some(*until).filter(|until| *until != Timestamp::MAX), why)
        }
        SourceEnd::Failed { error, retry_at } => ("failed", *retry_at, error),
        SourceEnd::Fetched { problem: None, .. } | SourceEnd::NotDue { .. } => return None,
    };
    let again_at = at.map(|at| at.to_string());
    let (source, name) = (note.source.0, &note.name);
    Some(json!({ "source": source, "name": name, "outcome": outcome, "why": why, "again_at": again_at }))
}

/// What a run came to, for people.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let sources = |count: u64| if count == 1 { "1 source".to_owned() } else { format!("{count} sources") };
    if report.notes.is_empty() {
        lines.push("no sources to ask; comity sources list shows those there are, comity sources add URL follows one".to_owned());
        return lines;
    }
    let mut parts = vec![format!("{} fetched", report.fetched)];
    for (count, word) in
        [(report.partial, "read in part"), (report.held, "held back"), (report.failed, "failed")]
    {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    lines.push(format!("{} due: {}", sources(report.due), parts.join(", ")));
    lines.extend(report.notes.iter().filter_map(line).take(SHOWN));
    let next = report.notes.iter().filter_map(|note| match note.outcome {
        SourceEnd::NotDue { due_at } => Some((due_at, note)),
        _ => None,
    });
    if let Some((due_at, note)) = next.min_by_key(|(due_at, _)| *due_at) {
        lines.push(format!(
            "{} not due, the next at {} ({} {})",
            sources(report.not_due),
            moment(due_at),
            note.source,
            note.name
        ));
    }
    lines
}

/// A line about one source, if there is anything to say.
fn line(note: &Note) -> Option<String> {
    let (id, name) = (note.source, &note.name);
    let what = match &note.outcome {
        SourceEnd::NotDue { .. } => return None,
        SourceEnd::Fetched { new: 0, changed: 0, problem: None, moved_to: None, .. } => return None,
        SourceEnd::Fetched { found, new, changed, problem, moved_to } => {
            let items = if *found == 1 { "item" } else { "items" };
            let mut what = format!("{found} {items}, {new} new");
            if *changed > 0 {
                what += &format!(", {changed} changed");
            }
            if let Some(problem) = problem {
                what += &format!("; in part: {problem}");
            }
            if let Some(url) = moved_to {
                what += &format!("; moved for good, asked at {} from now on", without_user(url));
            }
            what
        }
        SourceEnd::Held { until, why } => format!("held back until {}: {why}", until_when(*until)),
        SourceEnd::Failed { error, retry_at: Some(retry_at) } => {
            format!("failed: {error}; tried again from {} on", moment(*retry_at))
        }
        SourceEnd::Failed { error, retry_at: None } => format!("disabled: {error}"),
    };
    Some(format!("  {id} {name}: {what}"))
}

/// What is left for the next run, and why.
pub(crate) async fn left(session: &Session, until: Timestamp) -> String {
    let (count, until) = (session.left().await, moment(until));
    let items = if count == 1 { "1 item is".to_owned() } else { format!("{count} items are") };
    let why =
        session.held_back().map_or_else(String::new, |(domain, reason)| format!("; {domain}: {reason}"));
    format!("{items} left for the next run, the first can go at {until} (scrape.max_wait){why}")
}

fn scraped(session: &Session, report: &Report) -> String {
    let (fetched, failed, skipped) = session.tasks();
    let mut parts = vec![format!("{} new", report.new), format!("{fetched} scraped")];
    for (count, word) in [
        (report.changed, "changed"),
        (report.items.deferred, "deferred by their source's interval"),
        (report.items.refused, "not to be scraped"),
        (failed, "failed"),
        (skipped, "skipped"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    format!("items: {}", parts.join(", "))
}

/// Sources that are told one by one.
const SHOWN: usize = 50;
