//! Reads `comity.toml` into entries, and reports where its TOML is invalid.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use comity_core::domain::Pattern;
use serde::Deserialize;
use serde_json::Value;
use toml::de::DeTable;

use super::error::{self, ConfigError, Faults, Label, quoted, quoted_value, shortened};
use super::keys;
use super::layer::{self, Entry, Origin, Target};
use super::lines::Lines;

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
    let parsed = DeTable::parse(text).and_then(|parsed| {
        let lines = Lines::new(text, parsed.get_ref());
        toml::Table::deserialize(toml::de::Deserializer::from(parsed)).map(|table| (table, lines))
    });
    match parsed {
        Ok((table, lines)) => {
            let origin = Origin::File { name: name.to_owned(), lines: Arc::new(lines) };
            table.into_iter().flat_map(|(key, value)| section(&origin, key, json(value), faults)).collect()
        }
        Err(broken) => {
            let (line, column) = position(text, &broken);
            let label = Label { line: Some(line), column: Some(column), ..Label::of(name) };
            let written = text.lines().nth(line - 1).unwrap_or_default();
            let hint = match broken.message().starts_with("duplicate key") {
                true => repeated(text, line, &broken),
                false => unquoted_host(written).unwrap_or_default(),
            };
            faults.syntax(&label, &format!("{}{hint}", message(&broken)));
            Vec::new()
        }
    }
}

/// Where a variable with TOML is invalid and why.
pub(super) fn syntax(text: &str, broken: &toml::de::Error) -> String {
    let (line, column) = position(text, broken);
    format!("line {line}, column {column}: {}", message(broken))
}

/// Why the TOML is invalid. The text around it is left out, because it may contain a secret.
fn message(broken: &toml::de::Error) -> String {
    broken.message().lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

/// The line and the column where the TOML is invalid, counted from 1.
fn position(text: &str, broken: &toml::de::Error) -> (usize, usize) {
    let at = broken.span().map_or(0, |span| text.floor_char_boundary(span.start));
    let before = &text[..at];
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// Which key or table there is twice, and where it was before.
fn repeated(text: &str, line: usize, broken: &toml::de::Error) -> String {
    let key = broken.span().and_then(|span| text.get(span)).filter(|key| !key.contains('\n'));
    let is_table = text.lines().nth(line - 1).is_some_and(|line| line.trim_start().starts_with('['));
    let key = key.map_or_else(String::new, |key| match is_table {
        true => format!(" [{}]", shortened(key.trim_matches(['[', ']']))),
        false => format!(" {}", shortened(key)),
    });
    match first_of(text, line) {
        Some(first) => format!("{key}; it is on line {first} already"),
        None => key,
    }
}

/// The line that set the key of this line before.
fn first_of(text: &str, line: usize) -> Option<usize> {
    let key = |line: &str| line.split(['=', '#']).next().unwrap_or_default().trim().to_owned();
    let again = key(text.lines().nth(line - 1)?);
    // A key outside of a table may have the same name as one in it.
    let earlier: Vec<&str> = text.lines().take(line - 1).collect();
    let start = if again.starts_with('[') {
        0
    } else {
        earlier.iter().rposition(|line| line.trim().starts_with('['))?
    };
    let first = earlier[start..].iter().position(|line| key(line) == again)?;
    Some(start + first + 1)
}

/// A hint if this line is a table of a host that has to be quoted, such as `[domains.*.example.org]`.
fn unquoted_host(line: &str) -> Option<String> {
    let host = line.trim().strip_prefix("[domains.")?.split(']').next()?.trim();
    Pattern::parse(host).ok()?;
    Some(format!("; a host needs quotes: [domains.{}]", quoted_value(host)))
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
        _ if let Some(tables) = keys::tables_of(&key) => {
            let label = origin.label(&quoted(&key));
            faults.value(&label, &value.to_string(), &format!("{key} under {tables}"));
        }
        _ => {
            let known: Vec<_> = keys::top_level().chain(keys::TABLES).chain(["default", "domains"]).collect();
            layer::unknown(origin, &quoted(&key), &key, &value, &known, faults);
        }
    }
    entries
}

/// Larger files are certainly not configuration.
const BYTES_MAX: u64 = 8 << 20;
