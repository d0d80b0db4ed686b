//! What must hold in every world, checked against the logs of the sites.
//!
//! The rules are implemented again here, in a simple way and from the logs alone, so that a mistake in the core isn't
//! repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::learn::Learning;
use comity_core::outcome::{Answer, Outcome};
use comity_core::rule::{Burst, Rule};
use comity_core::task::TaskState;
use comity_core::time::{Span, Timestamp};

use crate::world::{Entry, Report, WorldSpec};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub promise: Promise,
    /// The domain on which it was broken.
    pub domain: Domain,
    /// When it was broken.
    pub at: Timestamp,
    /// What happened, in numbers.
    pub detail: String,
}

/// A promise about the requests that sites receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Starts are spaced as rule and robots.txt demand.
    Spacing,
    /// No window has more starts than the burst allows.
    Burst,
    /// The additional limits of intents are kept.
    Intent,
    /// No request starts before the server's deadline.
    Deadline,
    /// The limit on requests in flight is kept.
    InFlight,
    /// A job has fewer tasks in flight on a domain that slowed down.
    Concurrency,
    /// Waiters are served in order.
    Order,
    /// Every task ends, and none is fetched after it ended.
    Lost,
    /// A domain that has tasks and may be fetched is fetched.
    Starved,
    /// The learned delay stays between base and ceiling.
    LearnedRange,
    /// The learned delay rises by at most one step per penalty episode.
    LearnedStep,
    /// A task is retried as often as allowed, and no more.
    Retries,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, domain, at, detail } = self;
        write!(f, "{promise:?} broken on {domain} at {at}: {detail}")
    }
}

/// Checks every promise.
pub fn check(spec: &WorldSpec, report: &Report) -> Result<(), Violation> {
    let mut domains: BTreeMap<&Domain, Vec<&Entry>> = BTreeMap::new();
    let mut log: Vec<&Entry> = report.log.iter().collect();
    log.sort_by_key(|entry| entry.start);
    for entry in log {
        domains.entry(&report.domains[entry.host]).or_default().push(entry);
    }
    for (domain, log) in domains {
        let domain_log = DomainLog { spec, report, domain, log };
        domain_log.spacing()?;
        domain_log.bursts()?;
        domain_log.deadlines()?;
        domain_log.in_flight()?;
        domain_log.concurrency()?;
        domain_log.order()?;
        domain_log.starvation()?;
        domain_log.learning()?;
    }
    tasks(spec, report)
}

/// The requests to one domain, and what is needed to check them.
struct DomainLog<'a> {
    spec: &'a WorldSpec,
    report: &'a Report,
    domain: &'a Domain,
    log: Vec<&'a Entry>,
}

impl DomainLog<'_> {
    fn rule(&self, entry: &Entry) -> &Arc<Rule> {
        rule(self.report, entry.host)
    }

    fn baseline(&self, entry: &Entry) -> Span {
        baseline(self.spec, self.report, entry.host)
    }

    fn broken(&self, promise: Promise, at: Timestamp, detail: String) -> Violation {
        Violation { promise, domain: self.domain.clone(), at, detail }
    }

    fn spacing(&self) -> Result<(), Violation> {
        for pair in self.log.windows(2) {
            let (gap, least) = (pair[1].start.since(pair[0].start), self.baseline(pair[1]));
            if gap < least {
                let detail = format!("two starts {gap} apart, but the minimum is {least}");
                return Err(self.broken(Promise::Spacing, pair[1].start, detail));
            }
        }
        for intent in Intent::ALL {
            let log: Vec<&&Entry> = self.log.iter().filter(|entry| entry.intent == intent).collect();
            for pair in log.windows(2) {
                let least = self.rule(pair[1]).intent(intent).min_delay;
                let gap = pair[1].start.since(pair[0].start);
                if gap < least {
                    let detail = format!("two {intent} starts {gap} apart, but the minimum is {least}");
                    return Err(self.broken(Promise::Intent, pair[1].start, detail));
                }
            }
        }
        Ok(())
    }

    fn bursts(&self) -> Result<(), Violation> {
        let all: Vec<&Entry> = self.log.clone();
        self.burst(&all, Promise::Burst, |rule| rule.burst())?;
        for intent in Intent::ALL {
            let log: Vec<&Entry> = self.log.iter().filter(|entry| entry.intent == intent).copied().collect();
            self.burst(&log, Promise::Intent, |rule| rule.intent(intent).burst)?;
        }
        Ok(())
    }

    fn burst(
        &self,
        log: &[&Entry],
        promise: Promise,
        burst: impl Fn(&Rule) -> Option<Burst>,
    ) -> Result<(), Violation> {
        for (nth, entry) in log.iter().enumerate() {
            let Some(Burst { count, window }) = burst(self.rule(entry)) else { continue };
            let Some(oldest) = nth.checked_sub(count as usize).map(|nth| log[nth]) else { continue };
            let within = entry.start.since(oldest.start);
            if within < window {
                let detail =
                    format!("{} starts within {within}, but the limit is {count} per {window}", count + 1);
                return Err(self.broken(promise, entry.start, detail));
            }
        }
        Ok(())
    }

    fn deadlines(&self) -> Result<(), Violation> {
        for refusal in self.log.iter().filter(|entry| entry.received) {
            let (Some(stated), Some(received)) = (refusal.stated, refusal.end) else { continue };
            let until = received + stated.min(self.rule(refusal).retry_after_max());
            let early = self.log.iter().find(|entry| entry.start > received && entry.start < until);
            if let Some(early) = early {
                let detail = format!(
                    "started {} before the deadline that the server stated at {received}",
                    until.since(early.start)
                );
                return Err(self.broken(Promise::Deadline, early.start, detail));
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> Result<(), Violation> {
        for (nth, entry) in self.log.iter().enumerate() {
            let Some(limit) = self.rule(entry).in_flight() else { continue };
            let on_wire = |other: &&&Entry| other.end.is_none_or(|end| end > entry.start);
            let others = self.log[..nth].iter().filter(on_wire).count();
            if others >= limit as usize {
                let detail = format!("{} requests in flight, but the limit is {limit}", others + 1);
                return Err(self.broken(Promise::InFlight, entry.start, detail));
            }
        }
        Ok(())
    }

    /// Only checked if connecting takes no time: then a start is a grant, and it is known what is in flight.
    fn concurrency(&self) -> Result<(), Violation> {
        for (nth, entry) in self.log.iter().enumerate() {
            let learns = matches!(self.rule(entry).learning(), Learning::Linear(_));
            if !self.spec.hosts[entry.host].connect.is_zero() || self.domain.as_str().starts_with("group:") {
                continue;
            }
            let mine = |other: &&&Entry| other.process == entry.process;
            let on_wire = |other: &&&Entry| other.end.is_none_or(|end| end > entry.start);
            let others = self.log[..nth].iter().filter(mine).filter(on_wire).count();
            let changes = self.report.changes.iter().rev().filter(|change| change.host == entry.host);
            let learned = changes.filter(|_| learns).find(|change| change.at <= entry.start);
            let slower = learned.map_or(Span::ZERO, |change| change.to.less(self.baseline(entry)));
            let less = (slower.as_micros() / 5_000_000) as usize;
            let most = (self.spec.concurrency as usize).saturating_sub(less).max(1);
            if others >= most {
                let detail = format!("{} tasks in flight, but the limit is {most}", others + 1);
                return Err(self.broken(Promise::Concurrency, entry.start, detail));
            }
        }
        Ok(())
    }

    /// Only checked without faults and if connecting takes no time: then first attempts start in the order of the
    /// tasks.
    fn order(&self) -> Result<(), Violation> {
        let instant = |entry: &&Entry| self.spec.hosts[entry.host].connect.is_zero();
        if !self.spec.faults.is_empty() || !self.log.iter().all(instant) {
            return Ok(());
        }
        for intent in Intent::ALL {
            let mut latest = None;
            let mut started = std::collections::BTreeSet::new();
            for entry in self.log.iter().filter(|entry| entry.intent == intent) {
                if started.insert(entry.task) {
                    if latest > Some(entry.task) {
                        let detail = format!("task {} started after task {latest:?}", entry.task);
                        return Err(self.broken(Promise::Order, entry.start, detail));
                    }
                    latest = Some(entry.task);
                }
            }
        }
        Ok(())
    }

    /// If there are enough workers, the time between two starts has to be explained by something.
    fn starvation(&self) -> Result<(), Violation> {
        let room = self.spec.workers.min(self.spec.concurrency) as usize >= 4 * self.spec.hosts.len();
        if !room {
            return Ok(());
        }
        for (nth, pair) in self.log.windows(2).enumerate() {
            let (last, next) = (pair[0], pair[1]);
            let holds = self.log[..=nth].iter().filter(|entry| entry.received).filter_map(|entry| {
                let stated = entry.stated?.min(self.rule(entry).retry_after_max());
                Some(entry.end? + stated)
            });
            let on_wire = self.log[..=nth].iter().filter_map(|entry| entry.end);
            // After lost state, the new holder assumes that the last one has just sent a request.
            let takeovers = self.report.takeovers.iter().map(|taken| taken.at).filter(|at| *at < next.start);
            // A suspended machine sends nothing.
            let wakes = self.report.wakes.iter().copied().filter(|at| *at <= next.start);
            let excuse = holds.chain(on_wire).chain(takeovers).chain(wakes).chain([last.start]).max();
            let excuse = excuse.unwrap_or(last.start);
            let most = self.log.iter().map(|entry| self.slowest(entry)).max().unwrap_or_default();
            let idle = next.start.since(excuse);
            if idle > most + SLACK {
                let detail = format!("idle for {idle}, but only {most} can be explained");
                return Err(self.broken(Promise::Starved, next.start, detail));
            }
        }
        Ok(())
    }

    /// The longest time for which the rule and the learned delay can delay the next request.
    fn slowest(&self, entry: &Entry) -> Span {
        let rule = self.rule(entry);
        let ladder = rule.ladder().wait(u32::MAX).unwrap_or(Span::from_secs(60)).max(Span::from_secs(60));
        let bursts = [rule.burst(), rule.intent(entry.intent).burst];
        let window = bursts.into_iter().flatten().map(|burst| burst.window).max().unwrap_or_default();
        let learned = learned_range(self.spec, self.report, entry.host).map_or(Span::ZERO, |(_, most)| most);
        let spacing = self.baseline(entry).max(rule.intent(entry.intent).min_delay);
        ladder.max(window).max(learned).max(spacing)
    }

    /// The longest step of any host of the domain.
    fn longest_step(&self) -> Span {
        let hosts = (0..self.spec.hosts.len()).filter(|host| self.report.domains[*host] == *self.domain);
        let steps = hosts.filter_map(|host| match rule(self.report, host).learning() {
            Learning::Linear(linear) => Some(linear.step),
            Learning::Bracket(_) | Learning::Off => None,
        });
        steps.max().unwrap_or_default()
    }

    fn learning(&self) -> Result<(), Violation> {
        let mut episode = Timestamp::NEVER;
        let mut events: Vec<(Timestamp, &Entry)> = self
            .log
            .iter()
            .filter(|entry| entry.received)
            .filter_map(|entry| Some((entry.end?, *entry)))
            .collect();
        events.sort_by_key(|(end, _)| *end);
        let changes: Vec<_> = self
            .report
            .changes
            .iter()
            .filter(|change| self.report.domains[change.host] == *self.domain)
            .collect();
        // Each host of a group has its own range, and the learned delay is shared.
        let hosts = (0..self.spec.hosts.len()).filter(|host| self.report.domains[*host] == *self.domain);
        let ranges: Vec<(Span, Span)> =
            hosts.filter_map(|host| learned_range(self.spec, self.report, host)).collect();
        let least = ranges.iter().map(|(least, _)| *least).min().unwrap_or_default();
        let most = ranges.iter().map(|(_, most)| *most).max().unwrap_or(Span::MAX);
        for change in &changes {
            if !(least..=most).contains(&change.to) {
                let detail = format!("learned {}, which isn't between {least} and {most}", change.to);
                return Err(self.broken(Promise::LearnedRange, change.at, detail));
            }
        }
        for (at, entry) in events {
            let lost = self.report.takeovers.iter().any(|taken| {
                self.report.domains[taken.host] == *self.domain && taken.at > episode && taken.at <= at
            });
            if lost {
                episode = Timestamp::NEVER;
            }
            let outcome = outcome(entry);
            let raised = changes.iter().filter(|c| c.at == at && c.task == entry.task && c.to > c.from);
            for change in raised {
                let Some((base, _)) = learned_range(self.spec, self.report, entry.host) else { continue };
                let fresh = entry.start >= episode;
                // At most one step more than the current delay, or than the delay when the request started; a failed
                // probe returns to the delay before it.
                let before = changes.iter().rev().filter(|known| known.at < at);
                let had =
                    before.clone().find(|known| known.at <= entry.start).map_or(Span::ZERO, |known| known.to);
                let probed = before.clone().next().map_or(Span::ZERO, |known| known.from);
                let most = (change.from.max(had).max(base) + self.longest_step()).max(probed);
                if !fresh || change.to > most {
                    let detail = format!(
                        "raised from {} to {} by a request that started at {}",
                        change.from, change.to, entry.start
                    );
                    return Err(self.broken(Promise::LearnedStep, at, detail));
                }
            }
            if outcome.is_penalty() && entry.start >= episode {
                episode = at;
            }
        }
        Ok(())
    }
}

/// Every task ends once, with as many attempts as allowed, and isn't fetched again.
fn tasks(spec: &WorldSpec, report: &Report) -> Result<(), Violation> {
    let mut attempts: Vec<Vec<&Entry>> = vec![Vec::new(); report.tasks.len()];
    for entry in &report.log {
        attempts[entry.task].push(entry);
    }
    for (nth, (task, attempts)) in report.tasks.iter().zip(attempts).enumerate() {
        let broken = |promise, detail| Violation {
            promise,
            domain: report.domains[task.host].clone(),
            at: task.at.unwrap_or(report.ended),
            detail,
        };
        let Some(ended) = task.at else {
            return Err(broken(Promise::Lost, format!("task {nth} is still {}", task.state)));
        };
        if let Some(late) = attempts.iter().find(|entry| entry.start > ended) {
            let detail = format!("task {nth} was {} and fetched again at {}", task.state, late.start);
            return Err(broken(Promise::Lost, detail));
        }
        let received: Vec<Outcome> =
            attempts.iter().filter(|entry| entry.received).map(|entry| outcome(entry)).collect();
        let good = received.iter().filter(|outcome| **outcome == Outcome::Success).count();
        // 429s of requests that started before another penalty was received are forgiven, but not forever.
        let counted = attempts.iter().filter(|entry| entry.received && outcome(entry).is_penalty());
        let forgiven = |entry: &&&Entry| outcome(entry) == Outcome::RateLimited && late(report, entry);
        let counted = counted.filter(|entry| !forgiven(entry)).count();
        let (most, most_in_all) = (spec.retries_max as usize + 1, 2 * spec.retries_max as usize + 1);
        if counted > most || received.len() > most_in_all {
            let detail = format!(
                "task {nth} failed {counted} times, but only {most} of {most_in_all} are allowed: {received:?}"
            );
            return Err(broken(Promise::Retries, detail));
        }
        let fits = match task.state {
            TaskState::Done => good == 1,
            TaskState::Failed => {
                let given_up = received.len() > spec.retries_max as usize || is_gone(spec, report, &attempts);
                good == 0 && (given_up || received.last() == Some(&Outcome::Answered))
            }
            _ => false,
        };
        if !fits {
            let detail = format!("task {nth} is {} after {received:?}", task.state);
            return Err(broken(Promise::Retries, detail));
        }
    }
    Ok(())
}

/// Whether another penalty was received on the domain while this request was in flight, or exactly when it ended.
fn late(report: &Report, entry: &Entry) -> bool {
    let domain = &report.domains[entry.host];
    report.log.iter().any(|other| {
        let received_at = other.end.filter(|_| other.received && outcome(other).is_penalty());
        let meanwhile = received_at.is_some_and(|at| at > entry.start && Some(at) <= entry.end);
        meanwhile && other.task != entry.task && report.domains[other.host] == *domain
    })
}

/// Whether the host is considered down: the last attempt of the task found it unreachable, and so did more consecutive
/// attempts on the domain than one task may make.
fn is_gone(spec: &WorldSpec, report: &Report, attempts: &[&Entry]) -> bool {
    let Some(last) = attempts.iter().rev().find(|entry| entry.received) else { return false };
    let domain = &report.domains[last.host];
    let mut received: Vec<&Entry> = report.log.iter().filter(|entry| entry.received).collect();
    received.retain(|entry| report.domains[entry.host] == *domain && entry.end <= last.end);
    received.sort_by_key(|entry| entry.end);
    let in_a_row = received.iter().rev().take_while(|entry| entry.refused).count();
    last.refused && in_a_row > spec.retries_max as usize + 1
}

fn outcome(entry: &Entry) -> Outcome {
    entry.status.map_or(Outcome::Timeout, |status| {
        Answer::of_status(status, comity_core::headers::PacingHints::default()).outcome
    })
}

fn rule(report: &Report, host: usize) -> &Arc<Rule> {
    let host = Domain::parse(&WorldSpec::host(host)).unwrap_or_else(|error| panic!("{error}"));
    report.rules.rule(&host)
}

fn baseline(spec: &WorldSpec, report: &Report, host: usize) -> Span {
    let rule = rule(report, host);
    rule.min_delay().max(rule.rate_delay()).max(spec.hosts[host].crawl_delay)
}

/// Base and ceiling of the learned delay of a host.
fn learned_range(spec: &WorldSpec, report: &Report, host: usize) -> Option<(Span, Span)> {
    let Learning::Linear(linear) = rule(report, host).learning() else { return None };
    let base = baseline(spec, report, host).max(linear.base);
    Some((base, linear.ceiling.max(base)))
}

/// Extra time for connecting, noticing that a process died, and taking over.
const SLACK: Span = Span::from_secs(30);
