//! How each domain has behaved so far, collected from events.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity::clock::Clock;
use comity::core::domain::Domain;
use comity::core::outcome::Outcome;
use comity::core::time::{Span, Timestamp};
use comity::event::{Event, Listener, TaskEvent};

/// Collects the history of all domains from events.
pub(super) struct History {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    domains: HashMap<Domain, DomainHistory>,
    /// Domains that another process held when this one needed them.
    elsewhere: HashSet<Domain>,
}

/// How one domain has behaved.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DomainHistory {
    /// The pages it returned.
    answered: Option<Answered>,
    /// Consecutive timeouts.
    pub(super) timeouts: u32,
    /// Tasks that failed since its last response.
    pub(super) failed: u32,
    /// Whether its robots.txt is known, or known to be unavailable.
    pub(super) robots: bool,
}

/// The pages a domain returned.
#[derive(Debug, Clone, Copy)]
struct Answered {
    /// Since when they are counted.
    since: Timestamp,
    /// How many there were.
    count: u32,
    /// When half of [`Answered::MOST`] was reached.
    half_at: Timestamp,
}

impl History {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    pub(super) fn of(&self, domain: &Domain) -> DomainHistory {
        self.state().domains.get(domain).copied().unwrap_or_default()
    }

    pub(super) fn elsewhere(&self) -> HashSet<Domain> {
        self.state().elsewhere.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, domain: &Domain, note: impl FnOnce(&mut DomainHistory, Timestamp)) {
        let now = self.clock.now();
        let mut state = self.state();
        if let Some(history) = state.domains.get_mut(domain) {
            note(history, now);
        } else if state.domains.len() < DOMAINS_MAX {
            note(state.domains.entry(domain.clone()).or_default(), now);
        }
    }
}

impl Listener for History {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Granted { domain } => self.note(domain, DomainHistory::requested),
            Event::Recorded { domain, answer, .. } => {
                self.note(domain, |history, now| history.recorded(answer.outcome, now));
            }
            Event::Task { url, final_url, step: TaskEvent::Failed { .. } } => {
                if let Ok(domain) = Domain::of_url(final_url.unwrap_or(url)) {
                    self.note(&domain, |history, _| history.failed += u32::from(history.timeouts > 0));
                }
            }
            Event::Robots { origin, .. } => {
                if let Ok(domain) = Domain::of_url(origin) {
                    self.note(&domain, |history, _| history.robots = true);
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

impl DomainHistory {
    fn requested(&mut self, now: Timestamp) {
        self.answered.get_or_insert(Answered { since: now, count: 0, half_at: now });
    }

    fn recorded(&mut self, outcome: Outcome, now: Timestamp) {
        self.requested(now);
        match outcome {
            Outcome::Timeout => self.timeouts = self.timeouts.saturating_add(1),
            _ => (self.timeouts, self.failed) = (0, 0),
        }
        if let (Outcome::Success | Outcome::Answered, Some(answered)) = (outcome, &mut self.answered) {
            answered.one_more(now);
        }
    }

    /// How long each page took, on average.
    pub(super) fn per_page(&self, now: Timestamp) -> Option<Span> {
        self.answered.and_then(|answered| answered.per_page(now))
    }
}

impl Answered {
    /// After this many pages, the older half is forgotten, because it says little about the present.
    const MOST: u32 = 64;
    /// An average of fewer pages means nothing.
    const FEWEST: u32 = 4;

    fn one_more(&mut self, now: Timestamp) {
        self.count += 1;
        if self.count == Self::MOST / 2 {
            self.half_at = now;
        } else if self.count >= Self::MOST {
            *self = Self { since: self.half_at, count: Self::MOST / 2, half_at: now };
        }
    }

    fn per_page(self, now: Timestamp) -> Option<Span> {
        (self.count >= Self::FEWEST).then(|| now.since(self.since).split(u64::from(self.count)))
    }
}

/// Maximum number of domains to remember.
const DOMAINS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn old_pages_are_forgotten() {
        let mut answered = Answered { since: at(0), count: 0, half_at: at(0) };
        (1..=3).for_each(|secs| answered.one_more(at(secs)));
        assert_eq!(answered.per_page(at(3)), None, "three pages are too few");
        // One page per second, then one every ten seconds.
        (4..=64).for_each(|secs| answered.one_more(at(secs)));
        (1..=100).for_each(|page| answered.one_more(at(64 + 10 * page)));
        let each = answered.per_page(at(1_064)).unwrap();
        assert_eq!(each, Span::from_secs(10));
    }

    #[test]
    fn any_response_resets_the_timeouts() {
        let mut history = DomainHistory::default();
        history.recorded(Outcome::Timeout, at(1));
        history.recorded(Outcome::Timeout, at(2));
        assert_eq!(history.timeouts, 2);
        history.recorded(Outcome::Unavailable, at(3));
        assert_eq!(history.timeouts, 0);
    }
}
