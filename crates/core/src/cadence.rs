//! When a source is due, and what a run writes into its cursor (B59, B60, B62, B64).
//!
//! The `now` of the due rule is the end of the run's window; the wall clock only tells whether that and the
//! last fetch can be true. How a source is asked politely once it is due is not decided here.

use serde_json::{Map, Value};

use crate::time::{Span, Timestamp};

/// How often a source is worth asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    every: Span,
}

/// A cadence or cursor that cannot be used: the source fails, it is never silently always due.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: expected {expected}")]
pub struct CadenceError {
    /// Where it stands.
    pub key: &'static str,
    /// What stands there.
    pub value: String,
    /// What would have been understood.
    pub expected: &'static str,
}

/// A window that ends in the future: a usage error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("window end {window_end}: expected a time that is not in the future, and it is {now}")]
pub struct WindowInFuture {
    /// The end that was given.
    pub window_end: Timestamp,
    /// The wall clock.
    pub now: Timestamp,
}

/// The end of a run's window, which is not in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunWindow {
    end: Timestamp,
    now: Timestamp,
}

/// Whether a source is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Fetch it.
    Due,
    /// Fetch it, and warn: its last fetch lies in the future, so a clock was wrong.
    DueDespiteFuture {
        /// The impossible last fetch.
        last_fetch_at: Timestamp,
    },
    /// Not in this run.
    NotDue {
        /// The first window end at which it is due.
        due_at: Timestamp,
    },
}

/// How a fetch ended, as far as the cursor is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchStatus {
    /// Everything was read.
    Ok,
    /// Some of it was read.
    Partial,
    /// Nothing was read.
    Error,
    /// It was not asked.
    Skipped,
}

impl Cadence {
    /// A cadence of so many minutes, finite and above zero.
    pub fn every_minutes(minutes: f64) -> Result<Self, CadenceError> {
        Self::read(&Value::from(minutes)).ok_or_else(|| CadenceError {
            key: "cadence.every_minutes",
            value: minutes.to_string(),
            expected: A_NUMBER_OF_MINUTES,
        })
    }

    /// Reads the `cadence` of a source's `config_json`; without one the source is always due.
    pub fn of_config(config: &Map<String, Value>) -> Result<Option<Self>, CadenceError> {
        let Some(cadence) = config.get("cadence") else { return Ok(None) };
        let wrong = |key, value: &Value, expected| CadenceError { key, value: value.to_string(), expected };
        let Value::Object(fields) = cadence else {
            return Err(wrong(
                "cadence",
                cadence,
                "a table such as {\"mode\":\"interval\",\"every_minutes\":480}",
            ));
        };
        let (mode, every) = (fields.get("mode"), fields.get("every_minutes"));
        if mode.and_then(Value::as_str) != Some("interval") {
            return Err(wrong("cadence.mode", mode.unwrap_or(&Value::Null), "\"interval\""));
        }
        if let Some((key, value)) =
            fields.iter().find(|(key, _)| !matches!(key.as_str(), "mode" | "every_minutes"))
        {
            let value = Value::from(format!("{key}: {value}"));
            return Err(wrong("cadence", &value, "no keys but \"mode\" and \"every_minutes\""));
        }
        let every = every.unwrap_or(&Value::Null);
        Self::read(every).map(Some).ok_or_else(|| wrong("cadence.every_minutes", every, A_NUMBER_OF_MINUTES))
    }

    /// The cadence as it stands in `config_json`.
    pub fn to_json(self) -> Value {
        let minutes = self.every.as_secs_f64() / 60.0;
        let whole = minutes.fract() == 0.0 && minutes < 1e15;
        let minutes = if whole { Value::from(minutes as u64) } else { Value::from(minutes) };
        serde_json::json!({ "mode": "interval", "every_minutes": minutes })
    }

    /// The time between two fetches.
    pub fn every(self) -> Span {
        self.every
    }

    fn read(minutes: &Value) -> Option<Self> {
        let secs = minutes.as_f64().filter(|minutes| *minutes > 0.0)? * 60.0;
        // Seven seconds are no whole fraction of a minute, and still seven seconds.
        let nearest = (secs * 1e6).round() / 1e6;
        Span::from_secs_f64(if nearest > 0.0 { nearest } else { secs }).ok().map(|every| Self { every })
    }
}

impl RunWindow {
    /// A run's window that ends at `end`, looked at when the wall clock reads `now`.
    pub fn ending(end: Timestamp, now: Timestamp) -> Result<Self, WindowInFuture> {
        if end > now { Err(WindowInFuture { window_end: end, now }) } else { Ok(Self { end, now }) }
    }

    /// The same window, looked at later: what is in the future is told by the clock of that moment.
    pub fn looked_at(self, now: Timestamp) -> Self {
        Self { now: self.now.max(now), ..self }
    }

    /// The end of the window.
    pub fn end(self) -> Timestamp {
        self.end
    }

    /// Is a source with this cadence, last fetched then, due in this window?
    pub fn due(self, cadence: Option<Cadence>, last_fetch_at: Option<Timestamp>) -> Due {
        let (Some(cadence), Some(last_fetch_at)) = (cadence, last_fetch_at) else { return Due::Due };
        if last_fetch_at > self.now {
            return Due::DueDespiteFuture { last_fetch_at };
        }
        let due_at = last_fetch_at + cadence.every;
        if due_at <= self.end { Due::Due } else { Due::NotDue { due_at } }
    }

    /// The cursor after a fetch in this window: `last_fetch_at` moves only after ok or partial and never back,
    /// everything else in it stays.
    pub fn advance(self, cursor: &Map<String, Value>, status: FetchStatus) -> Map<String, Value> {
        let mut cursor = cursor.clone();
        if matches!(status, FetchStatus::Ok | FetchStatus::Partial) {
            // What cannot be read, or lies in the future, was never a fetch, so replacing it moves nothing back.
            let known = last_fetch_at(&cursor).ok().flatten().filter(|known| *known <= self.now);
            let latest = known.map_or(self.end, |known| known.max(self.end));
            cursor.insert(LAST_FETCH_AT.to_owned(), Value::from(latest.to_string()));
        }
        cursor
    }
}

/// Reads `last_fetch_at` of a source's `cursor_json`.
pub fn last_fetch_at(cursor: &Map<String, Value>) -> Result<Option<Timestamp>, CadenceError> {
    let wrong = |value: &Value| CadenceError {
        key: "cursor_json.last_fetch_at",
        value: value.to_string(),
        expected: "a timestamp such as \"2026-01-05T12:00:00Z\"",
    };
    match cursor.get(LAST_FETCH_AT) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let at = value.as_str().and_then(|text| Timestamp::parse(text).ok());
            at.map(Some).ok_or_else(|| wrong(value))
        }
    }
}

const LAST_FETCH_AT: &str = "last_fetch_at";
const A_NUMBER_OF_MINUTES: &str = "a finite number of minutes above zero";
