//! The minimum interval between two scrapes of a source.
//!
//! The interval is measured between the starts of scrapes, not between requests. The pace of the site, which applies in
//! addition, is in [`crate::pace`].

use std::fmt;

use crate::time::{Span, Timestamp};

/// A source's own setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceInterval {
    /// Not set (null): the global interval applies.
    #[default]
    Default,
    /// Zero or negative: no interval for this source.
    Off,
    /// An interval of its own.
    Every(Span),
}

/// A value that isn't an interval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value:?}: expected {expected}")]
pub struct IntervalError {
    /// The setting.
    pub key: &'static str,
    /// The text that was given.
    pub value: String,
    /// What is accepted instead.
    pub expected: &'static str,
}

/// A scrape that is too soon after the previous one, and when it will run instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deferred {
    /// Seconds until the task runs, rounded up.
    pub wait_seconds: u64,
    /// The interval that applies.
    pub interval: Span,
    /// When the source was last scraped.
    pub last_scrape_at: Option<Timestamp>,
    /// Time since the last scrape.
    pub elapsed: Span,
    /// Time until another scrape of the source that is due before this one, if any.
    pub due_first: Option<Span>,
    /// When the task runs. This time is reserved: the interval before the next task is measured from it.
    pub wake_at: Timestamp,
}

impl SourceInterval {
    /// Parses `min_scrape_interval` of a source: decimal seconds with at most two decimal places; `default` or an empty
    /// text means the global interval.
    pub fn parse(text: &str) -> Result<Self, IntervalError> {
        if matches!(text.trim(), "" | "default" | "null") {
            return Ok(Self::Default);
        }
        Ok(read("min_scrape_interval", text)?.map_or(Self::Off, Self::Every))
    }

    /// The interval that applies; `global` is the configured one.
    pub fn effective(self, global: Option<Span>) -> Option<Span> {
        match self {
            Self::Default => global,
            Self::Off => None,
            Self::Every(span) => Some(span),
        }
    }
}

/// Parses the global `scrape.min_interval`: decimal seconds; empty, zero and negative values turn it off.
pub fn parse_global(text: &str) -> Result<Option<Span>, IntervalError> {
    if text.trim().is_empty() { Ok(None) } else { read("scrape.min_interval", text) }
}

/// May a task of the source be enqueued to run at `now`? `last_wake` is the latest time that is already reserved for
/// the source. For a task that is already running, use [`check_running`], because the reserved time may be its own.
pub fn check(
    interval: Option<Span>,
    last_scrape_at: Option<Timestamp>,
    last_wake: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Deferred> {
    let Some(interval) = interval else { return Ok(()) };
    // A scrape in the future means that the clock stepped back, which must not make the wait longer.
    let scraped = last_scrape_at.map(|at| at.min(now));
    let Some(anchor) = scraped.max(last_wake) else { return Ok(()) };
    let due_at = anchor + interval;
    if due_at <= now {
        return Ok(());
    }
    let wait_seconds = due_at.since(now).as_secs_up();
    Err(Deferred {
        wait_seconds,
        interval,
        last_scrape_at,
        elapsed: last_scrape_at.map_or(Span::ZERO, |at| now.since(at)),
        due_first: last_wake.filter(|wake| *wake == anchor && *wake > now).map(|wake| wake.since(now)),
        wake_at: now + Span::from_secs(wait_seconds),
    })
}

/// May a running task scrape its source at `now`?
pub fn check_running(
    interval: Option<Span>,
    last_scrape_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Deferred> {
    check(interval, last_scrape_at, None, now)
}

/// The latest time that `deferred` deferred scrapes of a source can have reserved at `now`: each is an interval,
/// rounded up to a second, after the previous one. A later time was reserved while the clock was ahead, and must not
/// defer others.
pub fn latest_wake(interval: Span, deferred: u64, now: Timestamp) -> Timestamp {
    now + (interval + Span::from_secs(1)).times(deferred)
}

/// Parses decimal seconds that fit into `numeric(10,2)`; `None` for zero and negative values, which mean off.
fn read(key: &'static str, text: &str) -> Result<Option<Span>, IntervalError> {
    let expected = "decimal seconds with at most two places and eight digits before the point, such as 2.5";
    let wrong = || IntervalError { key, value: text.to_owned(), expected };
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    let span = Span::from_decimal_secs(digits).ok_or_else(wrong)?;
    // Trailing zeros don't count: 2.500 is 2.5.
    if whole.trim_start_matches('0').len() > 8 || places.trim_end_matches('0').len() > 2 {
        return Err(wrong());
    }
    Ok((!negative && !span.is_zero()).then_some(span))
}

impl fmt::Display for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.last_scrape_at.is_some() {
            write!(f, "scraped {} ago, ", in_hundredths(self.elapsed).prose())?;
        }
        if let Some(due) = self.due_first {
            write!(f, "another scrape is due in {}, ", in_hundredths(due).prose())?;
        }
        let wait = Span::from_secs(self.wait_seconds);
        write!(f, "the interval is {}: deferred for {}", self.interval.prose(), wait.prose())
    }
}

/// Whole hundredths of a second, rounded down so that elapsed time is never exaggerated.
fn in_hundredths(span: Span) -> Span {
    Span::from_micros(span.as_micros() / 10_000 * 10_000)
}

/// The default global interval.
pub const MIN_INTERVAL: Span = Span::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: f64) -> Timestamp {
        Timestamp::from_micros((secs * 1e6) as i64)
    }

    /// B50
    #[test]
    fn settings_are_parsed_as_documented() {
        let source = |text| SourceInterval::parse(text);
        assert_eq!(source("2.5"), Ok(SourceInterval::Every(Span::from_millis(2_500))));
        assert_eq!(source("2.500"), Ok(SourceInterval::Every(Span::from_millis(2_500))));
        assert_eq!(source("default"), Ok(SourceInterval::Default));
        assert_eq!(source("0"), Ok(SourceInterval::Off));
        assert_eq!(source("-1"), Ok(SourceInterval::Off));
        assert_eq!(parse_global("1.0"), Ok(Some(MIN_INTERVAL)));
        assert_eq!(parse_global(""), Ok(None));
        assert_eq!(parse_global("0.00"), Ok(None));
        assert_eq!(parse_global("-3"), Ok(None));
        for text in ["2.555", "fast", "1e3", "NaN", "inf", "123456789", "1s", "--1"] {
            let error = source(text).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("min_scrape_interval = {text:?}: expected decimal")),
                "{error}"
            );
        }
    }

    /// B50
    #[test]
    fn a_sources_own_interval_wins_and_null_means_the_global_one() {
        let (own, global) = (Span::from_secs(5), Some(MIN_INTERVAL));
        assert_eq!(SourceInterval::Default.effective(global), global);
        assert_eq!(SourceInterval::Default.effective(None), None);
        assert_eq!(SourceInterval::Every(own).effective(None), Some(own));
        assert_eq!(SourceInterval::Off.effective(global), None);
    }

    /// B52, B7: after the clock stepped back, a scrape isn't deferred for longer than the interval.
    #[test]
    fn a_last_scrape_in_the_future_defers_by_one_interval() {
        let deferred = check(Some(Span::from_secs(2)), Some(at(1_000.0)), None, at(10.0)).unwrap_err();
        assert_eq!((deferred.wait_seconds, deferred.elapsed), (2, Span::ZERO));
    }

    /// B7, B55. Regression: a time reserved while the clock was a year ahead deferred its source for a year.
    #[test]
    fn reserved_times_are_never_beyond_the_latest_possible_one() {
        let (interval, now) = (Span::from_millis(2_500), at(11.2));
        let mut last = None;
        for deferred in 0..50 {
            assert!(last <= Some(latest_wake(interval, deferred, now)));
            last = Some(check(Some(interval), Some(at(10.0)), last, now).unwrap_err().wake_at);
        }
    }

    #[test]
    fn a_deferral_message_has_its_numbers() {
        let deferred = check(Some(Span::from_millis(2_500)), Some(at(10.0)), None, at(11.2)).unwrap_err();
        assert_eq!(deferred.to_string(), "scraped 1.2 s ago, the interval is 2.5 s: deferred for 2 s");
        let reserved = check(Some(Span::from_secs(2)), None, Some(at(12.0)), at(11.0)).unwrap_err();
        assert_eq!(
            reserved.to_string(),
            "another scrape is due in 1 s, the interval is 2 s: deferred for 3 s"
        );
        let both = check(Some(Span::from_secs(2)), Some(at(10.0)), Some(at(12.0)), at(11.0)).unwrap_err();
        assert!(both.to_string().starts_with("scraped 1 s ago, another scrape is due in 1 s, "));
    }

    /// B53: reserved times may be the running task's own
    #[test]
    fn for_a_running_task_only_the_last_scrape_counts() {
        let interval = Some(Span::from_millis(2_500));
        assert_eq!(check_running(interval, Some(at(10.0)), at(13.2)), Ok(()));
        assert_eq!(check_running(interval, Some(at(13.2)), at(16.2)), Ok(()));
        let deferred = check_running(interval, Some(at(13.0)), at(13.2)).unwrap_err();
        assert_eq!(deferred.wait_seconds, 3);
    }
}
