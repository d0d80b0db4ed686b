//! One layer of settings, as every source gives it: entries that say where they stand, what they set and to
//! what. Whether the value can be used is not asked here.

use std::collections::BTreeMap;

use comity_core::domain::Pattern;
use comity_core::problem::Problem;
use serde_json::Value;

use super::error::{Faults, quoted, quoted_value, shortened};

/// Where a setting was written.
#[derive(Clone)]
pub(super) enum Origin {
    /// In the file, or the variable, of this name, which holds tables.
    Tables(String),
    /// In a variable or flag of this name, which sets one thing.
    Single(String),
}

/// What a setting sets.
#[derive(Clone)]
pub(super) enum Place {
    /// One of [`super::KEYS`] that is no rule's.
    Setting,
    /// A key of the rule of every domain, or of one row.
    Rule { row: Option<Pattern>, key: String },
    /// That there is a row: even an empty one comes before a wildcard's.
    Row(Pattern),
    /// Every `min_delay`.
    Delay,
    /// Every `learning`.
    Learning,
}

/// A setting of a layer.
pub(super) struct Entry {
    pub(super) origin: Origin,
    pub(super) place: Place,
    /// The path of the setting, or of the table of a rule, as the source spells it.
    pub(super) path: String,
    pub(super) value: Value,
}

impl Origin {
    /// Whether it is a file, and no variable or flag.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::Tables(name) if name != super::env::DOMAINS)
    }

    /// How a message calls the setting at `path` from here.
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
    let mut spelt: BTreeMap<Pattern, String> = BTreeMap::new();
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
        if let Some(first) = spelt.insert(pattern.clone(), name) {
            let expected = format!("one table a domain; {} is the same domain", quoted(&first));
            faults.value(&origin.label(&path), &row.to_string(), &expected);
        }
        let entry = |place, value| Entry { origin: origin.clone(), place, path: path.clone(), value };
        entries.push(entry(Place::Row(pattern.clone()), Value::Null));
        for (key, value) in table(origin, &path, row, faults) {
            entries.push(entry(Place::Rule { row: Some(pattern.clone()), key }, value));
        }
    }
    entries
}

/// The entries of the table at `path`; anything else is a fault.
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

/// A key that does not exist at `path`, with the nearest of `known`.
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
