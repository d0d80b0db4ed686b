//! A world that fails, made as small as it can be, and told as a story.

use std::fmt::Write as _;

use comity_core::time::{Span, Timestamp};

use crate::site::Flaky;
use crate::world::{Entry, Failed, Fault, HostSpec, WorldSpec};

/// Makes a failing world smaller, as long as the same promise is broken in it.
pub fn shrink(spec: &WorldSpec, failed: &Failed) -> (WorldSpec, Box<Failed>) {
    shrink_by(spec, failed, |spec| spec.run().err())
}

/// The same with a judge of one's own.
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

/// Tells what broke, in which world, and what its domain saw just before.
pub fn story(spec: &WorldSpec, failed: &Failed) -> String {
    let Failed { violation, report } = failed;
    let mut text = format!("seed {}: {violation}\n\n{}\n", spec.seed, describe(spec));
    let here = |entry: &&Entry| report.domains[entry.host] == violation.domain && entry.start <= violation.at;
    let seen: Vec<&Entry> = report.log.iter().filter(here).collect();
    for entry in &seen[seen.len().saturating_sub(LINES)..] {
        _ = writeln!(text, "{}", line(entry));
    }
    _ = write!(text, "\nto see it again: cargo run -p comity-sim -- world {}", spec.seed);
    text
}

/// A world in a few lines.
pub fn describe(spec: &WorldSpec) -> String {
    let WorldSpec { profile, processes, workers, concurrency, retries_max, .. } = spec;
    let mut text = format!(
        "profile {profile}, {processes} processes of {workers} workers, {concurrency} at once, {retries_max} retries\n"
    );
    for (nth, host) in spec.hosts.iter().enumerate() {
        let HostSpec { site, crawl_delay, connect, tasks, searches, .. } = host;
        let settings = host.fields.to_toml().trim_end().replace('\n', ", ");
        _ = writeln!(
            text,
            "host {nth}: {tasks} tasks, robots {crawl_delay}, connect {connect}, searches {searches}"
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

/// One request as a line of a story.
pub fn line(entry: &Entry) -> String {
    let clock = |at: Timestamp| format!("{:>12.6}", at.since(crate::world::BEGIN).as_secs_f64());
    let answer = match (entry.end, entry.status, entry.heard) {
        (Some(end), Some(status), true) => format!("{status} at {}", clock(end)),
        (Some(end), None, true) if entry.refused => format!("connection refused at {}", clock(end)),
        (Some(end), None, true) => format!("time-out at {}", clock(end)),
        (Some(end), _, false) => format!("cut off at {}", clock(end)),
        (None, ..) => "still on the wire".to_owned(),
    };
    let stated =
        entry.stated.map_or(String::new(), |span| format!(", asked to stay away for {}", span.about()));
    let Entry { host, task, process, intent, .. } = entry;
    format!("{} host {host} task {task} ({intent}, process {process}): {answer}{stated}", clock(entry.start))
}

/// Every world that is one step smaller.
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
