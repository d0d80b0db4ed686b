//! Whether an item of a source may be enqueued for scraping, and the message if not.
//!
//! The facts come from the store, the interval from [`crate::interval`]. What this module defines is the order of the
//! checks.

use std::fmt;

use crate::interval::{self, Deferred};
use crate::time::{Span, Timestamp};

/// What requested the scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// A run that fetched the source.
    Automatic,
    /// A person.
    Manual,
}

/// What is known about an item and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether the item exists.
    pub item_exists: bool,
    /// Its source, if that exists.
    pub source: Option<SourceFacts>,
    /// Whether the item is already waiting, deferred or running.
    pub item_in_flight: bool,
    /// What requested the scrape.
    pub trigger: Trigger,
}

/// What is known about the source of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFacts {
    /// Whether the source's items are scraped at all.
    pub scraping: bool,
    /// Whether runs enqueue them automatically.
    pub auto_scrape: bool,
    /// Items of the source that are waiting or running; deferred ones don't count.
    pub in_flight: u32,
    /// Maximum of `in_flight`; `None` is unlimited.
    pub in_flight_max: Option<u32>,
    /// The interval that applies.
    pub interval: Option<Span>,
    /// When the source was last scraped.
    pub last_scrape_at: Option<Timestamp>,
    /// The latest time that is reserved for a scrape of the source.
    pub last_wake: Option<Timestamp>,
}

/// Whether a task is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// A task is created that is ready now.
    Enqueued,
    /// The item already has a task.
    Already,
    /// A task is created that is ready later.
    Deferred(Deferred),
    /// No task is created.
    Refused(Refusal),
}

/// Why no task is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The item doesn't exist.
    MissingItem,
    /// Its source doesn't exist.
    MissingSource,
    /// Items of the source aren't scraped.
    ScrapingDisabled,
    /// Runs don't enqueue items of the source automatically.
    AutoScrapeDisabled,
    /// Too many items of the source are waiting or running.
    InFlightMax {
        /// How many are.
        in_flight: u32,
        /// How many may be.
        max: u32,
    },
}

/// Decides whether to create a task. If several refusals apply, the first in the order of the checks is returned.
pub fn enqueue(facts: &Facts, now: Timestamp) -> Enqueued {
    let refused = Enqueued::Refused;
    let Some(source) = facts.source.filter(|_| facts.item_exists) else {
        return refused(if facts.item_exists { Refusal::MissingSource } else { Refusal::MissingItem });
    };
    if !source.scraping {
        return refused(Refusal::ScrapingDisabled);
    }
    if facts.trigger == Trigger::Automatic && !source.auto_scrape {
        return refused(Refusal::AutoScrapeDisabled);
    }
    if facts.item_in_flight {
        return Enqueued::Already;
    }
    match source.in_flight_max {
        Some(max) if source.in_flight >= max => {
            return refused(Refusal::InFlightMax { in_flight: source.in_flight, max });
        }
        _ => {}
    }
    match interval::check(source.interval, source.last_scrape_at, source.last_wake, now) {
        Ok(()) => Enqueued::Enqueued,
        Err(deferred) => Enqueued::Deferred(deferred),
    }
}

impl fmt::Display for Enqueued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enqueued => f.write_str("enqueued"),
            Self::Already => f.write_str("already waiting or running"),
            Self::Deferred(deferred) => deferred.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingItem => f.write_str("the item does not exist"),
            Self::MissingSource => f.write_str("the item's source does not exist"),
            Self::ScrapingDisabled => f.write_str("scraping is disabled for the source"),
            Self::AutoScrapeDisabled => f.write_str("automatic scraping is disabled for the source"),
            Self::InFlightMax { in_flight, max } => {
                write!(f, "{in_flight} items of the source are waiting or running, and at most {max} may")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(100);

    /// Facts for which every refusal applies.
    fn refused_for_every_reason() -> Facts {
        let source = SourceFacts {
            scraping: false,
            auto_scrape: false,
            in_flight: 2,
            in_flight_max: Some(2),
            interval: Some(Span::from_secs(60)),
            last_scrape_at: Some(Timestamp::from_secs(90)),
            last_wake: None,
        };
        Facts { item_exists: false, source: None, item_in_flight: true, trigger: Trigger::Automatic }
            .with(|facts| facts.source = Some(source))
    }

    impl Facts {
        fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
            change(&mut self);
            self
        }
    }

    impl SourceFacts {
        fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
            change(&mut self);
            self
        }
    }

    /// B54, B56: each obstacle is removed in turn, and the next refusal shows up.
    #[test]
    fn refusals_come_in_the_documented_order() {
        let facts = refused_for_every_reason();
        assert_eq!(enqueue(&facts, NOW).to_string(), "the item does not exist");
        let facts = facts.with(|facts| facts.item_exists = true);
        let missing = facts.with(|facts| facts.source = None);
        assert_eq!(enqueue(&missing, NOW).to_string(), "the item's source does not exist");
        assert_eq!(enqueue(&facts, NOW).to_string(), "scraping is disabled for the source");
        let source = facts.source.unwrap().with(|source| source.scraping = true);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "automatic scraping is disabled for the source");
        let manual = facts.with(|facts| facts.trigger = Trigger::Manual);
        assert_eq!(enqueue(&manual, NOW), Enqueued::Already);
        let source = source.with(|source| source.auto_scrape = true);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "already waiting or running");
        let facts = facts.with(|facts| facts.item_in_flight = false);
        assert_eq!(
            enqueue(&facts, NOW).to_string(),
            "2 items of the source are waiting or running, and at most 2 may"
        );
        let source = source.with(|source| source.in_flight_max = None);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(
            enqueue(&facts, NOW).to_string(),
            "scraped 10 s ago, the interval is 60 s: deferred for 50 s"
        );
        let source = source.with(|source| source.interval = None);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "enqueued");
    }
}
