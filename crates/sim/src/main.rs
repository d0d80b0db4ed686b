//! `comity-sim`: the simulator as a command. `demo` plays sites with strict rate limits, `world` and `worlds` play
//! seeds, `learning` compares learning rules.

use std::process::ExitCode;

use comity_core::rule::{Fields, LearningName};
use comity_core::task::TaskState;
use comity_core::time::Span;
use comity_sim::shrink;
use comity_sim::site::{Flaky, HintStyle, LimitSpec, SiteSpec};
use comity_sim::world::{HostSpec, Report, WorldSpec};

const HELP: &str = "\
Simulates Comity's pacing core in virtual time, without sleeping and without the network.

Usage:
  comity-sim demo                 Play sites with strict rate limits, and show the results
  comity-sim world SEED           Play the random world of a seed, and show every request
  comity-sim worlds FROM COUNT    Play many random worlds; reduce and show the first one that breaks a promise
  comity-sim learning FROM COUNT  Compare learning rules on so many random sites; print tables
  comity-sim learning sites FROM COUNT
                                  One line per random site: how bracket learning did there
  comity-sim learning site SEED   What bracket learning did on the random site of a seed
  comity-sim help                 Print this help

Examples:
  cargo run --release -p comity-sim -- demo
  cargo run --release -p comity-sim -- worlds 0 100000

Exit codes: 0 if all promises held, 1 if one was broken, 2 for usage errors.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["demo"] => demo(),
        ["world", seed] => match seed.parse() {
            Ok(seed) => world(seed),
            Err(_) => usage(&format!("SEED = {seed:?}: expected a whole number")),
        },
        ["worlds", from, count] => match (from.parse(), count.parse()) {
            (Ok(from), Ok(count)) => worlds(from, count),
            _ => usage(&format!("FROM COUNT = {from:?} {count:?}: expected two whole numbers")),
        },
        ["learning", "site", seed] => match seed.parse() {
            Ok(seed) => {
                print!("{}", comity_sim::learning::story(seed, comity_sim::learning::Hint::Absent));
                ExitCode::SUCCESS
            }
            Err(_) => usage(&format!("SEED = {seed:?}: expected a whole number")),
        },
        ["learning", "sites", from, count] => match (from.parse(), count.parse()) {
            (Ok(from), Ok(count)) => {
                print!("{}", comity_sim::learning::sites(from, count, comity_sim::learning::Hint::Absent));
                ExitCode::SUCCESS
            }
            _ => usage(&format!("FROM COUNT = {from:?} {count:?}: expected two whole numbers")),
        },
        ["learning", from, count] => match (from.parse(), count.parse()) {
            (Ok(from), Ok(count)) if count > 0 => {
                print!("{}", comity_sim::learning::report(from, count));
                ExitCode::SUCCESS
            }
            _ => usage(&format!("FROM COUNT = {from:?} {count:?}: expected two whole numbers")),
        },
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [] => usage("expected a command"),
        ["world"] => usage("world: expected SEED"),
        ["worlds", ..] => usage("worlds: expected FROM and COUNT"),
        [word, ..] => usage(&format!("unknown command or wrong arguments: {word:?}")),
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("comity-sim: {problem}\n\n{HELP}");
    ExitCode::from(2)
}

/// Plays sites with strict rate limits and prints one line for each run.
fn demo() -> ExitCode {
    println!("A site that answers 10 requests and then 429 with Retry-After: 5. 100 pages.\n");
    let storm = || LimitSpec::Storm { count: 10, closed: Span::from_secs(5) };
    let free = Fields { min_delay: Some(Span::ZERO), learning: Some(LearningName::Off), ..Fields::default() };
    let mut fine = show("as fast as the site allows", &demo_world(storm(), HintStyle::Seconds, free));
    fine &= show("profile standard", &demo_world(storm(), HintStyle::Seconds, Fields::default()));
    println!("\nA hidden limit of one request per 3 seconds, without any headers. The delay is learned.\n");
    let hidden = LimitSpec::LeakyBucket { rate: 1.0 / 3.0, burst: 2 };
    fine &= show("profile standard", &demo_world(hidden, HintStyle::Absent, Fields::default()));
    if !fine {
        return ExitCode::FAILURE;
    }
    println!("\nEvery request was checked against the site's own log: none was early, no page was lost.");
    ExitCode::SUCCESS
}

fn demo_world(limit: LimitSpec, hint_style: HintStyle, fields: Fields) -> WorldSpec {
    let latency = (Span::from_millis(1), Span::from_millis(1));
    let site = SiteSpec { limit, hint_style, latency, flaky: Flaky::default(), clock_ahead: 0 };
    let (crawl_delay, connect) = (Span::ZERO, Span::ZERO);
    WorldSpec::of(HostSpec { site, fields, crawl_delay, connect, tasks: 100, searches: false })
}

/// Plays a world and prints one line; false if a promise was broken.
fn show(name: &str, spec: &WorldSpec) -> bool {
    match spec.run() {
        Ok(report) => {
            println!("  {name:<28} {}", summary(&report));
            true
        }
        Err(failed) => {
            println!("{}", shrink::story(spec, &failed));
            false
        }
    }
}

fn summary(report: &Report) -> String {
    let done = report.tasks.iter().filter(|task| task.state == TaskState::Done).count();
    let refused = report.log.iter().filter(|entry| entry.status == Some(429)).count();
    let first = report.log.first().map_or(report.ended, |entry| entry.start);
    let took = report.ended.since(first).countdown().to_string();
    let learned =
        report.changes.last().map_or(String::new(), |change| format!(", learned delay {}", change.to));
    let (pages, requests) = (report.tasks.len(), report.log.len());
    format!("{done} of {pages} pages, {requests} requests, {refused} rate limited (429), {took}{learned}")
}

fn world(seed: u64) -> ExitCode {
    let spec = WorldSpec::random(seed);
    match spec.run() {
        Ok(report) => {
            println!("{}", shrink::describe(&spec));
            for entry in &report.log {
                println!("{}", shrink::line(entry));
            }
            println!("\nseed {seed}: all promises held: {}", summary(&report));
            ExitCode::SUCCESS
        }
        Err(failed) => {
            let (small, failed) = shrink::shrink(&spec, &failed);
            println!("{}", shrink::story(&small, &failed));
            ExitCode::FAILURE
        }
    }
}

fn worlds(from: u64, count: u64) -> ExitCode {
    let mut requests = 0;
    for seed in from..from.saturating_add(count) {
        match WorldSpec::random(seed).run() {
            Ok(report) => requests += report.log.len(),
            Err(_) => return world(seed),
        }
        let played = seed - from + 1;
        if played.is_multiple_of(10_000) {
            eprintln!("{played} of {count} worlds, {requests} requests, all promises held");
        }
    }
    println!("{count} worlds, {requests} requests, all promises held");
    ExitCode::SUCCESS
}
