//! What domains did so far, as the events tell it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity::clock::Clock;
use comity::core::domain::Domain;
use comity::core::outcome::Outcome;
use comity::core::time::{Span, Timestamp};
use comity::event::{Event, Listener, TaskEvent};

/// Listens to what happens.
pub(super) struct Heard {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    domains: HashMap<Domain, Did>,
    /// Domains that another process had when they were wanted here.
    elsewhere: HashSet<Domain>,
}

/// What a domain did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Did {
    /// Pages that it gave.
    answered: Option<Answered>,
    /// Time-outs in a row.
    pub(super) timeouts: u32,
    /// Tasks that failed since it answered last.
    pub(super) failed: u32,
    /// What its robots.txt says is known, or that it could not be fetched.
    pub(super) robots: bool,
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

impl Heard {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    pub(super) fn did(&self, domain: &Domain) -> Did {
        self.state().domains.get(domain).copied().unwrap_or_default()
    }

    pub(super) fn elsewhere(&self) -> HashSet<Domain> {
        self.state().elsewhere.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, domain: &Domain, note: impl FnOnce(&mut Did, Timestamp)) {
        let now = self.clock.now();
        let mut state = self.state();
        if let Some(did) = state.domains.get_mut(domain) {
            note(did, now);
        } else if state.domains.len() < DOMAINS_MAX {
            note(state.domains.entry(domain.clone()).or_default(), now);
        }
    }
}

impl Listener for Heard {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::Granted { domain } => self.note(domain, Did::asked),
            Event::Recorded { domain, answer, .. } => {
                self.note(domain, |did, now| did.recorded(answer.outcome, now));
            }
            Event::Task { url, step: TaskEvent::Failed { .. } } => {
                if let Ok(domain) = Domain::of_url(url) {
                    self.note(&domain, |did, _| did.failed += u32::from(did.timeouts > 0));
                }
            }
            Event::Robots { origin, .. } => {
                if let Ok(domain) = Domain::of_url(origin) {
                    self.note(&domain, |did, _| did.robots = true);
                }
            }
            Event::HeldElsewhere { domain, .. } => {
                let mut state = self.state();
                if state.elsewhere.len() < DOMAINS_MAX && !state.elsewhere.contains(*domain) {
                    state.elsewhere.insert((*domain).clone());
                }
            }
            Event::TookOver { domain, .. } => drop(self.state().elsewhere.remove(*domain)),
            _ => {}
        }
    }
}

impl Did {
    fn asked(&mut self, now: Timestamp) {
        self.answered.get_or_insert(Answered { since: now, count: 0, half_at: now });
    }

    fn recorded(&mut self, outcome: Outcome, now: Timestamp) {
        self.asked(now);
        match outcome {
            Outcome::Timeout => self.timeouts = self.timeouts.saturating_add(1),
            _ => (self.timeouts, self.failed) = (0, 0),
        }
        if let (Outcome::Success | Outcome::Answered, Some(answered)) = (outcome, &mut self.answered) {
            answered.one_more(now);
        }
    }

    /// How long each page took.
    pub(super) fn each(&self, now: Timestamp) -> Option<Span> {
        self.answered.and_then(|answered| answered.each(now))
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

/// Domains that are remembered.
const DOMAINS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
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
    fn whatever_a_site_answers_ends_its_silence() {
        let mut did = Did::default();
        did.recorded(Outcome::Timeout, at(1));
        did.recorded(Outcome::Timeout, at(2));
        assert_eq!(did.timeouts, 2);
        did.recorded(Outcome::Unavailable, at(3));
        assert_eq!(did.timeouts, 0);
    }
}
