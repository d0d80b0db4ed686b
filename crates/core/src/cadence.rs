//! When a source is due, and how a run updates its cursor.
//!
//! Whether a source is due depends on the end of the run's window; the clock is only used to check that the window and
//! the last fetch aren't in the future. How a source is fetched once it is due is decided elsewhere.

use serde_json::{Map, Value};

use crate::time::{Span, Timestamp};

/// How often a source should be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    every: Span,
}

/// An invalid cadence or cursor. The source then fails, rather than silently being always due.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: expected {expected}")]
pub struct CadenceError {
    /// The key.
    pub key: &'static str,
    /// The value that was given.
    pub value: String,
    /// What is accepted instead.
    pub expected: &'static str,
}

/// A window that ends in the future, which is a usage error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("window end {window_end}: expected a time that is not in the future (it is now {now})")]
pub struct WindowInFuture {
    /// The end that was given.
    pub window_end: Timestamp,
    /// The current time.
    pub now: Timestamp,
}

/// The end of a run's window, which isn't in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunWindow {
    end: Timestamp,
    now: Timestamp,
}

/// Whether a source is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It is due.
    Due,
    /// It is due, with a warning: its last fetch is in the future, so a clock was wrong.
    DueDespiteFuture {
        /// The last fetch, according to the cursor.
        last_fetch_at: Timestamp,
    },
    /// It isn't due in this run.
    NotDue {
        /// The earliest window end at which it is due.
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
    /// It wasn't fetched.
    Skipped,
}

impl Cadence {
    /// A cadence of this many minutes, finite and above zero.
    pub fn every_minutes(minutes: f64) -> Result<Self, CadenceError> {
        Self::read(&Value::from(minutes)).ok_or_else(|| CadenceError {
            key: "cadence.every_minutes",
            value: minutes.to_string(),
            expected: A_NUMBER_OF_MINUTES,
        })
    }

    /// Reads the `cadence` of a source's `config_json`. Without one, the source is always due.
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

    /// The cadence as written in `config_json`.
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
        // A cadence of seven seconds has no exact value in minutes, so round to the nearest microsecond.
        let nearest = (secs * 1e6).round() / 1e6;
        Span::from_secs_f64(if nearest > 0.0 { nearest } else { secs }).ok().map(|every| Self { every })
    }
}

impl RunWindow {
    /// The window of a run that ends at `end`; `now` is the current time.
    pub fn ending(end: Timestamp, now: Timestamp) -> Result<Self, WindowInFuture> {
        if end > now { Err(WindowInFuture { window_end: end, now }) } else { Ok(Self { end, now }) }
    }

    /// The same window at a later `now`.
    pub fn looked_at(self, now: Timestamp) -> Self {
        Self { now: self.now.max(now), ..self }
    }

    /// The end of the window.
    pub fn end(self) -> Timestamp {
        self.end
    }

    /// Whether a source with this cadence and last fetch is due in this window.
    pub fn due(self, cadence: Option<Cadence>, last_fetch_at: Option<Timestamp>) -> Due {
        let (Some(cadence), Some(last_fetch_at)) = (cadence, last_fetch_at) else { return Due::Due };
        if last_fetch_at > self.now {
            return Due::DueDespiteFuture { last_fetch_at };
        }
        let due_at = last_fetch_at + cadence.every;
        if due_at <= self.end { Due::Due } else { Due::NotDue { due_at } }
    }

    /// The cursor after a fetch in this window. `last_fetch_at` changes only after an ok or partial fetch and never
    /// goes back; everything else in the cursor stays.
    pub fn advance(self, cursor: &Map<String, Value>, status: FetchStatus) -> Map<String, Value> {
        let mut cursor = cursor.clone();
        if matches!(status, FetchStatus::Ok | FetchStatus::Partial) {
            // An invalid time, or one in the future, was never a fetch, so replacing it doesn't go back.
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
