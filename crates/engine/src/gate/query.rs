//! Read access to a gate for people, metrics and workers. No pace, line or permit is changed here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use comity_core::decision::{Limit, Origin, Reason};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::pace::{Pace, Terms};
use comity_core::paces::DomainId;
use comity_core::rule::{Rule, RuleTable};
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use comity_store::status::Backlog;

use super::state::{self, State};
use super::survey::{self, Survey};
use super::{DomainView, Gate, GateError};
use crate::event::Streaks;
use crate::lock;
use crate::status::{HeldBack, Status, WaitGroup, Work};

/// The current status of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainStatus {
    /// The minimum time between request starts.
    pub spacing: Span,
    /// The learned delay.
    pub delay: Span,
    /// The floor of the learned delay.
    pub floor: Span,
    /// Penalties in a row.
    pub penalties: u32,
    /// Successes or failures in a row.
    pub streaks: Streaks,
    /// Requests in flight: permits that are neither recorded nor expired.
    pub in_flight: usize,
    /// Those of them that were given out with a lease, such as by `comity check`.
    pub lent: usize,
    /// Callers and tasks in line.
    pub waiting: usize,
    /// How long until the next request could leave, including an operator's pause.
    pub wait: Span,
    /// Whether an operator pinned the learned delay.
    pub pinned: bool,
    /// Until when an operator paused the domain; [`Timestamp::MAX`] means until resumed.
    pub paused_until: Option<Timestamp>,
    /// Until when its server asked to wait.
    pub server_until: Option<Timestamp>,
    /// The latest request start.
    pub last_start: Option<Timestamp>,
    /// The latest success.
    pub last_success: Option<Timestamp>,
}

/// All domains held here, at a glance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overview {
    /// The number of domains.
    pub domains: usize,
    /// Callers and tasks in line.
    pub waiting: usize,
    /// Requests in flight: permits that are neither recorded nor expired.
    pub in_flight: usize,
    /// The slowest domains, the slowest first.
    pub slowest: Vec<SlowDomain>,
}

/// A slow domain.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowDomain {
    /// The domain.
    pub domain: Domain,
    /// The minimum time between request starts.
    pub spacing: Span,
    /// How long until the next request could leave.
    pub wait: Span,
}

impl Gate {
    /// The number of domains held here.
    pub fn domains(&self) -> usize {
        self.lock().dispatch.paces().len()
    }

    /// Whether the domain of `host` is held here.
    pub fn holds(&self, host: &Domain) -> bool {
        self.lock().is_held(&self.0.rules.domain(host))
    }

    /// How long until the next request to a host could leave; zero if its domain isn't held here.
    pub fn wait(&self, host: &Domain) -> Span {
        let (rule, domain) = self.rule_and_domain(host);
        let state = self.lock();
        let paces = state.dispatch.paces();
        let Some(pace) = paces.find(&domain).and_then(|id| paces.pace(id)) else { return Span::ZERO };
        let terms = Terms { rule, crawl_delay: state.crawl_delay(host) };
        pace.wait(terms, Intent::Fetch, self.now())
    }

    /// What would keep a request to `host` from leaving now, including callers in line; `None` if nothing would.
    /// Reserves nothing, and does not cause a handover.
    pub async fn peek(&self, host: &Domain, intent: Intent) -> Result<Option<Reason>, GateError> {
        Ok(self.peek_as_of(host, intent).await?.0)
    }

    /// Like [`Self::peek`], plus the time of that information; `None` if another process holds the domain and did not
    /// publish it.
    pub async fn peek_as_of(
        &self,
        host: &Domain,
        intent: Intent,
    ) -> Result<(Option<Reason>, Option<Timestamp>), GateError> {
        let (rule, domain) = self.rule_and_domain(host);
        let here = |state: &State, terms: Terms<'_>, now: Timestamp| {
            let lapsed = || (now >= state.valid_until).then(|| state::changing_hands(now));
            let elsewhere = self.0.store_unavailable(state, now).or_else(lapsed);
            elsewhere.or_else(|| state.dispatch.peek(&domain, terms, intent, now))
        };
        let elsewhere = |pace: &DomainView, terms: Terms<'_>, now: Timestamp| pace.peek(terms, intent, now);
        let unknown = |terms: Terms<'_>, now: Timestamp| Pace::default().peek(terms, intent, now);
        self.view_anywhere(host, rule, &domain, here, elsewhere, unknown).await
    }

    /// All constraints on the next request to `host`, the binding one first. Reserves nothing, and does not cause a
    /// handover.
    pub async fn explain(&self, host: &Domain, intent: Intent) -> Result<Vec<Reason>, GateError> {
        Ok(self.explain_as_of(host, intent).await?.0)
    }

    /// Like [`Self::explain`], plus the time of that information; `None` if another process holds the domain and did
    /// not publish it.
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
            self.0.store_unavailable(state, now).into_iter().chain(constraints).collect()
        };
        let elsewhere =
            |pace: &DomainView, terms: Terms<'_>, now: Timestamp| pace.explain(terms, intent, now);
        self.view_anywhere(host, rule, &domain, here, elsewhere, unknown).await
    }

    /// Looks at a domain in memory if it is held here, and otherwise at its latest view from the store.
    async fn view_anywhere<T>(
        &self,
        host: &Domain,
        rule: &Rule,
        domain: &Domain,
        here: impl Fn(&State, Terms<'_>, Timestamp) -> T,
        elsewhere: impl Fn(&DomainView, Terms<'_>, Timestamp) -> T,
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
        let Some(inspector) = self.inspector() else { return Err(GateError::Closed) };
        let seen = inspector.inspect(host).await?;
        let (terms, now) = (Terms { rule, crawl_delay }, self.now());
        Ok(match seen {
            Some(seen) => (elsewhere(&seen, terms, now), seen.as_of),
            None => (unknown(terms, now), Some(now)),
        })
    }

    /// The current status of a domain; `None` if it isn't held here.
    pub fn domain_status(&self, domain: &Domain) -> Option<DomainStatus> {
        let state = self.lock();
        let id = state.dispatch.paces().find(domain)?;
        let pace = state.dispatch.paces().pace(id)?;
        let (terms, now) = (self.group_terms(&state).terms(domain), self.now());
        Some(DomainStatus::of(pace, terms, state.dispatch.waiting(id), now))
    }

    /// All domains held here at a glance, including the `slowest` slowest ones. Of many thousand domains, it may take
    /// several calls until one that has become slow is among them.
    pub fn overview(&self, slowest: usize) -> Overview {
        let mut state = self.lock();
        let now = self.now();
        let mut survey = std::mem::take(&mut state.surveys.slowest);
        let found = self.heaviest(&state, &mut survey, slowest, |terms, pace, _| {
            let (spacing, wait) = (pace.spacing(terms), pace.wait(terms, Intent::Fetch, now));
            Some((spacing.max(wait), (spacing, wait)))
        });
        state.surveys.slowest = survey;
        let slow = |(domain, (spacing, wait))| SlowDomain { domain, spacing, wait };
        let (domains, waiting) = (state.dispatch.paces().len(), state.dispatch.waiting_in_total());
        let in_flight = state.in_flight(now);
        Overview { domains, waiting, in_flight, slowest: found.heaviest.into_iter().map(slow).collect() }
    }

    /// Like [`Self::overview`], but with the slowest domains of all processes on the store, as they published them.
    pub async fn overview_all(&self, slowest: usize) -> Overview {
        let mut overview = self.overview(slowest);
        let Some(inspector) = self.inspector() else { return overview };
        // If the store fails, what is known here is still correct.
        let mut others = inspector.slowest().await.unwrap_or_default();
        {
            let state = self.lock();
            others.retain(|(domain, ..)| !state.is_held(domain));
        }
        let slow = |(domain, spacing, wait)| SlowDomain { domain, spacing, wait };
        overview.slowest.extend(others.into_iter().map(slow));
        let weight = |slow: &SlowDomain| slow.spacing.max(slow.wait);
        overview.slowest.sort_by(|a, b| (weight(b), &a.domain).cmp(&(weight(a), &b.domain)));
        overview.slowest.truncate(slowest);
        overview
    }

    /// What this process is doing, with at most `limit` of the domains that hold it back. Of many thousand domains, it may
    /// take several calls until one that has become slow is among them.
    pub fn status(&self, limit: usize) -> Status {
        let (work, backlog) = lock(&self.0.work).clone();
        let mut state = self.lock();
        let now = self.now();
        let away = self.0.store_unavailable(&state, now);
        let mut survey = std::mem::take(&mut state.surveys.held_back);
        // By limit and origin: sites, and callers in line.
        type Waits = HashMap<(&'static str, Origin), (u64, u64)>;
        let waits: RefCell<Waits> = RefCell::default();
        let found = self.heaviest(&state, &mut survey, limit, |terms, pace, in_line| {
            let holds = || away.or_else(|| pace.peek(terms, Intent::Fetch, now));
            let reason = (in_line > 0).then(holds).flatten()?;
            let mut waits = waits.borrow_mut();
            let (sites, all_in_line) = waits.entry((reason.limit.as_str(), reason.origin())).or_default();
            *sites += 1;
            *all_in_line += in_line as u64;
            // Nobody knows when a response will arrive, but after it the spacing applies.
            let on_the_wire = matches!(reason.limit, Limit::InFlight { .. });
            let weight = if on_the_wire { pace.spacing(terms) } else { reason.weight() };
            Some((weight, (in_line, reason)))
        });
        state.surveys.held_back = survey;
        let (domains, in_line) = (state.dispatch.paces().len(), state.dispatch.waiting_in_total());
        let in_flight = state.in_flight(now);
        // Without a look at all of them, every domain with a line counts.
        let more = if found.is_all {
            found.more
        } else {
            state.dispatch.lines().saturating_sub(found.heaviest.len())
        };
        let lines = state.dispatch.lines();
        drop(state);
        let group = |((reason, origin), (sites, in_line)): ((&'static str, Origin), (u64, u64))| WaitGroup {
            reason: reason.to_owned(),
            origin: origin.as_str().to_owned(),
            sites,
            in_line,
        };
        let mut waits: Vec<WaitGroup> = waits.into_inner().into_iter().map(group).collect();
        waits.sort_by(|a, b| (b.in_line, &a.reason).cmp(&(a.in_line, &b.reason)));
        let beat_took = Span::from_micros(self.0.beat_took.load(Ordering::Relaxed));
        let store_ms = self.0.registration.is_some().then(|| beat_took.as_millis_up());
        let shown = found.heaviest.into_iter().map(|(domain, (in_line, reason))| {
            let counted = backlog.iter().find(|one| one.domain == domain);
            let backlog = counted.map(|one| one.waiting.max(in_line as u64));
            HeldBack { backlog, ..HeldBack::new(&domain, in_line, &reason) }
        });
        let held_back = shown.collect();
        Status { work, domains, in_flight, in_line, held_back, more, waits, lines, store_ms }
    }

    /// Finds the `limit` heaviest domains by `weigh`, heaviest first, with a survey.
    pub(super) fn heaviest<T>(
        &self,
        state: &State,
        survey: &mut Survey,
        limit: usize,
        weigh: impl Fn(Terms<'_>, &Pace, usize) -> Option<(Span, T)>,
    ) -> Found<T> {
        let whole = self.group_terms(state);
        let paces = state.dispatch.paces();
        let mut found: Vec<(Span, &Domain, DomainId, T)> = Vec::new();
        for id in survey.next(&state.dispatch) {
            let (Some(domain), Some(pace)) = (paces.domain(id), paces.pace(id)) else { continue };
            let weighed = weigh(whole.terms(domain), pace, state.dispatch.waiting(id));
            found.extend(weighed.map(|(weight, what)| (weight, domain, id, what)));
        }
        let order =
            |a: &(Span, &Domain, DomainId, T), b: &(Span, &Domain, DomainId, T)| (b.0, a.1).cmp(&(a.0, b.1));
        let more = found.len().saturating_sub(limit);
        if limit > 0 && more > 0 {
            found.select_nth_unstable_by(limit - 1, order);
        }
        found.truncate(limit);
        found.sort_unstable_by(order);
        survey.keep(found.iter().map(|(_, _, id, _)| *id));
        let heaviest = found.into_iter().map(|(_, domain, _, what)| (domain.clone(), what)).collect();
        Found { heaviest, more, is_all: paces.len() <= survey::ALL_MAX }
    }

    /// Sets the work in progress, for observers.
    pub fn set_work(&self, work: Work) {
        lock(&self.0.work).0 = Some(work);
    }

    /// Sets how many tasks wait for each domain, as far as counted, for observers.
    pub fn set_backlog(&self, backlog: Vec<Backlog>) {
        lock(&self.0.work).1 = backlog.into();
    }

    /// When the first request in line can leave, as far as known; `None` if nobody is in line.
    pub(crate) fn soonest(&self) -> Option<Timestamp> {
        let state = self.lock();
        let now = self.now();
        let paces = state.dispatch.paces().iter().filter(|(id, ..)| state.dispatch.waiting(*id) > 0);
        let whole = self.group_terms(&state);
        let next = |(_, domain, pace): (_, &Domain, &Pace)| {
            let reason = pace.peek(whole.terms(domain), Intent::Fetch, now);
            reason.map_or(now, |reason| reason.until)
        };
        paces.map(next).min()
    }

    /// Whether everything that a job wants to send is in line, and nothing of it in flight: then only time can help.
    pub(crate) fn only_waits(&self, job: JobId) -> bool {
        let state = self.lock();
        state.dispatch.is_in_line(job) && !state.dispatch.is_in_flight(job)
    }

    /// Whether a request to `host` could leave now, with nobody ahead of it in line.
    pub(crate) fn is_free(&self, host: &Domain, domain: &Domain) -> bool {
        let (rule, crawl_delay) = self.terms(host);
        let state = self.lock();
        let Some(id) = state.dispatch.paces().find(domain) else { return true };
        let terms = Terms { rule: &rule, crawl_delay };
        let pace = state.dispatch.paces().pace(id);
        let bound = pace.is_some_and(|pace| pace.peek(terms, Intent::Fetch, self.now()).is_some());
        !bound && state.dispatch.waiting(id) == 0
    }

    /// The terms to show domains with.
    pub(super) fn group_terms<'a>(&'a self, state: &'a State) -> GroupTerms<'a> {
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
        GroupTerms { rules, state, of_groups }
    }
}

/// The terms of whole domains. Requests use the terms of their host; a group is shown with the longest crawl-delay
/// among its hosts.
pub(super) struct GroupTerms<'a> {
    rules: &'a RuleTable,
    state: &'a State,
    /// The longest crawl-delay of each group.
    of_groups: HashMap<&'a Domain, Span>,
}

impl<'a> GroupTerms<'a> {
    pub(super) fn terms(&self, domain: &Domain) -> Terms<'a> {
        let of_group = self.of_groups.get(domain).copied();
        let crawl_delay = of_group.unwrap_or_else(|| self.state.crawl_delay(domain));
        Terms { rule: self.rules.rule_of(domain), crawl_delay }
    }
}

/// What a survey found.
pub(super) struct Found<T> {
    /// The heaviest domains, the heaviest first.
    pub(super) heaviest: Vec<(Domain, T)>,
    /// How many more have any weight, of those looked at.
    more: usize,
    /// Whether all domains were looked at.
    is_all: bool,
}
