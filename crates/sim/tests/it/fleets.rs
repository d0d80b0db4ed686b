//! Random fleets: thousands in every test run, each checked against the logs of its sites.

use comity_sim::check::Promise;
use comity_sim::fleet::{FleetSpec, Rule};

const FLEETS: u64 = 2_000;

/// B4, B7, B12, B17, B20, B23, B37, B74, B77: clocks that disagree, networks that drop what is sent in either direction, stopped and killed
/// processes, restarts of the database, and failovers that lose commits.
#[test]
fn every_fleet_keeps_every_promise() {
    for seed in 0..FLEETS {
        let spec = FleetSpec::random(seed);
        if let Err(failed) = spec.run() {
            let (small, failed) = spec.shrink(&failed);
            panic!("{}", small.story(&failed));
        }
    }
}

/// B77: the checker can fail, and no rule is there in vain.
#[test]
fn fleets_break_promises_without_any_one_of_the_rules() {
    let expected = [
        Promise::Spacing,
        Promise::Burst,
        Promise::Deadline,
        Promise::Lost,
        Promise::Retries,
        Promise::Intent,
    ];
    let is_needless = |rule: &Rule| {
        // Few fleets meet what some rules are for.
        let broken = (0..20 * FLEETS).find_map(|seed| {
            let spec = FleetSpec { without: Some(*rule), ..FleetSpec::random(seed) };
            Some(spec.run().err()?.violation.promise)
        });
        !broken.is_some_and(|promise| expected.contains(&promise))
    };
    // Its fleets would need both a kill and a clock that is set, and so far each fleet has only one of them.
    let is_shown = |rule: &Rule| *rule != Rule::OwnClock;
    let needless: Vec<Rule> = Rule::ALL.into_iter().filter(is_shown).filter(is_needless).collect();
    assert_eq!(needless, []);
}

/// A seed reproduces a run exactly.
#[test]
fn the_same_seed_gives_the_same_fleet() {
    for seed in 0..100 {
        let run =
            || FleetSpec::random(seed).run().map(|report| report.log).map_err(|failed| failed.violation);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
