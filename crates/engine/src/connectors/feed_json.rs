//! Reading JSON Feed 1.0 and 1.1. A field of the wrong type is a field that is not there, so that one odd
//! entry does not lose the rest.

use comity_store::details::Markup;
use serde_json::Value;
use url::Url;

use super::details::Gathered;
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
    let authors = authors(&feed);
    for item in feed.get("items").and_then(Value::as_array).into_iter().flatten() {
        if gather.next_entry() == Room::None {
            break;
        }
        entry(item, base, &authors).settle(gather);
    }
    Ok(())
}

fn entry(item: &Value, base: &Url, feed_authors: &[String]) -> Entry {
    let guid = match item.get("id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let link = |key| normalise::fetchable(words(item, key), Some(base));
    let (html, text) = (words(item, "content_html"), words(item, "content_text"));
    let (content, content_markup) = match html.trim().is_empty() {
        true => (text, Markup::Text),
        false => (html, Markup::Html),
    };
    Entry {
        guid,
        // By its own rules an id is ideally the address.
        guid_is_link: true,
        link: link("url").or_else(|| link("external_url")),
        title: shown::line(words(item, "title")),
        published: words(item, "date_published").to_owned(),
        updated: words(item, "date_modified").to_owned(),
        summary: words(item, "summary").to_owned(),
        summary_markup: Some(Markup::Text),
        content: content.to_owned(),
        content_markup: Some(content_markup),
        gathered: gathered(item, base, feed_authors),
        ..Entry::default()
    }
}

/// Authors, tags and attachments; those of the feed wrote what has no author of its own.
fn gathered(item: &Value, base: &Url, feed_authors: &[String]) -> Gathered {
    let mut gathered = Gathered::default();
    let own = authors(item);
    let named = if own.is_empty() { feed_authors } else { &own };
    named.iter().for_each(|name| gathered.author(name));
    list(item, "tags").filter_map(Value::as_str).for_each(|tag| gathered.category(tag));
    for file in list(item, "attachments") {
        if let Some(url) = normalise::fetchable(words(file, "url"), Some(base)) {
            let media_type = file.get("mime_type").and_then(Value::as_str);
            gathered.enclosure(&url, media_type, file.get("size_in_bytes").and_then(Value::as_u64));
        }
    }
    gathered
}

/// The names of authors, as version 1.1 or 1 has them.
fn authors(value: &Value) -> Vec<String> {
    let many = list(value, "authors").map(|author| words(author, "name"));
    let one = value.get("author").map(|author| words(author, "name"));
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
