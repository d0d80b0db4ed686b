//! Stores what sources say about items.

use rusqlite::{OptionalExtension, Row, params};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::Sqlite;
use super::writer::Tx;
use crate::Reply;
use crate::details::{DetailStore, Details, Enclosure, Markup, Passage};
use crate::items::ItemId;

impl DetailStore for Sqlite {
    fn find_details(&self, items: Vec<ItemId>) -> Reply<'_, Vec<Details>> {
        self.read(move |tx| items.iter().map(|item| tx.details(*item)).collect())
    }
}

impl Tx<'_> {
    fn details(&self, item: ItemId) -> rusqlite::Result<Details> {
        let sql = "SELECT item_id, summary, summary_html, content, content_html, author, categories, enclosures, truncated
            FROM item_details WHERE item_id = ?1";
        let found = self.readable("item_details", sql, [item.0], details_of)?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// Saves what a source says about an item now. Unchanged details are not written again.
    pub(super) fn keep_details(&self, item: i64, details: &Details) -> rusqlite::Result<()> {
        if details.is_empty() {
            let sql = "DELETE FROM item_details WHERE item_id = ?1";
            return self.sql.prepare_cached(sql)?.execute([item]).map(|_| ());
        }
        let hash = hash(details);
        let sql = "SELECT hash FROM item_details WHERE item_id = ?1";
        let known: Option<i64> =
            self.sql.prepare_cached(sql)?.query_row([item], |row| row.get(0)).optional()?;
        if known == Some(hash) {
            return Ok(());
        }
        let sql = "INSERT OR REPLACE INTO item_details (item_id, hash, summary, summary_html, content, content_html,
            author, categories, enclosures, truncated) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let (summary, summary_html) = columns(&details.summary);
        let (content, content_html) = columns(&details.content);
        self.sql.prepare_cached(sql)?.execute(params![
            item,
            hash,
            summary,
            summary_html,
            content,
            content_html,
            details.author,
            json!(details.categories).to_string(),
            enclosures_json(&details.enclosures).to_string(),
            json!(details.truncated).to_string(),
        ])?;
        Ok(())
    }
}

fn columns(passage: &Option<Passage>) -> (Option<&str>, bool) {
    let text = passage.as_ref().map(|passage| passage.text.as_str());
    (text, passage.as_ref().is_some_and(|passage| passage.markup == Markup::Html))
}

fn enclosures_json(enclosures: &[Enclosure]) -> Value {
    let object =
        |file: &Enclosure| json!({ "url": file.url, "type": file.media_type, "length": file.length });
    enclosures.iter().map(object).collect()
}

fn details_of(row: &Row<'_>) -> rusqlite::Result<Details> {
    let passage = |nth: usize| -> rusqlite::Result<Option<Passage>> {
        let markup = if row.get(nth + 1)? { Markup::Html } else { Markup::Text };
        Ok(row.get::<_, Option<String>>(nth)?.map(|text| Passage { text, markup }))
    };
    let list = |nth: usize| -> rusqlite::Result<Vec<Value>> {
        Ok(serde_json::from_str(&row.get::<_, String>(nth)?).unwrap_or_default())
    };
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let enclosures = list(7)?;
    let enclosures = enclosures.iter().filter_map(|file| {
        let (media_type, length) = (word(&file["type"]), file["length"].as_u64());
        word(&file["url"]).map(|url| Enclosure { url, media_type, length })
    });
    Ok(Details {
        summary: passage(1)?,
        content: passage(3)?,
        author: row.get(5)?,
        categories: list(6)?.iter().filter_map(word).collect(),
        enclosures: enclosures.collect(),
        truncated: list(8)?.iter().filter_map(word).collect(),
    })
}

/// A hash of everything that is stored.
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
