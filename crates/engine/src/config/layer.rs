//! The common form of settings from all sources: entries with their origin, what they set, and the value. Values are
//! not checked here.

use std::collections::BTreeMap;

use comity_core::domain::Pattern;
use comity_core::problem::Problem;
use serde_json::Value;

use super::error::{Faults, quoted, quoted_value, shortened};

/// Where a setting comes from.
#[derive(Clone)]
pub(super) enum Origin {
    /// The file or variable with this name, which holds tables.
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
        matches!(self, Self::Tables(name) if name != super::env::DOMAINS)
    }

    /// The name of the setting at `path` in messages.
    pub(super) fn label(&self, path: &str) -> String {
        match self {
            Self::Tables(name) => format!("{name}: {path}"),
            Self::Single(name) => name.clone(),
        }
    }
}

/// The rows of `[domains]`, wherever the table was written.
pub(super) fn domains(origin: &Origin, value: Value, faults: &mut Faults) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut spelled: BTreeMap<Pattern, String> = BTreeMap::new();
    for (name, row) in table(origin, "domains", value, faults) {
        // Always quoted: a domain without a dot would look like a key.
        let path = format!("domains.{}", quoted_value(&name));
        let pattern = match Pattern::parse(&name) {
            Ok(pattern) => pattern,
            Err(error) => {
                faults.value(&origin.label(&path), &row.to_string(), error.expected);
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
