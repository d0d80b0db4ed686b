//! Tests of the checkers: every promise is broken once on purpose, and has to be caught.

use comity_core::intent::Intent;
use comity_core::rule::{Fields, IntentFields};
use comity_core::task::TaskState;
use comity_core::time::{Span, Timestamp};
use comity_sim::check::{Promise, check};
use comity_sim::shrink;
use comity_sim::site::{Flaky, HintStyle, LimitSpec, SiteSpec};
use comity_sim::world::{Change, Failed, HostSpec, Report, WorldSpec};

fn world(limit: LimitSpec, hint_style: HintStyle) -> WorldSpec {
    let latency = (Span::from_millis(50), Span::from_millis(50));
    let site = SiteSpec { limit, hint_style, latency, flaky: Flaky::default(), clock_ahead: 0 };
    let fields = Fields {
        burst: Some(Some(5)),
        intents: [
            IntentFields::default(),
            IntentFields { min_delay: Some(Span::from_secs(4)), burst: None },
            IntentFields::default(),
        ],
        ..Fields::default()
    };
    let (crawl_delay, connect) = (Span::ZERO, Span::ZERO);
    WorldSpec::of(HostSpec { site, fields, crawl_delay, connect, tasks: 12, searches: true })
}

fn open() -> (WorldSpec, Report) {
    let spec = world(LimitSpec::Open, HintStyle::Absent);
    let report = spec.run().unwrap_or_else(|failed| panic!("{}", failed.violation));
    (spec, report)
}

fn storm() -> (WorldSpec, Report) {
    let closed = Span::from_secs(100);
    let spec = world(LimitSpec::Storm { count: 3, closed }, HintStyle::Seconds);
    let report = spec.run().unwrap_or_else(|failed| panic!("{}", failed.violation));
    (spec, report)
}

/// The promise that the checkers find broken in a manipulated report.
fn caught((spec, report): (WorldSpec, Report), tamper: impl FnOnce(&mut Report)) -> Option<Promise> {
    let mut report = report;
    tamper(&mut report);
    check(&spec, &report).err().map(|violation| violation.promise)
}

#[test]
fn an_honest_report_passes() {
    assert_eq!(caught(open(), |_| {}), None);
    assert_eq!(caught(storm(), |_| {}), None);
}

#[test]
fn every_broken_promise_is_caught() {
    let sooner = |at: Timestamp, millis| at - Span::from_millis(millis);
    assert_eq!(caught(open(), |r| r.log[1].start = sooner(r.log[1].start, 1)), Some(Promise::Spacing));
    assert_eq!(
        caught(open(), |r| {
            let first = r.log[0].start;
            for (nth, entry) in r.log.iter_mut().enumerate() {
                entry.start = first + Span::from_secs(5 * nth as u64);
                entry.end = Some(entry.start);
            }
        }),
        Some(Promise::Burst)
    );
    assert_eq!(
        caught(open(), |r| {
            r.log.iter_mut().for_each(|entry| entry.intent = Intent::Search);
        }),
        Some(Promise::Intent)
    );
    assert_eq!(
        caught(storm(), |r| {
            let refused = r.log.iter().position(|entry| entry.status == Some(429)).unwrap();
            let received = r.log[refused].end.unwrap();
            r.log[refused + 1].start = received + Span::from_millis(99_999);
        }),
        Some(Promise::Deadline)
    );
    assert_eq!(caught(open(), |r| r.log[0].end = Some(r.log[2].start)), Some(Promise::InFlight));
    let crowded = {
        let mut spec = world(LimitSpec::Open, HintStyle::Absent);
        spec.hosts[0].fields =
            Fields { in_flight: Some(None), min_delay: Some(Span::ZERO), ..Fields::default() };
        spec.hosts[0].searches = false;
        let report = spec.run().unwrap_or_else(|failed| panic!("{}", failed.violation));
        (spec, report)
    };
    assert_eq!(
        caught(crowded, |r| {
            let (at, from, to) = (r.log[0].start, Span::from_secs(1), Span::from_secs(60));
            r.changes.push(Change { host: 0, at, task: 0, from, to });
        }),
        Some(Promise::Concurrency)
    );
    assert_eq!(
        caught(open(), |r| {
            let (a, b) = (r.log[0].task, r.log[1].task);
            (r.log[0].task, r.log[1].task) = (b, a);
        }),
        Some(Promise::Order)
    );
    assert_eq!(caught(open(), |r| r.tasks[3].at = None), Some(Promise::Lost));
    assert_eq!(
        caught(open(), |r| {
            let mut again = *r.log.last().unwrap();
            (again.task, again.intent, again.start) = (0, r.log[0].intent, again.start + Span::from_secs(60));
            again.end = Some(again.start);
            r.log.push(again);
        }),
        Some(Promise::Lost)
    );
    assert_eq!(
        caught(open(), |r| {
            let last = r.log.len() - 1;
            r.log[last].start = r.log[last].start + Span::from_hours(1);
            let task = r.log[last].task;
            r.tasks[task].at = Some(r.log[last].start);
        }),
        Some(Promise::Starved)
    );
    assert_eq!(caught(open(), |r| r.tasks[2].state = TaskState::Failed), Some(Promise::Retries));
    let change = |r: &Report, to: u64| {
        let refused = r.log.iter().find(|entry| entry.status == Some(429)).unwrap();
        let (from, to) = (Span::from_secs(1), Span::from_secs(to));
        Change { host: 0, at: refused.end.unwrap(), task: refused.task, from, to }
    };
    assert_eq!(caught(storm(), |r| r.changes.push(change(r, 61))), Some(Promise::LearnedRange));
    assert_eq!(caught(storm(), |r| r.changes.push(change(r, 9))), Some(Promise::LearnedStep));
}

/// A failing world is reduced, and its description has the seed, the promise and the requests
#[test]
fn a_failing_world_is_shrunk_and_described() {
    let spec = WorldSpec::random(1_987);
    // A check for which any fetched page is a broken promise.
    let judge = |spec: &WorldSpec| {
        let report = spec.run().unwrap_or_else(|failed| failed.report);
        let fetched = report.log.iter().find(|entry| entry.status == Some(200))?;
        let violation = comity_sim::check::Violation {
            promise: Promise::Spacing,
            domain: report.domains[fetched.host].clone(),
            at: fetched.start,
            detail: "a page was fetched".to_owned(),
        };
        Some(Box::new(Failed { violation, report }))
    };
    let failed = judge(&spec).unwrap();
    let (small, failed) = shrink::shrink_by(&spec, &failed, judge);
    assert_eq!((small.hosts.len(), small.hosts[0].tasks, small.faults.len(), small.workers), (1, 1, 0, 1));
    let story = shrink::story(&small, &failed);
    assert!(story.starts_with("seed 1987: Spacing broken on "), "{story}");
    assert!(
        story.contains("a page was fetched") && story.contains("task 0 (fetch, process 0): 200 at"),
        "{story}"
    );
    assert!(story.contains("to reproduce:"), "{story}");
}

/// A seed reproduces a run exactly
#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..200 {
        let spec = WorldSpec::random(seed);
        let [first, second] =
            [spec.run(), WorldSpec::random(seed).run()].map(|run| run.map(|report| report.log).ok());
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Everything that can happen does happen in random worlds
#[test]
fn random_worlds_are_varied() {
    let mut unreached = 0;
    let (mut refusals, mut timeouts, mut cut_off, mut retried, mut grouped, mut changes, mut probes) =
        (0, 0, 0, 0, 0, 0, 0);
    for seed in 0..500 {
        let Ok(report) = WorldSpec::random(seed).run() else { continue };
        refusals += report.log.iter().filter(|entry| entry.status == Some(429)).count();
        timeouts += report.log.iter().filter(|entry| entry.status.is_none() && entry.received).count();
        unreached += report.log.iter().filter(|entry| entry.refused && entry.received).count();
        cut_off += report.log.iter().filter(|entry| !entry.received).count();
        retried += report.log.len().saturating_sub(report.tasks.len());
        grouped += report.domains.iter().filter(|domain| domain.as_str().starts_with("group:")).count();
        changes += report.changes.len();
        probes += report.changes.iter().filter(|change| change.to < change.from).count();
    }
    let seen = [refusals, timeouts, unreached, cut_off, retried, grouped, changes, probes];
    assert!(seen.iter().all(|count| *count >= 20), "{seen:?}");
}

/// A hundred pages of a site that answers 429 after every ten: nine 429s in 45 seconds
#[test]
fn a_hundred_pages_of_the_storm_cost_nine_429s() {
    let mut spec = world(LimitSpec::Storm { count: 10, closed: Span::from_secs(5) }, HintStyle::Seconds);
    spec.hosts[0].tasks = 100;
    spec.hosts[0].searches = false;
    spec.hosts[0].fields = Fields {
        min_delay: Some(Span::ZERO),
        learning: Some(comity_core::rule::LearningName::Off),
        ..Fields::default()
    };
    spec.hosts[0].site.latency = (Span::from_millis(1), Span::from_millis(1));
    let report = spec.run().unwrap_or_else(|failed| panic!("{}", failed.violation));
    let refused = report.log.iter().filter(|entry| entry.status == Some(429)).count();
    assert!(report.tasks.iter().all(|task| task.state == TaskState::Done));
    assert_eq!((report.log.len(), refused), (109, 9));
    let took = report.ended.since(report.log[0].start);
    assert!(took >= Span::from_secs(45) && took < Span::from_secs(46), "{took}");
}
