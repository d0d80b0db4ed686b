//! Reduces a world that breaks a promise, and describes what happened in it.

use std::fmt::Write as _;

use comity_core::time::{Span, Timestamp};

use crate::site::Flaky;
use crate::world::{Entry, Failed, Fault, HostSpec, WorldSpec};

/// Makes a failing world as small as possible while it still breaks the same promise.
pub fn shrink(spec: &WorldSpec, failed: &Failed) -> (WorldSpec, Box<Failed>) {
    shrink_by(spec, failed, |spec| spec.run().err())
}

/// Like [`shrink`], with a custom check.
pub fn shrink_by(
    spec: &WorldSpec,
    failed: &Failed,
    judge: impl Fn(&WorldSpec) -> Option<Box<Failed>>,
) -> (WorldSpec, Box<Failed>) {
    let mut best = (spec.clone(), Box::new(failed.clone()));
    let promise = failed.violation.promise;
    for _ in 0..ROUNDS {
        let smaller = smaller(&best.0).into_iter().find_map(|spec| {
            let failed = judge(&spec)?;
            (failed.violation.promise == promise).then_some((spec, failed))
        });
        match smaller {
            Some(found) => best = found,
            None => break,
        }
    }
    best
}

/// Describes the broken promise, the world, and the last requests to the domain before it happened.
pub fn story(spec: &WorldSpec, failed: &Failed) -> String {
    let Failed { violation, report } = failed;
    let mut text = format!("seed {}: {violation}\n\n{}\n", spec.seed, describe(spec));
    let here = |entry: &&Entry| report.domains[entry.host] == violation.domain && entry.start <= violation.at;
    let seen: Vec<&Entry> = report.log.iter().filter(here).collect();
    for entry in &seen[seen.len().saturating_sub(LINES)..] {
        _ = writeln!(text, "{}", line(entry));
    }
    _ = write!(text, "\nto reproduce: cargo run -p comity-sim -- world {}", spec.seed);
    text
}

/// Describes a world in a few lines.
pub fn describe(spec: &WorldSpec) -> String {
    let WorldSpec { profile, processes, workers, concurrency, retries_max, .. } = spec;
    let mut text = format!(
        "profile {profile}, {processes} processes with {workers} workers each, concurrency {concurrency}, \
         up to {retries_max} retries\n"
    );
    for (nth, host) in spec.hosts.iter().enumerate() {
        let HostSpec { site, crawl_delay, connect, tasks, searches, .. } = host;
        let settings = host.fields.to_toml().trim_end().replace('\n', ", ");
        _ = writeln!(
            text,
            "host {nth}: {tasks} tasks, crawl-delay {crawl_delay}, connect {connect}, searches {searches}"
        );
        _ = writeln!(text, "  rule {{ {settings} }}");
        _ = writeln!(text, "  {site:?}");
    }
    if spec.skews.iter().any(|skew| *skew != 0) {
        _ = writeln!(text, "wall clocks are off by {:?} s", spec.skews);
    }
    for Fault { at, process, kind } in &spec.faults {
        _ = writeln!(text, "{at}: process {process}: {kind:?}");
    }
    text
}

/// Describes one request in one line.
pub fn line(entry: &Entry) -> String {
    let clock = |at: Timestamp| format!("{:>12.6}", at.since(crate::world::BEGIN).as_secs_f64());
    let answer = match (entry.end, entry.status, entry.received) {
        (Some(end), Some(status), true) => format!("{status} at {}", clock(end)),
        (Some(end), None, true) if entry.refused => format!("connection refused at {}", clock(end)),
        (Some(end), None, true) => format!("timeout at {}", clock(end)),
        (Some(end), _, false) => format!("sender killed at {}", clock(end)),
        (None, ..) => "still in flight".to_owned(),
    };
    let stated = entry.stated.map_or(String::new(), |span| format!(", asked to wait {}", span.countdown()));
    let Entry { host, task, process, intent, .. } = entry;
    format!("{} host {host} task {task} ({intent}, process {process}): {answer}{stated}", clock(entry.start))
}

/// All worlds that are one step smaller.
fn smaller(spec: &WorldSpec) -> Vec<WorldSpec> {
    let mut worlds = Vec::new();
    let mut with = |change: &dyn Fn(&mut WorldSpec)| {
        let mut world = spec.clone();
        change(&mut world);
        worlds.push(world);
    };
    for nth in 0..spec.faults.len() {
        with(&|world| _ = world.faults.remove(nth));
    }
    if spec.skews.iter().any(|skew| *skew != 0) {
        with(&|world| world.skews.clear());
    }
    if spec.faults.is_empty() && spec.processes > 1 {
        with(&|world| world.processes = 1);
    }
    let named = |world: &WorldSpec| {
        world.faults.iter().any(|fault| matches!(fault.kind, crate::world::FaultKind::Take { .. }))
    };
    if spec.hosts.len() > 1 && !named(spec) {
        for nth in 0..spec.hosts.len() {
            with(&|world| _ = world.hosts.remove(nth));
        }
    }
    for nth in 0..spec.hosts.len() {
        let host = &spec.hosts[nth];
        if host.tasks > 1 {
            with(&|world| world.hosts[nth].tasks /= 2);
            with(&|world| world.hosts[nth].tasks -= 1);
        }
        if host.site.flaky != Flaky::default() {
            with(&|world| world.hosts[nth].site.flaky = Flaky::default());
        }
        if host.site.latency.0 != host.site.latency.1 {
            with(&|world| world.hosts[nth].site.latency.1 = world.hosts[nth].site.latency.0);
        }
        if !host.connect.is_zero() {
            with(&|world| world.hosts[nth].connect = Span::ZERO);
        }
        if host.searches {
            with(&|world| world.hosts[nth].searches = false);
        }
    }
    if spec.workers > 1 {
        with(&|world| world.workers = 1);
    }
    worlds
}

const ROUNDS: usize = 200;
const LINES: usize = 25;
