//! How jobs, times and ages are printed, as text and as JSON.

use comity::clock::Clock;
use comity::core::time::{Span, Timestamp};
use comity::store::jobs::Job;
use serde_json::{Value, json};

use crate::live::thousands;

/// The object that `fetch --json` ends with; scripts rely on its keys.
pub(crate) fn summary(job: &Job, elapsed_ms: u64) -> Value {
    let counts = &job.counts;
    json!({
        "job": job.name,
        "state": job.state_word(),
        "tasks": counts.tasks,
        "fetched": counts.done,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "rate_limited": counts.rate_limited,
        "retries": counts.retries,
        "elapsed_ms": elapsed_ms,
        "waiting": counts.waiting(),
        "message": job.message,
    })
}

/// The progress of a job in words, for people.
pub(crate) fn progress(job: &Job) -> String {
    let counts = &job.counts;
    let mut parts = vec![format!("{} of {} fetched", thousands(counts.done), thousands(counts.tasks))];
    for (count, one, many) in [
        (counts.failed, "failed", "failed"),
        (counts.skipped, "skipped", "skipped"),
        (counts.waiting(), "waiting", "waiting"),
        (counts.rate_limited, "rate limited (429)", "rate limited (429)"),
        (counts.retries, "retry", "retries"),
    ] {
        if count > 0 {
            parts.push(format!("{} {}", thousands(count), if count == 1 { one } else { many }));
        }
    }
    parts.join(", ")
}

/// A time in whole seconds.
pub(crate) fn moment(at: Timestamp) -> String {
    Timestamp::from_secs(at.as_micros().div_euclid(1_000_000)).to_string()
}

/// How old something is, to append to a sentence; empty if it is recent.
pub(crate) fn age(as_of: Option<&str>) -> String {
    match as_of.map(Timestamp::parse) {
        Some(Ok(as_of)) => match Clock::new().now().since(as_of) {
            age if age < Span::from_millis(500) => String::new(),
            age => format!(" (as of {} ago)", age.prose()),
        },
        Some(Err(_)) => String::new(),
        None => " (last saved state; the process in charge of the site did not respond)".to_owned(),
    }
}
