//! The common form of settings from all sources: entries with their origin, what they set, and the value. Values are
//! not checked here.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_core::domain::Pattern;
use comity_core::problem::{self, Problem};
use comity_core::rule;
use serde_json::{Map, Value};

use super::error::{Faults, Label, quoted, quoted_value, shortened};
use super::lines::Lines;

/// Where a setting comes from.
#[derive(Clone)]
pub(super) enum Origin {
    /// The file with this name.
    File { name: String, lines: Arc<Lines> },
    /// The variable with this name, which holds tables.
    Tables(String),
    /// The variable or flag with this name, which sets a single key.
    Single(String),
}

/// What an entry sets.
#[derive(Clone)]
pub(super) enum Target {
    /// One of [`super::KEYS`] outside of rules.
    Setting,
    /// A key of a rule: the rule of every domain, or that of one row.
    Rule { row: Option<Pattern>, key: String },
    /// The existence of a row: even an empty row takes precedence over a wildcard.
    Row(Pattern),
    /// A key of a rule whose host is invalid, so that the key is only checked.
    Unusable { key: String },
    /// Every `min_delay`.
    Delay,
    /// Every `learning`.
    Learning,
}

/// One setting of a layer.
pub(super) struct Entry {
    pub(super) origin: Origin,
    pub(super) target: Target,
    /// The path of the setting, or of the table that holds a rule, as the source spells it.
    pub(super) path: String,
    pub(super) value: Value,
}

impl Origin {
    /// Whether this is a file, not a variable or flag.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// The setting at `path` in messages.
    pub(super) fn label(&self, path: &str) -> Label {
        match self {
            Self::File { name, lines } => {
                Label { line: lines.of(path), key: Some(path.to_owned()), ..Label::of(name) }
            }
            Self::Tables(name) => Label { key: Some(path.to_owned()), ..Label::of(name) },
            Self::Single(name) => Label::of(name),
        }
    }
}

/// The rows of `[domains]`, wherever the table was written.
pub(super) fn domains(origin: &Origin, value: Value, faults: &mut Faults) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut spelled: BTreeMap<Pattern, String> = BTreeMap::new();
    for (name, mut row) in table(origin, "domains", value, faults) {
        // A name with a dot was quoted.
        if let Some(row) = row.as_object_mut().filter(|_| !name.contains('.')) {
            let path = format!("domains.{}", quoted(&name));
            if take_unquoted_hosts((&name, &path), row, origin, faults, &mut entries) && row.is_empty() {
                continue;
            }
        }
        // Always quoted: a domain without a dot would look like a key.
        let path = format!("domains.{}", quoted_value(&name));
        let pattern = match Pattern::parse(&name) {
            Ok(pattern) => pattern,
            Err(error) => {
                faults.value(&origin.label(&path), &row.to_string(), error.expected);
                check_only(origin, &path, row, faults, &mut entries);
                continue;
            }
        };
        if let Some(first) = spelled.insert(pattern.clone(), name) {
            let expected = format!("one table per site; {} is the same site", quoted(&first));
            faults.value(&origin.label(&path), &row.to_string(), &expected);
        }
        let entry = |target, value| Entry { origin: origin.clone(), target, path: path.clone(), value };
        entries.push(entry(Target::Row(pattern.clone()), Value::Null));
        for (key, value) in table(origin, &path, row, faults) {
            entries.push(entry(Target::Rule { row: Some(pattern.clone()), key }, value));
        }
    }
    entries
}

/// Takes out of `row` what TOML makes of hosts without quotes: `[domains.example.org]` is a table `org` in a table
/// `example`. Each of them is reported, and its settings are checked. Returns whether there were any.
fn take_unquoted_hosts(
    (host, path): (&str, &str),
    row: &mut Map<String, Value>,
    origin: &Origin,
    faults: &mut Faults,
    entries: &mut Vec<Entry>,
) -> bool {
    let is_key = |key: &str| key == "request" || problem::nearest(key, &rule::KEYS).is_some();
    let labels: Vec<String> = row
        .iter()
        .filter(|(key, value)| value.is_object() && !is_key(key))
        .map(|(key, _)| key.clone())
        .collect();
    for label in &labels {
        let Some(Value::Object(mut settings)) = row.remove(label) else { continue };
        let (host, path) = (format!("{host}.{label}"), format!("{path}.{}", quoted(label)));
        if take_unquoted_hosts((&host, &path), &mut settings, origin, faults, entries) && settings.is_empty()
        {
            continue;
        }
        let expected = match Pattern::parse(&host) {
            Ok(_) => format!("quotes around a host: [domains.{}]", quoted_value(&host)),
            Err(error) => error.expected.to_owned(),
        };
        faults.value(&origin.label(&path), "{}", &expected);
        check_only(origin, &path, Value::Object(settings), faults, entries);
    }
    !labels.is_empty()
}

/// Has the settings at `path` checked, although they can't be used.
fn check_only(origin: &Origin, path: &str, row: Value, faults: &mut Faults, entries: &mut Vec<Entry>) {
    if !row.is_object() {
        return;
    }
    for (key, value) in table(origin, path, row, faults) {
        let (origin, path) = (origin.clone(), path.to_owned());
        entries.push(Entry { origin, target: Target::Unusable { key }, path, value });
    }
}

/// The entries of the table at `path`; anything but a table is reported.
pub(super) fn table(
    origin: &Origin,
    path: &str,
    value: Value,
    faults: &mut Faults,
) -> impl Iterator<Item = (String, Value)> + use<> {
    let table = match value {
        Value::Object(table) => Some(table),
        _ => {
            faults.value(&origin.label(path), &value.to_string(), "a table");
            None
        }
    };
    table.into_iter().flatten()
}

/// Reports a key that does not exist at `path`, with the closest match among `known`.
pub(super) fn unknown(
    origin: &Origin,
    path: &str,
    key: &str,
    value: &Value,
    known: &[&str],
    faults: &mut Faults,
) {
    let problem = Problem::unknown_key(&shortened(key), value, known);
    faults.value(&origin.label(path), &problem.value, &problem.expected);
}
