//! Reports everything that is wrong with the settings, so that a person can fix all of it at once.
//!
//! Messages quote what somebody wrote, so values are masked where they may be secrets, shortened, and stripped of
//! control characters. The code that parses a value says what is allowed.

use std::fmt;

use super::secret;
use crate::redact;

/// Invalid settings. One line per problem:
/// `comity.toml:12: domains."reuters.com".min_delay = "fast": expected a duration such as "3s" or "250ms"`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(Vec<ConfigProblem>);

/// One invalid setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file, variable or flag that contains it, or `merged settings`.
    pub origin: String,
    /// The line in the file, counted from 1.
    pub line: Option<usize>,
    /// The path of the key in the file or variable, such as `domains."reuters.com".min_delay`.
    pub key: Option<String>,
    /// The whole message, on one line.
    pub message: String,
}

impl ConfigError {
    /// Every problem: those of the file from top to bottom, then those of the environment, the flags, and the merged
    /// settings.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.0
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, line) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{}{line}", if nth == 0 { "" } else { "\n" })?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n… and {more} more"),
        }
    }
}

/// Where a setting was written, as messages begin.
#[derive(Debug, Clone, Default)]
pub(super) struct Label {
    pub(super) origin: String,
    pub(super) line: Option<usize>,
    pub(super) column: Option<usize>,
    pub(super) key: Option<String>,
}

impl Label {
    /// The whole of the source with this name.
    pub(super) fn of(origin: &str) -> Self {
        Self { origin: origin.to_owned(), ..Self::default() }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        self.column.map_or(Ok(()), |column| write!(f, ":{column}"))?;
        self.key.as_ref().map_or(Ok(()), |key| write!(f, ": {key}"))
    }
}

/// The problems found so far.
#[derive(Default)]
pub(super) struct Faults {
    problems: Vec<ConfigProblem>,
    /// Whether a whole source could not be parsed, so that it is unknown what it would have set.
    pub(super) unparsed: bool,
}

impl Faults {
    /// `label = value: expected …`, where `value` is written as JSON.
    pub(super) fn value(&mut self, label: &Label, value: &str, expected: &str) {
        let value = match value.as_bytes().first() {
            _ if secret::is_secret(&label.to_string()) => "***".to_owned(),
            // A table may contain anything, and its name is enough to find it.
            Some(b'{') => "{…}".to_owned(),
            Some(b'[') => "[…]".to_owned(),
            _ => shortened(&secret::without_password(value)),
        };
        self.add(label, format!("{label} = {value}: expected {expected}"));
    }

    /// `label: message`.
    pub(super) fn message(&mut self, label: &Label, message: &str) {
        self.add(label, format!("{label}: {message}"));
    }

    /// `label: message`, for a source that is not valid TOML.
    pub(super) fn syntax(&mut self, label: &Label, message: &str) {
        self.unparsed = true;
        self.message(label, message);
    }

    /// `Ok` if there are no problems.
    pub(super) fn into_result(mut self) -> Result<(), ConfigError> {
        self.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        if self.problems.is_empty() { Ok(()) } else { Err(ConfigError(self.problems)) }
    }

    fn add(&mut self, label: &Label, message: String) {
        let one_line = |text: &str| text.chars().map(escaped).collect();
        self.problems.push(ConfigProblem {
            origin: one_line(&label.origin),
            line: label.line,
            key: label.key.as_deref().map(one_line),
            message: one_line(&message),
        });
    }
}

/// An error with a single problem.
pub(super) fn single(label: &str, message: &str) -> ConfigError {
    let mut faults = Faults::default();
    faults.message(&Label::of(label), message);
    ConfigError(faults.problems)
}

/// A key as TOML writes it: bare if possible, otherwise quoted.
pub(super) fn quoted(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(bare) { shortened(key) } else { quoted_value(key) }
}

/// A part of a value, quoted inside a sentence.
pub(super) fn quoted_value(text: &str) -> String {
    serde_json::Value::from(shortened(text)).to_string()
}

/// The first part of a value, no longer than a message should quote.
pub(super) fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(VALUE_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Escapes control characters and those that reverse or hide text, so that a message can't pretend to be something
/// else.
fn escaped(c: char) -> String {
    let hides = matches!(c, '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}');
    if c.is_control() || hides || redact::is_bidi_mark(c) {
        c.escape_unicode().to_string()
    } else {
        c.to_string()
    }
}

const SHOWN_MAX: usize = 100;
const VALUE_MAX: usize = 120;
