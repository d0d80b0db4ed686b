//! `comity store copy`: copies a store into another kind of database, with progress, and can be interrupted. What is copied is decided in
//! `comity::store::copy`.

use std::sync::Arc;
use std::time::Duration;

use comity::clock::Clock;
use comity::core::time::{Span, Timestamp};
use comity::store::StoreError;
use comity::store::copy::{Copied, Progress, copy};
use serde_json::{Map, Value, json};

use crate::args::{Global, StoreCommand, StoreCopy};
use crate::signals::{Signal, Signals};
use crate::{exit, output};

pub(crate) async fn run(global: &Global, command: StoreCommand) -> anyhow::Result<u8> {
    match command {
        StoreCommand::Copy(asked) => copy_store(global, asked).await,
    }
}

async fn copy_store(global: &Global, asked: StoreCopy) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let (progress, clock) = (Arc::new(Progress::default()), Clock::new());
    let began = clock.now();
    let copying = copy(asked.from, asked.to, progress.clone());
    tokio::pin!(copying);
    let (mut printed_at, mut interrupted) = (began, false);
    let done = loop {
        tokio::select! {
            done = &mut copying => break done,
            signal = signals.next() => if signal == Signal::Stop {
                if interrupted {
                    exit::quit_now();
                }
                interrupted = true;
                progress.stop();
                output::stopping("nothing is kept of the copy");
            },
            () = tokio::time::sleep(POLL) => print_progress(global, &progress, &mut printed_at, clock.now()),
        }
    };
    match done {
        Ok(copied) => {
            print_result(global, &copied, clock.now().since(began));
            Ok(exit::DONE)
        }
        Err(StoreError::Rejected { .. }) if interrupted => {
            output::remark("Interrupted; nothing was copied");
            Ok(exit::INTERRUPTED)
        }
        Err(error @ StoreError::Rejected { .. }) => Err(exit::usage(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Prints a progress line every few seconds.
fn print_progress(global: &Global, progress: &Progress, printed_at: &mut Timestamp, now: Timestamp) {
    if global.quiet || now.since(*printed_at) < PRINT_EVERY {
        return;
    }
    *printed_at = now;
    output::remark(&match progress.rows() {
        (_, 0) => "making sure that no process uses the stores".to_owned(),
        (copied, all) => format!("{copied} of {all} rows copied ({} %)", copied.saturating_mul(100) / all),
    });
}

fn print_result(global: &Global, copied: &Copied, elapsed: Span) {
    let Copied { from, to, tables } = copied;
    if global.json {
        let tables: Map<String, Value> =
            tables.iter().map(|(table, rows)| ((*table).to_owned(), json!(rows))).collect();
        let (rows, elapsed_ms) = (copied.rows(), elapsed.as_millis_up());
        let object =
            json!({ "from": from, "to": to, "rows": rows, "tables": tables, "elapsed_ms": elapsed_ms });
        output::object(&object);
    } else if !global.quiet {
        let count = |name: &str| tables.iter().find(|(table, _)| *table == name).map_or(0, |(_, rows)| *rows);
        let counts = [("jobs", "job"), ("tasks", "URL"), ("sources", "source"), ("items", "item")];
        let counts = counts.map(|(table, noun)| match count(table) {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        });
        output::line(&format!("Copied {from} to {to}: {} ({} rows)", counts.join(", "), copied.rows()));
        output::remark(
            "Pass the copy as --store from now on, and delete the old store: they don't share a pace",
        );
    }
}

/// How often progress is checked.
const POLL: Duration = Duration::from_millis(200);
/// How often progress is printed.
const PRINT_EVERY: Span = Span::from_secs(5);
