//! Estimates how long the rest of a job takes, at the pace its domains are actually fetched at.
//!
//! - here: the time left, over all domains
//! - `history`: how each domain has behaved so far
//!
//! The time for a domain follows from its spacing or from its pace so far, whichever is slower: a site that answers 429
//! after every ten pages is slower than its spacing. If a domain doesn't respond, the attempts that are left for its
//! current page may all time out, but the pages after it are expected to be answered; if it only fails, each page is
//! expected to cost one more backoff. The job takes as long as its slowest domain.

mod history;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy};
use comity::core::decision::Limit;
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::pace::Terms;
use comity::core::rule::Rule;
use comity::core::time::{Span, Timestamp};
use comity::gate::{DomainStatus, Gate};
use comity::store::status::Backlog;
use comity::transport::Transport;

use history::{DomainHistory, History};

/// How often and how long a site that doesn't respond is tried.
#[derive(Clone)]
pub(crate) struct Limits {
    /// Attempts per task.
    attempts: u32,
    /// Consecutive failed tasks before a domain is given up; 0 for never.
    failures: u32,
    /// Knows the timeouts of each site.
    transport: Transport,
    robots: RobotsPolicy,
}

impl Limits {
    pub(crate) fn of(config: &Config, transport: &Transport) -> Self {
        Self {
            attempts: config.job.max_retries.saturating_add(1),
            failures: config.job.failure_threshold,
            transport: transport.clone(),
            robots: config.robots,
        }
    }
}

/// How much longer something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeLeft {
    /// About this long.
    About(Span),
    /// This long at most: a site doesn't respond, but may do so at any moment.
    AtMost(Span),
    /// Unknown.
    Unknown,
}

/// Estimates the time left, from the events of a gate and the backlog of a job.
pub(super) struct Forecast {
    clock: Clock,
    limits: Limits,
    history: Arc<History>,
    /// Domains that other processes hold.
    elsewhere: Arc<Mutex<HashMap<Domain, HeldElsewhere>>>,
}

/// A domain that another process holds, as that process publishes it.
#[derive(Debug, Clone, Copy)]
struct HeldElsewhere {
    /// Whether that process was asked and answered.
    is_known: bool,
    until: Timestamp,
    /// The minimum time between two requests.
    spacing: Span,
    /// How many times in a row a request to it was found in flight.
    in_flight: u32,
}

impl Forecast {
    pub(super) fn new(gate: &Gate, limits: Limits) -> Self {
        let history = Arc::new(History::new(gate.clock().clone()));
        gate.events().listen(history.clone());
        Self { clock: gate.clock().clone(), limits, history, elsewhere: Arc::default() }
    }

    /// How long the backlog takes; none if there is nothing to estimate from. Domains that are not in the backlog are
    /// estimated from `rate`.
    pub(super) fn time_left(
        &self,
        gate: &Gate,
        backlog: &BacklogCounts<'_>,
        rate: Option<f64>,
    ) -> Option<TimeLeft> {
        let now = self.clock.now();
        let is_shared = !self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        // How fast other processes work on the job shows only in its counts.
        if is_shared && rate.is_none_or(|rate| rate <= 0.0) {
            return Some(TimeLeft::Unknown);
        }
        let mut longest: Option<TimeLeft> = None;
        for (one, waiting) in backlog.domains().filter(|(_, waiting)| *waiting > 0) {
            let left = self.time_left_of(gate, &one.domain, waiting, one.due_at, now);
            longest = Some(longest.map_or(left, |longest| longest.or_longer(left)));
        }
        let rest = rate.filter(|rate| *rate > 0.0 && (is_shared || !backlog.is_all));
        let rest = rest.map(|rate| Span::from_millis((backlog.waiting as f64 / rate * 1e3) as u64));
        match (longest, rest) {
            (Some(longest), Some(rest)) => Some(longest.or_longer(TimeLeft::About(rest))),
            (longest, rest) => longest.or(rest.map(TimeLeft::About)),
        }
    }

    /// Which of these domains have requests in flight that were sent from here, and for how long each of them may still go
    /// without a response; none if that can't be told.
    pub(super) fn pending(&self, gate: &Gate, backlog: &[Backlog]) -> Vec<(Domain, Option<Span>)> {
        let now = self.clock.now();
        let pending = |one: &Backlog| {
            let live = gate.domain_status(&one.domain).filter(|live| live.in_flight > live.lent)?;
            let timeout = self.limits.transport.response_timeout(&one.domain);
            let left = live.last_start.map(|start| timeout.less(now.since(start)));
            Some((one.domain.clone(), left.filter(|left| !left.is_zero())))
        };
        backlog.iter().filter_map(pending).collect()
    }

    /// How long one domain takes.
    fn time_left_of(
        &self,
        gate: &Gate,
        domain: &Domain,
        waiting: u64,
        due_at: Option<Timestamp>,
        now: Timestamp,
    ) -> TimeLeft {
        let rule = gate.rules().rule_of(domain);
        let history = self.history.of(domain);
        let live = gate.domain_status(domain);
        let elsewhere = if live.is_none() { self.elsewhere(domain) } else { None };
        let each = live.as_ref().map_or(rule.min_delay().max(rule.rate_delay()), |live| live.spacing);
        let each = each.max(elsewhere.map_or(Span::ZERO, |held| held.spacing));
        let each = each.max(rule.burst().map_or(Span::ZERO, |burst| burst.window.split(burst.count.into())));
        let timeout = self.limits.transport.response_timeout(domain);
        // An operator's pause without an end can't be estimated.
        if live.as_ref().is_some_and(|live| live.paused_until == Some(Timestamp::MAX)) {
            return TimeLeft::Unknown;
        }
        if let Some(most) =
            live.as_ref().and_then(|live| self.unresponsive(live, &history, rule, timeout, now))
        {
            // Until its robots.txt is known, only that is fetched; if it never is, the pages fail with it.
            return match waiting <= 1 || self.awaits_robots(&history) {
                true => TimeLeft::AtMost(most),
                false => TimeLeft::About(most + each.times(waiting - 1)),
            };
        }
        if let Some(live) = live.as_ref().filter(|live| live.penalties >= FAILING) {
            return TimeLeft::About(self.failing(live, rule, waiting, each));
        }
        let wait = match live {
            Some(live) => live.wait,
            None => match elsewhere {
                Some(held) if held.in_flight >= SILENT_CHECKS || !held.is_known => return TimeLeft::Unknown,
                Some(held) => held.until.since(now),
                None => Span::ZERO,
            },
        };
        let wait = wait.max(due_at.map_or(Span::ZERO, |due_at| due_at.since(now)));
        // Neither can that of another process.
        if wait >= ENDLESS {
            return TimeLeft::Unknown;
        }
        let paced = wait + each.times(waiting.saturating_sub(1));
        let measured = history.per_page(now).map_or(Span::ZERO, |each| each.times(waiting));
        TimeLeft::About(paced.max(measured))
    }

    /// How long the current page of a domain that doesn't respond may still take, if each of its attempts takes as long as
    /// the timeout; none if the domain responds.
    fn unresponsive(
        &self,
        live: &DomainStatus,
        history: &DomainHistory,
        rule: &Rule,
        timeout: Span,
        now: Timestamp,
    ) -> Option<Span> {
        // Nobody waits for an answer to a permit that somebody else has.
        let own = live.in_flight.saturating_sub(live.lent);
        let silent = live.last_start.filter(|_| own > 0).map(|start| now.since(start));
        let silent = silent.filter(|silent| *silent >= SILENT);
        if silent.is_none() && history.timeouts == 0 {
            return None;
        }
        let left = u64::from(self.limits.attempts - history.timeouts % self.limits.attempts);
        // Between two attempts the domain backs off.
        let total = timeout.times(left) + backoffs(live, rule, left - 1, Span::ZERO);
        let total = silent.map_or(total, |silent| total.less(silent.min(timeout)));
        // The attempts that are left begin when the backoff before them is over.
        Some(if own == 0 { total + live.wait } else { total.max(live.wait) })
    }

    /// How long a domain takes that answers at once, but only with failures: until it is given up, or each page has cost
    /// one more backoff.
    fn failing(&self, live: &DomainStatus, rule: &Rule, waiting: u64, each: Span) -> Span {
        let most = if self.limits.failures == 0 { u64::MAX } else { self.limits.failures.into() };
        live.wait + backoffs(live, rule, waiting.min(most).saturating_sub(1), each)
    }

    fn awaits_robots(&self, history: &DomainHistory) -> bool {
        self.limits.robots == RobotsPolicy::Obey && !history.robots
    }

    fn elsewhere(&self, domain: &Domain) -> Option<HeldElsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).get(domain).copied()
    }

    /// The domains of a backlog, read before, that other processes are in charge of, as far as known. `None` if this
    /// process is just taking domains: until it holds them, they look the same.
    pub(super) fn domains_elsewhere(&self, gate: &Gate, backlog: &[Backlog]) -> Option<Vec<Domain>> {
        if gate.is_taking() {
            return None;
        }
        let others = self.history.elsewhere();
        // Somebody works on a lane that isn't due at any time.
        let is_served = |one: &&Backlog| one.due_at.is_none() || others.contains(&one.domain);
        let served = backlog.iter().filter(|one| one.waiting > 0).filter(is_served);
        Some(served.map(|one| &one.domain).filter(|domain| !gate.holds(domain)).cloned().collect())
    }

    /// Asks other processes, in the background, how long the domains they hold will wait, and at which pace they are
    /// fetched. The answers arrive later.
    pub(super) fn ask_holders(&self, gate: &Gate, mut wanted: Vec<Domain>) {
        wanted.truncate(HOLDERS_ASKED);
        self.forget_all_but(&wanted);
        let Some(inspector) = gate.inspector().filter(|_| !wanted.is_empty()) else { return };
        let (gate, elsewhere) = (gate.clone(), self.elsewhere.clone());
        tokio::spawn(async move {
            for domain in wanted {
                let Ok(Some(view)) = inspector.inspect(&domain).await else { return };
                let now = gate.clock().now();
                let Some(status) = view.status(gate.rules(), now) else { continue };
                let terms = Terms { rule: gate.rules().rule_of(&domain), crawl_delay: Span::ZERO };
                let reason = view.peek(terms, Intent::Fetch, now);
                let is_in_flight =
                    reason.is_some_and(|reason| matches!(reason.limit, Limit::InFlight { .. }));
                let mut elsewhere = elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(held) = elsewhere.get_mut(&domain) else { continue };
                let (in_flight, until) = match is_in_flight {
                    true => (held.in_flight + 1, Timestamp::MIN),
                    false => (0, reason.map_or(Timestamp::MIN, |reason| reason.until)),
                };
                *held = HeldElsewhere { is_known: true, until, spacing: status.spacing, in_flight };
            }
        });
    }

    fn forget_all_but(&self, wanted: &[Domain]) {
        let all: HashSet<&Domain> = wanted.iter().collect();
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        elsewhere.retain(|domain, _| all.contains(domain));
        for domain in wanted {
            elsewhere.entry(domain.clone()).or_insert(HeldElsewhere::UNKNOWN);
        }
    }
}

/// The next `count` backoffs of a domain, each of them at least as long as `each`.
fn backoffs(live: &DomainStatus, rule: &Rule, count: u64, each: Span) -> Span {
    let backoff = |nth: u64| {
        let rung = u64::from(live.penalties).saturating_add(nth);
        rule.ladder().wait(u32::try_from(rung).unwrap_or(u32::MAX)).unwrap_or(Span::ZERO).max(each)
    };
    // It soon stops growing.
    let growing = (1..=count.min(RUNGS)).fold(Span::ZERO, |sum, nth| sum + backoff(nth));
    growing + backoff(RUNGS).times(count.saturating_sub(RUNGS))
}

impl HeldElsewhere {
    /// Nothing is known yet.
    const UNKNOWN: Self = Self { is_known: false, until: Timestamp::MIN, spacing: Span::ZERO, in_flight: 0 };
}

impl TimeLeft {
    /// The longer of the two. Unknown counts as longest.
    fn or_longer(self, longer: Self) -> Self {
        match (self, longer) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::AtMost(one) | Self::About(one), Self::AtMost(other) | Self::About(other)) => {
                if one >= other { self } else { longer }
            }
        }
    }
}

/// A backlog, and how complete its counts are.
pub(super) struct BacklogCounts<'a> {
    pub(super) backlog: &'a [Backlog],
    /// Up to how many tasks were counted per domain.
    pub(super) limit: u64,
    /// Whether the backlog contains all domains.
    pub(super) is_all: bool,
    /// All waiting tasks.
    pub(super) waiting: u64,
}

impl BacklogCounts<'_> {
    /// The backlog with every count that is known: if only one domain has more tasks than were counted, it has all the
    /// others.
    pub(super) fn known(&self) -> Vec<Backlog> {
        let is_capped = |one: &Backlog| one.waiting >= self.limit;
        if self.backlog.iter().filter(|one| is_capped(one)).count() != 1 {
            return self.backlog.to_vec();
        }
        self.domains().map(|(one, waiting)| Backlog { waiting, ..one.clone() }).collect()
    }

    /// The domains with their numbers of waiting tasks. Tasks that were not counted are spread evenly over the domains
    /// whose count reached the limit.
    pub(super) fn domains(&self) -> impl Iterator<Item = (&Backlog, u64)> {
        let counted: u64 = self.backlog.iter().map(|one| one.waiting).sum();
        let capped = self.backlog.iter().filter(|one| one.waiting >= self.limit).count() as u64;
        let uncounted = if self.is_all { self.waiting.saturating_sub(counted) } else { 0 };
        self.backlog.iter().map(move |one| {
            let more = if one.waiting >= self.limit { uncounted / capped.max(1) } else { 0 };
            (one, one.waiting + more)
        })
    }
}

/// How many tasks were done per second lately.
#[derive(Debug, Default)]
pub(super) struct Rate(VecDeque<(Timestamp, u64)>);

impl Rate {
    pub(super) fn at(&mut self, now: Timestamp, done: u64) -> Option<f64> {
        if self.0.back().is_none_or(|(last, _)| now.since(*last) >= SAMPLE) {
            self.0.push_back((now, done));
        }
        while self.0.get(1).is_some_and(|(second, _)| now.since(*second) >= RATE_WINDOW) {
            self.0.pop_front();
        }
        let (since, before) = *self.0.front()?;
        let took = now.since(since).as_secs_f64();
        (took >= 1.0).then(|| done.saturating_sub(before) as f64 / took)
    }
}

/// How often the rate is sampled.
const SAMPLE: Span = Span::from_millis(500);
/// The time over which the rate is measured.
const RATE_WINDOW: Span = Span::from_secs(15);
/// A site that hasn't responded for this long may not respond at all.
const SILENT: Span = Span::from_secs(3);
/// A site that failed this often in a row may go on doing so.
const FAILING: u32 = 3;
/// How many checks in a row must find another process's request in flight before the site counts as unresponsive.
const SILENT_CHECKS: u32 = 3;
/// Maximum number of domains to ask other processes about.
const HOLDERS_ASKED: usize = 8;
/// From this attempt on, the backoff no longer grows.
const RUNGS: u64 = 16;
/// A longer wait counts as endless.
const ENDLESS: Span = Span::from_hours(24 * 365);

#[cfg(test)]
mod tests;
