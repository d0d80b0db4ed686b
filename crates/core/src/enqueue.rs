//! Whether an item of a source may be enqueued to be scraped, and what to say when not (B56).
//!
//! The facts come from a store, the interval from [`crate::interval`]; the order of the checks is the whole
//! point of this module.

use std::fmt;

use crate::interval::{self, Deferred};
use crate::time::{Span, Timestamp};

/// Who asks for the scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// An ingest run, by itself.
    Automatic,
    /// A person.
    Manual,
}

/// What is known of an item and its source when it is to be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Whether the item exists.
    pub item_exists: bool,
    /// Its source, if that exists.
    pub source: Option<SourceFacts>,
    /// Whether the item waits, is deferred or runs already.
    pub item_in_flight: bool,
    /// Who asks.
    pub asker: Asker,
}

/// What is known of a source when an item of it is to be enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFacts {
    /// Whether the source's items are scraped at all.
    pub scraping: bool,
    /// Whether an ingest run may enqueue them by itself.
    pub auto_scrape: bool,
    /// Items of the source that wait or run; deferred ones are not counted.
    pub in_flight: u32,
    /// How many may; `None` is unlimited.
    pub in_flight_max: Option<u32>,
    /// The interval in force.
    pub interval: Option<Span>,
    /// The last scrape of the source.
    pub last_scrape_at: Option<Timestamp>,
    /// The latest wake reserved for the source.
    pub last_wake: Option<Timestamp>,
}

/// What became of the wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// A task is to be made, ready now.
    Enqueued,
    /// There is one already (B54).
    Already,
    /// A task is to be made, ready later.
    Deferred(Deferred),
    /// No task is to be made.
    Refused(Refusal),
}

/// Why no task is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The item does not exist.
    MissingItem,
    /// Its source does not exist.
    MissingSource,
    /// The source's items are not scraped.
    ScrapingDisabled,
    /// An ingest run may not enqueue them by itself.
    AutoScrapeDisabled,
    /// As many items of the source wait or run as may.
    InFlightMax {
        /// How many do.
        in_flight: u32,
        /// How many may.
        max: u32,
    },
}

/// Decides, the first refusal in the order of B56 counting.
pub fn enqueue(facts: &Facts, now: Timestamp) -> Enqueued {
    let refused = Enqueued::Refused;
    let Some(source) = facts.source.filter(|_| facts.item_exists) else {
        return refused(if facts.item_exists { Refusal::MissingSource } else { Refusal::MissingItem });
    };
    if !source.scraping {
        return refused(Refusal::ScrapingDisabled);
    }
    if facts.asker == Asker::Automatic && !source.auto_scrape {
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
                write!(f, "{in_flight} items of the source wait or run, and at most {max} may")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(100);

    /// Everything speaks against it.
    fn hopeless() -> Facts {
        let source = SourceFacts {
            scraping: false,
            auto_scrape: false,
            in_flight: 2,
            in_flight_max: Some(2),
            interval: Some(Span::from_secs(60)),
            last_scrape_at: Some(Timestamp::from_secs(90)),
            last_wake: None,
        };
        Facts { item_exists: false, source: None, item_in_flight: true, asker: Asker::Automatic }
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

    /// B54, B56: each obstacle is taken away in turn, and the next one speaks.
    #[test]
    fn refusals_come_in_their_order() {
        let facts = hopeless();
        assert_eq!(enqueue(&facts, NOW).to_string(), "the item does not exist");
        let facts = facts.with(|facts| facts.item_exists = true);
        let missing = facts.with(|facts| facts.source = None);
        assert_eq!(enqueue(&missing, NOW).to_string(), "the item's source does not exist");
        assert_eq!(enqueue(&facts, NOW).to_string(), "scraping is disabled for the source");
        let source = facts.source.unwrap().with(|source| source.scraping = true);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "automatic scraping is disabled for the source");
        let manual = facts.with(|facts| facts.asker = Asker::Manual);
        assert_eq!(enqueue(&manual, NOW), Enqueued::Already);
        let source = source.with(|source| source.auto_scrape = true);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "already waiting or running");
        let facts = facts.with(|facts| facts.item_in_flight = false);
        assert_eq!(enqueue(&facts, NOW).to_string(), "2 items of the source wait or run, and at most 2 may");
        let source = source.with(|source| source.in_flight_max = None);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(
            enqueue(&facts, NOW).to_string(),
            "scraped 10s ago, the interval is 60s: deferred for 50s"
        );
        let source = source.with(|source| source.interval = None);
        let facts = facts.with(|facts| facts.source = Some(source));
        assert_eq!(enqueue(&facts, NOW).to_string(), "enqueued");
    }
}
