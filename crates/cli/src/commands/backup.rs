//! `comity backup`.

use std::sync::Arc;
use std::time::Duration;

use comity::clock::Clock;
use comity::config::{Config, Size};
use comity::core::time::{Span, Timestamp};
use comity::store::StoreError;
use comity::store::backup::{Existing, Progress};
use serde_json::json;

use crate::args::{Backup, Global};
use crate::signals::{Asked, Signals};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, config: &Config, backup: &Backup) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    if config.store.as_str() == "memory:" {
        return Err(exit::usage(
            "--store memory: is gone with its process: there is nothing to back up".to_owned(),
        ));
    }
    let store = setup::open_store_to_work(config).await?;
    let (progress, clock) = (Arc::new(Progress::default()), Clock::new());
    let began = clock.now();
    let existing = if backup.force { Existing::Replace } else { Existing::Keep };
    let copying = store.backup(backup.file.clone(), existing, progress.clone());
    tokio::pin!(copying);
    let mut told = began;
    let mut interrupted = false;
    let done = loop {
        tokio::select! {
            done = &mut copying => break done,
            asked = signals.next() => if asked == Asked::Stop {
                interrupted = true;
                progress.stop();
            },
            () = tokio::time::sleep(LOOK) => tell(global, &progress, &mut told, clock.now()),
        }
    };
    let bytes = match done {
        Ok(bytes) => bytes,
        Err(_) if interrupted => {
            output::remark("interrupted: nothing was written");
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
        output::line(&format!("{file}: a copy of {}, {}", store.place(), Size::from_bytes(bytes)));
    }
    Ok(exit::DONE)
}

/// A line now and then, when it takes long.
fn tell(global: &Global, progress: &Progress, told: &mut Timestamp, now: Timestamp) {
    if global.quiet || now.since(*told) < TELL {
        return;
    }
    *told = now;
    let (written, all) = progress.bytes();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    output::remark(&format!("{} of about {} MiB written", mib(written), mib(all)));
}

const LOOK: Duration = Duration::from_millis(200);
/// How often it is told how far it is.
const TELL: Span = Span::from_secs(5);
