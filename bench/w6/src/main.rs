//! W6: `admit` + `record` on a keyed table of domains, against governor's keyed `check_key`, in one run.
//!
//! Both are warm, hold the same names, see the same sequence of accesses and read a clock for every call
//! (quanta's, which is governor's own default; Comity reads it twice, once to ask and once to record). Every
//! request is granted. Comity is measured twice: `shared` is the table that threads share, behind locks;
//! `owned` is the table inside it, as a single thread that needs no locks uses it. Figures are medians of
//! several rounds, all taking turns. Memory is what the process grew by, measured in a process of its own.

use std::num::NonZeroU32;
use std::process::Command;

use comity_core::decision::Decision;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Pace, Terms};
use comity_core::paces::{Paces, SharedPaces};
use comity_core::rule::{Fields, Rule};
use comity_core::time::{Span, Timestamp};
use fastrand::Rng;
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
        _ => eprintln!("usage: comity-bench-w6 [memory comity|governor SIZE]"),
    }
}

/// How accesses are spread over the names.
#[derive(Clone, Copy)]
enum Access {
    Uniform,
    /// A few names get most of them: the nth most frequent about 1/n as many as the first.
    Skewed,
}

/// Prints the table of W6.
fn compare() {
    println!(
        "| domains | access | threads | table | comity admit+record, ns | governor check_key, ns | ratio | goal |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for size in SIZES {
        let names = names(size);
        let domains: Vec<Domain> = names.iter().filter_map(|name| Domain::parse(name).ok()).collect();
        let (comity, governor) = (Comity::new(&domains), limiter(&names));
        let mut owned = Paces::new(fastrand::u64(..));
        domains.iter().for_each(|domain| assert!(comity.cycle_owned(&mut owned, domain)));
        for (access, label) in [(Access::Uniform, "uniform"), (Access::Skewed, "skewed")] {
            let orders: Vec<Vec<u32>> = (0..2).map(|thread| order(size, access, thread)).collect();
            let mut times: [Vec<f64>; 5] = Default::default();
            for _ in 0..ROUNDS {
                times[0].push(time_one(&orders[0], |nth| comity.cycle_owned(&mut owned, &domains[nth])));
                times[1].push(time(&orders[..1], |nth| comity.cycle(&domains[nth])));
                times[2].push(time(&orders[..1], |nth| governor.check_key(&names[nth]).is_ok()));
                times[3].push(time(&orders, |nth| comity.cycle(&domains[nth])));
                times[4].push(time(&orders, |nth| governor.check_key(&names[nth]).is_ok()));
            }
            let [owned, shared, theirs, shared_by_two, theirs_by_two] = times.map(median);
            for (threads, table, ours, theirs) in [
                (1, "owned", owned, theirs),
                (1, "shared", shared, theirs),
                (2, "shared", shared_by_two, theirs_by_two),
            ] {
                let ratio = ours / theirs;
                let goal = if ratio <= 1.0 { "met" } else { "missed" };
                println!(
                    "| {size} | {label} | {threads} | {table} | {ours:.0} | {theirs:.0} | {ratio:.2} | {goal} |"
                );
            }
        }
    }
    parts();
    println!("\n| domains | comity, bytes a domain | governor, bytes a domain | goal: 200 |");
    println!("|---|---|---|---|");
    for size in [100_000, 1_000_000] {
        let [ours, theirs] = ["comity", "governor"].map(|who| memory(who, size));
        let goal = if ours <= 200.0 { "met" } else { "missed" };
        println!("| {size} | {ours:.0} | {theirs:.0} | {goal} |");
    }
}

/// Where the time of one cycle goes while everything is in the cache.
fn parts() {
    let names = names(1_000);
    let domains: Vec<Domain> = names.iter().filter_map(|name| Domain::parse(name).ok()).collect();
    let (comity, orders) = (Comity::new(&domains), order(1_000, Access::Uniform, 1));
    let terms: Terms<'_> = (&comity.rule).into();
    let (mut owned, mut pace, mut now) = (Paces::new(fastrand::u64(..)), Pace::default(), comity.now());
    domains.iter().for_each(|domain| assert!(comity.cycle_owned(&mut owned, domain)));
    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(time_one(&orders, |_| comity.now() <= comity.now()));
        times[1].push(time_one(&orders, |nth| owned.find(&domains[nth]).is_some()));
        times[2].push(time_one(&orders, |_| {
            now = now + Span::from_micros(1);
            let Decision::Proceed(permit) = pace.admit(terms, Intent::Fetch, now) else { return false };
            let recorded = pace.record(terms, &permit, &Answer::from(Outcome::Success), now);
            std::hint::black_box(recorded).held_until.is_none()
        }));
        times[3].push(time_one(&orders, |nth| comity.cycle_owned(&mut owned, &domains[nth])));
        times[4].push(time_one(&orders, |nth| comity.cycle(&domains[nth])));
    }
    let [clock, find, logic, owned, shared] = times.map(median);
    println!("\n| where it goes at 1000 domains | ns |");
    println!("|---|---|");
    println!("| two readings of the clock (governor: one) | {clock:.0} |");
    println!("| finding the domain | {find:.0} |");
    println!("| deciding and learning | {logic:.0} |");
    println!("| fetching the pace from a farther cache, calls | {:.0} |", owned - clock - find - logic);
    println!("| locking and unlocking twice, when shared | {:.0} |", shared - owned);
}

/// A table of paces and the rule they go by: the linear learner, and no limit that would refuse a request.
struct Comity {
    paces: SharedPaces,
    rule: Rule,
    clock: Clock,
    began: u64,
}

impl Comity {
    fn new(domains: &[Domain]) -> Self {
        let fields = Fields { min_delay: Some(Span::ZERO), in_flight: Some(None), ..Fields::default() };
        let rule = Rule::new(&fields).unwrap_or_default();
        let clock = Clock::new();
        let comity = Self { paces: SharedPaces::new(fastrand::u64(..)), rule, began: clock.raw(), clock };
        domains.iter().for_each(|domain| assert!(comity.cycle(domain), "{domain} was not granted"));
        comity
    }

    /// Asks, and records a success: what one request costs.
    #[inline]
    fn cycle(&self, domain: &Domain) -> bool {
        let terms: Terms<'_> = (&self.rule).into();
        let asked = self.paces.enter(domain, |pace| pace.admit(terms, Intent::Fetch, self.now()));
        let Some((id, Decision::Proceed(permit))) = asked else { return false };
        let answer = Answer::from(Outcome::Success);
        self.paces.change(id, |pace| pace.record(terms, &permit, &answer, self.now())).is_some()
    }

    /// The same on a table that one thread owns.
    #[inline]
    fn cycle_owned(&self, paces: &mut Paces, domain: &Domain) -> bool {
        let terms: Terms<'_> = (&self.rule).into();
        let id = paces.enter(domain);
        let asked = paces.pace_mut(id).map(|pace| pace.admit(terms, Intent::Fetch, self.now()));
        let Some(Decision::Proceed(permit)) = asked else { return false };
        let answer = Answer::from(Outcome::Success);
        paces.pace_mut(id).map(|pace| pace.record(terms, &permit, &answer, self.now())).is_some()
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

/// Which names are accessed, in order.
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

/// Nanoseconds of one thread for one operation.
fn time(orders: &[Vec<u32>], operation: impl Fn(usize) -> bool + Sync) -> f64 {
    let run = |order: &Vec<u32>| time_one(order, &operation);
    std::thread::scope(|scope| {
        let threads: Vec<_> = orders.iter().map(|order| scope.spawn(move || run(order))).collect();
        let times: Vec<f64> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        assert_eq!(times.len(), orders.len(), "a thread failed");
        times.iter().sum::<f64>() / times.len() as f64
    })
}

/// The same without threads.
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

/// Bytes a domain, measured by a process of its own.
fn memory(who: &str, size: usize) -> f64 {
    let output = std::env::current_exe()
        .and_then(|this| Command::new(this).args(["memory", who, &size.to_string()]).output());
    let bytes =
        output.ok().and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse::<f64>().ok());
    bytes.map_or(f64::NAN, |bytes| bytes / size as f64)
}

/// How many bytes the process grew by while it took in `size` domains. The names are made one by one, so that
/// only what the table keeps of them is counted.
fn grown(who: &str, size: usize) -> u64 {
    let warm = names(1_000);
    let domains: Vec<Domain> = warm.iter().filter_map(|name| Domain::parse(name).ok()).collect();
    let (comity, governor) = (Comity::new(&domains), limiter(&warm));
    let before = resident();
    for nth in 1_000..1_000 + size {
        let name = format!("host-{nth:07}.example");
        let granted = match who {
            "comity" => Domain::parse(&name).is_ok_and(|domain| comity.cycle(&domain)),
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
