//! How long the rest of a job takes, at the pace that its domains are really fetched at.
//!
//! A domain takes as long as its spacing says, or as it took so far, whichever is longer: a site that closes after every
//! ten pages is slower than its spacing. The job takes as long as the domain that takes longest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use comity::clock::Clock;
use comity::core::domain::Domain;
use comity::core::outcome::Outcome;
use comity::core::time::{Span, Timestamp};
use comity::event::{Event, Listener};
use comity::gate::Gate;
use comity::store::status::Backlog;

/// How fast domains answered so far. Listens to what happens.
pub(super) struct Forecast {
    clock: Clock,
    domains: Mutex<HashMap<Domain, Answered>>,
}

/// Pages that a domain gave.
#[derive(Debug, Clone, Copy)]
struct Answered {
    /// Since when it is counted,
    since: Timestamp,
    /// how many,
    count: u32,
    /// and when half of [`Answered::MOST`] were reached.
    half_at: Timestamp,
}

impl Forecast {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, domains: Mutex::default() }
    }

    /// How long it takes until nothing of the backlog is left. `waiting` tasks wait in all; domains that are not in the
    /// backlog go by `rate`.
    pub(super) fn left(&self, gate: &Gate, backlog: &Counted<'_>, rate: Option<f64>) -> Option<Span> {
        let now = self.clock.now();
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(domain, waiting): (&Domain, u64)| {
            let paced = gate.look(domain);
            let paced = paced.map(|live| live.wait + live.spacing.times(waiting.saturating_sub(1)));
            let seen = domains.get(domain).and_then(|answered| answered.each(now));
            paced.into_iter().chain(seen.map(|each| each.times(waiting))).max()
        };
        let longest = backlog.domains().filter_map(one).max();
        let rest = rate.filter(|rate| *rate > 0.0 && !backlog.is_all);
        let rest = rest.map(|rate| Span::from_millis((backlog.waiting as f64 / rate * 1e3) as u64));
        longest.into_iter().chain(rest).max()
    }
}

impl Listener for Forecast {
    fn hear(&self, event: &Event<'_>) {
        let (domain, came) = match event {
            Event::Granted { domain } => (*domain, false),
            Event::Recorded { domain, answer, .. } => {
                (*domain, matches!(answer.outcome, Outcome::Success | Outcome::Answered))
            }
            _ => return,
        };
        let now = self.clock.now();
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answered) = domains.get_mut(domain) {
            if came {
                answered.one_more(now);
            }
        } else if domains.len() < DOMAINS_MAX {
            let answered = Answered { since: now, count: u32::from(came), half_at: now };
            domains.insert(domain.clone(), answered);
        }
    }
}

impl Answered {
    /// After so many the first half is forgotten: what was an hour ago says little.
    const MOST: u32 = 64;
    /// Fewer say nothing.
    const FEWEST: u32 = 4;

    fn one_more(&mut self, now: Timestamp) {
        self.count += 1;
        if self.count == Self::MOST / 2 {
            self.half_at = now;
        } else if self.count >= Self::MOST {
            *self = Self { since: self.half_at, count: Self::MOST / 2, half_at: now };
        }
    }

    /// How long each took.
    fn each(self, now: Timestamp) -> Option<Span> {
        (self.count >= Self::FEWEST).then(|| now.since(self.since).split(u64::from(self.count)))
    }
}

/// A backlog, and how much of all it is.
pub(super) struct Counted<'a> {
    pub(super) backlog: &'a [Backlog],
    /// Counted up to this many a domain.
    pub(super) limit: u64,
    /// Whether no domain is missing.
    pub(super) is_all: bool,
    /// Tasks that wait in all.
    pub(super) waiting: u64,
}

impl Counted<'_> {
    /// Domains with how many tasks wait. What was not counted to its end gets its share of what is left over.
    pub(super) fn domains(&self) -> impl Iterator<Item = (&Domain, u64)> {
        let counted: u64 = self.backlog.iter().map(|one| one.waiting).sum();
        let cut = self.backlog.iter().filter(|one| one.waiting >= self.limit).count() as u64;
        let over = if self.is_all { self.waiting.saturating_sub(counted) } else { 0 };
        self.backlog.iter().map(move |one| {
            let more = if one.waiting >= self.limit { over / cut.max(1) } else { 0 };
            (&one.domain, one.waiting + more)
        })
    }
}

/// How many are done a second, lately.
#[derive(Debug, Default)]
pub(super) struct Rate(VecDeque<(Timestamp, u64)>);

impl Rate {
    pub(super) fn at(&mut self, now: Timestamp, done: u64) -> Option<f64> {
        if self.0.back().is_none_or(|(last, _)| now.since(*last) >= SAMPLE) {
            self.0.push_back((now, done));
        }
        while self.0.get(1).is_some_and(|(second, _)| now.since(*second) >= LATELY) {
            self.0.pop_front();
        }
        let (since, before) = *self.0.front()?;
        let took = now.since(since).as_secs_f64();
        (took >= 1.0).then(|| done.saturating_sub(before) as f64 / took)
    }
}

const SAMPLE: Span = Span::from_millis(500);
const LATELY: Span = Span::from_secs(15);
/// Domains that are remembered.
const DOMAINS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn a_rate_is_that_of_the_last_while() {
        let mut rate = Rate::default();
        assert_eq!(rate.at(at(0), 100), None);
        assert_eq!(rate.at(at(2), 120), Some(10.0));
        for secs in 3..60 {
            rate.at(at(secs), 120);
        }
        assert_eq!(rate.at(at(60), 120), Some(0.0));
    }

    #[test]
    fn what_a_domain_did_long_ago_is_forgotten() {
        let mut answered = Answered { since: at(0), count: 0, half_at: at(0) };
        (1..=3).for_each(|secs| answered.one_more(at(secs)));
        assert_eq!(answered.each(at(3)), None, "three say nothing");
        // A page a second, and later a page in ten.
        (4..=64).for_each(|secs| answered.one_more(at(secs)));
        (1..=100).for_each(|page| answered.one_more(at(64 + 10 * page)));
        let each = answered.each(at(1_064)).unwrap();
        assert_eq!(each, Span::from_secs(10));
    }

    #[test]
    fn what_was_not_counted_belongs_to_those_who_have_most() {
        let one = |name: &str, waiting| Backlog { domain: Domain::parse(name).unwrap(), waiting };
        let backlog = [one("a.example", 1_000), one("b.example", 7), one("c.example", 1_000)];
        let counted = Counted { backlog: &backlog, limit: 1_000, is_all: true, waiting: 12_007 };
        let told: Vec<u64> = counted.domains().map(|(_, waiting)| waiting).collect();
        assert_eq!(told, [6_000, 7, 6_000]);
        let counted = Counted { is_all: false, ..counted };
        assert_eq!(counted.domains().map(|(_, waiting)| waiting).sum::<u64>(), 2_007);
    }
}
