//! What people, metrics and workers want to know of a gate. Nothing is changed here.

use std::sync::PoisonError;

use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::time::{Span, Timestamp};

use super::Gate;
use super::state::State;
use crate::event::Streaks;
use crate::status::{HeldBack, Status, Work};

/// A domain that is held here, as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    /// The time between starts.
    pub spacing: Span,
    /// What was learnt of it.
    pub delay: Span,
    /// The floor of that.
    pub floor: Span,
    /// Penalties in a row.
    pub penalties: u32,
    /// Answers of one kind in a row.
    pub streaks: Streaks,
    /// Permits neither recorded nor expired.
    pub in_flight: usize,
    /// Callers and tasks in line.
    pub waiting: usize,
    /// When the next request could leave.
    pub next_at: Timestamp,
    /// Whether an operator keeps what was learnt as it is.
    pub pinned: bool,
    /// Until when an operator closed it; [`Timestamp::MAX`] is until resumed.
    pub paused_until: Option<Timestamp>,
    /// Until when its server asked to be left alone.
    pub server_until: Option<Timestamp>,
    /// The latest start.
    pub last_start: Option<Timestamp>,
    /// The latest success.
    pub last_success: Option<Timestamp>,
}

/// All domains that are held here, at a glance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    /// How many there are.
    pub domains: usize,
    /// Callers and tasks in line.
    pub waiting: usize,
    /// Permits neither recorded nor expired.
    pub in_flight: usize,
    /// Those that are slowest, the slowest first.
    pub slowest: Vec<Slow>,
}

/// A domain that is slow.
#[derive(Debug, Clone, PartialEq)]
pub struct Slow {
    /// Which.
    pub domain: Domain,
    /// The time between starts.
    pub spacing: Span,
    /// How long until the next request could leave.
    pub wait: Span,
}

impl Gate {
    /// How many domains are held here.
    pub fn domains(&self) -> usize {
        self.lock().dispatch.paces().len()
    }

    /// Whether the domain of `host` is held here.
    pub fn holds(&self, host: &Domain) -> bool {
        self.lock().is_held(&self.0.rules.domain(host))
    }

    /// How long until the next request to a domain could leave; nothing when it is not held here.
    pub fn wait(&self, domain: &Domain) -> Span {
        let state = self.lock();
        let paces = state.dispatch.paces();
        let Some(pace) = paces.find(domain).and_then(|id| paces.pace(id)) else { return Span::ZERO };
        let now = self.now();
        pace.next_at(self.terms_in(&state, domain), Intent::Fetch, now).since(now)
    }

    /// A domain as it is now; `None` when it is not held here.
    pub fn look(&self, domain: &Domain) -> Option<Live> {
        let state = self.lock();
        let id = state.dispatch.paces().find(domain)?;
        let pace = state.dispatch.paces().pace(id)?;
        let (terms, now) = (self.terms_in(&state, domain), self.now());
        Some(Live {
            spacing: pace.spacing(terms),
            delay: pace.learned().delay(),
            floor: pace.learned().floor(),
            penalties: pace.penalties(),
            streaks: Streaks::of(pace),
            in_flight: pace.in_flight(now),
            waiting: state.dispatch.waiting(id),
            next_at: pace.next_at(terms, Intent::Fetch, now),
            pinned: pace.learned().pinned(),
            paused_until: pace.paused_until(),
            server_until: pace.server_until(),
            last_start: pace.last_start(),
            last_success: pace.last_success(),
        })
    }

    /// All domains at a glance, with the `slowest` slowest ones.
    pub fn survey(&self, slowest: usize) -> Survey {
        let state = self.lock();
        let now = self.now();
        let mut survey = Survey { domains: state.dispatch.paces().len(), ..Survey::default() };
        let mut slow: Vec<(Span, Span, &Domain)> = Vec::new();
        for (id, domain, pace) in state.dispatch.paces().iter() {
            survey.waiting += state.dispatch.waiting(id);
            survey.in_flight += pace.in_flight(now);
            let terms = self.terms_in(&state, domain);
            let spacing = pace.spacing(terms);
            let wait = pace.next_at(terms, Intent::Fetch, now).since(now);
            slow.push((spacing, wait, domain));
        }
        let by_pace = |a: &(Span, Span, &Domain), b: &(Span, Span, &Domain)| {
            (b.0.max(b.1), a.2).cmp(&(a.0.max(a.1), b.2))
        };
        if slowest > 0 && slow.len() > slowest {
            slow.select_nth_unstable_by(slowest - 1, by_pace);
            slow.truncate(slowest);
        }
        slow.truncate(slowest);
        slow.sort_by(by_pace);
        let slow = slow.into_iter();
        survey.slowest =
            slow.map(|(spacing, wait, domain)| Slow { domain: domain.clone(), spacing, wait }).collect();
        survey
    }

    /// What this process is at, with at most `limit` of the domains that hold it back.
    pub fn status(&self, limit: usize) -> Status {
        let work = self.0.work.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut status = Status { work, ..Status::default() };
        let state = self.lock();
        let now = self.now();
        let mut waits: Vec<(Span, &Domain, usize, Reason)> = Vec::new();
        for (id, domain, pace) in state.dispatch.paces().iter() {
            let in_line = state.dispatch.waiting(id);
            status.domains += 1;
            status.in_flight += pace.in_flight(now);
            status.in_line += in_line;
            let terms = self.terms_in(&state, domain);
            if in_line > 0
                && let Some(reason) = pace.peek(terms, Intent::Fetch, now)
            {
                // Nobody knows when an answer comes; what follows it is the spacing.
                let on_the_wire = matches!(reason.limit, Limit::InFlight { .. });
                let weight = if on_the_wire { pace.spacing(terms) } else { reason.weight() };
                waits.push((weight, domain, in_line, reason));
            }
        }
        let order = |a: &(Span, &Domain, _, _), b: &(Span, &Domain, _, _)| (b.0, a.1).cmp(&(a.0, b.1));
        status.more = waits.len().saturating_sub(limit);
        if limit > 0 && status.more > 0 {
            waits.select_nth_unstable_by(limit - 1, order);
        }
        waits.truncate(limit);
        waits.sort_unstable_by(order);
        let shown = waits.iter().map(|(_, domain, in_line, reason)| HeldBack::new(domain, *in_line, reason));
        status.held_back = shown.collect();
        status
    }

    /// What is worked on, for whoever looks on.
    pub fn set_work(&self, work: Work) {
        *self.0.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
    }

    /// When the first of those in line can leave, as far as is known; `None` when nobody is in line.
    pub(crate) fn soonest(&self) -> Option<Timestamp> {
        let state = self.lock();
        let now = self.now();
        let paces = state.dispatch.paces().iter().filter(|(id, ..)| state.dispatch.waiting(*id) > 0);
        let next = |(_, domain, pace): (_, &Domain, &Pace)| {
            let terms = self.terms_in(&state, domain);
            pace.peek(terms, Intent::Fetch, now).map_or(now, |reason| reason.until)
        };
        paces.map(next).min()
    }

    /// Whether a request to `host` could leave now, with nobody in line before it.
    pub(crate) fn is_free(&self, host: &Domain, domain: &Domain) -> bool {
        let (rule, crawl_delay) = self.terms(host);
        let state = self.lock();
        let Some(id) = state.dispatch.paces().find(domain) else { return true };
        let terms = Terms { rule: &rule, crawl_delay };
        let pace = state.dispatch.paces().pace(id);
        let bound = pace.is_some_and(|pace| pace.peek(terms, Intent::Fetch, self.now()).is_some());
        !bound && state.dispatch.waiting(id) == 0
    }

    /// The terms of a domain as a whole; those of a host of a group are its own.
    fn terms_in<'a>(&'a self, state: &State, domain: &Domain) -> Terms<'a> {
        Terms { rule: self.0.rules.rule(domain), crawl_delay: state.crawl_delay(domain) }
    }
}
