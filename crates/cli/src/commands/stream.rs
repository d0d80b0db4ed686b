//! Rows on stdout while a job runs (`fetch --jsonl`).

use std::sync::Arc;

use comity::jobs::{Extras, Flow, RowSink, Rows};
use comity::results::Row;

use crate::args::Fetch;
use crate::output;

/// Prints rows on stdout as they arrive.
struct StdoutSink;

impl RowSink for StdoutSink {
    fn take(&self, rows: &[Row]) -> Flow {
        output::json_lines(rows.iter().map(Row::to_json));
        // If nobody reads the rows, or they can't be written, the job has no reason to continue.
        if output::is_stdout_broken() { Flow::Stop } else { Flow::Continue }
    }
}

/// Whether to print rows on stdout.
pub(crate) fn is_wanted(fetch: &Fetch) -> bool {
    fetch.jsonl || is_stdout(fetch)
}

/// Whether to print rows instead of saving files (`--out -`).
pub(crate) fn is_stdout(fetch: &Fetch) -> bool {
    fetch.out.as_ref().is_some_and(|out| out.as_os_str() == "-")
}

/// Where rows go, and what is in them.
pub(crate) fn rows(fetch: &Fetch) -> Rows {
    let sink = is_wanted(fetch).then(|| {
        output::begin_rows();
        Arc::new(StdoutSink) as Arc<dyn RowSink>
    });
    Rows { sink, extras: if fetch.with_headers { Extras::Headers } else { Extras::None } }
}
