//! An item as JSON, for exports and for the stdin of `run --exec` commands. Scripts rely on its keys.

use comity::core::time::Timestamp;
use comity::redact::without_user;
use comity::store::details::{Details, Enclosure, Passage};
use comity::store::items::Item;
use serde_json::{Value, json};

/// The keys of a row, in the order of CSV columns.
pub(crate) const COLUMNS: [&str; 21] = [
    "id",
    "source",
    "url",
    "title",
    "published_at",
    "seen_at",
    "state",
    "status",
    "file",
    "content_type",
    "bytes",
    "scraped_at",
    "author",
    "categories",
    "enclosures",
    "summary",
    "summary_markup",
    "content",
    "content_markup",
    "truncated",
    "error",
];

/// An item with its feed's details.
pub(crate) fn of(item: &Item, details: &Details) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let mut row = json!({
        "id": item.id.0,
        "source": item.source.0,
        "url": without_user(&item.url),
        "title": item.title,
        "published_at": time(item.published_at),
        "seen_at": item.seen_at.to_string(),
        "state": item.state.as_str(),
        "status": item.status,
        "file": item.file,
        "content_type": item.content_type,
        "bytes": item.bytes,
        "scraped_at": time(item.scraped_at),
        "error": item.error,
    });
    add_details(&mut row, details);
    row
}

/// Adds the feed's details to an item's object.
pub(crate) fn add_details(row: &mut Value, details: &Details) {
    let file = |file: &Enclosure| json!({ "url": without_user(&file.url), "type": file.media_type, "length": file.length });
    let text = |passage: &Option<Passage>| passage.as_ref().map(|passage| passage.text.clone());
    let markup = |passage: &Option<Passage>| passage.as_ref().map(|passage| passage.markup.as_str());
    row["author"] = json!(details.author);
    row["categories"] = json!(details.categories);
    row["enclosures"] = details.enclosures.iter().map(file).collect();
    row["summary"] = json!(text(&details.summary));
    row["summary_markup"] = json!(markup(&details.summary));
    row["content"] = json!(text(&details.content));
    row["content_markup"] = json!(markup(&details.content));
    row["truncated"] = json!(details.truncated);
}
