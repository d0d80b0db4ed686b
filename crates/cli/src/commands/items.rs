//! `comity items list` and `comity items show`. Exports are in `export`, their rows in `row`, texts in `text`.

mod export;
pub(crate) mod row;
mod text;

use std::path::Path;

use comity::clock::Clock;
use comity::config::Config;
use comity::core::time::Timestamp;
use comity::redact::without_user;
use comity::store::Store;
use comity::store::details::{Details, Markup, Passage};
use comity::store::items::{Item, ItemId, ItemState, Order, ScrapeLog};
use comity::store::sources::SourceId;
use comity::store::tasks::Lead;
use serde_json::{Value, json};

use super::{report, sources, table};
use crate::args::{Global, Items};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, command: Items) -> anyhow::Result<u8> {
    let store = setup::open_existing_store(config)?;
    match command {
        Items::List { source, state, limit, after } => {
            if let Some(source) = source {
                sources::find(&*store, source).await?;
            }
            let source = source.map(SourceId);
            let order = after.map_or(Order::Newest, |after| Order::After(ItemId(after)));
            list(
                global,
                &*store,
                comity::store::items::ItemQuery { source, state, order, limit, ..Default::default() },
            )
            .await
        }
        Items::Export(args) => export::run(&*store, &args).await,
        Items::Show { id, text: false } => show(global, &*store, id).await,
        Items::Show { id, text: true } => show_text(global, &find(&*store, id).await?),
    }
}

async fn list(
    global: &Global,
    store: &dyn Store,
    which: comity::store::items::ItemQuery,
) -> anyhow::Result<u8> {
    let items = store.list_items(which).await?;
    if global.json {
        let items: Vec<Value> = items.iter().map(object).collect();
        output::object(&json!({ "items": items }));
        return Ok(exit::DONE);
    }
    let Some(last) = items.last() else {
        output::line("No matching items yet");
        return Ok(exit::DONE);
    };
    let room = table::room(OTHERS);
    let rows: Vec<_> = items
        .iter()
        .map(|item| {
            [
                item.id.to_string(),
                item.source.to_string(),
                state(item),
                item.published_at.map_or("-".to_owned(), report::moment),
                table::cut(item.title.as_deref().unwrap_or("-"), room),
                without_user(&item.url),
            ]
        })
        .collect();
    table::write(["id", "source", "state", "published", "title", "url"], &rows);
    if items.len() as u64 == u64::from(which.limit) && !global.quiet {
        match which.order {
            Order::After(_) => {
                output::remark(&format!("There may be more; continue with --after {last}", last = last.id))
            }
            _ => output::remark(
                "There may be more; raise --limit, or start with the oldest item with --after 0",
            ),
        }
    }
    Ok(exit::DONE)
}

/// The item's state, with the time until which it is deferred.
fn state(item: &Item) -> String {
    match (item.state, item.wake_at) {
        (ItemState::Waiting, Some(until)) if until > Clock::new().now() => {
            format!("deferred until {}", report::moment(until))
        }
        (state, _) => state.as_str().to_owned(),
    }
}

async fn find(store: &dyn Store, id: i64) -> anyhow::Result<Item> {
    store
        .find_item(ItemId(id))
        .await?
        .ok_or_else(|| exit::usage(format!("item = {id}: no such item; comity items list shows all items")))
}

async fn show(global: &Global, store: &dyn Store, id: i64) -> anyhow::Result<u8> {
    let item = find(store, id).await?;
    let scrapes = store.list_scrapes(item.id, SCRAPES).await?;
    let source = store.find_source(item.source).await?;
    let details = store.find_details(vec![item.id]).await?.pop().unwrap_or_default();
    if global.json {
        let mut object = object(&item);
        row::add_details(&mut object, &details);
        object["scrapes"] = scrapes.iter().map(scrape_object).collect();
        output::object(&object);
        return Ok(exit::DONE);
    }
    let moment = |at: Option<Timestamp>| at.map(report::moment);
    let title = item.title.as_deref().unwrap_or("(untitled)");
    output::line(&format!("{} {title}: {}", item.id, state(&item)));
    let facts = [
        ("source", source.map(|source| format!("{} {}", source.id, source.name))),
        ("url", Some(without_user(&item.url))),
        ("found via", Some(found_via(item.lead).to_owned())),
        ("identity", Some(without_user(&item.identity))),
        ("published", moment(item.published_at)),
        ("first seen", moment(Some(item.seen_at))),
        ("changed", moment(item.changed_at)),
        ("content hash", Some(format!("{:016x}", item.content_hash))),
        ("scraped", moment(item.scraped_at)),
        ("page of", item.scraped_as.map(|other| format!("item {other}, which has the same URL"))),
        ("status", item.status.map(|status| status.to_string())),
        ("bytes", item.bytes.map(|bytes| bytes.to_string())),
        ("file", item.file.clone()),
        ("error", item.error.clone()),
    ];
    for (key, value) in facts {
        if let Some(value) = value {
            output::line(&format!("  {key:14} {value}"));
        }
    }
    for (key, value) in feed_facts(&details) {
        output::line(&format!("  {key:14} {value}"));
    }
    for scrape in &scrapes {
        output::line(&format!("  {}", scrape_line(scrape)));
    }
    Ok(exit::DONE)
}

/// Who listed the item's URL.
fn found_via(lead: Lead) -> &'static str {
    match lead {
        Lead::Listed => "a source you added",
        Lead::Remote => "a remote page, feed or redirect (private addresses are blocked)",
    }
}

/// What the feed provided, one line per fact; texts are shortened.
fn feed_facts(details: &Details) -> Vec<(&'static str, String)> {
    let shortened = |passage: &Passage| {
        let text = match passage.markup {
            Markup::Html => comity::connectors::text::plain(&passage.text),
            Markup::Text => passage.text.clone(),
        };
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!(
            "{} ({}, {} bytes)",
            table::cut(&line, TEXT_SHOWN),
            passage.markup.as_str(),
            passage.text.len()
        )
    };
    let mut facts = Vec::new();
    facts.extend(details.author.clone().map(|author| ("author", author)));
    if !details.categories.is_empty() {
        facts.push(("categories", details.categories.join(", ")));
    }
    for file in &details.enclosures {
        let kind = file.media_type.as_deref().map(|kind| format!(", {kind}")).unwrap_or_default();
        let length = file.length.map(|length| format!(", {length} bytes")).unwrap_or_default();
        facts.push(("enclosure", format!("{}{kind}{length}", without_user(&file.url))));
    }
    facts.extend(details.summary.as_ref().map(|summary| ("summary", shortened(summary))));
    facts.extend(details.content.as_ref().map(|content| ("content", shortened(content))));
    if !details.truncated.is_empty() {
        facts.push(("truncated", details.truncated.join(", ")));
    }
    facts
}

fn scrape_line(scrape: &ScrapeLog) -> String {
    let status = scrape.http_status.map(|status| format!(", status {status}")).unwrap_or_default();
    let bytes = scrape.bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
    let error = scrape.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let took = scrape.ended_at.map(|ended_at| format!(" in {}", ended_at.since(scrape.started_at).prose()));
    let took = took.unwrap_or_default();
    format!("{} {}{took}{status}{bytes}{error}", report::moment(scrape.started_at), scrape.status)
}

fn object(item: &Item) -> Value {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    json!({
        "id": item.id.0,
        "source": item.source.0,
        "identity": without_user(&item.identity),
        "url": without_user(&item.url),
        "lead": item.lead.as_str(),
        "title": item.title,
        "published_at": time(item.published_at),
        "state": item.state.as_str(),
        "deferred_until": time(item.wake_at.filter(|_| item.state == ItemState::Waiting)),
        "content_hash": format!("{:016x}", item.content_hash),
        "seen_at": item.seen_at.to_string(),
        "changed_at": time(item.changed_at),
        "scraped_at": time(item.scraped_at),
        "scraped_as": item.scraped_as.map(|other| other.0),
        "status": item.status,
        "content_type": item.content_type,
        "bytes": item.bytes,
        "file": item.file,
        "error": item.error,
    })
}

fn scrape_object(scrape: &ScrapeLog) -> Value {
    json!({
        "started_at": scrape.started_at.to_string(),
        "ended_at": scrape.ended_at.map(|at| at.to_string()),
        "status": scrape.status,
        "http_status": scrape.http_status,
        "bytes": scrape.bytes,
        "error": scrape.error,
    })
}

fn show_text(global: &Global, item: &Item) -> anyhow::Result<u8> {
    let file = page_file(item)?;
    let body =
        text::read(Path::new(file)).map_err(|error| anyhow::anyhow!("item {}: {file}: {error}", item.id))?;
    let (title, text) = text::of_page(item, file, &body)?;
    if global.json {
        let url = without_user(&item.url);
        output::object(&json!({ "id": item.id.0, "url": url, "title": title, "text": text, "file": file }));
        return Ok(exit::DONE);
    }
    if let Some(title) = title.filter(|title| !title.is_empty()) {
        output::line(&title);
        output::line("");
    }
    text.lines().for_each(output::line);
    Ok(exit::DONE)
}

/// The file that the item's page was saved to.
fn page_file(item: &Item) -> anyhow::Result<&str> {
    if let Some(file) = &item.file {
        return Ok(file);
    }
    let id = item.id;
    let error = item.error.as_deref().unwrap_or("unknown error");
    Err(match item.state {
        ItemState::None => anyhow::anyhow!("item {id} has not been scraped yet; run comity scrape {id}"),
        ItemState::Waiting | ItemState::Running => {
            anyhow::anyhow!("item {id} has not been scraped yet: it is {}", state(item))
        }
        ItemState::Done => anyhow::anyhow!(
            "item {id} was scraped, but its page has no file of its own (--format none or warc); to save it, run comity scrape {id} --format files"
        ),
        ItemState::Partial => anyhow::anyhow!("item {id} has no page: the response had no content to save"),
        ItemState::Failed => anyhow::anyhow!("item {id} has no page: its scrape failed ({error})"),
    })
}

/// How many scrapes are shown.
const SCRAPES: u32 = 10;
/// How much of a text is shown, in columns.
const TEXT_SHOWN: usize = 200;
/// Columns that a row takes besides its title.
const OTHERS: usize = 90;
