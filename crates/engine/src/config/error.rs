//! What is wrong with settings, told so that a person can mend all of it at once.
//!
//! What a line shows was written by somebody: it is masked where it may be a secret, shortened, and without
//! control characters. What is allowed is said by whoever reads the value.

use std::fmt;

use super::secret;
use crate::shown;

/// Settings that cannot be used. One line for each problem:
/// `comity.toml: domains."reuters.com".min_delay = "fast": expected a duration such as "3s" or "250ms"`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(Vec<String>);

impl ConfigError {
    /// Every problem, one line each: of the file, the environment, what was given, and of all of it merged.
    pub fn problems(&self) -> &[String] {
        &self.0
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

/// The problems found so far.
#[derive(Default)]
pub(super) struct Faults {
    lines: Vec<String>,
    /// Whether a whole source could not be read, so that nobody knows what it would have set.
    pub(super) unread: bool,
}

impl Faults {
    /// `label = value: expected …`, where `value` is written as JSON.
    pub(super) fn value(&mut self, label: &str, value: &str, expected: &str) {
        let value = match value.as_bytes().first() {
            _ if secret::is_secret(label) => "***".to_owned(),
            // A table may hold anything, and nobody needs to see it again to know which one is meant.
            Some(b'{') => "{…}".to_owned(),
            Some(b'[') => "[…]".to_owned(),
            _ => shortened(&secret::without_password(value)),
        };
        self.line(&format!("{label} = {value}: expected {expected}"));
    }

    /// `label: what`.
    pub(super) fn plain(&mut self, label: &str, what: &str) {
        self.line(&format!("{label}: {what}"));
    }

    /// `label: what`, of a source that is no TOML.
    pub(super) fn unread(&mut self, label: &str, what: &str) {
        self.unread = true;
        self.plain(label, what);
    }

    /// `Ok` when nothing was found.
    pub(super) fn into_result(self) -> Result<(), ConfigError> {
        if self.lines.is_empty() { Ok(()) } else { Err(ConfigError(self.lines)) }
    }

    fn line(&mut self, line: &str) {
        self.lines.push(line.chars().map(escaped).collect());
    }
}

/// A single problem is an error too.
pub(super) fn alone(label: &str, what: &str) -> ConfigError {
    let mut faults = Faults::default();
    faults.plain(label, what);
    ConfigError(faults.lines)
}

/// A key as TOML writes it: bare where that is possible, quoted where not.
pub(super) fn quoted(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(bare) { shortened(key) } else { quoted_value(key) }
}

/// A piece of a value, inside a sentence.
pub(super) fn quoted_value(text: &str) -> String {
    serde_json::Value::from(shortened(text)).to_string()
}

/// At most as much of a value as a message should repeat.
pub(super) fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(VALUE_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Control characters, and those that turn or hide text, as escapes: a message must read as what it is.
fn escaped(c: char) -> String {
    let hides = matches!(c, '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}');
    if c.is_control() || hides || shown::turns(c) { c.escape_unicode().to_string() } else { c.to_string() }
}

const SHOWN_MAX: usize = 100;
const VALUE_MAX: usize = 120;
