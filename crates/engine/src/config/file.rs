//! Reads `comity.toml` into entries, and reports where its TOML is invalid.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::error::{self, ConfigError, Faults, quoted};
use super::keys;
use super::layer::{self, Entry, Origin, Target};

/// The text of the file at `path`.
pub fn read_file(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    let wrong = |what: String| error::single(&path.display().to_string(), &what);
    match read {
        Err(cause) => Err(wrong(format!("cannot be read: {cause}"))),
        Ok(bytes) if bytes as u64 > BYTES_MAX => {
            Err(wrong(format!("cannot be read: it has more than {BYTES_MAX} bytes")))
        }
        Ok(_) => Ok(text),
    }
}

/// The settings in the text of a file called `name`.
pub(super) fn entries(name: &str, text: &str, faults: &mut Faults) -> Vec<Entry> {
    let origin = Origin::Tables(name.to_owned());
    match text.parse::<toml::Table>() {
        Ok(table) => {
            table.into_iter().flat_map(|(key, value)| section(&origin, key, json(value), faults)).collect()
        }
        Err(broken) => {
            faults.syntax(name, &syntax(text, &broken));
            Vec::new()
        }
    }
}

/// Where the TOML is invalid and why. The text around it is left out, because it may contain a secret.
pub(super) fn syntax(text: &str, broken: &toml::de::Error) -> String {
    let message = broken.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
    let at = broken.span().map_or(0, |span| text.floor_char_boundary(span.start));
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: {message}")
}

/// Converts TOML to JSON, which rules are read from.
pub(super) fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        // JSON has no such numbers; as text they are rejected and shown in the message.
        toml::Value::Float(number) if !number.is_finite() => number.to_string().into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(value) => value.into(),
        toml::Value::Datetime(date) => date.to_string().into(),
        toml::Value::Array(list) => list.into_iter().map(json).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, json(value))).collect(),
    }
}

/// The entries of one top-level key.
fn section(origin: &Origin, key: String, value: Value, faults: &mut Faults) -> Vec<Entry> {
    let entry = |target, path, value| Entry { origin: origin.clone(), target, path, value };
    let mut entries = Vec::new();
    match key.as_str() {
        "domains" => return layer::domains(origin, value, faults),
        "default" => {
            for (key, value) in layer::table(origin, "default", value, faults) {
                entries.push(entry(Target::Rule { row: None, key }, "default".to_owned(), value));
            }
        }
        _ if keys::TABLES.contains(&key.as_str()) => {
            let known = keys::of_table(&key);
            for (name, value) in layer::table(origin, &key, value, faults) {
                let path = format!("{key}.{}", quoted(&name));
                if known.contains(&name.as_str()) {
                    entries.push(entry(Target::Setting, path, value));
                } else {
                    layer::unknown(origin, &path, &name, &value, &known, faults);
                }
            }
        }
        _ if keys::top_level().any(|known| known == key) => entries.push(entry(Target::Setting, key, value)),
        _ => {
            let known: Vec<_> = keys::top_level().chain(keys::TABLES).chain(["default", "domains"]).collect();
            layer::unknown(origin, &quoted(&key), &key, &value, &known, faults);
        }
    }
    entries
}

/// Larger files are certainly not configuration.
const BYTES_MAX: u64 = 8 << 20;
