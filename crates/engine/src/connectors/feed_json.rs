//! Reading JSON Feed 1.0 and 1.1. A field of the wrong type is a field that is not there, so that one odd
//! entry does not lose the rest.

use serde_json::Value;
use url::Url;

use super::feed::{self, Entry, LOOK};
use super::gather::{Gather, Room};
use super::{Kind, Unreadable, expected, normalise};
use crate::shown;

/// Reads a feed of JSON into `gather`.
pub(super) fn read(text: &str, base: &Url, gather: &mut Gather) -> Result<(), Unreadable> {
    let feed: Value = serde_json::from_str(text).map_err(|error| broken(text, &error))?;
    if !words(&feed, "version").contains("jsonfeed.org/version/") {
        return Err(feed::not_a_feed(format!("JSON that is no JSON Feed; {LOOK}")));
    }
    gather.title(shown::line(words(&feed, "title")));
    for item in feed.get("items").and_then(Value::as_array).into_iter().flatten() {
        if gather.next_entry() == Room::None {
            break;
        }
        entry(item, base).settle(gather);
    }
    Ok(())
}

fn entry(item: &Value, base: &Url) -> Entry {
    let guid = match item.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let link = |key| normalise::fetchable(words(item, key), Some(base));
    let both = |first, second| [words(item, first), words(item, second)].join("\n");
    Entry {
        guid,
        // By its own rules an id is ideally the address.
        guid_is_link: true,
        link: link("url").or_else(|| link("external_url")),
        title: shown::line(words(item, "title")),
        published: words(item, "date_published").to_owned(),
        updated: words(item, "date_modified").to_owned(),
        summary: words(item, "summary").to_owned(),
        content: both("content_html", "content_text"),
    }
}

fn words<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// An error whose line and column are made the byte that other errors name.
fn broken(text: &str, error: &serde_json::Error) -> Unreadable {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = before.saturating_add(error.column()) as u64;
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default().to_owned();
    Unreadable::Broken { expected: expected(Kind::Feed), format: "JSON", at, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::feed::told::told;

    #[test]
    fn both_versions_are_read_kindly() {
        for version in ["1", "1.1"] {
            let text = format!(
                " {{\"version\": \"https://jsonfeed.org/version/{version}\", \"title\": \"T\", \"items\": [\
                 {{\"id\": \"g\", \"url\": \"/1\", \"title\": \"One\", \"date_published\": \"2026-01-05T12:00:00Z\"}},\
                 {{\"id\": 7, \"external_url\": \"https://b.example/\", \"title\": null, \"date_modified\": \"x\"}},\
                 {{\"id\": \"https://a.example/3\"}}, {{\"title\": \"Lost\"}}, 5, null]}}"
            );
            assert_eq!(
                told(&text),
                "T | guid:g https://a.example/1 One 2026-01-05T12:00:00Z | guid:7 https://b.example/ - - | \
                 guid:https://a.example/3 https://a.example/3 - - | entry 4 \"Lost\": no http or https link | \
                 entry 5: no http or https link | entry 6: no http or https link"
            );
        }
    }

    #[test]
    fn what_is_no_json_feed_says_so() {
        let other = "not a feed: the answer is JSON that is no JSON Feed; look at its address in a browser";
        assert_eq!(told("{\"items\": []}"), other);
        assert_eq!(told("{\"version\": 1}"), other);
        assert_eq!(told("{\n\"a\": x}"), "not a feed: JSON error at byte 8: expected value");
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(told(&deep).ends_with("recursion limit exceeded"));
        assert_eq!(told("{\"version\": \"https://jsonfeed.org/version/1\", \"items\": 5}"), "-");
    }

    #[test]
    fn changed_content_has_another_hash() {
        let hash = |content: &str| {
            let text = format!(
                "{{\"version\":\"https://jsonfeed.org/version/1\",\"items\":[{{\"url\":\"/\",\"content_text\":\"{content}\"}}]}}"
            );
            feed::read(&text, &Url::parse("https://a.example/").unwrap()).unwrap().items[0].hash
        };
        assert_eq!(hash("a"), hash("a"));
        assert_ne!(hash("a"), hash("b"));
    }
}
