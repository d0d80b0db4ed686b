//! How jobs, times and ages are printed, as text and as JSON.

use comity::clock::Clock;
use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::jobs::{Filled, RunCounts};
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

/// What a run of `fetch` did itself. The other counts of the summary are those of the job.
pub(crate) fn this_run(counts: &RunCounts, skipped: u64, filled: Option<&Filled>) -> Value {
    json!({
        "added": filled.map_or(0, |filled| filled.new),
        "known": filled.map_or(0, |filled| filled.known),
        "fetched": counts.fetched(),
        "failed": counts.failed,
        "skipped": skipped,
        "rate_limited": counts.rate_limited,
        "retries": counts.retries,
    })
}

/// The progress of a job in words, for people.
pub(crate) fn progress(job: &Job) -> String {
    let counts = &job.counts;
    let fetched = format!("{} of {} fetched", thousands(counts.done), thousands(counts.tasks));
    let rest = rest(&[
        (counts.failed, "failed"),
        (counts.skipped, "skipped"),
        (counts.waiting(), "waiting"),
        (counts.rate_limited, RATE_LIMITED),
        (counts.retries, retries(counts.retries)),
    ]);
    fetched + &rest + &refresh_note(job)
}

/// That the pages of a job are being fetched again, and how many there are.
fn refresh_note(job: &Job) -> String {
    match refreshing(job) {
        None => String::new(),
        Some(1) => " (refresh of 1 page fetched before)".to_owned(),
        Some(pages) => format!(" (refresh of {} pages fetched before)", thousands(pages)),
    }
}

/// How many pages an unfinished refresh is about; all of them were fetched before.
pub(crate) fn refreshing(job: &Job) -> Option<u64> {
    job.options[REFRESHING].as_u64().filter(|pages| *pages > 0 && job.state == JobState::Running)
}

/// The job option with that number.
pub(crate) const REFRESHING: &str = "refreshing";

/// The counts that are not zero, to append to another one.
pub(crate) fn rest(counts: &[(u64, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!(", {} {what}", thousands(*count))).collect()
}

/// The word for a number of retries.
pub(crate) fn retries(count: u64) -> &'static str {
    if count == 1 { "retry" } else { "retries" }
}

/// What a 429 is called in counts.
pub(crate) const RATE_LIMITED: &str = "rate limited (429)";

/// A time in whole seconds.
pub(crate) fn moment(at: Timestamp) -> String {
    Timestamp::from_secs(at.as_micros().div_euclid(1_000_000)).to_string()
}

/// A reason of the API, whose durations are in milliseconds, with durations as people read them everywhere else:
/// `minimum delay 2s: last request 520ms ago`.
pub(crate) fn readable(reason: &str) -> String {
    let mut readable = String::with_capacity(reason.len());
    let mut rest = reason;
    while let Some(at) = rest.find(" ms") {
        let (before, after) = (&rest[..at], &rest[at + " ms".len()..]);
        let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (text, number) = before.split_at(before.len() - digits);
        match number.parse().ok().filter(|_| !after.starts_with(char::is_alphanumeric)) {
            Some(millis) => readable += &format!("{text}{}", Span::from_millis(millis).countdown()),
            None => readable += &rest[..at + " ms".len()],
        }
        rest = after;
    }
    readable + rest
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_reasons_have_the_form_they_have_everywhere() {
        for (reason, expected) in [
            ("minimum delay 2000 ms: last request 520 ms ago", "minimum delay 2s: last request 520ms ago"),
            ("one per 1500 ms: no requests so far", "one per 1.5s: no requests so far"),
            ("crawl-delay 600000 ms", "crawl-delay 10m"),
            ("burst 5 per 60s reached; next slot in 12s", "burst 5 per 60s reached; next slot in 12s"),
            ("5 msec, x ms, 99999999999999999999999 ms", "5 msec, x ms, 99999999999999999999999 ms"),
            ("", ""),
        ] {
            assert_eq!(readable(reason), expected);
        }
    }
}
