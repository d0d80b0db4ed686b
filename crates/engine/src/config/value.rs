//! Parses single values, either typed (from the file) or as text (from variables and flags).
//!
//! Errors are the end of the sentence "expected …". The values of rules are parsed by [`comity_core::rule::Fields`].

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use comity_core::domain::Domain;
use comity_core::interval;
use comity_core::time::Span;
use serde_json::Value;

use super::allow_private::PrivateAllowance;
use super::error;
use super::secret::{StoreUrl, without_password};
use super::size::Size;
use super::token::{PLAIN_MIN, Token};

/// What would have been accepted: the end of the sentence "expected …".
pub(super) type Expected = String;

/// A whole number in a range.
pub(super) fn integer(value: &Value, range: RangeInclusive<u32>) -> Result<u32, Expected> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| range.contains(number));
    number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
}

/// A whole number in a range, or `"none"` or `"unlimited"`.
pub(super) fn integer_or_none(value: &Value, range: RangeInclusive<u32>) -> Result<Option<u32>, Expected> {
    match value.as_str() {
        Some("none" | "unlimited") => Ok(None),
        _ => integer(value, range).map(Some).map_err(|expected| format!("{expected} or \"none\"")),
    }
}

/// A duration of at most `longest`.
pub(super) fn duration(value: &Value, longest: Span) -> Result<Span, Expected> {
    let span = match value {
        Value::String(text) => Span::parse(text).ok(),
        Value::Number(number) if number.as_f64() == Some(0.0) => Some(Span::ZERO),
        _ => None,
    };
    match span {
        Some(span) if span <= longest => Ok(span),
        Some(_) => Err(format!("a duration of at most {longest}")),
        None => Err("a duration such as \"3s\" or \"250ms\"".to_owned()),
    }
}

/// A duration above zero and of at most `longest`.
pub(super) fn positive_duration(value: &Value, longest: Span) -> Result<Span, Expected> {
    match duration(value, longest)? {
        Span::ZERO => Err(format!("a duration above zero and of at most {longest}")),
        span => Ok(span),
    }
}

/// A number of bytes in a range.
pub(super) fn size(value: &Value, range: RangeInclusive<Size>) -> Result<Size, Expected> {
    let size = match value {
        Value::Number(number) => number.as_u64().map(Size::from_bytes),
        Value::String(text) => Size::parse(text),
        _ => None,
    };
    let expected =
        || format!("a size from \"{}\" to \"{}\", or a number of bytes", range.start(), range.end());
    size.filter(|size| range.contains(size)).ok_or_else(expected)
}

/// One of a few words.
pub(super) fn one_of<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, Expected> {
    let known = words.iter().find(|(word, _)| value.as_str() == Some(word));
    let names = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    known.map(|(_, meaning)| *meaning).ok_or_else(|| format!("one of {}", names()))
}

/// A duration of at most `longest`, or `"none"`.
pub(super) fn duration_or_none(value: &Value, longest: Span) -> Result<Option<Span>, Expected> {
    match value.as_str() {
        Some("none" | "unlimited") => Ok(None),
        _ => duration(value, longest).map(Some).map_err(|expected| format!("{expected}, or \"none\"")),
    }
}

/// A duration above zero and of at most `longest`, or `"none"`.
pub(super) fn positive_duration_or_none(value: &Value, longest: Span) -> Result<Option<Span>, Expected> {
    match value.as_str() {
        Some("none" | "unlimited") => Ok(None),
        _ => match duration(value, longest) {
            Ok(span) if !span.is_zero() => Ok(Some(span)),
            _ => Err(format!("a duration such as \"30d\", above zero and of at most {longest}, or \"none\"")),
        },
    }
}

/// A folder.
pub(super) fn folder(value: &Value) -> Result<PathBuf, Expected> {
    let text = value.as_str().filter(|text| !text.trim().is_empty() && !text.contains('\0'));
    text.map(PathBuf::from).ok_or_else(|| "the path of a folder".to_owned())
}

/// A file, or `""` for none.
pub(super) fn file(value: &Value) -> Result<Option<PathBuf>, Expected> {
    match value.as_str() {
        Some("") => Ok(None),
        _ => folder(value).map(Some).map_err(|_| "the path of a file, or \"\"".to_owned()),
    }
}

/// An address with a port.
pub(super) fn address(value: &Value) -> Result<SocketAddr, Expected> {
    let text = value.as_str().map(str::trim);
    let text = text.map(|text| {
        text.strip_prefix("localhost:").map_or(text.to_owned(), |port| format!("127.0.0.1:{port}"))
    });
    let read = text.and_then(|text| text.parse().ok());
    read.ok_or_else(|| "an address and a port such as \"127.0.0.1:7878\" or \"[::1]:7878\"".to_owned())
}

/// Several texts: a list, or one text separated by commas.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        Value::String(text) => Some(text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect()),
        _ => None,
    }
}

/// Tokens as their hashes.
pub(super) fn tokens(value: &Value) -> Result<Vec<Token>, Expected> {
    let tokens = texts(value).and_then(|texts| texts.into_iter().map(Token::parse_hashed).collect());
    tokens.ok_or_else(|| {
        format!(
            "a list such as [\"use:sha256:…\"], each with a role (view, use or admin) and 64 hexadecimal digits (comity serve \
             --make-token use makes one); plain tokens, of at least {PLAIN_MIN} visible characters, are allowed only in \
             tokens_file and COMITY_SERVE_TOKENS"
        )
    })
}

/// Port numbers; an empty list allows none.
pub(super) fn ports(value: &Value) -> Result<Vec<u16>, Expected> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let ports: Option<Vec<u16>> = match value {
        Value::Array(list) => list.iter().map(|value| port(&value.to_string())).collect(),
        Value::Number(number) => port(&number.to_string()).map(|port| vec![port]),
        text => texts(text).and_then(|texts| texts.into_iter().map(port).collect()),
    };
    ports.ok_or_else(|| "port numbers such as [443, 8443]".to_owned())
}

/// Host names.
pub(super) fn hosts(value: &Value) -> Result<Vec<String>, Expected> {
    let fits = |text: &&str| !text.is_empty() && !text.contains(['/', '@', ' ', '*']);
    let hosts = texts(value).filter(|texts| texts.iter().all(fits));
    let hosts = hosts.map(|texts| texts.into_iter().map(str::to_ascii_lowercase).collect());
    hosts.ok_or_else(|| "host names such as [\"comity.internal\"]".to_owned())
}

/// The global `scrape.min_interval`; `None` turns it off.
pub(super) fn interval(value: &Value) -> Result<Option<Span>, Expected> {
    let text = match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    let read = text.map(|text| interval::parse_global(&text).map_err(|error| error.expected));
    read.unwrap_or(Err("decimal seconds such as 2.5"))
        .map_err(|expected| format!("{expected}, or \"\" for none"))
}

/// The URL of a store.
pub(super) fn store(value: &Value) -> Result<StoreUrl, Expected> {
    let is_file = |text: &&str| text.ends_with(".db") && text.len() < 200 && !text.contains([':', '@']);
    let expected = || match value.as_str().filter(is_file) {
        Some(file) => {
            format!("{STORE}; did you mean {}?", super::error::quoted_value(&format!("sqlite:{file}")))
        }
        None => STORE.to_owned(),
    };
    let url = value.as_str().and_then(StoreUrl::parse).ok_or_else(expected)?;
    match comity_store::is_supported(url.as_str()) {
        true => Ok(url),
        false => Err(format!("{STORE}; this build does not support that kind of store")),
    }
}

/// Text that is valid in a `User-Agent` header.
pub(super) fn agent(value: &Value) -> Result<String, Expected> {
    let text = value.as_str().filter(|text| fits_header(text) && !text.is_empty());
    let expected = || format!("1 to {HEADER_TEXT_MAX} visible ASCII characters such as \"Comity/0.1\"");
    text.map(str::to_owned).ok_or_else(expected)
}

/// Text with an email address or a URL that is valid in the comment of a `User-Agent` header; empty means none.
pub(super) fn contact(value: &Value) -> Result<Option<String>, Expected> {
    if value.as_str() == Some("") {
        return Ok(None);
    }
    let words = |text: &str| text.split([' ', ',', ';', '<', '>']).any(is_reachable);
    let text = value.as_str().filter(|text| fits_header(text) && !text.contains(['(', ')', '\\']));
    let expected = || {
        format!(
            "an email address or URL such as \"ops@example.org\" or \"https://example.org/bot\", of at most \
             {HEADER_TEXT_MAX} visible ASCII characters and no parentheses or backslashes"
        )
    };
    text.filter(|text| words(text)).map(|text| Some(text.to_owned())).ok_or_else(expected)
}

/// Whether somebody can be reached by this: an email address, or an http or https URL.
fn is_reachable(word: &str) -> bool {
    let address = word.strip_prefix("mailto:").unwrap_or(word).split_once('@');
    let is_mail = address.is_some_and(|(user, host)| !user.is_empty() && Domain::parse(host).is_ok());
    let is_url = word.starts_with("http://") || word.starts_with("https://");
    (is_mail && !word.contains("//")) || (is_url && Domain::of_url(word).is_ok())
}

/// Hosts, addresses and networks, as a list or as one text separated by commas.
pub(super) fn allowance(value: &Value) -> Result<PrivateAllowance, Expected> {
    let expected = "hosts, addresses and networks such as [\"intranet.example\", \"10.0.0.0/8\"]";
    let read = texts(value).map(PrivateAllowance::parse).ok_or_else(|| expected.to_owned())?;
    read.map_err(|entry| {
        format!("{expected}; {} is none of them", error::quoted_value(&without_password(entry)))
    })
}

fn fits_header(text: &str) -> bool {
    let visible = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    visible && text.len() <= HEADER_TEXT_MAX && text.trim() == text
}

const HEADER_TEXT_MAX: usize = 200;

/// The kinds of stores that this build supports.
#[cfg(feature = "postgres")]
const STORE: &str = "\"sqlite:FILE\", \"postgres://HOST/DATABASE\" or \"memory:\"";
#[cfg(not(feature = "postgres"))]
const STORE: &str = "\"sqlite:FILE\" or \"memory:\"";
