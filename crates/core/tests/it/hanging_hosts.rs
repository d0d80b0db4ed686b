//! Hosts that accept connections and never answer: how much of a job's capacity they may take from other hosts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use comity_core::dispatch::{Dispatch, Grant, IN_FLIGHT_FACTOR, Next, SOURCE_FACTOR};
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::line::{Lane, Owner, Ticket, Waiter};
use comity_core::outcome::Outcome;
use comity_core::pace::Terms;
use comity_core::rule::{Fields, Rule};
use comity_core::task::JobId;
use comity_core::time::{Span, Timestamp};
use proptest::prelude::*;
use serde_json::json;

const JOB: JobId = JobId(1);
const LANE: Lane = Lane { job: Some(JOB), intent: Intent::Fetch };
const TIMEOUT: Span = Span::from_secs(30);

/// A host with tasks, and how long its responses take.
#[derive(Debug, Clone)]
struct Host {
    tasks: u32,
    /// `None` if it never answers.
    answers: Option<Span>,
    owner: u64,
}

impl Host {
    const SILENT: Self = Self { tasks: 1, answers: None, owner: 0 };
    const GOOD: Self = Self { tasks: 1, answers: Some(Span::from_millis(20)), owner: 0 };

    fn of(self, owner: u64) -> Self {
        Self { owner, ..self }
    }

    fn takes(self, millis: u64) -> Self {
        Self { answers: Some(Span::from_millis(millis)), ..self }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Task {
    host: usize,
    owner: u64,
    retries: u32,
    rule: Arc<Rule>,
}

impl Waiter for Task {
    fn terms(&self) -> Terms<'_> {
        self.rule.as_ref().into()
    }

    fn owner(&self) -> Owner {
        Owner(self.owner)
    }
}

/// How a job went.
#[derive(Debug, Default)]
struct Played {
    /// When the last task of each host was answered, in seconds.
    done: BTreeMap<usize, f64>,
    /// Tasks given up after their last retry.
    failed: u32,
    /// Requests that waited for the full timeout.
    timed_out: u32,
    recalled: u32,
    /// Maximum number of requests in flight.
    most: usize,
    /// Maximum number of requests in flight of one source.
    most_of_owner: usize,
}

impl Played {
    /// When all of these hosts had answered.
    fn all(&self, hosts: impl IntoIterator<Item = usize>) -> f64 {
        hosts.into_iter().map(|host| self.done.get(&host).copied().unwrap_or(f64::MAX)).fold(0.0, f64::max)
    }
}

fn rule() -> Arc<Rule> {
    let settings = json!({ "min_delay": "0s", "learning": "off", "in_flight": "unlimited" });
    Arc::new(Rule::new(&Fields::read(settings.as_object().unwrap()).unwrap()).unwrap())
}

fn name(host: usize) -> Domain {
    Domain::parse(&format!("h{host}.example")).unwrap()
}

/// A request in flight.
struct Flying {
    grant: Grant<Task>,
    ends_at: Timestamp,
}

struct Play<'a> {
    hosts: &'a [Host],
    retries_max: u32,
    dispatch: Dispatch<Task>,
    left: Vec<u32>,
    flying: HashMap<Ticket, Flying>,
    ends: BinaryHeap<Reverse<(Timestamp, u64)>>,
    numbers: HashMap<u64, Ticket>,
    now: Timestamp,
    played: Played,
}

/// Plays one job to its end.
fn play(concurrency: u32, hosts: &[Host], retries_max: u32) -> Played {
    let (rule, mut dispatch) = (rule(), Dispatch::new(7));
    dispatch.job(JOB, concurrency);
    for (host, of) in hosts.iter().enumerate() {
        for _ in 0..of.tasks {
            let task = Task { host, owner: of.owner, retries: 0, rule: rule.clone() };
            dispatch.join(&name(host), LANE, Timestamp::from_secs(0), task).unwrap();
        }
    }
    let mut play = Play {
        hosts,
        retries_max,
        dispatch,
        left: hosts.iter().map(|host| host.tasks).collect(),
        flying: HashMap::new(),
        ends: BinaryHeap::new(),
        numbers: HashMap::new(),
        now: Timestamp::from_secs(0),
        played: Played::default(),
    };
    while play.step() {}
    assert!(play.flying.is_empty() && play.left.iter().all(|left| *left == 0), "a task was never tried");
    play.played
}

impl Play<'_> {
    /// Everything that happens at one moment; false if nothing is left to happen.
    fn step(&mut self) -> bool {
        let wakes_at = self.pump();
        let ends_at = self.ends.peek().map(|Reverse((at, _))| *at);
        let Some(next) = wakes_at.into_iter().chain(ends_at).min() else { return false };
        assert!(next > self.now || ends_at == Some(next), "it does not spin");
        self.now = next;
        while let Some(Reverse((at, number))) = self.ends.peek().copied()
            && at <= self.now
        {
            self.ends.pop();
            if let Some(ticket) = self.numbers.remove(&number) {
                self.ended(&ticket);
            }
        }
        true
    }

    fn pump(&mut self) -> Option<Timestamp> {
        loop {
            let next = self.dispatch.next(self.now);
            let mut has_left = false;
            while let Some(ticket) = self.dispatch.next_recalled() {
                assert!(self.dispatch.is_recalled(&ticket));
                self.recalled(&ticket);
                has_left = true;
            }
            match next {
                Next::Go(grant) => self.go(grant),
                Next::Sleep { .. } | Next::Idle if has_left => {}
                Next::Sleep { until } => return Some(until),
                Next::Idle => return None,
            }
        }
    }

    fn go(&mut self, grant: Grant<Task>) {
        let after = self.hosts[grant.waiter.host].answers.unwrap_or(TIMEOUT).min(TIMEOUT);
        let number = self.ends.len() as u64 + self.numbers.len() as u64 + self.now.as_micros() as u64 * 1_000;
        let number = (number..).find(|number| !self.numbers.contains_key(number)).unwrap();
        self.ends.push(Reverse((self.now + after, number)));
        self.numbers.insert(number, grant.ticket);
        let owner = grant.waiter.owner;
        let flying = Flying { ends_at: self.now + after, grant };
        self.flying.insert(flying.grant.ticket, flying);
        let played = &mut self.played;
        played.most = played.most.max(self.flying.len());
        let mine = self.flying.values().filter(|flying| flying.grant.waiter.owner == owner && owner > 0);
        played.most_of_owner = played.most_of_owner.max(mine.count());
    }

    fn ended(&mut self, ticket: &Ticket) {
        let Some(flying) = self.flying.remove(ticket) else { return };
        assert_eq!(flying.ends_at, self.now);
        let host = flying.grant.waiter.host;
        let answered = self.hosts[host].answers.is_some_and(|after| after < TIMEOUT);
        if answered {
            self.dispatch.note_progress(ticket, self.now);
            self.settle(&flying.grant, Outcome::Success);
            self.left[host] -= 1;
            self.played.done.insert(host, self.now.since(Timestamp::from_secs(0)).as_secs_f64());
            return;
        }
        self.played.timed_out += 1;
        let again_at = self.settle(&flying.grant, Outcome::Timeout);
        let mut task = flying.grant.waiter;
        if task.retries == self.retries_max {
            (self.left[host], self.played.failed) = (self.left[host] - 1, self.played.failed + 1);
            return;
        }
        task.retries += 1;
        self.dispatch.join(&name(host), LANE, again_at, task).unwrap();
    }

    /// A recall uses no retry.
    fn recalled(&mut self, ticket: &Ticket) {
        let Some(flying) = self.flying.remove(ticket) else { panic!("{ticket:?} is not in flight") };
        self.numbers.retain(|_, known| known != ticket);
        self.played.recalled += 1;
        let again_at = self.settle(&flying.grant, Outcome::Timeout);
        self.dispatch.join(&name(flying.grant.waiter.host), LANE, again_at, flying.grant.waiter).unwrap();
    }

    /// Returns when the next attempt may be sent.
    fn settle(&mut self, grant: &Grant<Task>, outcome: Outcome) -> Timestamp {
        let terms = grant.waiter.terms();
        self.dispatch.record(grant.domain, terms, &grant.permit, &outcome.into(), self.now).unwrap();
        self.dispatch.ended(grant.domain, &grant.ticket, self.now);
        self.dispatch.paces().pace(grant.domain).unwrap().retry_at(terms, Intent::Fetch, self.now)
    }
}

/// B10: a list starts with a hundred hosts that never answer, with sixteen slots.
#[test]
fn hosts_that_never_answer_do_not_delay_the_others() {
    let hosts = [vec![Host::SILENT; 100], vec![Host::GOOD; 40]].concat();
    let played = play(16, &hosts, 3);
    assert!(played.all(100..140) < 10.0, "{played:?}");
    assert!(played.most <= 64, "{played:?}");
    assert_eq!((played.failed, played.timed_out), (100, 400), "each got its four full attempts");
}

/// B10: slow requests lose their slots to others, but continue.
#[test]
fn slow_responses_are_waited_for_while_there_is_capacity() {
    let hosts = [vec![Host::GOOD.takes(20_000); 30], vec![Host::GOOD; 40]].concat();
    let played = play(16, &hosts, 0);
    assert!(played.all(30..70) < 3.0, "{played:?}");
    assert!(played.all(0..30) < 22.0 && played.recalled == 0, "{played:?}");
}

/// Recalls are for hosts that hang: a job whose responses take long soon waits for them.
#[test]
fn the_grace_period_adapts_to_slow_responses() {
    for seconds in [5, 8, 12] {
        let hosts = vec![Host::GOOD.takes(seconds * 1_000); 1_000];
        let played = play(16, &hosts, 0);
        assert_eq!(played.done.len(), 1_000);
        assert!(played.recalled <= 150, "{seconds} s: {}", played.recalled);
        let ideal = 1_000.0 / 64.0 * seconds as f64;
        assert!(played.all(0..1_000) < ideal * 1.5, "{seconds} s: {} of {ideal}", played.all(0..1_000));
    }
}

/// B10: one source with many hanging hosts leaves capacity for the others, whenever they come.
#[test]
fn one_source_cannot_take_the_whole_capacity() {
    let others = (2..12).map(|owner| Host::GOOD.of(owner));
    let hosts: Vec<Host> = vec![Host::SILENT.of(1); 400].into_iter().chain(others).collect();
    let played = play(16, &hosts, 0);
    assert!(played.all(400..410) <= 1.1, "{played:?}");
    assert!(played.most_of_owner <= 16 * SOURCE_FACTOR as usize, "{played:?}");
}

/// B40: one domain takes no more than the concurrency of its job, slow or not.
#[test]
fn one_domain_has_its_own_limit() {
    let hosts = [Host { tasks: 400, ..Host::SILENT }, Host { tasks: 40, ..Host::GOOD }];
    let played = play(16, &hosts, 0);
    assert!(played.all(1..2) < 2.0 && played.most <= 32, "{played:?}");
}

/// Without slow hosts, a job never exceeds its concurrency.
#[test]
fn fast_responses_never_exceed_the_concurrency() {
    let played = play(16, &vec![Host { tasks: 5, ..Host::GOOD.takes(999) }; 100], 0);
    assert_eq!((played.most, played.recalled), (16, 0));
}

/// Once a hanging host answers, it is treated like any other.
#[test]
fn a_host_that_answers_is_no_longer_hanging() {
    let (rule, mut dispatch) = (rule(), Dispatch::new(1));
    dispatch.job(JOB, 1);
    let task = Task { host: 0, owner: 0, retries: 0, rule };
    let at = Timestamp::from_secs;
    dispatch.join(&name(0), LANE, at(0), task.clone()).unwrap();
    let Next::Go(grant) = dispatch.next(at(0)) else { panic!("it goes") };
    assert!(!dispatch.hangs(grant.domain));
    assert_eq!(dispatch.next(at(2)), Next::Idle);
    assert!(dispatch.hangs(grant.domain), "it never answered and is silent");
    dispatch.note_progress(&grant.ticket, at(3));
    assert!(!dispatch.hangs(grant.domain));
    let (id, terms) = (grant.domain, task.terms());
    dispatch.record(id, terms, &grant.permit, &Outcome::Success.into(), at(3)).unwrap();
    dispatch.ended(id, &grant.ticket, at(3));
    dispatch.join(&name(0), LANE, at(4), task.clone()).unwrap();
    let Next::Go(grant) = dispatch.next(at(4)) else { panic!("it goes") };
    assert_eq!(dispatch.next(at(6)), Next::Idle);
    assert!(!dispatch.hangs(id), "it has answered before");
    dispatch.record(id, terms, &grant.permit, &Outcome::Timeout.into(), at(34)).unwrap();
    assert!(dispatch.hangs(id), "its latest request got no answer");
}

fn hosts() -> impl Strategy<Value = Vec<Host>> {
    let answers = prop_oneof![
        3 => Just(None),
        3 => (0_u64..900).prop_map(|millis| Some(Span::from_millis(millis))),
        1 => (900_u64..40_000).prop_map(|millis| Some(Span::from_millis(millis))),
    ];
    let host =
        (1_u32..6, answers, 0_u64..4).prop_map(|(tasks, answers, owner)| Host { tasks, answers, owner });
    proptest::collection::vec(host, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// B10, B40: requests in flight stay within the limits, every host is tried in the end, and a host has answered if
    /// and only if it answers in time.
    #[test]
    fn requests_in_flight_stay_within_the_limits_and_every_host_is_tried(
        hosts in hosts(), concurrency in 1_u32..20, retries in 0_u32..3,
    ) {
        let played = play(concurrency, &hosts, retries);
        prop_assert!(played.most <= (IN_FLIGHT_FACTOR * concurrency) as usize, "{played:?}");
        prop_assert!(played.most_of_owner <= (SOURCE_FACTOR * concurrency) as usize, "{played:?}");
        for (host, of) in hosts.iter().enumerate() {
            let answers = of.answers.is_some_and(|after| after < TIMEOUT);
            prop_assert_eq!(answers, played.done.contains_key(&host));
        }
    }

    /// B10: hosts that answer quickly are done as soon as every host was tried for a moment.
    #[test]
    fn good_hosts_do_not_wait_for_timeouts(silent in 0_usize..200, good in 1_usize..50, concurrency in 1_u32..20) {
        let hosts = [vec![Host::SILENT; silent], vec![Host::GOOD; good]].concat();
        let played = play(concurrency, &hosts, 1);
        let waves = f64::from(silent as u32) / f64::from(concurrency);
        // One wave per second, and the grace period before the first recall.
        let expected = waves.ceil() * 1.5 + 7.0 + good as f64 * 0.02;
        prop_assert!(played.all(silent..silent + good) <= expected, "{expected} {played:?}");
        prop_assert!(played.most <= (IN_FLIGHT_FACTOR * concurrency) as usize);
    }
}
