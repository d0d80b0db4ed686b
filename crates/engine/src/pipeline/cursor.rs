//! What is stored in the `cursor_json` of a source besides `last_fetch_at`: the validators for the next conditional
//! request, the earliest time for it, and where the source seems to have moved.
//!
//! Header values are stored byte for byte.

use comity_core::time::{Span, Timestamp};
use comity_store::sources::Source;
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use url::Url;

use super::plan::object;
use crate::connectors::Hints;

/// The cursor of a source.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cursor(Map<String, Value>);

impl Cursor {
    pub(crate) fn of(source: &Source) -> Self {
        Self(object("cursor_json", &source.cursor_json).unwrap_or_default())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// The earliest time for the next request, and the reason.
    pub(crate) fn not_before(&self) -> Option<(Timestamp, String)> {
        let until = Timestamp::parse(self.text(NOT_BEFORE)?).ok()?;
        Some((until, self.text(NOT_BEFORE_WHY).unwrap_or("its server asked for it").to_owned()))
    }

    /// The headers that make the next request conditional, and the URL they came from.
    pub(crate) fn conditions(&self) -> Option<(Url, Vec<(HeaderName, HeaderValue)>)> {
        let url = Url::parse(self.text(VALIDATORS_OF)?).ok()?;
        let value = |key| HeaderValue::from_bytes(&bytes_of(self.text(key)?)).ok();
        let conditions: Vec<_> = [(IF_NONE_MATCH, ETAG_KEY), (IF_MODIFIED_SINCE, MODIFIED_KEY)]
            .into_iter()
            .filter_map(|(name, key)| Some((name, value(key)?)))
            .collect();
        (!conditions.is_empty()).then_some((url, conditions))
    }

    /// What the feed said about when to fetch it again.
    pub(crate) fn hints(&self) -> Hints {
        let number = |key: &str| self.0.get(HINTS)?.get(key)?.as_u64();
        let span = |key| number(key).map(Span::from_secs);
        Hints {
            ttl: span("ttl_seconds"),
            update_every: span("update_seconds"),
            skip_hours: number("skip_hours").unwrap_or(0) as u32,
            skip_days: number("skip_days").unwrap_or(0) as u8,
        }
    }

    /// Where a permanent redirect led last time; the source moves there if it happens again.
    pub(crate) fn moved_to(&self) -> Option<&str> {
        self.text(MOVED_TO)
    }
}

/// The fields that a fetch sets in the cursor; null removes a field.
#[derive(Debug, Clone, Default)]
pub(crate) struct CursorChange(pub(crate) Map<String, Value>);

impl CursorChange {
    fn set(&mut self, key: &str, value: Option<Value>) {
        self.0.insert(key.to_owned(), value.unwrap_or(Value::Null));
    }

    /// Sets the validators of a new response from `url`.
    pub(crate) fn validators(&mut self, url: &Url, headers: &HeaderMap) {
        let value =
            |name| headers.get(name).map(|value: &HeaderValue| Value::from(text_of(value.as_bytes())));
        let (etag, modified) = (value(ETAG), value(LAST_MODIFIED));
        let url = (etag.is_some() || modified.is_some()).then(|| Value::from(url.as_str()));
        self.set(VALIDATORS_OF, url);
        self.set(ETAG_KEY, etag);
        self.set(MODIFIED_KEY, modified);
    }

    /// Sets what the feed says about when to fetch it again.
    pub(crate) fn hints(&mut self, hints: &Hints) {
        let secs = |span: Option<Span>| span.map(Span::as_secs_up);
        let value = json!({
            "ttl_seconds": secs(hints.ttl),
            "update_seconds": secs(hints.update_every),
            "skip_hours": hints.skip_hours,
            "skip_days": hints.skip_days,
        });
        self.set(HINTS, (*hints != Hints::default()).then_some(value));
    }

    /// Sets the earliest time for the next request, and the reason.
    pub(crate) fn not_before(&mut self, until: Option<(Timestamp, String)>) {
        let (at, why) = until.unzip();
        self.set(NOT_BEFORE, at.map(|at| Value::from(at.to_string())));
        self.set(NOT_BEFORE_WHY, why.map(Value::from));
    }

    /// Sets where a permanent redirect led.
    pub(crate) fn moved_to(&mut self, url: Option<&Url>) {
        self.set(MOVED_TO, url.map(|url| Value::from(url.as_str())));
    }
}

/// The bytes of a header as text, with one character per byte, so that they can be restored.
fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

const NOT_BEFORE: &str = "not_before";
const NOT_BEFORE_WHY: &str = "not_before_why";
const VALIDATORS_OF: &str = "validators_of";
const ETAG_KEY: &str = "etag";
const MODIFIED_KEY: &str = "last_modified";
const HINTS: &str = "hints";
const MOVED_TO: &str = "moved_to";

#[cfg(test)]
mod tests {
    use super::*;

    /// B66
    #[test]
    fn validators_are_restored_byte_for_byte() {
        let url = Url::parse("https://a.example/feed").unwrap();
        let mut headers = HeaderMap::new();
        let odd: Vec<u8> = (0x20..=0xff).filter(|byte| *byte != 0x7f).collect();
        headers.insert(ETAG, HeaderValue::from_bytes(&odd).unwrap());
        headers.insert(LAST_MODIFIED, HeaderValue::from_static("yesterday, roughly"));
        let mut change = CursorChange::default();
        change.validators(&url, &headers);
        let stored = serde_json::to_string(&Value::Object(change.0)).unwrap();
        let cursor = Cursor(serde_json::from_str(&stored).unwrap());
        let (validators_of, conditions) = cursor.conditions().unwrap();
        assert_eq!(validators_of, url);
        assert_eq!(conditions[0].0, IF_NONE_MATCH);
        assert_eq!(conditions[0].1.as_bytes(), odd);
        assert_eq!(conditions[1].1.as_bytes(), b"yesterday, roughly");
    }

    #[test]
    fn a_response_without_validators_removes_the_old_ones() {
        let url = Url::parse("https://a.example/feed").unwrap();
        let mut change = CursorChange::default();
        change.validators(&url, &HeaderMap::new());
        assert!(["validators_of", "etag", "last_modified"].iter().all(|key| change.0[*key].is_null()));
    }
}
