//! Reads `COMITY_…` environment variables into entries. Each sets one key; `COMITY_DOMAINS` holds a whole table.

use serde_json::{Map, Value};

use super::error::{Faults, Label};
use super::file;
use super::keys::KEYS;
use super::layer::{self, Entry, Origin, Target};
use super::token::Token;

/// The environment variables of this process that may be for Comity. Invalid Unicode in them is replaced; where it
/// matters, the replacement is rejected later.
pub fn environment() -> Vec<(String, String)> {
    let ours = |name: &str| name.starts_with(PREFIX) || name == ALIAS;
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| ours(name))
        .collect()
}

/// The settings in the variables, sorted by name.
pub(super) fn entries(mut variables: Vec<(String, String)>, faults: &mut Faults) -> Vec<Entry> {
    variables.sort();
    let known: Vec<(String, &str)> = KEYS.iter().map(|key| (key.variable(), key.path)).collect();
    // The variable takes precedence over its alias, even if the alias is invalid.
    let aliased = !variables.iter().any(|(name, _)| name == ALIASED);
    let mut entries = Vec::new();
    for (name, value) in variables {
        let meant = if name == ALIAS && aliased { ALIASED } else { &name };
        if let Some((_, path)) = known.iter().find(|(known, _)| known == meant) {
            entries.push(entry(Origin::Single(name), path, value));
        } else if name == DOMAINS {
            entries.extend(domains(&value, faults));
        } else if name.starts_with(PREFIX) && !NOT_SETTINGS.contains(&name.as_str()) {
            faults.message(&Label::of(&name), &unknown(&name, &known));
        }
    }
    entries
}

/// The entry for a variable that sets the key at `path`, which may be in a nested table of a rule.
fn entry(origin: Origin, path: &str, value: String) -> Entry {
    let Some(rule) = path.strip_prefix("default.") else {
        // A variable may hold plain tokens; from here on there are only hashes.
        let value = if path == "serve.tokens" || path == "proxy.tokens" { hashed(&value) } else { value };
        return Entry { origin, target: Target::Setting, path: path.to_owned(), value: value.into() };
    };
    let (key, inner) = rule.split_once('.').map_or((rule, None), |(key, inner)| (key, Some(inner)));
    let tables = inner.into_iter().flat_map(|inner| inner.rsplit('.'));
    let value =
        tables.fold(Value::from(value), |value, name| Map::from_iter([(name.to_owned(), value)]).into());
    Entry {
        origin,
        target: Target::Rule { row: None, key: key.to_owned() },
        path: "default".to_owned(),
        value,
    }
}

/// Replaces plain tokens by their hashes. Invalid tokens stay as they are and are rejected later.
fn hashed(value: &str) -> String {
    let line = |text: &str| Token::parse(text).map_or_else(|| text.to_owned(), |token| token.line());
    value.split([',', ' ', '\n']).filter(|text| !text.is_empty()).map(line).collect::<Vec<_>>().join(",")
}

fn domains(text: &str, faults: &mut Faults) -> Vec<Entry> {
    let origin = Origin::Tables(DOMAINS.to_owned());
    match text.parse::<toml::Value>() {
        Ok(value) => layer::domains(&origin, file::json(value), faults),
        Err(broken) => {
            faults.syntax(&Label::of(DOMAINS), &file::syntax(text, &broken));
            Vec::new()
        }
    }
}

/// The message for an unknown variable. It does not show the value, which could be a secret.
fn unknown(name: &str, known: &[(String, &str)]) -> String {
    let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).chain([DOMAINS]).collect();
    // Compare without the prefix, which all names share and which would make them all look similar.
    let bare: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let problem = comity_core::problem::Problem::unknown_key(&name[PREFIX.len()..], &Value::Null, &bare);
    match problem.expected.split_once("did you mean ") {
        Some((_, nearest)) => format!("expected a variable that exists; did you mean {PREFIX}{nearest}"),
        None => {
            "expected a variable that exists: COMITY_ and a key, such as COMITY_JOB_CONCURRENCY".to_owned()
        }
    }
}

const PREFIX: &str = "COMITY_";
pub(super) const DOMAINS: &str = "COMITY_DOMAINS";
const ALIASED: &str = "COMITY_JOB_FAILURE_THRESHOLD";
const ALIAS: &str = "BBB_JOB_FAILURE_THRESHOLD";
/// Variables that are not settings: the path of the configuration, the server and its token, and the password of a
/// wiki.
const NOT_SETTINGS: [&str; 4] = ["COMITY_CONFIG", "COMITY_SERVER", "COMITY_TOKEN", "COMITY_WIKI_PASSWORD"];
