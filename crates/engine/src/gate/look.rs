//! What people, metrics and workers want to know of a gate. Nothing is changed here.

use std::collections::HashMap;

use comity_core::decision::{Limit, Reason};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::rule::{Rule, RuleTable};
use comity_core::time::{Span, Timestamp};
use comity_store::status::Backlog;

use super::state::{self, State};
use super::{Gate, GateError, Seen};
use crate::event::Streaks;
use crate::lock;
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
    /// How long until the next request could leave, an operator's pause included.
    pub wait: Span,
    /// Whether an operator keeps what was learnt as it is.
    pub pinned: bool,
    /// Until when an operator closed it, if it is closed; [`Timestamp::MAX`] is until resumed.
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

    /// How long until the next request to a host could leave; nothing when its domain is not held here.
    pub fn wait(&self, host: &Domain) -> Span {
        let (rule, domain) = self.rule_and_domain(host);
        let state = self.lock();
        let paces = state.dispatch.paces();
        let Some(pace) = paces.find(&domain).and_then(|id| paces.pace(id)) else { return Span::ZERO };
        let terms = Terms { rule, crawl_delay: state.crawl_delay(host) };
        pace.wait(terms, Intent::Fetch, self.now())
    }

    /// What would keep a request to `host` from leaving now, callers in line included; `None` when nothing would.
    /// Nothing is reserved (B3), and nobody hands a domain over for it (B81).
    pub async fn peek(&self, host: &Domain, intent: Intent) -> Result<Option<Reason>, GateError> {
        Ok(self.peek_as_of(host, intent).await?.0)
    }

    /// The same, with when that was known; nothing when another process has the domain and did not show it.
    pub async fn peek_as_of(
        &self,
        host: &Domain,
        intent: Intent,
    ) -> Result<(Option<Reason>, Option<Timestamp>), GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        let here = |state: &State, terms: Terms<'_>, now: Timestamp| {
            let lapsed = || (now >= state.valid_until).then(|| state::changing_hands(now));
            let elsewhere = self.0.store_away(state, now).or_else(lapsed);
            elsewhere.or_else(|| state.dispatch.peek(&domain, terms, intent, now))
        };
        let elsewhere = |pace: &Seen, terms: Terms<'_>, now: Timestamp| pace.peek(terms, intent, now);
        let unknown = |terms: Terms<'_>, now: Timestamp| Pace::default().peek(terms, intent, now);
        self.look_wherever(host, rule, &domain, here, elsewhere, unknown).await
    }

    /// Every constraint on the next request to `host`, the binding one first (B2). Nothing is reserved, and nobody hands a
    /// domain over for it (B81).
    pub async fn explain(&self, host: &Domain, intent: Intent) -> Result<Vec<Reason>, GateError> {
        Ok(self.explain_as_of(host, intent).await?.0)
    }

    /// The same, with when that was known; nothing when another process has the domain and did not show it.
    pub async fn explain_as_of(
        &self,
        host: &Domain,
        intent: Intent,
    ) -> Result<(Vec<Reason>, Option<Timestamp>), GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        let unknown = |terms: Terms<'_>, now: Timestamp| Pace::default().explain(terms, intent, now);
        let here = |state: &State, terms: Terms<'_>, now: Timestamp| {
            let paces = state.dispatch.paces();
            let pace = paces.find(&domain).and_then(|id| paces.pace(id));
            let constraints =
                pace.map_or_else(|| unknown(terms, now), |pace| pace.explain(terms, intent, now));
            self.0.store_away(state, now).into_iter().chain(constraints).collect()
        };
        let elsewhere = |pace: &Seen, terms: Terms<'_>, now: Timestamp| pace.explain(terms, intent, now);
        self.look_wherever(host, rule, &domain, here, elsewhere, unknown).await
    }

    /// Looks at a domain that is held here, or else at what is to be seen of it.
    async fn look_wherever<T>(
        &self,
        host: &Domain,
        rule: &Rule,
        domain: &Domain,
        here: impl Fn(&State, Terms<'_>, Timestamp) -> T,
        elsewhere: impl Fn(&Seen, Terms<'_>, Timestamp) -> T,
        unknown: impl Fn(Terms<'_>, Timestamp) -> T,
    ) -> Result<(T, Option<Timestamp>), GateError> {
        let crawl_delay = {
            let (state, now) = (self.lock(), self.now());
            let crawl_delay = state.crawl_delay(host);
            if state.is_held(domain) {
                return Ok((here(&state, Terms { rule, crawl_delay }, now), Some(now)));
            }
            crawl_delay
        };
        let Some(looker) = self.looker() else { return Err(GateError::Closed) };
        let seen = looker.look(host).await?;
        let (terms, now) = (Terms { rule, crawl_delay }, self.now());
        Ok(match seen {
            Some(seen) => (elsewhere(&seen, terms, now), seen.as_of),
            None => (unknown(terms, now), Some(now)),
        })
    }

    /// A domain as it is now; `None` when it is not held here.
    pub fn look(&self, domain: &Domain) -> Option<Live> {
        let state = self.lock();
        let id = state.dispatch.paces().find(domain)?;
        let pace = state.dispatch.paces().pace(id)?;
        let (terms, now) = (self.whole(&state).terms(domain), self.now());
        Some(Live::of(pace, terms, state.dispatch.waiting(id), now))
    }

    /// All domains at a glance, with the `slowest` slowest ones.
    pub fn survey(&self, slowest: usize) -> Survey {
        let state = self.lock();
        let now = self.now();
        let (counted, worst, _) = self.walk(&state, now, slowest, |terms, pace, _| {
            let (spacing, wait) = (pace.spacing(terms), pace.wait(terms, Intent::Fetch, now));
            Some((spacing.max(wait), (spacing, wait)))
        });
        let Counted { domains, waiting, in_flight } = counted;
        let slow = |(domain, (spacing, wait)): (&Domain, _)| Slow { domain: domain.clone(), spacing, wait };
        Survey { domains, waiting, in_flight, slowest: worst.into_iter().map(slow).collect() }
    }

    /// The same, with the slowest domains of all processes on the store, as they published them (B81).
    pub async fn survey_all(&self, slowest: usize) -> Survey {
        let mut survey = self.survey(slowest);
        let Some(looker) = self.looker() else { return survey };
        // When the store does not tell, what is known here is still true.
        let mut others = looker.slowest().await.unwrap_or_default();
        {
            let state = self.lock();
            others.retain(|(domain, ..)| !state.is_held(domain));
        }
        let slow = |(domain, spacing, wait)| Slow { domain, spacing, wait };
        survey.slowest.extend(others.into_iter().map(slow));
        let weight = |slow: &Slow| slow.spacing.max(slow.wait);
        survey.slowest.sort_by(|a, b| (weight(b), &a.domain).cmp(&(weight(a), &b.domain)));
        survey.slowest.truncate(slowest);
        survey
    }

    /// What this process is at, with at most `limit` of the domains that hold it back.
    pub fn status(&self, limit: usize) -> Status {
        let (work, backlog) = lock(&self.0.work).clone();
        let state = self.lock();
        let now = self.now();
        let away = self.0.store_away(&state, now);
        let (counted, worst, more) = self.walk(&state, now, limit, |terms, pace, in_line| {
            let holds = || away.or_else(|| pace.peek(terms, Intent::Fetch, now));
            let reason = (in_line > 0).then(holds).flatten()?;
            // Nobody knows when an answer comes; what follows it is the spacing.
            let on_the_wire = matches!(reason.limit, Limit::InFlight { .. });
            let weight = if on_the_wire { pace.spacing(terms) } else { reason.weight() };
            Some((weight, (in_line, reason)))
        });
        let Counted { domains, waiting, in_flight } = counted;
        let shown = worst.into_iter().map(|(domain, (in_line, reason))| {
            let counted = backlog.iter().find(|one| one.domain == *domain);
            let backlog = counted.map(|one| one.waiting.max(in_line as u64));
            HeldBack { backlog, ..HeldBack::new(domain, in_line, &reason) }
        });
        Status { work, domains, in_flight, in_line: waiting, held_back: shown.collect(), more }
    }

    /// Counts what there is of all domains, and finds those that `weigh` most, the heaviest first; with how many more
    /// weigh anything.
    pub(super) fn walk<'a, T>(
        &self,
        state: &'a State,
        now: Timestamp,
        limit: usize,
        weigh: impl Fn(Terms<'_>, &Pace, usize) -> Option<(Span, T)>,
    ) -> (Counted, Vec<(&'a Domain, T)>, usize) {
        let whole = self.whole(state);
        let mut counted = Counted { domains: state.dispatch.paces().len(), ..Counted::default() };
        let mut found: Vec<(Span, &Domain, T)> = Vec::new();
        for (id, domain, pace) in state.dispatch.paces().iter() {
            let in_line = state.dispatch.waiting(id);
            counted.waiting += in_line;
            counted.in_flight += pace.in_flight(now);
            let weighed = weigh(whole.terms(domain), pace, in_line);
            found.extend(weighed.map(|(weight, what)| (weight, domain, what)));
        }
        let order = |a: &(Span, &Domain, T), b: &(Span, &Domain, T)| (b.0, a.1).cmp(&(a.0, b.1));
        let more = found.len().saturating_sub(limit);
        if limit > 0 && more > 0 {
            found.select_nth_unstable_by(limit - 1, order);
        }
        found.truncate(limit);
        found.sort_unstable_by(order);
        (counted, found.into_iter().map(|(_, domain, what)| (domain, what)).collect(), more)
    }

    /// What is worked on, for whoever looks on.
    pub fn set_work(&self, work: Work) {
        lock(&self.0.work).0 = Some(work);
    }

    /// How much of it waits for which domain, as far as was counted.
    pub fn set_backlog(&self, backlog: Vec<Backlog>) {
        lock(&self.0.work).1 = backlog.into();
    }

    /// When the first of those in line can leave, as far as is known; `None` when nobody is in line.
    pub(crate) fn soonest(&self) -> Option<Timestamp> {
        let state = self.lock();
        let now = self.now();
        let paces = state.dispatch.paces().iter().filter(|(id, ..)| state.dispatch.waiting(*id) > 0);
        let whole = self.whole(&state);
        let next = |(_, domain, pace): (_, &Domain, &Pace)| {
            let reason = pace.peek(whole.terms(domain), Intent::Fetch, now);
            reason.map_or(now, |reason| reason.until)
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

    /// What domains are shown by.
    pub(super) fn whole<'a>(&'a self, state: &'a State) -> Whole<'a> {
        let rules = &*self.0.rules;
        let mut of_groups: HashMap<&Domain, Span> = HashMap::new();
        if rules.has_groups() {
            for (host, delay) in &state.crawl_delays {
                if let Some(group) = rules.rule(host).group() {
                    let known = of_groups.entry(group).or_default();
                    *known = (*known).max(*delay);
                }
            }
        }
        Whole { rules, state, of_groups }
    }
}

/// The terms of domains as a whole. What leaves goes by those of its host; a group is shown by the longest of them.
pub(super) struct Whole<'a> {
    rules: &'a RuleTable,
    state: &'a State,
    /// The longest crawl-delay of each group.
    of_groups: HashMap<&'a Domain, Span>,
}

impl<'a> Whole<'a> {
    pub(super) fn terms(&self, domain: &Domain) -> Terms<'a> {
        let of_group = self.of_groups.get(domain).copied();
        let crawl_delay = of_group.unwrap_or_else(|| self.state.crawl_delay(domain));
        Terms { rule: self.rules.rule_of(domain), crawl_delay }
    }
}

/// What there is of all domains together.
#[derive(Debug, Default)]
pub(super) struct Counted {
    domains: usize,
    waiting: usize,
    in_flight: usize,
}
