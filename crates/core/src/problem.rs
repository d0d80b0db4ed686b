//! What is wrong with a setting: its key, the value that was given, and what is allowed.
//!
//! Problems are collected rather than reported one at a time, so that people can fix a file in one go. Callers add
//! where the setting came from (a file, a flag, a request).

use std::fmt;

use serde_json::Value;

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, such as `domains."reuters.com".min_delay`.
    pub key: String,
    /// The value as written.
    pub value: String,
    /// What is allowed, such as `a duration such as "3s" or "250ms"`.
    pub expected: String,
}

/// All problems, in the order in which they were found; never empty inside an `Err`.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl Problem {
    /// A problem that reads `key = value: expected …`.
    pub fn new(key: impl Into<String>, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.to_string(), expected: expected.into() }
    }

    /// A key that doesn't exist, with a suggestion if a known key looks similar.
    pub fn unknown_key(key: &str, value: &Value, known: &[&str]) -> Self {
        let expected = match nearest(key, known).or_else(|| part_of(key, known)) {
            Some(name) => format!("a key that exists; did you mean {name}?"),
            None => format!("one of {}", known.join(", ")),
        };
        Self::new(key, value, expected)
    }

    /// The same problem, with the key prefixed by its `table`.
    pub fn inside(mut self, table: &str) -> Self {
        self.key = format!("{table}.{}", self.key);
        self
    }
}

impl Problems {
    /// `Ok` if there are no problems.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Returns the value of `result`, or collects its problem.
    pub(crate) fn take<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: expected {}", self.key, self.value, self.expected)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if nth == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// The name in `known` that looks most like `key`, if any is similar enough to be meant.
pub fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = known.iter().map(|name| (strsim::jaro_winkler(key, name), *name));
    let nearest = likeness.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.75);
    nearest.map(|(_, name)| name)
}

/// The shortest name in `known` that ends with `key` as a word of its own: `total_timeout` for `timeout`.
fn part_of<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let is_end = |name: &&&str| name.strip_suffix(key).is_some_and(|start| start.ends_with('_'));
    known.iter().filter(is_end).min_by_key(|name| name.len()).copied()
}

/// Untrusted text for use in a message: cut to a sensible length, control characters replaced.
pub fn shortened(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

const SHOWN: usize = 120;
