//! How long the rest of a job takes, at the pace that its domains are really fetched at.
//!
//! - here: the time that is left, over all domains
//! - `heard`: what domains did so far
//!
//! A domain takes as long as its spacing says, or as it took so far, whichever is longer: a site that closes after every
//! ten pages is slower than its spacing. One that does not answer takes at most as long as every attempt that is left may
//! take. The job takes as long as the domain that takes longest.

mod heard;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use comity::clock::Clock;
use comity::config::{Config, RobotsPolicy};
use comity::core::decision::Limit;
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::rule::Rule;
use comity::core::time::{Span, Timestamp};
use comity::gate::{Gate, Live};
use comity::store::status::Backlog;

use heard::{Did, Heard};

/// How often and how long a site is tried that does not answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Attempts of one task.
    attempts: u32,
    /// Tasks in a row that fail before a domain is given up; 0 is never.
    failures: u32,
    /// The longest that an attempt without an answer takes.
    timeout: Span,
    robots: RobotsPolicy,
}

impl Limits {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            attempts: config.job.max_retries.saturating_add(1),
            failures: config.job.failure_threshold,
            timeout: config.http.first_byte_timeout.max(config.http.connect_timeout),
            robots: config.robots,
        }
    }
}

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// About so long.
    About(Span),
    /// So long at most: somebody does not answer, and may again at any moment.
    AtMost(Span),
    /// Nobody knows.
    Unknown,
}

/// What is left to do, and how fast it went so far. Listens to what happens.
pub(super) struct Forecast {
    clock: Clock,
    limits: Limits,
    heard: Arc<Heard>,
    /// Domains that others hold: how often in a row a request of theirs was on the wire, and until when they wait.
    elsewhere: Arc<Mutex<HashMap<Domain, Elsewhere>>>,
}

/// A domain that another process holds, as that one shows it.
#[derive(Debug, Clone, Copy)]
struct Elsewhere {
    until: Timestamp,
    /// Looks in a row that found a request of it on the wire.
    on_the_wire: u32,
}

impl Forecast {
    pub(super) fn new(gate: &Gate, limits: Limits) -> Self {
        let heard = Arc::new(Heard::new(gate.clock().clone()));
        gate.events().listen(heard.clone());
        Self { clock: gate.clock().clone(), limits, heard, elsewhere: Arc::default() }
    }

    /// How long it takes until nothing of the backlog is left; nothing when there is nothing to go by. Domains that are not
    /// in the backlog go by `rate`.
    pub(super) fn left(&self, gate: &Gate, backlog: &Counted<'_>, rate: Option<f64>) -> Option<Left> {
        let now = self.clock.now();
        let mut longest: Option<Left> = None;
        for (one, waiting) in backlog.domains().filter(|(_, waiting)| *waiting > 0) {
            let left = self.left_of(gate, &one.domain, waiting, one.due_at, now);
            longest = Some(longest.map_or(left, |longest| longest.or_longer(left)));
        }
        let rest = rate.filter(|rate| *rate > 0.0 && !backlog.is_all);
        let rest = rest.map(|rate| Span::from_millis((backlog.waiting as f64 / rate * 1e3) as u64));
        match (longest, rest) {
            (Some(longest), Some(rest)) => Some(longest.or_longer(Left::About(rest))),
            (longest, rest) => longest.or(rest.map(Left::About)),
        }
    }

    /// How long one domain takes.
    fn left_of(
        &self,
        gate: &Gate,
        domain: &Domain,
        waiting: u64,
        due_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Left {
        let rule = gate.rules().rule_of(domain);
        let did = self.heard.did(domain);
        let live = gate.look(domain);
        let each = live.as_ref().map_or(rule.min_delay().max(rule.rate_delay()), |live| live.spacing);
        let each = each.max(rule.burst().map_or(Span::ZERO, |burst| burst.window.split(burst.count.into())));
        if let Some(most) = live.as_ref().and_then(|live| self.hangs(live, &did, rule, waiting, now)) {
            return Left::AtMost(most.max(live.map_or(Span::ZERO, |live| live.wait)));
        }
        let wait = match live {
            Some(live) => live.wait,
            None => match self.elsewhere(domain) {
                Some(seen) if seen.on_the_wire >= SILENT_LOOKS => return Left::Unknown,
                Some(seen) => seen.until.since(now),
                None => Span::ZERO,
            },
        };
        let wait = wait.max(due_at.map_or(Span::ZERO, |due_at| due_at.since(now)));
        // A pause without an end has none here either.
        if wait >= ENDLESS {
            return Left::Unknown;
        }
        let paced = wait + each.times(waiting.saturating_sub(1));
        let seen = did.each(now).map_or(Span::ZERO, |each| each.times(waiting));
        Left::About(paced.max(seen))
    }

    /// The longest that a domain takes which does not answer; nothing when it does.
    fn hangs(&self, live: &Live, did: &Did, rule: &Rule, waiting: u64, now: Timestamp) -> Option<Span> {
        let silent = live.last_start.filter(|_| live.in_flight > 0).map(|start| now.since(start));
        let silent = silent.filter(|silent| *silent >= SILENT);
        if silent.is_none() && did.timeouts == 0 {
            return None;
        }
        let attempts = u64::from(self.limits.attempts);
        // Nothing but its robots.txt is asked for before that is known; if it never is, its pages fail with it.
        let all = match self.limits.robots == RobotsPolicy::Obey && !did.robots {
            true => attempts,
            false => {
                let failures = if self.limits.failures == 0 { u64::MAX } else { self.limits.failures.into() };
                (waiting + u64::from(did.failed)).min(failures).saturating_mul(attempts)
            }
        };
        let left = all.saturating_sub(did.timeouts.into()).max(1);
        let ladder = |nth: u64| {
            let rung = u64::from(live.penalties).saturating_add(nth);
            rule.ladder().wait(u32::try_from(rung).unwrap_or(u32::MAX)).unwrap_or(Span::ZERO)
        };
        // Between two attempts the ladder holds; the rungs stop growing soon.
        let between = (1..left.min(RUNGS)).fold(Span::ZERO, |sum, nth| sum + ladder(nth));
        let between = between + ladder(RUNGS).times(left.saturating_sub(RUNGS));
        let total = self.limits.timeout.times(left) + between;
        Some(match silent {
            Some(silent) => total.less(silent.min(self.limits.timeout)),
            None => total,
        })
    }

    fn elsewhere(&self, domain: &Domain) -> Option<Elsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).get(domain).copied()
    }

    /// Asks those who hold domains of the backlog how long they wait. They answer when they get around to it: nobody who
    /// watches waits for that.
    pub(super) fn look_elsewhere(&self, gate: &Gate, backlog: &[Backlog]) {
        let others = self.heard.elsewhere();
        let wanted = backlog.iter().map(|one| &one.domain).filter(|domain| others.contains(*domain));
        let wanted: Vec<Domain> = wanted.filter(|domain| !gate.holds(domain)).take(LOOKS).cloned().collect();
        self.forget_others(&wanted);
        if wanted.is_empty() {
            return;
        }
        let (gate, elsewhere) = (gate.clone(), self.elsewhere.clone());
        tokio::spawn(async move {
            for domain in wanted {
                let Ok((reason, _)) = gate.peek_as_of(&domain, Intent::Fetch).await else { return };
                let mut elsewhere = elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
                let seen =
                    elsewhere.entry(domain).or_insert(Elsewhere { until: Timestamp::MIN, on_the_wire: 0 });
                let is_on_the_wire =
                    reason.is_some_and(|reason| matches!(reason.limit, Limit::InFlight { .. }));
                *seen = match is_on_the_wire {
                    true => Elsewhere { on_the_wire: seen.on_the_wire + 1, until: Timestamp::MIN },
                    false => {
                        let until = reason.map_or(Timestamp::MIN, |reason| reason.until);
                        Elsewhere { on_the_wire: 0, until }
                    }
                };
            }
        });
    }

    fn forget_others(&self, wanted: &[Domain]) {
        let wanted: HashSet<&Domain> = wanted.iter().collect();
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        elsewhere.retain(|domain, _| wanted.contains(domain));
    }
}

impl Left {
    /// The one that takes longer. What nobody knows might take longest; a longest time counts as that long.
    fn or_longer(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::About(one), Self::About(other)) => Self::About(one.max(other)),
            (Self::AtMost(one) | Self::About(one), Self::AtMost(other) | Self::About(other)) => {
                Self::AtMost(one.max(other))
            }
        }
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
    pub(super) fn domains(&self) -> impl Iterator<Item = (&Backlog, u64)> {
        let counted: u64 = self.backlog.iter().map(|one| one.waiting).sum();
        let cut = self.backlog.iter().filter(|one| one.waiting >= self.limit).count() as u64;
        let over = if self.is_all { self.waiting.saturating_sub(counted) } else { 0 };
        self.backlog.iter().map(move |one| {
            let more = if one.waiting >= self.limit { over / cut.max(1) } else { 0 };
            (one, one.waiting + more)
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
/// Who has not answered for this long may not answer at all.
const SILENT: Span = Span::from_secs(3);
/// Looks in a row that find a request of another process on the wire, until that counts as silence.
const SILENT_LOOKS: u32 = 3;
/// Domains of others that are looked at.
const LOOKS: usize = 8;
/// From this rung on a ladder grows no more.
const RUNGS: u64 = 16;
/// Longer than this nobody waits for anything.
const ENDLESS: Span = Span::from_hours(24 * 365);

#[cfg(test)]
mod tests;
