//! The line on which each key of a file was written, so that messages can point there.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

/// The lines of the keys of a table.
#[derive(Debug, Default)]
pub(super) struct Lines(BTreeMap<String, Key>);

/// A key, and what is below it.
#[derive(Debug)]
struct Key {
    line: usize,
    below: Lines,
}

impl Lines {
    /// The lines of the keys of `table`, which was parsed from `text`.
    pub(super) fn new(text: &str, table: &DeTable<'_>) -> Self {
        let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        Self::below(&breaks, table)
    }

    fn below(breaks: &[usize], table: &DeTable<'_>) -> Self {
        let key = |value: &DeValue<'_>, start: usize| Key {
            line: breaks.partition_point(|at| *at < start) + 1,
            below: value.as_table().map(|table| Self::below(breaks, table)).unwrap_or_default(),
        };
        let keys = table.iter();
        let keys =
            keys.map(|(name, value)| (name.get_ref().to_string(), key(value.get_ref(), name.span().start)));
        Self(keys.collect())
    }

    /// The line of the key at `path`, or of the innermost table on the way there that was written.
    pub(super) fn of(&self, path: &str) -> Option<usize> {
        let (mut line, mut lines) = (None, self);
        for name in names(path) {
            let Some(key) = lines.0.get(&name) else { break };
            (line, lines) = (Some(key.line), &key.below);
        }
        line
    }
}

/// The names that a path consists of, without their quotes.
pub(super) fn names(path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let (name, length) = match quoted.next() {
            Some(Ok(name)) => (name, quoted.byte_offset()),
            _ => {
                let end = rest.find('.').unwrap_or(rest.len());
                (rest[..end].to_owned(), end)
            }
        };
        names.push(name);
        rest = rest[length..].strip_prefix('.').unwrap_or_default();
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_the_line_it_was_written_on() {
        let text = "store = 1\n\n[domains.\"a.b\"]\nlearn.step = 2\n[domains.\"*.c\".request]\n\
                    headers = { \"x y\" = 1 }\n[job]\r\nconcurrency = 3\n[domains.\"a.b\".intent.search]\nburst=1";
        let lines = Lines::new(text, DeTable::parse(text).unwrap().get_ref());
        for (path, line) in [
            ("store", Some(1)),
            ("domains.\"a.b\"", Some(3)),
            ("domains.\"a.b\".learn.step", Some(4)),
            ("domains.\"a.b\".intent.search.burst", Some(10)),
            ("domains.\"*.c\".request.headers.\"x y\"", Some(6)),
            ("job.concurrency", Some(8)),
            ("job.other", Some(7)),
            ("domains.a.b", Some(3)),
            ("zzz.a", None),
            ("", None),
        ] {
            assert_eq!(lines.of(path), line, "{path}");
        }
    }
}
