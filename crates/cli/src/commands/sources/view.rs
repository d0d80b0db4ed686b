//! A source as text and as JSON.

use comity::core::cadence::{RunWindow, last_fetch_at};
use comity::core::interval::SourceInterval;
use comity::core::time::{Span, Timestamp};
use comity::pipeline::{self, Cadences, Plan};
use comity::redact::without_user;
use comity::store::sources::Source;
use serde_json::{Map, Value, json};

use crate::commands::report;

/// The state of a source, derived from its row.
#[derive(Debug)]
pub(super) struct Condition {
    /// `new`, `ok`, `partial`, `held`, `failing`, `invalid` or `off`.
    pub(super) word: &'static str,
    /// The reason, if there is one.
    pub(super) why: Option<String>,
    /// The source is not fetched before then.
    pub(super) until: Option<Timestamp>,
}

impl Condition {
    pub(super) fn of(source: &Source, now: Timestamp) -> Self {
        let new = |word, why, until| Self { word, why, until };
        let Ok(window) = RunWindow::ending(now, now) else { return new("ok", None, None) };
        match pipeline::plan(source, window, Cadences::Ignored, now) {
            Plan::Disabled => new("off", source.error.clone(), None),
            Plan::Invalid { error } => new("invalid", Some(error), None),
            _ if source.failures > 0 => {
                let times = if source.failures == 1 { "once" } else { &format!("{} times", source.failures) };
                let error = source.error.as_deref().unwrap_or("unknown error");
                let until = source.retry_at.filter(|retry_at| *retry_at > now);
                new("failing", Some(format!("{times}: {error}")), until)
            }
            Plan::Held { until, why } => new("held", Some(why), Some(until)),
            Plan::Fetch { .. } | Plan::NotDue { .. } if source.error.is_some() => {
                new("partial", source.error.clone(), None)
            }
            Plan::Fetch { .. } | Plan::NotDue { .. } => {
                new(if last_fetch(source).is_some() { "ok" } else { "new" }, None, None)
            }
        }
    }

    pub(super) fn is_trouble(&self) -> bool {
        matches!(self.word, "failing" | "invalid" | "partial") || self.word == "off" && self.why.is_some()
    }

    pub(super) fn sentence(&self) -> String {
        let until = match (self.word, self.until) {
            (_, None) => String::new(),
            ("failing", Some(until)) => format!("; will retry after {}", report::moment(until)),
            (_, Some(until)) => format!(" until {}", report::moment(until)),
        };
        match (self.word, self.why.as_deref().map(report::readable)) {
            (word, None) => format!("{word}{until}"),
            ("failing", Some(why)) => format!("failing, {why}{until}"),
            (word, Some(why)) => format!("{word}{until}: {why}"),
        }
    }
}

/// When the source was last fetched.
pub(super) fn last_fetch(source: &Source) -> Option<Timestamp> {
    let cursor: Map<String, Value> = serde_json::from_str(&source.cursor_json).ok()?;
    last_fetch_at(&cursor).ok().flatten()
}

/// When the source is due next: in the past if it is due now, none if never.
pub(super) fn due_at(source: &Source, now: Timestamp) -> Option<Timestamp> {
    pipeline::next_at(source, Span::ZERO, now)
}

/// The source's cadence in a word.
pub(super) fn every(source: &Source) -> String {
    match pipeline::cadence(source) {
        Ok(None) => "always".to_owned(),
        Ok(Some(cadence)) => span(cadence.every()),
        Err(_) => "invalid".to_owned(),
    }
}

/// A cadence, rounded to milliseconds: fractional minutes are not exact to the microsecond.
pub(super) fn span(every: Span) -> String {
    match every.as_micros() {
        0..1_000_000 => every.to_string(),
        micros => exact(Span::from_millis((micros + 500) / 1_000)),
    }
}

/// A cadence, exactly. An hour is `1h`, and not `60m` as in configuration files.
pub(super) fn exact(every: Span) -> String {
    match every.as_micros() {
        HOUR => "1h".to_owned(),
        DAY => "1d".to_owned(),
        _ => every.to_string(),
    }
}

/// The minimum interval between scrapes, as it was set.
pub(super) fn interval(interval: SourceInterval) -> String {
    match interval {
        SourceInterval::Default => "default".to_owned(),
        SourceInterval::Off => "none".to_owned(),
        SourceInterval::Every(every) => every.to_string(),
    }
}

/// Everything about a source, as JSON.
pub(super) fn object(source: &Source, global: Option<Span>, now: Timestamp) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let seconds = |span: Option<Span>| span.map_or(0.0, Span::as_secs_f64);
    let condition = Condition::of(source, now);
    let cadence = pipeline::cadence(source);
    json!({
        "id": source.id.0,
        "name": source.name,
        "kind": source.kind.as_str(),
        "url": without_user(&source.url),
        "listed_url": without_user(&source.listed_url),
        "lead": source.lead.as_str(),
        "enabled": source.enabled,
        "scraping": source.scraping,
        "auto_scrape": source.auto_scrape,
        "min_scrape_interval": match source.interval {
            SourceInterval::Default => None,
            own => Some(seconds(own.effective(None))),
        },
        "interval_seconds": seconds(source.interval.effective(global)),
        "every_minutes": cadence.ok().flatten().map(|cadence| cadence.to_json()["every_minutes"].clone()),
        "config": json_or_text(&source.config_json),
        "cursor": json_or_text(&source.cursor_json),
        "added_at": source.added_at.to_string(),
        "last_fetch_at": time(last_fetch(source)),
        "next_due_at": time(due_at(source, now).map(|at| at.max(now))),
        "state": condition.word,
        "reason": condition.why,
        "held_until": time(condition.until),
        "failures": source.failures,
        "retry_at": time(source.retry_at),
        "error": source.error,
    })
}

/// A column that should contain JSON, with user and password removed from URLs in it.
pub(super) fn json_or_text(text: &str) -> Value {
    let mut value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    for field in value.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Value::String(text) = field
            && text.contains("://")
        {
            *text = without_user(text);
        }
    }
    value
}

/// Microseconds.
const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour used to be `60m`.
    #[test]
    fn hours_and_days_are_shown_as_such() {
        for (every, shown) in [
            ("1h", "1h"),
            ("60m", "1h"),
            ("24h", "1d"),
            ("36h", "36h"),
            ("7d", "7d"),
            ("90m", "90m"),
            ("60s", "60s"),
            ("1h 1ms", "3600.001s"),
            ("250ms", "250ms"),
        ] {
            assert_eq!(span(Span::parse(every).unwrap()), shown);
        }
    }
}
