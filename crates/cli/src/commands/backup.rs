//! `comity backup`: copies the store while it is in use, with progress, and can be interrupted.

use std::sync::Arc;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::{Config, Size};
use comity::core::time::{Span, Timestamp};
use comity::store::StoreError;
use comity::store::backup::{Existing, Progress};
use serde_json::json;

use crate::args::{Backup, Global};
use crate::signals::{Signal, Signals};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, backup: &Backup) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    if config.store.as_str() == "memory:" {
        return Err(exit::usage(
            "nothing to back up: --store memory: is lost when its process ends".to_owned(),
        ));
    }
    let store = setup::open_existing_store_for_work(config).await?;
    if store.location() == "memory" {
        return Err(setup::no_store(config));
    }
    let (progress, clock) = (Arc::new(Progress::default()), Clock::new());
    let began = clock.now();
    let existing = if backup.force { Existing::Replace } else { Existing::Keep };
    let copying = store.backup(backup.file.clone(), existing, progress.clone());
    tokio::pin!(copying);
    let mut printed_at = began;
    let mut interrupted = false;
    let done = loop {
        tokio::select! {
            done = &mut copying => break done,
            signal = signals.next() => if signal == Signal::Stop {
                interrupted = true;
                progress.stop();
            },
            () = tokio::time::sleep(POLL) => print_progress(global, &progress, &mut printed_at, clock.now()),
        }
    };
    let bytes = match done {
        Ok(bytes) => bytes,
        Err(_) if interrupted => {
            output::remark("Interrupted; no backup was written");
            return Ok(exit::INTERRUPTED);
        }
        Err(error @ StoreError::Rejected { .. }) => return Err(exit::usage(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let file = backup.file.display();
    if global.json {
        let elapsed_ms = clock.now().since(began).as_millis_up();
        output::object(&json!({ "file": file.to_string(), "bytes": bytes, "elapsed_ms": elapsed_ms }));
    } else if !global.quiet {
        output::line(&format!("Backed up {} to {file} ({})", store.location(), Size::from_bytes(bytes)));
    }
    Ok(exit::DONE)
}

/// Prints a progress line every few seconds.
fn print_progress(global: &Global, progress: &Progress, printed_at: &mut Timestamp, now: Timestamp) {
    if global.quiet || now.since(*printed_at) < PRINT_EVERY {
        return;
    }
    *printed_at = now;
    let (written, all) = progress.bytes();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    output::remark(&format!("{} of about {} MiB written", mib(written), mib(all)));
}

/// How often progress is checked.
const POLL: Duration = Duration::from_millis(200);
/// How often progress is printed.
const PRINT_EVERY: Span = Span::from_secs(5);
