//! `comity items export`: prints items as JSON Lines or CSV, reading a few at a time.

use std::io::{BufWriter, Write};

use comity::clock::Clock;
use comity::store::Store;
use comity::store::details::Details;
use comity::store::items::{Item, ItemId, ItemQuery, Order};
use comity::store::sources::SourceId;
use serde_json::Value;

use super::{row, text};
use crate::args::{ExportItems, ItemFormat};
use crate::commands::{parse, sources};
use crate::exit;
use crate::output::{self, Results};

pub(super) async fn run(store: &dyn Store, args: &ExportItems) -> anyhow::Result<u8> {
    if let Some(source) = args.source {
        sources::find_by_flag(store, "--source", source).await?;
    }
    let now = Clock::of(store).await?.now();
    let since = args.since.as_deref().map(|text| parse::since("--since", text, now)).transpose()?;
    let mut rows = Rows::new(args);
    let mut after = ItemId(0);
    loop {
        let page = ItemQuery {
            source: args.source.map(SourceId),
            state: args.state,
            since,
            order: Order::After(after),
            limit: PAGE,
            ..ItemQuery::default()
        };
        let items = store.list_items(page).await?;
        let Some(last) = items.last() else { break };
        after = last.id;
        // The details of one item can be a megabyte.
        for chunk in items.chunks(DETAILS_AT_ONCE) {
            let details = store.find_details(chunk.iter().map(|item| item.id).collect()).await?;
            for (item, details) in chunk.iter().zip(&details) {
                rows.write(item, details)?;
            }
            // The reader may have closed the pipe.
            if output::is_stdout_broken() {
                return Ok(exit::DONE);
            }
        }
    }
    rows.end()
}

/// Writes rows to stdout.
struct Rows<'a> {
    args: &'a ExportItems,
    /// The columns of a CSV.
    columns: Vec<&'static str>,
    out: Out,
    /// Scraped pages whose text could not be read.
    unreadable: u64,
}

enum Out {
    Lines(BufWriter<Results>),
    Table(Box<csv::Writer<Results>>),
}

impl<'a> Rows<'a> {
    fn new(args: &'a ExportItems) -> Self {
        let mut columns = row::COLUMNS.to_vec();
        columns.extend(args.text.then_some("text"));
        let out = match args.format {
            ItemFormat::Jsonl => Out::Lines(BufWriter::new(Results)),
            ItemFormat::Csv => {
                let table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Results);
                Out::Table(Box::new(table))
            }
        };
        let mut rows = Self { args, columns, out, unreadable: 0 };
        if let Out::Table(table) = &mut rows.out {
            // `output` reports write errors.
            let _ = table.write_record(&rows.columns);
        }
        rows
    }

    fn write(&mut self, item: &Item, details: &Details) -> anyhow::Result<()> {
        let mut row = row::of(item, details);
        if self.args.text {
            let (text, problem) = text::best(item, details);
            self.unreadable += u64::from(problem.is_some());
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
        if self.unreadable > 0 {
            output::warning(&format!(
                "{} scraped pages have no readable text (the file is gone, or isn't text); used the feed's text instead",
                self.unreadable
            ));
        }
        Ok(exit::DONE)
    }
}

/// A value as a CSV cell: lists are JSON, missing values are empty, and nothing else is changed.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How many items are read at once.
const PAGE: u32 = 500;
/// How many items' details are read at once.
const DETAILS_AT_ONCE: usize = 16;
