//! How jobs are told, to people and to machines.

use comity::clock::Clock;
use comity::core::time::{Span, Timestamp};
use comity::store::jobs::Job;
use serde_json::{Value, json};

/// The object that ends `fetch --json`; its keys are relied on.
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

/// How far a job is, in words.
pub(crate) fn progress(job: &Job) -> String {
    let counts = &job.counts;
    let mut parts = vec![format!("{} of {} fetched", counts.done, counts.tasks)];
    for (count, one, many) in [
        (counts.failed, "failed", "failed"),
        (counts.skipped, "skipped", "skipped"),
        (counts.waiting(), "waiting", "waiting"),
        (counts.rate_limited, "rate limited (429)", "rate limited (429)"),
        (counts.retries, "retry", "retries"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    }
    parts.join(", ")
}

/// A moment in whole seconds.
pub(crate) fn moment(at: Timestamp) -> String {
    Timestamp::from_secs(at.as_micros().div_euclid(1_000_000)).to_string()
}

/// How old something is, for the end of a sentence; nothing when it is as good as now.
pub(crate) fn age(as_of: Option<&str>) -> String {
    match as_of.map(Timestamp::parse) {
        Some(Ok(as_of)) => match Clock::new().now().since(as_of) {
            age if age < Span::from_millis(500) => String::new(),
            age => format!(" (as of {} ago)", age.about()),
        },
        Some(Err(_)) => String::new(),
        None => " (as it was saved: the process that holds it did not answer)".to_owned(),
    }
}
