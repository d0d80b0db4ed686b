//! W6: the cost of a decision, measured in one run: `admit` + `record` on the core's table of domains, and `check` +
//! `record` of a gate, compared with governor's keyed `check_key`.
//!
//! All are warm, hold the same names, see the same sequence of accesses and read a clock on every call. The core and
//! governor use quanta's clock, governor's default; the gate uses its own. Comity reads the clock twice, once to ask
//! and once to record. Every request is granted. The core's table belongs to one thread; a gate is shared by all.
//! Figures are medians of several rounds in which all take turns. Memory is how much the process grew, measured in a
//! separate process.

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;

use comity::clock::Clock as GateClock;
use comity::event::Events;
use comity::gate::Gate;
use comity_core::decision::Decision;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Pace, Terms};
use comity_core::paces::Paces;
use comity_core::rule::{Fields, Profile, Rule, RuleTable};
use comity_core::time::{Span, Timestamp};
use fastrand::Rng;
use futures_util::FutureExt;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use quanta::Clock;

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];
const ROUNDS: usize = 7;
const OPERATIONS: usize = 2_000_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(),
        ["memory", who, size] => println!("{}", grown(who, size.parse().unwrap_or(1_000))),
        _ => eprintln!("usage: comity-bench-w6 [memory core|governor SIZE]"),
    }
}

/// How accesses are distributed over the names.
#[derive(Clone, Copy)]
enum Access {
    Uniform,
    /// A few names get most accesses: the nth most frequent gets about 1/n as many as the first.
    Skewed,
}

/// Prints the table of W6.
fn compare() {
    println!("| domains | access | threads | what | comity, ns | governor check_key, ns | ratio | goal |");
    println!("|---|---|---|---|---|---|---|---|");
    for size in SIZES {
        let names = names(size);
        let domains: Vec<Domain> = names.iter().filter_map(|name| Domain::parse(name).ok()).collect();
        let (mut core, gate, governor) = (Core::new(&domains), Shared::new(&domains), limiter(&names));
        for (access, label) in [(Access::Uniform, "uniform"), (Access::Skewed, "skewed")] {
            let orders: Vec<Vec<u32>> = (0..2).map(|thread| order(size, access, thread)).collect();
            let mut times: [Vec<f64>; 5] = Default::default();
            for _ in 0..ROUNDS {
                times[0].push(time_one(&orders[0], |nth| core.cycle(&domains[nth])));
                times[1].push(time(&orders[..1], |nth| gate.cycle(&domains[nth])));
                times[2].push(time(&orders[..1], |nth| governor.check_key(&names[nth]).is_ok()));
                times[3].push(time(&orders, |nth| gate.cycle(&domains[nth])));
                times[4].push(time(&orders, |nth| governor.check_key(&names[nth]).is_ok()));
            }
            let [core, gate, theirs, gate_by_two, theirs_by_two] = times.map(median);
            let allowed = if size >= 1_000_000 { 1.5 } else { 2.5 };
            for (threads, what, ours, theirs, allowed) in [
                (1, "core admit+record", core, theirs, 1.0),
                (1, "gate check+record", gate, theirs, allowed),
                (2, "gate check+record", gate_by_two, theirs_by_two, allowed),
            ] {
                let ratio = ours / theirs;
                let goal = if ratio <= allowed { "met" } else { "missed" };
                println!(
                    "| {size} | {label} | {threads} | {what} | {ours:.0} | {theirs:.0} | {ratio:.2} | {allowed}: {goal} |"
                );
            }
            let gain = 2.0 * gate / gate_by_two;
            let goal = if gain >= 1.5 { "met" } else { "missed" };
            println!(
                "| {size} | {label} | 2 | gate, decisions/s of two threads to one | {gain:.2} | | | 1.5: {goal} |"
            );
        }
    }
    parts();
    println!("\n| domains | core, bytes per domain | governor, bytes per domain | goal: 200 |");
    println!("|---|---|---|---|");
    for size in [100_000, 1_000_000] {
        let [ours, theirs] = ["core", "governor"].map(|who| memory(who, size));
        let goal = if ours <= 200.0 { "met" } else { "missed" };
        println!("| {size} | {ours:.0} | {theirs:.0} | {goal} |");
    }
}

/// Where the time of one cycle is spent while everything is in the cache.
fn parts() {
    let names = names(1_000);
    let domains: Vec<Domain> = names.iter().filter_map(|name| Domain::parse(name).ok()).collect();
    let (mut core, gate, orders) =
        (Core::new(&domains), Shared::new(&domains), order(1_000, Access::Uniform, 1));
    let rule = open_rule();
    let terms: Terms<'_> = (&rule).into();
    let (mut pace, mut now) = (Pace::default(), core.time.now());
    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(time_one(&orders, |_| core.time.now() <= core.time.now()));
        times[1].push(time_one(&orders, |nth| core.paces.find(&domains[nth]).is_some()));
        times[2].push(time_one(&orders, |_| {
            now = now + Span::from_micros(1);
            let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, now) else { return false };
            let recorded = pace.record(terms, &permit, &Answer::from(Outcome::Success), now);
            std::hint::black_box(recorded).held_until.is_none()
        }));
        times[3].push(time_one(&orders, |nth| core.cycle(&domains[nth])));
        times[4].push(time_one(&orders, |nth| gate.cycle(&domains[nth])));
    }
    let [clock, find, logic, core, gate] = times.map(median);
    println!("\n| where the time goes with 1000 domains | ns |");
    println!("|---|---|");
    println!("| reading the clock twice (governor: once) | {clock:.0} |");
    println!("| finding the domain | {find:.0} |");
    println!("| deciding and learning | {logic:.0} |");
    println!("| fetching the pace from a slower cache, calls | {:.0} |", core - clock - find - logic);
    println!(
        "| what the gate adds: the rule's lookup, locks, the permit, events, waking those in line | {:.0} |",
        gate - core
    );
}

/// A rule with the linear learner and no limit that would refuse a request.
fn open_rule() -> Rule {
    Rule::new(&open_fields()).unwrap_or_default()
}

fn open_fields() -> Fields {
    Fields { min_delay: Some(Span::ZERO), in_flight: Some(None), ..Fields::default() }
}

/// A table of paces that one thread owns, and their rule.
struct Core {
    paces: Paces,
    rule: Rule,
    time: Time,
}

impl Core {
    fn new(domains: &[Domain]) -> Self {
        let mut core = Self { paces: Paces::new(fastrand::u64(..)), rule: open_rule(), time: Time::new() };
        domains.iter().for_each(|domain| assert!(core.cycle(domain), "{domain} was not granted"));
        core
    }

    /// Asks, and records a success: the cost of one request.
    #[inline]
    fn cycle(&mut self, domain: &Domain) -> bool {
        let terms: Terms<'_> = (&self.rule).into();
        let id = self.paces.enter(domain);
        let asked = self.paces.pace_mut(id).map(|pace| pace.admit(terms, Intent::Fetch, self.time.now()));
        let Some(Decision::Proceed(permit)) = asked else { return false };
        let answer = Answer::from(Outcome::Success);
        self.paces.pace_mut(id).map(|pace| pace.record(terms, &permit, &answer, self.time.now())).is_some()
    }
}

/// A gate of this process, as all callers use it.
struct Shared(Gate);

impl Shared {
    fn new(domains: &[Domain]) -> Self {
        let rules = RuleTable::new(&Profile::standard(), &open_fields(), &[], None).unwrap_or_default();
        let gate = Self(Gate::new(Arc::new(rules), GateClock::new(), Events::new()));
        domains.iter().for_each(|domain| assert!(gate.cycle(domain), "{domain} was not granted"));
        gate
    }

    /// Asks, and records a success. A gate without a store answers at once.
    #[inline]
    fn cycle(&self, domain: &Domain) -> bool {
        let Some(Ok((_, Some(permit)))) = self.0.check(domain, Intent::Fetch).now_or_never() else {
            return false;
        };
        permit.record(&Answer::from(Outcome::Success)).held_until.is_none()
    }
}

/// Time as governor reads it.
struct Time {
    clock: Clock,
    began: u64,
}

impl Time {
    fn new() -> Self {
        let clock = Clock::new();
        Self { began: clock.raw(), clock }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        let nanos = self.clock.delta_as_nanos(self.began, self.clock.raw());
        Timestamp::from_secs(1_800_000_000) + Span::from_micros(nanos / 1_000)
    }
}

fn limiter(names: &[String]) -> DefaultKeyedRateLimiter<String> {
    let limiter = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    for name in names {
        assert!(limiter.check_key(name).is_ok(), "{name} was not granted");
    }
    limiter
}

fn names(size: usize) -> Vec<String> {
    (0..size).map(|nth| format!("host-{nth:07}.example")).collect()
}

/// The sequence of names that are accessed.
fn order(size: usize, access: Access, seed: u64) -> Vec<u32> {
    let mut rng = Rng::with_seed(seed);
    let mut places: Vec<u32> = (0..size as u32).collect();
    rng.shuffle(&mut places);
    let place = |rng: &mut Rng| match access {
        Access::Uniform => rng.usize(..size),
        Access::Skewed => ((size as f64).powf(rng.f64()) as usize - 1).min(size - 1),
    };
    (0..OPERATIONS).map(|_| places[place(&mut rng)]).collect()
}

/// Nanoseconds per operation and thread.
fn time(orders: &[Vec<u32>], operation: impl Fn(usize) -> bool + Sync) -> f64 {
    let run = |order: &Vec<u32>| time_one(order, &operation);
    std::thread::scope(|scope| {
        let threads: Vec<_> = orders.iter().map(|order| scope.spawn(move || run(order))).collect();
        let times: Vec<f64> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        assert_eq!(times.len(), orders.len(), "a thread failed");
        times.iter().sum::<f64>() / times.len() as f64
    })
}

/// Nanoseconds per operation, on the current thread.
fn time_one(order: &[u32], mut operation: impl FnMut(usize) -> bool) -> f64 {
    let clock = Clock::new();
    let began = clock.now();
    let granted = order.iter().filter(|nth| operation(**nth as usize)).count();
    assert_eq!(granted, order.len(), "every request is granted");
    (clock.now() - began).as_nanos() as f64 / order.len() as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Bytes per domain, measured in a separate process.
fn memory(who: &str, size: usize) -> f64 {
    let output = std::env::current_exe()
        .and_then(|this| Command::new(this).args(["memory", who, &size.to_string()]).output());
    let bytes =
        output.ok().and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse::<f64>().ok());
    bytes.map_or(f64::NAN, |bytes| bytes / size as f64)
}

/// How many bytes the process grew by while it added `size` domains. The names are created one by one, so that only
/// what the table keeps of them is counted.
fn grown(who: &str, size: usize) -> u64 {
    let warm = names(1_000);
    let domains: Vec<Domain> = warm.iter().filter_map(|name| Domain::parse(name).ok()).collect();
    let (mut core, governor) = (Core::new(&domains), limiter(&warm));
    let before = resident();
    for nth in 1_000..1_000 + size {
        let name = format!("host-{nth:07}.example");
        let granted = match who {
            "core" => Domain::parse(&name).is_ok_and(|domain| core.cycle(&domain)),
            _ => governor.check_key(&name).is_ok(),
        };
        assert!(granted, "{name} was not granted");
    }
    resident() - before
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4_096
}
