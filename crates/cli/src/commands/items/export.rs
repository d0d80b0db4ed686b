//! `comity items export`: all items, or those of a source or since a moment, a few at a time.

use std::io::{BufWriter, Write};

use comity::clock::Clock;
use comity::store::Store;
use comity::store::details::Details;
use comity::store::items::{Item, ItemId, Items, Order};
use comity::store::sources::SourceId;
use serde_json::Value;

use super::{row, text};
use crate::args::{ExportItems, Table};
use crate::commands::{sources, typed};
use crate::exit;
use crate::output::{self, Results};

pub(super) async fn run(store: &dyn Store, asked: &ExportItems) -> anyhow::Result<u8> {
    if let Some(source) = asked.source {
        sources::find_typed(store, "--source", source).await?;
    }
    let now = Clock::of(store).await?.now();
    let since = asked.since.as_deref().map(|text| typed::since("--since", text, now)).transpose()?;
    let mut rows = Rows::new(asked);
    let mut after = ItemId(0);
    loop {
        let page = Items {
            source: asked.source.map(SourceId),
            state: asked.state,
            since,
            order: Order::After(after),
            limit: PAGE,
            ..Items::default()
        };
        let items = store.list_items(page).await?;
        let Some(last) = items.last() else { break };
        after = last.id;
        // One of them may have a mebibyte to say.
        for few in items.chunks(FEW) {
            let details = store.find_details(few.iter().map(|item| item.id).collect()).await?;
            for (item, details) in few.iter().zip(&details) {
                rows.write(item, details)?;
            }
            // Whoever reads may have seen enough.
            if output::is_lost() {
                return Ok(exit::DONE);
            }
        }
    }
    rows.end()
}

/// Rows on their way out.
struct Rows<'a> {
    asked: &'a ExportItems,
    /// The keys, when it is a table: its head is written with the first row.
    columns: Vec<&'static str>,
    out: Out,
    unread: u64,
}

enum Out {
    Lines(BufWriter<Results>),
    Table(Box<csv::Writer<Results>>),
}

impl<'a> Rows<'a> {
    fn new(asked: &'a ExportItems) -> Self {
        let mut columns = row::COLUMNS.to_vec();
        columns.extend(asked.text.then_some("text"));
        let out = match asked.format {
            Table::Jsonl => Out::Lines(BufWriter::new(Results)),
            Table::Csv => {
                let table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Results);
                Out::Table(Box::new(table))
            }
        };
        let mut rows = Self { asked, columns, out, unread: 0 };
        if let Out::Table(table) = &mut rows.out {
            // What cannot be written was reported by whoever owns stdout.
            let _ = table.write_record(&rows.columns);
        }
        rows
    }

    fn write(&mut self, item: &Item, details: &Details) -> anyhow::Result<()> {
        let mut row = row::of(item, details);
        if self.asked.text {
            let (text, problem) = text::best(item, details);
            self.unread += u64::from(problem.is_some());
            row["text"] = Value::from(text);
        }
        let _ = match &mut self.out {
            Out::Lines(lines) => writeln!(lines, "{}", output::json(&row)),
            Out::Table(table) => {
                table.write_record(self.columns.iter().map(|key| cell(&row[key]))).map_err(Into::into)
            }
        };
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<u8> {
        let _ = match &mut self.out {
            Out::Lines(lines) => lines.flush(),
            Out::Table(table) => table.flush(),
        };
        if self.unread > 0 {
            output::remark(&format!(
                "{} scraped pages have no readable text (the file is gone, or isn't text): what their feed gave was used instead",
                self.unread
            ));
        }
        Ok(exit::DONE)
    }
}

/// A value as a cell: lists are JSON, what is missing is empty, and nothing else is changed.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Items read at once,
const PAGE: u32 = 500;
/// and those of them whose details are.
const FEW: usize = 16;
