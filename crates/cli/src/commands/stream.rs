//! Rows on stdout while a job runs (`fetch --jsonl`).

use std::sync::Arc;

use comity::jobs::{Extras, Go, RowSink, Rows};
use comity::results::Row;

use crate::args::Fetch;
use crate::output;

/// Prints rows as they come.
struct Printed;

impl RowSink for Printed {
    fn take(&self, rows: &[Row]) -> Go {
        output::json_lines(rows.iter().map(Row::to_json));
        // Nobody reads them any more, or they cannot be written: then there is nothing to run for.
        if output::is_lost() { Go::Stop } else { Go::On }
    }
}

/// Whether rows are printed.
pub(crate) fn is_wanted(fetch: &Fetch) -> bool {
    fetch.jsonl || is_stdout(fetch)
}

/// Whether there are rows instead of files.
pub(crate) fn is_stdout(fetch: &Fetch) -> bool {
    fetch.out.as_ref().is_some_and(|out| out.as_os_str() == "-")
}

/// Who wants rows, and what should be in them.
pub(crate) fn rows(fetch: &Fetch) -> Rows {
    let sink = is_wanted(fetch).then(|| Arc::new(Printed) as Arc<dyn RowSink>);
    Rows { sink, extras: if fetch.with_headers { Extras::Headers } else { Extras::None } }
}
