//! Parses JSON written by strangers. What is wrong inside one value costs only that: U+FFFD stands for half a surrogate
//! pair, `null` for a number that is too large or for a value that is nested too deep. If the text breaks off, what is
//! complete is used, and what follows the JSON is ignored. Everything else that isn't JSON is an error.

use serde_json::{Deserializer, Error, Value};

/// How much of the JSON there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// It broke off.
    Truncated,
}

/// Parses `text`; the error is about `text` as it was written.
pub(super) fn parse(text: &str) -> Result<(Value, Extent), Error> {
    // Almost all JSON is valid, so nothing is repaired before there is an error.
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok((value, Extent::Whole)),
        Err(error) => error,
    };
    let repaired = repaired(text);
    match Deserializer::from_str(&repaired).into_iter().next() {
        Some(Ok(value)) => Ok((value, Extent::Whole)),
        Some(Err(broken)) if broken.is_eof() => {
            let closed = closed(&repaired).and_then(|closed| serde_json::from_str(&closed).ok());
            closed.map(|value| (value, Extent::Truncated)).ok_or(error)
        }
        _ => Err(error),
    }
}

/// The text up to its last complete value in an object, or in an array of an object, with the brackets that are missing.
fn closed(text: &str) -> Option<String> {
    let (mut open, mut complete) = (Vec::new(), None);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => {
                open.pop();
                if let 1 | 2 = open.len() {
                    complete = Some((at + 1, open.clone()));
                }
            }
            '"' => {
                while let Some((_, letter)) = letters.next() {
                    match letter {
                        '\\' => drop(letters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let (end, open) = complete?;
    Some(text[..end].chars().chain(open.into_iter().rev()).collect())
}

/// The text with every string, number and nested value replaced by one that can be parsed.
fn repaired(text: &str) -> String {
    let mut repaired = String::with_capacity(text.len() + 16);
    let (mut rest, mut depth) = (text, 0_usize);
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' => string(rest, &mut repaired),
            '[' | '{' if depth == DEPTH_MAX => {
                repaired.push_str("null");
                after_nested(rest)
            }
            'N' | 'I' | '-'
                if let Some(after) = NOT_NUMBERS.iter().find_map(|word| rest.strip_prefix(word)) =>
            {
                repaired.push_str("null");
                after
            }
            '-' | '0'..='9' => number(rest, &mut repaired),
            _ => {
                match first {
                    '[' | '{' => depth += 1,
                    ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                repaired.push(first);
                &rest[first.len_utf8()..]
            }
        };
    }
    repaired
}

/// What follows the array or object that `text` starts with.
fn after_nested(text: &str) -> &str {
    let (mut rest, mut depth, mut unused) = (text, 0_usize, String::new());
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '"' => {
                unused.clear();
                string(rest, &mut unused)
            }
            _ => &rest[first.len_utf8()..],
        };
        match first {
            '[' | '{' => depth += 1,
            ']' | '}' if depth == 1 => return rest,
            ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    rest
}

/// Adds the string that `text` starts with to `repaired`, and returns what follows it.
fn string<'a>(text: &'a str, repaired: &mut String) -> &'a str {
    repaired.push('"');
    let mut rest = &text[1..];
    while let Some(at) = rest.find(|letter: char| matches!(letter, '"' | '\\' | '\0'..='\x1f')) {
        repaired.push_str(&rest[..at]);
        rest = &rest[at..];
        match rest.as_bytes()[0] {
            b'"' => {
                repaired.push('"');
                return &rest[1..];
            }
            b'\\' => rest = escape(rest, repaired),
            control => {
                repaired.push_str(&format!("\\u{control:04x}"));
                rest = &rest[1..];
            }
        }
    }
    // It doesn't end, which is an error.
    repaired.push_str(rest);
    ""
}

/// Adds the escape sequence that `text` starts with, and returns what follows it.
fn escape<'a>(text: &'a str, repaired: &mut String) -> &'a str {
    let length = match (text.as_bytes().get(1), code_unit(text)) {
        (Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't'), _) => 2,
        (_, Some(0xd800..=0xdbff)) if matches!(code_unit(&text[6..]), Some(0xdc00..=0xdfff)) => 12,
        (_, Some(0xd800..=0xdfff)) => {
            repaired.push_str("\\ufffd");
            return &text[6..];
        }
        (_, Some(_)) => 6,
        // Not an escape sequence, so the backslash stands for itself.
        (_, None) => {
            repaired.push_str("\\\\");
            return &text[1..];
        }
    };
    repaired.push_str(&text[..length]);
    &text[length..]
}

/// The UTF-16 code unit of the escape sequence that `text` starts with.
fn code_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
}

/// Adds the number that `text` starts with, and returns what follows it.
fn number<'a>(text: &'a str, repaired: &mut String) -> &'a str {
    let is_part = |letter: char| letter.is_ascii_digit() || matches!(letter, '-' | '+' | '.' | 'e' | 'E');
    let end = text.find(|letter| !is_part(letter)).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let is_too_large = number.parse::<f64>().is_ok_and(f64::is_infinite);
    repaired.push_str(if is_too_large { "null" } else { number });
    rest
}

/// What some programs write, and JSON doesn't have.
const NOT_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
/// How deep values may be nested, below the parser's own limit.
const DEPTH_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn one_broken_string_or_number_costs_only_itself() {
        for (text, expected) in [
            (r#"["\ud800", "b"]"#, json!(["\u{fffd}", "b"])),
            (r#"["a\udc00b\ud83d", 1]"#, json!(["a\u{fffd}b\u{fffd}", 1])),
            (r#"["\ud83d\ude00\ud800"]"#, json!(["\u{1f600}\u{fffd}"])),
            (r#"["\ud800\ud83d\ude00"]"#, json!(["\u{fffd}\u{1f600}"])),
            (r#"["\ud800\u0041"]"#, json!(["\u{fffd}A"])),
            (r#"["\\ud800", "\ud800"]"#, json!(["\\ud800", "\u{fffd}"])),
            (r#"{"\ud800": "\"\/\b\f\n\r\t\u00e9é"}"#, json!({"\u{fffd}": "\"/\u{8}\u{c}\n\r\té\u{e9}"})),
            ("[\"a\nb\tc\0\"]", json!(["a\nb\tc\0"])),
            (r#"["\x41 \' \u12 \u00zz \é"]"#, json!(["\\x41 \\' \\u12 \\u00zz \\é"])),
            (r#"[1e999, -1E+999, 1.5, 2e3, "1e999"]"#, json!([null, null, 1.5, 2e3, "1e999"])),
            (r#"[NaN, -Infinity, Infinity, "NaN"] and more"#, json!([null, null, null, "NaN"])),
        ] {
            assert_eq!(parse(text).unwrap(), (expected, Extent::Whole), "{text}");
        }
        let deep = format!("[{}\"]\"{}, 7]", "[".repeat(10_000), "]".repeat(10_000));
        let (value, _) = parse(&deep).unwrap();
        assert_eq!(value[1], 7);
    }

    #[test]
    fn json_that_breaks_off_is_read_up_to_there() {
        let text = r#"{"a": 1, "items": [{"id": "}]\""}, {"id": [2]}], "b": {"c": 3}, "d": "x"}"#;
        for (end, items) in (1..text.len()).map(|end| (end, &text[..end])) {
            let Ok((value, extent)) = parse(items) else {
                assert!(end < text.find("}, {").unwrap() + 1, "{items}");
                continue;
            };
            assert_eq!(extent, Extent::Truncated, "{items}");
            assert_eq!(value["items"][0]["id"], "}]\"", "{items}");
        }
        assert_eq!(parse(text).unwrap().1, Extent::Whole);
    }

    #[test]
    fn everything_else_that_is_not_json_is_an_error() {
        for text in
            ["", "[", "[\"a", "[\"\\", "[\"\\u", "[\"\\ud800", "{a: 1}", "[1 2]", "[--1]", "[1e]", "x"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        let error = parse("[\"\\ud800\",\n x]").unwrap_err();
        assert_eq!(error.line(), 1, "the first problem is reported: {error}");
    }

    proptest! {
        /// Valid JSON is not changed, whatever it contains.
        #[test]
        fn valid_json_is_parsed_as_it_is(strings in prop::collection::vec("\\PC*", 0..4), numbers: Vec<f64>) {
            let value = json!({ "strings": strings, "numbers": numbers });
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                prop_assert_eq!(parsed(&repaired(&text)), parsed(&text));
            }
        }

        /// Any string is parsed, whatever is between its quotes, and so is what follows it.
        #[test]
        fn any_string_is_parsed(inside in r#"([a-z"]|\\["\\/bfnrtux']|\\u[d0][89a-f0-2][0-9]{2}|[\x00-\x1fé])*"#) {
            let text = format!("[\"{}\", 7]", inside.replace('"', "'"));
            // A backslash at the end would escape the quote.
            prop_assume!(!inside.replace("\\\\", "").ends_with('\\'));
            let (value, _) = parse(&text).unwrap();
            prop_assert_eq!(&value[1], &json!(7));
            prop_assert!(value[0].is_string());
        }
    }
}
