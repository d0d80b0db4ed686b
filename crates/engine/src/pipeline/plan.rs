//! Which sources a run asks: a pure look at their rows (B59–B64).
//!
//! Nothing is fetched or written here, and no clock is read.

use comity_core::cadence::{Cadence, Due, RunWindow, last_fetch_at};
use comity_core::time::{Span, Timestamp};
use comity_store::sources::Source;
use serde_json::{Map, Value};

use super::cursor::Cursor;

/// What a run does about a source.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// It is asked. The warning is for a last fetch that lies in the future.
    Fetch {
        /// Why that is odd.
        warning: Option<String>,
    },
    /// It is not due.
    NotDue {
        /// The first window end at which it is.
        due_at: Timestamp,
    },
    /// It is due, but not to be asked before then.
    Held {
        /// Until when.
        until: Timestamp,
        /// Why.
        why: String,
    },
    /// What is configured for it makes no sense: it fails (B62).
    Invalid {
        /// What, and what would.
        error: String,
    },
    /// It is not followed at the moment.
    Disabled,
}

/// Whether cadences count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cadences {
    /// They do.
    #[default]
    Kept,
    /// `--force`: every source is due. What holds it back otherwise still does.
    Ignored,
}

/// What the run that ends its window with `window` does about `source`, when the wall clock reads `now`.
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
        Due::NotDue { due_at } if cadences == Cadences::Kept => return Plan::NotDue { due_at },
        Due::DueDespiteFuture { last_fetch_at } => {
            warning =
                Some(format!("last_fetch_at is {last_fetch_at}, which is in the future: a clock was wrong"));
        }
        Due::Due | Due::NotDue { .. } => {}
    }
    // What lies further ahead than anybody asks for was written under a clock that was wrong.
    let believable = |until: &Timestamp| *until > now && until.since(now) <= HELD_MAX;
    if let Some(until) = source.retry_at.filter(believable) {
        let error = source.error.as_deref().unwrap_or("it failed");
        let times =
            if source.failures == 1 { "once" } else { &format!("{} times in a row", source.failures) };
        return Plan::Held { until, why: format!("failed {times}: {error}") };
    }
    if let Some((until, why)) = Cursor::of(source).not_before().filter(|(until, _)| believable(until)) {
        return Plan::Held { until, why };
    }
    Plan::Fetch { warning }
}

/// When a source is worth asking next, as far as its row tells when the wall clock reads `now`; `None` when never.
/// One without a cadence is worth it after `unpaced`.
pub fn next_at(source: &Source, unpaced: Span, now: Timestamp) -> Option<Timestamp> {
    if !source.enabled {
        return None;
    }
    let cursor = object("cursor_json", &source.cursor_json).unwrap_or_default();
    // A fetch cannot have been in the future: that one is due (B64).
    let last_fetch = last_fetch_at(&cursor).ok().flatten().filter(|last_fetch| *last_fetch <= now);
    let every = cadence(source).ok().flatten().map_or(unpaced, Cadence::every);
    let due_at = last_fetch.map_or(Timestamp::MIN, |last_fetch| last_fetch + every);
    let held = [source.retry_at, Cursor::of(source).not_before().map(|(until, _)| until)];
    let held = held.into_iter().flatten().filter(|until| until.since(now) <= HELD_MAX);
    Some(held.fold(due_at, Timestamp::max))
}

/// The cadence of a source, if it has one.
pub fn cadence(source: &Source) -> Result<Option<Cadence>, String> {
    let config = object("config_json", &source.config_json)?;
    Cadence::of_config(&config).map_err(|error| format!("config_json: {error}"))
}

/// A column that holds an object.
pub(super) fn object(key: &str, text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("{key} is no JSON object")),
        Err(error) => Err(format!("{key} is not valid JSON: {error}")),
    }
}

/// Nobody is held for longer than this.
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

    /// A cursor whose last fetch was so many seconds before now.
    fn fetched(ago: i64) -> String {
        let at = Timestamp::from_micros(NOW.as_micros() - ago * 1_000_000);
        format!(r#"{{"last_fetch_at":"{at}"}}"#)
    }

    /// B59
    #[test]
    fn a_source_is_due_when_never_fetched_or_when_its_time_came() {
        assert_eq!(planned(&source("{}", "{}"), Cadences::Kept), "fetch");
        assert_eq!(planned(&source("{}", &fetched(1)), Cadences::Kept), "fetch");
        assert_eq!(planned(&source(HOURLY, "{}"), Cadences::Kept), "fetch");
        assert_eq!(planned(&source(HOURLY, &fetched(3_600)), Cadences::Kept), "fetch");
        assert_eq!(
            planned(&source(HOURLY, &fetched(3_599)), Cadences::Kept),
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
    fn a_cadence_that_makes_no_sense_is_never_always_due() {
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
        let planned = planned(&source(HOURLY, r#"{"last_fetch_at":"yesterday"}"#), Cadences::Kept);
        assert!(planned.starts_with("invalid: cursor_json.last_fetch_at = \"yesterday\""), "{planned}");
    }

    /// B64
    #[test]
    fn a_last_fetch_in_the_future_warns_and_one_beyond_the_window_does_not() {
        let future = source(HOURLY, &fetched(-60));
        assert!(planned(&future, Cadences::Kept).starts_with("fetch, last_fetch_at is "));
        let end = Timestamp::from_micros(NOW.as_micros() - 7_200 * 1_000_000);
        let backfilled = planned_at(&source(HOURLY, &fetched(3_700)), Cadences::Kept, end);
        assert!(backfilled.starts_with("not due before "), "{backfilled}");
    }

    /// B66: what a feed or its server says only ever makes us ask later.
    #[test]
    fn what_its_server_says_holds_a_source_that_is_due() {
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
    /// B7, B64: what was written under a clock that was wrong holds nobody for ever.
    #[test]
    fn what_lies_absurdly_far_ahead_does_not_count() {
        let year = NOW + Span::from_hours(365 * 24);
        let mut odd = source(HOURLY, &format!(r#"{{"not_before":"{year}"}}"#));
        odd.retry_at = Some(year);
        assert_eq!(planned(&odd, Cadences::Kept), "fetch");
        assert_eq!(next_at(&odd, Span::ZERO, NOW), Some(Timestamp::MIN));
        let future = source(HOURLY, &fetched(-60));
        assert_eq!(next_at(&future, Span::ZERO, NOW), Some(Timestamp::MIN));
    }
}
