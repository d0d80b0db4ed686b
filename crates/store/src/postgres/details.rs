//! Stores what sources say about items.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Value, json};
use tokio_postgres::Row;
use xxhash_rust::xxh3::Xxh3;

use super::Postgres;
use super::failure::Result;
use super::param::{opt_text, text};
use super::tx::Tx;
use crate::Reply;
use crate::details::{DetailStore, Details, Enclosure, Markup, Passage};
use crate::items::ItemId;

impl DetailStore for Postgres {
    fn find_details(&self, items: Vec<ItemId>) -> Reply<'_, Vec<Details>> {
        self.read(move |tx| {
            let ids: Vec<i64> = items.iter().map(|item| item.0).collect();
            let sql = "SELECT item_id, summary, summary_html, content, content_html, author, categories, enclosures,
                truncated FROM item_details WHERE item_id = ANY($1)";
            let rows = tx.rows(sql, &[&ids])?;
            let found: HashMap<i64, Details> =
                rows.iter().map(|row| (row.get(0), details_of(row))).collect();
            Ok(ids.iter().map(|id| found.get(id).cloned().unwrap_or_default()).collect())
        })
    }
}

/// What a source says about an item now.
pub(super) struct Keep<'a> {
    pub(super) item: i64,
    pub(super) details: &'a Details,
    /// The hash of the details that are stored, if there are any.
    pub(super) known: Option<i64>,
}

impl Tx<'_> {
    /// Saves what a source says about items now. Unchanged details are not written again.
    pub(super) fn keep_details(&mut self, items: Vec<Keep<'_>>) -> Result<()> {
        let (empty, full): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.details.is_empty());
        // A new item without details has none to delete.
        let outdated: Vec<i64> =
            empty.iter().filter(|item| item.known.is_some()).map(|item| item.item).collect();
        if !outdated.is_empty() {
            self.change("DELETE FROM item_details WHERE item_id = ANY($1)", &[&outdated])?;
        }
        let hashed = full.into_iter().map(|item| (hash(item.details), item));
        let changed: Vec<(i64, Keep<'_>)> = hashed.filter(|(hash, item)| item.known != Some(*hash)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = changed.iter().map(|(_, item)| item.item).collect();
        let hashes: Vec<i64> = changed.iter().map(|(hash, _)| *hash).collect();
        let all = || changed.iter().map(|(_, item)| item.details);
        let (summaries, summaries_html): (Vec<_>, Vec<_>) = all().map(|of| columns(&of.summary)).unzip();
        let (contents, contents_html): (Vec<_>, Vec<_>) = all().map(|of| columns(&of.content)).unzip();
        let authors: Vec<_> = all().map(|of| opt_text(of.author.as_deref())).collect();
        let categories: Vec<String> = all().map(|of| json!(of.categories).to_string()).collect();
        let enclosures: Vec<String> = all().map(|of| enclosures_json(&of.enclosures).to_string()).collect();
        let truncated: Vec<String> = all().map(|of| json!(of.truncated).to_string()).collect();
        let sql =
            "INSERT INTO item_details (item_id, hash, summary, summary_html, content, content_html, author,
                categories, enclosures, truncated)
            SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            ON CONFLICT (item_id) DO UPDATE SET hash = excluded.hash, summary = excluded.summary,
                summary_html = excluded.summary_html, content = excluded.content,
                content_html = excluded.content_html, author = excluded.author,
                categories = excluded.categories, enclosures = excluded.enclosures,
                truncated = excluded.truncated";
        self.change(
            sql,
            &[
                &ids,
                &hashes,
                &summaries,
                &summaries_html,
                &contents,
                &contents_html,
                &authors,
                &categories,
                &enclosures,
                &truncated,
            ],
        )
        .map(|_| ())
    }
}

fn columns(passage: &Option<Passage>) -> (Option<Cow<'_, str>>, bool) {
    let words = passage.as_ref().map(|passage| text(&passage.text));
    (words, passage.as_ref().is_some_and(|passage| passage.markup == Markup::Html))
}

fn enclosures_json(enclosures: &[Enclosure]) -> Value {
    let object =
        |file: &Enclosure| json!({ "url": file.url, "type": file.media_type, "length": file.length });
    enclosures.iter().map(object).collect()
}

fn details_of(row: &Row) -> Details {
    let passage = |nth: usize| {
        let markup = if row.get(nth + 1) { Markup::Html } else { Markup::Text };
        row.get::<_, Option<String>>(nth).map(|text| Passage { text, markup })
    };
    let list = |nth: usize| serde_json::from_str::<Vec<Value>>(row.get(nth)).unwrap_or_default();
    let words = |list: Vec<Value>| list.iter().filter_map(word).collect();
    let enclosures = list(7);
    let enclosures = enclosures.iter().filter_map(|file| {
        let (media_type, length) = (word(&file["type"]), file["length"].as_u64());
        word(&file["url"]).map(|url| Enclosure { url, media_type, length })
    });
    Details {
        summary: passage(1),
        content: passage(3),
        author: row.get(5),
        categories: words(list(6)),
        enclosures: enclosures.collect(),
        truncated: words(list(8)),
    }
}

fn word(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// A hash of everything that is stored. It is the same in every backend, so that details can be copied between them.
fn hash(details: &Details) -> i64 {
    let mut hash = Xxh3::new();
    let mut add = |text: &str| {
        // The length prefix ensures that text moving from one field to the next changes the hash.
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for passage in [&details.summary, &details.content] {
        add(passage.as_ref().map_or("", |passage| passage.markup.as_str()));
        add(passage.as_ref().map_or("", |passage| &passage.text));
    }
    add(details.author.as_deref().unwrap_or_default());
    add(&json!(details.categories).to_string());
    add(&enclosures_json(&details.enclosures).to_string());
    add(&json!(details.truncated).to_string());
    hash.digest() as i64
}
