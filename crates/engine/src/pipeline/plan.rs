//! Decides which sources a run fetches, from their rows alone.
//!
//! This is pure: nothing is fetched or written, and no clock is read.

use comity_core::cadence::{Cadence, Due, RunWindow, last_fetch_at};
use comity_core::time::{Span, Timestamp};
use comity_store::sources::Source;
use serde_json::{Map, Value};

use super::cursor::Cursor;

/// What a run does about a source.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// It is fetched.
    Fetch {
        /// A warning if the last fetch is in the future.
        warning: Option<String>,
    },
    /// It is not due.
    NotDue {
        /// The first window end at which it is due.
        due_at: Timestamp,
    },
    /// It is due, but held back.
    Held {
        /// Until when.
        until: Timestamp,
        /// Why.
        why: String,
    },
    /// Its configuration is invalid, so it fails.
    Invalid {
        /// What is wrong, and what is expected.
        error: String,
    },
    /// It is disabled.
    Disabled,
}

/// Whether cadences are respected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cadences {
    /// A source is due according to its cadence.
    #[default]
    Respected,
    /// `--force`: every source is due. It may still be held back for other reasons.
    Ignored,
}

/// What a run with this window does about `source` at `now`.
pub fn plan(source: &Source, window: RunWindow, cadences: Cadences, now: Timestamp) -> Plan {
    if !source.enabled {
        return Plan::Disabled;
    }
    let cadence = match cadence(source) {
        Ok(cadence) => cadence,
        Err(error) => return Plan::Invalid { error },
    };
    let last_fetch = match object("cursor_json", &source.cursor_json)
        .and_then(|cursor| last_fetch_at(&cursor).map_err(|error| error.to_string()))
    {
        Ok(last_fetch) => last_fetch,
        Err(error) => return Plan::Invalid { error },
    };
    let mut warning = None;
    match window.due(cadence, last_fetch) {
        Due::NotDue { due_at } if cadences == Cadences::Respected && source.requested_at.is_none() => {
            return Plan::NotDue { due_at };
        }
        Due::DueDespiteFuture { last_fetch_at } => {
            warning = Some(format!(
                "last_fetch_at is {last_fetch_at}, which is in the future; a clock must have been wrong"
            ));
        }
        Due::Due | Due::NotDue { .. } => {}
    }
    // A time further ahead than any legitimate hold was written while a clock was wrong.
    let plausible = |until: &Timestamp| *until > now && until.since(now) <= HELD_MAX;
    if let Some(until) = source.retry_at.filter(plausible) {
        let error = source.error.as_deref().unwrap_or("it failed");
        let times =
            if source.failures == 1 { "once" } else { &format!("{} times in a row", source.failures) };
        return Plan::Held { until, why: format!("failed {times}: {error}") };
    }
    if let Some((until, why)) = Cursor::of(source).not_before().filter(|(until, _)| plausible(until)) {
        return Plan::Held { until, why };
    }
    Plan::Fetch { warning }
}

/// When a source is to be fetched next according to its row, at `now`; `None` if it is disabled. `default_cadence` is
/// for sources without a cadence.
pub fn next_at(source: &Source, default_cadence: Span, now: Timestamp) -> Option<Timestamp> {
    if !source.enabled {
        return None;
    }
    let cursor = object("cursor_json", &source.cursor_json).unwrap_or_default();
    // A last fetch in the future is a mistake, so the source is due.
    let last_fetch = last_fetch_at(&cursor).ok().flatten().filter(|last_fetch| *last_fetch <= now);
    let every = cadence(source).ok().flatten().map_or(default_cadence, Cadence::every);
    let last_fetch = last_fetch.filter(|_| source.requested_at.is_none());
    let due_at = last_fetch.map_or(Timestamp::MIN, |last_fetch| last_fetch + every);
    let held = [source.retry_at, Cursor::of(source).not_before().map(|(until, _)| until)];
    let held = held.into_iter().flatten().filter(|until| until.since(now) <= HELD_MAX);
    Some(held.fold(due_at, Timestamp::max))
}

/// When a source was and will be fetched, and what a run would do about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// Its cadence; `None` if it has none, or an invalid one.
    pub cadence: Option<Span>,
    /// When it was last fetched.
    pub last_fetch_at: Option<Timestamp>,
    /// When it is to be fetched next; `None` if it is disabled.
    pub next_at: Option<Timestamp>,
    /// What a run that starts now would do.
    pub plan: Plan,
}

/// What is to be said about a source at `now`, without doing a run. `default_cadence` is for sources without a cadence, as
/// when watching.
pub fn outlook(source: &Source, default_cadence: Span, now: Timestamp) -> Outlook {
    let cursor = object("cursor_json", &source.cursor_json).unwrap_or_default();
    let cadences = Cadences::Respected;
    let plan = match RunWindow::ending(now, now) {
        Ok(window) => plan(source, window, cadences, now),
        Err(error) => Plan::Invalid { error: error.to_string() },
    };
    Outlook {
        cadence: cadence(source).ok().flatten().map(Cadence::every),
        last_fetch_at: last_fetch_at(&cursor).ok().flatten(),
        next_at: next_at(source, default_cadence, now).map(|next_at| next_at.max(now)),
        plan,
    }
}

/// The cadence of a source, if it has one.
pub fn cadence(source: &Source) -> Result<Option<Cadence>, String> {
    let config = object("config_json", &source.config_json)?;
    Cadence::of_config(&config).map_err(|error| format!("config_json: {error}"))
}

/// Parses a column that contains a JSON object.
pub(super) fn object(key: &str, text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("{key} is not a JSON object")),
        Err(error) => Err(format!("{key} is not valid JSON: {error}")),
    }
}

/// No source is held back for longer than this.
const HELD_MAX: Span = Span::from_hours(31 * 24);

#[cfg(test)]
mod tests {
    use comity_core::interval::SourceInterval;
    use comity_store::sources::{Kind, SourceId};
    use comity_store::tasks::Lead;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn source(config: &str, cursor: &str) -> Source {
        Source {
            id: SourceId(1),
            name: "a".to_owned(),
            kind: Kind::Feed,
            url: "https://a.example/feed".to_owned(),
            listed_url: "https://a.example/feed".to_owned(),
            lead: Lead::Listed,
            enabled: true,
            scraping: true,
            auto_scrape: true,
            interval: SourceInterval::Default,
            config_json: config.to_owned(),
            cursor_json: cursor.to_owned(),
            added_at: NOW,
            failures: 0,
            retry_at: None,
            error: None,
            requested_at: None,
        }
    }

    fn planned(source: &Source, cadences: Cadences) -> String {
        planned_at(source, cadences, NOW)
    }

    fn planned_at(source: &Source, cadences: Cadences, end: Timestamp) -> String {
        match plan(source, RunWindow::ending(end, NOW).unwrap(), cadences, NOW) {
            Plan::Fetch { warning: None } => "fetch".to_owned(),
            Plan::Fetch { warning: Some(warning) } => format!("fetch, {warning}"),
            Plan::NotDue { due_at } => format!("not due before {due_at}"),
            Plan::Held { until, why } => format!("held until {until}: {why}"),
            Plan::Invalid { error } => format!("invalid: {error}"),
            Plan::Disabled => "disabled".to_owned(),
        }
    }

    const HOURLY: &str = r#"{"cadence":{"mode":"interval","every_minutes":60}}"#;

    /// A cursor whose last fetch was this many seconds ago.
    fn fetched(ago: i64) -> String {
        let at = Timestamp::from_micros(NOW.as_micros() - ago * 1_000_000);
        format!(r#"{{"last_fetch_at":"{at}"}}"#)
    }

    /// B59
    #[test]
    fn a_source_is_due_if_never_fetched_or_after_its_cadence() {
        assert_eq!(planned(&source("{}", "{}"), Cadences::Respected), "fetch");
        assert_eq!(planned(&source("{}", &fetched(1)), Cadences::Respected), "fetch");
        assert_eq!(planned(&source(HOURLY, "{}"), Cadences::Respected), "fetch");
        assert_eq!(planned(&source(HOURLY, &fetched(3_600)), Cadences::Respected), "fetch");
        assert_eq!(
            planned(&source(HOURLY, &fetched(3_599)), Cadences::Respected),
            format!("not due before {}", NOW + Span::from_secs(1))
        );
    }

    /// B61
    #[test]
    fn force_ignores_the_cadence_and_nothing_else() {
        let mut early = source(HOURLY, &fetched(60));
        assert_eq!(planned(&early, Cadences::Ignored), "fetch");
        early.retry_at = Some(NOW + Span::from_secs(300));
        early.failures = 2;
        early.error = Some("status 500".to_owned());
        let held = format!("held until {}: failed 2 times in a row: status 500", NOW + Span::from_secs(300));
        assert_eq!(planned(&early, Cadences::Ignored), held);
        early.enabled = false;
        assert_eq!(planned(&early, Cadences::Ignored), "disabled");
    }

    /// B62
    #[test]
    fn a_source_with_an_invalid_cadence_fails_instead_of_being_always_due() {
        for config in [
            r#"{"cadence":{"mode":"interval","every_minutes":0}}"#,
            r#"{"cadence":{"mode":"interval","every_minutes":"8h"}}"#,
            r#"{"cadence":{"mode":"cron","every_minutes":5}}"#,
            r#"{"cadence":null}"#,
            r#"{"cadence":480}"#,
            "[]",
            "{",
        ] {
            let planned = planned(&source(config, "{}"), Cadences::Ignored);
            assert!(planned.starts_with("invalid: config_json"), "{config}: {planned}");
        }
        let planned = planned(&source(HOURLY, r#"{"last_fetch_at":"yesterday"}"#), Cadences::Respected);
        assert!(planned.starts_with("invalid: cursor_json.last_fetch_at = \"yesterday\""), "{planned}");
    }

    /// B64
    #[test]
    fn a_last_fetch_in_the_future_warns_and_one_beyond_the_window_does_not() {
        let future = source(HOURLY, &fetched(-60));
        assert!(planned(&future, Cadences::Respected).starts_with("fetch, last_fetch_at is "));
        let end = Timestamp::from_micros(NOW.as_micros() - 7_200 * 1_000_000);
        let backfilled = planned_at(&source(HOURLY, &fetched(3_700)), Cadences::Respected, end);
        assert!(backfilled.starts_with("not due before "), "{backfilled}");
    }

    /// B66: what a feed or its server says can only delay a fetch.
    #[test]
    fn caching_headers_and_hints_hold_back_a_source_that_is_due() {
        let until = NOW + Span::from_mins(10);
        let cursor = format!(r#"{{"not_before":"{until}","not_before_why":"ttl 60m"}}"#);
        assert_eq!(
            planned(&source("{}", &cursor), Cadences::Ignored),
            format!("held until {until}: ttl 60m")
        );
        assert_eq!(next_at(&source("{}", &cursor), Span::ZERO, NOW), Some(until));
        let late = source(HOURLY, &fetched(60));
        assert_eq!(next_at(&late, Span::ZERO, NOW), Some(NOW + Span::from_mins(59)));
    }

    /// B7, B64: a time written while a clock was wrong does not hold a source back forever.
    #[test]
    fn implausibly_distant_times_are_ignored() {
        let year = NOW + Span::from_hours(365 * 24);
        let mut odd = source(HOURLY, &format!(r#"{{"not_before":"{year}"}}"#));
        odd.retry_at = Some(year);
        assert_eq!(planned(&odd, Cadences::Respected), "fetch");
        assert_eq!(next_at(&odd, Span::ZERO, NOW), Some(Timestamp::MIN));
        let future = source(HOURLY, &fetched(-60));
        assert_eq!(next_at(&future, Span::ZERO, NOW), Some(Timestamp::MIN));
    }

    /// A source that somebody asked for is due, but neither its failures nor its server are ignored.
    #[test]
    fn a_requested_source_is_due_whatever_its_cadence() {
        let mut early = source(HOURLY, &fetched(60));
        assert_eq!(next_at(&early, Span::ZERO, NOW), Some(NOW + Span::from_mins(59)));
        early.requested_at = Some(NOW);
        assert_eq!(planned(&early, Cadences::Respected), "fetch");
        assert_eq!(next_at(&early, Span::ZERO, NOW), Some(Timestamp::MIN));
        early.retry_at = Some(NOW + Span::from_secs(300));
        early.failures = 1;
        assert!(planned(&early, Cadences::Respected).starts_with("held until "));
        assert_eq!(next_at(&early, Span::ZERO, NOW), early.retry_at);
    }

    #[test]
    fn the_outlook_says_what_a_run_would_do_now() {
        let hour = Some(Span::from_mins(60));
        let early = outlook(&source(HOURLY, &fetched(60)), Span::from_mins(15), NOW);
        let due_at = NOW + Span::from_mins(59);
        assert_eq!(
            (early.cadence, early.next_at, &early.plan),
            (hour, Some(due_at), &Plan::NotDue { due_at })
        );
        assert_eq!(early.last_fetch_at.map(|at| NOW.since(at)), Some(Span::from_secs(60)));
        let mut failing = source("{}", "{}");
        (failing.failures, failing.error) = (1, Some("status 500".to_owned()));
        failing.retry_at = Some(NOW + Span::from_secs(300));
        let held = outlook(&failing, Span::from_mins(15), NOW);
        assert_eq!((held.cadence, held.last_fetch_at, held.next_at), (None, None, failing.retry_at));
        assert!(matches!(held.plan, Plan::Held { why, .. } if why == "failed once: status 500"));
        let new = outlook(&source("{}", "{}"), Span::from_mins(15), NOW);
        assert_eq!((new.next_at, new.plan), (Some(NOW), Plan::Fetch { warning: None }));
    }
}
