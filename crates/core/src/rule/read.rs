//! Reads single values of a rule, and knows what each kind of value allows.

use std::fmt;

use serde_json::{Map, Value};

use crate::domain::Domain;
use crate::problem::{Problem, Problems};
use crate::time::Span;

/// What a kind of value allows; its text follows the word "expected" in messages.
#[derive(Clone, Copy)]
pub(super) enum Allowed {
    Delay,
    Period,
    Count,
    Rate,
}

impl Allowed {
    pub(super) fn span(self, span: Span) -> bool {
        span <= SPAN_MAX && !(matches!(self, Self::Period) && span.is_zero())
    }

    pub(super) fn count(self, count: u32) -> bool {
        (1..=COUNT_MAX).contains(&count)
    }

    pub(super) fn rate(self, rate: f64) -> bool {
        (RATE_MIN..=RATE_MAX).contains(&rate)
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay => write!(f, "a duration of at most {SPAN_MAX}"),
            Self::Period => write!(f, "a duration above zero and of at most {SPAN_MAX}"),
            Self::Count => write!(f, "a whole number from 1 to {COUNT_MAX}"),
            Self::Rate => write!(f, "a number of requests per second from {RATE_MIN} to {RATE_MAX}"),
        }
    }
}

/// `true` or `false`.
pub(super) fn boolean(key: &str, value: &Value) -> Result<bool, Problem> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err(Problem::new(key, value, "true or false")),
    }
}

/// A duration as text, or a plain zero.
pub(super) fn span(key: &str, value: &Value) -> Result<Span, Problem> {
    match value {
        Value::String(text) => Span::parse(text).map_err(|error| Problem::new(key, value, error.expected)),
        Value::Number(number) if number.as_f64() == Some(0.0) => Ok(Span::ZERO),
        _ => Err(Problem::new(key, value, "a duration such as \"3s\" or \"250ms\"")),
    }
}

/// A whole number, also as text.
pub(super) fn whole(key: &str, value: &Value) -> Result<u32, Problem> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| Problem::new(key, value, Allowed::Count.to_string()))
}

/// A whole number, or `"none"` or `"unlimited"`.
pub(super) fn count(key: &str, value: &Value) -> Result<Option<u32>, Problem> {
    if is_none(value) {
        return Ok(None);
    }
    whole(key, value).map(Some).map_err(|problem| Problem { expected: count_or_none(key), ..problem })
}

/// What [`count`] accepts for a key.
pub(super) fn count_or_none(key: &str) -> String {
    // Both words are accepted; this is the one that fits the key.
    let none = if key.ends_with("in_flight") { "unlimited" } else { "none" };
    format!("{} or {none:?}", Allowed::Count)
}

/// Requests per second, or `"none"`.
pub(super) fn rate(key: &str, value: &Value) -> Result<Option<f64>, Problem> {
    let number = match value {
        _ if is_none(value) => return Ok(None),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number.map(Some).ok_or_else(|| Problem::new(key, value, rate_or_none()))
}

/// What [`rate`] accepts.
pub(super) fn rate_or_none() -> String {
    format!("{} or \"none\"", Allowed::Rate)
}

/// One of a few words.
pub(super) fn word<T: Copy>(key: &str, value: &Value, words: &[(&str, T)]) -> Result<T, Problem> {
    let known = words.iter().find(|(word, _)| value.as_str() == Some(word));
    let names = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    known.map(|(_, meaning)| *meaning).ok_or_else(|| Problem::new(key, value, format!("one of {}", names())))
}

/// The name of a group, or `"none"`.
pub(super) fn group(key: &str, value: &Value) -> Result<Option<Domain>, Problem> {
    if is_none(value) {
        return Ok(None);
    }
    let name = value.as_str().ok_or_else(|| Problem::new(key, value, "the name of a group"))?;
    Domain::group(name).map(Some).map_err(|error| Problem::new(key, value, error.expected))
}

/// The entries of a table; a value that isn't a table is a problem.
pub(super) fn table<'a>(
    key: &str,
    value: &'a Value,
    problems: &mut Problems,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    let table = match value {
        Value::Object(table) => Ok(Some(table)),
        _ => Err(Problem::new(key, value, "a table")),
    };
    problems.take(table).flatten().into_iter().flat_map(Map::iter)
}

fn is_none(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "unlimited"))
}

/// A year. Longer delays are mistakes, and the sum of a few of them cannot overflow.
const SPAN_MAX: Span = Span::from_hours(365 * 24);
/// A burst this large needs 80 kB per domain; larger ones are mistakes.
const COUNT_MAX: u32 = 10_000;
/// One request in about four months.
const RATE_MIN: f64 = 1e-7;
const RATE_MAX: f64 = 1e6;
