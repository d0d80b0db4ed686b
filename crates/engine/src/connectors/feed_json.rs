//! Parses JSON Feed 1.0 and 1.1. A field of the wrong type counts as missing, and half a character is replaced, so that
//! one odd entry does not cost the rest.

use comity_store::details::Markup;
use serde_json::Value;
use url::Url;

use super::collector::{Collector, Room};
use super::details::DetailsBuilder;
use super::feed::{self, Entry, LOOK};
use super::json::Extent;
use super::{Kind, Unreadable, expected, json, normalize};
use crate::redact;

/// Parses a JSON feed into `collector`.
pub(super) fn read(text: &str, base: &Url, collector: &mut Collector) -> Result<(), Unreadable> {
    let (feed, extent) = json::parse(text).map_err(|error| invalid(text, &error))?;
    if !text_of(&feed, "version").contains("jsonfeed.org/version/") {
        return Err(feed::not_a_feed(format!("JSON, but not a JSON Feed; {LOOK}")));
    }
    collector.set_title(redact::line(text_of(&feed, "title")));
    let authors = authors(&feed);
    for item in feed.get("items").and_then(Value::as_array).into_iter().flatten() {
        if collector.next_entry() == Room::None {
            break;
        }
        entry(item, base, &authors).finish(collector);
    }
    if extent == Extent::Truncated {
        collector.truncated("the JSON breaks off; only the entries before that were read".to_owned());
    }
    Ok(())
}

fn entry(item: &Value, base: &Url, feed_authors: &[String]) -> Entry {
    let guid = match item.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let link = |key| normalize::fetchable(text_of(item, key), Some(base));
    let (html, text) = (text_of(item, "content_html"), text_of(item, "content_text"));
    let (content, content_markup) = match html.trim().is_empty() {
        true => (text, Markup::Text),
        false => (html, Markup::Html),
    };
    Entry {
        guid,
        // The specification recommends the URL as the id.
        guid_is_link: true,
        link: link("url").or_else(|| link("external_url")),
        title: redact::line(text_of(item, "title")),
        published: text_of(item, "date_published").to_owned(),
        updated: text_of(item, "date_modified").to_owned(),
        summary: text_of(item, "summary").to_owned(),
        summary_markup: Some(Markup::Text),
        content: content.to_owned(),
        content_markup: Some(content_markup),
        details: details(item, base, feed_authors),
        ..Entry::default()
    }
}

/// Authors, tags and attachments. The authors of the feed are used if an item has none.
fn details(item: &Value, base: &Url, feed_authors: &[String]) -> DetailsBuilder {
    let mut details = DetailsBuilder::default();
    let own = authors(item);
    let named = if own.is_empty() { feed_authors } else { &own };
    named.iter().for_each(|name| details.author(name));
    list(item, "tags").filter_map(Value::as_str).for_each(|tag| details.category(tag));
    for file in list(item, "attachments") {
        if let Some(url) = normalize::fetchable(text_of(file, "url"), Some(base)) {
            let media_type = file.get("mime_type").and_then(Value::as_str);
            details.enclosure(&url, media_type, file.get("size_in_bytes").and_then(Value::as_u64));
        }
    }
    details
}

/// The names of the authors, in the form of version 1.1 or 1.
fn authors(value: &Value) -> Vec<String> {
    let many = list(value, "authors").map(|author| text_of(author, "name"));
    let one = value.get("author").map(|author| text_of(author, "name"));
    let named = |name: &&str| !name.trim().is_empty();
    let many: Vec<String> = many.filter(named).take(100).map(str::to_owned).collect();
    match many.is_empty() {
        true => one.into_iter().filter(named).map(str::to_owned).collect(),
        false => many,
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The error with a byte position, as in other formats, instead of line and column.
fn invalid(text: &str, error: &serde_json::Error) -> Unreadable {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let at = before.saturating_add(error.column()) as u64;
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default().to_owned();
    Unreadable::Broken { expected: expected(Kind::Feed), format: "JSON", at, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connectors::feed::test_support::outline;

    #[test]
    fn both_versions_are_parsed_leniently() {
        for version in ["1", "1.1"] {
            let text = format!(
                " {{\"version\": \"https://jsonfeed.org/version/{version}\", \"title\": \"T\", \"items\": [\
                 {{\"id\": \"g\", \"url\": \"/1\", \"title\": \"One\", \"date_published\": \"2026-01-05T12:00:00Z\"}},\
                 {{\"id\": 7, \"external_url\": \"https://b.example/\", \"title\": null, \"date_modified\": \"x\"}},\
                 {{\"id\": \"https://a.example/3\"}}, {{\"title\": \"Lost\"}}, 5, null]}}"
            );
            assert_eq!(
                outline(&text),
                "T | guid:g https://a.example/1 One 2026-01-05T12:00:00Z | guid:7 https://b.example/ - - | \
                 guid:https://a.example/3 https://a.example/3 - - | entry 4 \"Lost\": no http or https link | \
                 entry 5: no http or https link | entry 6: no http or https link"
            );
        }
    }

    #[test]
    fn json_that_is_not_a_feed_is_rejected() {
        let other = "not a feed: the response is JSON, but not a JSON Feed; open its URL in a browser";
        assert_eq!(outline("{\"items\": []}"), other);
        assert_eq!(outline("{\"version\": 1}"), other);
        assert_eq!(outline("{\n\"a\": x}"), "not a feed: JSON error at byte 8: expected value");
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(outline(&deep).ends_with("recursion limit exceeded"));
        assert_eq!(outline("{\"version\": \"https://jsonfeed.org/version/1\", \"items\": 5}"), "-");
    }

    /// B82: one half of a surrogate pair used to fail the whole feed.
    #[test]
    fn a_field_that_is_not_valid_unicode_costs_only_itself() {
        let text = "{\"version\": \"https://jsonfeed.org/version/1.1\", \"title\": \"T\\ud83d\", \"items\": [\
                    {\"id\": \"1\", \"url\": \"/1\", \"title\": \"Half \\ud800 a pair\"},\
                    {\"id\": \"2\\udc00\", \"url\": \"/2\", \"title\": \"Two\nlines\"},\
                    {\"id\": \"3\", \"url\": \"/3\", \"attachments\": [{\"size_in_bytes\": 1e999}]}]}";
        assert_eq!(
            outline(text),
            "T\u{fffd} | guid:1 https://a.example/1 Half \u{fffd} a pair - | \
             guid:2\u{fffd} https://a.example/2 Two lines - | guid:3 https://a.example/3 - -"
        );
    }

    #[test]
    fn changed_content_changes_the_hash() {
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
