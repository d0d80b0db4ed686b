//! Random worlds: thousands in every test run, each checked against the logs of its sites.

use comity_sim::check::Promise;
use comity_sim::shrink;
use comity_sim::world::{ClockSource, WorldSpec};

const WORLDS: u64 = 3_000;

/// B4, B7, B12, B17, B20, B21, B23, B26, B29, B37, B40, B41, B45, B77, B78
#[test]
fn every_world_keeps_every_promise() {
    for seed in 0..WORLDS {
        let spec = WorldSpec::random(seed);
        if let Err(failed) = spec.run() {
            let (small, failed) = shrink::shrink(&spec, &failed);
            panic!("{}", shrink::story(&small, &failed));
        }
    }
}

/// B7: the reason for the shared timeline. If processes use their own wall clocks, some requests start early.
#[test]
fn processes_with_their_own_clocks_break_promises() {
    let broken = (0..WORLDS).filter_map(|seed| {
        let world = WorldSpec { clock_source: ClockSource::Own, ..WorldSpec::random(seed) };
        Some(world.run().err()?.violation.promise)
    });
    let broken: Vec<Promise> = broken.collect();
    for promise in [Promise::Deadline, Promise::Spacing, Promise::Burst, Promise::Starved] {
        assert!(broken.contains(&promise), "{promise:?} is not among {broken:?}");
    }
}
