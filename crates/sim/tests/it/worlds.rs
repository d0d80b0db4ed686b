//! Random worlds: at least a thousand in every run of the tests, each checked by what its sites saw.

use comity_sim::shrink;
use comity_sim::world::WorldSpec;

const WORLDS: u64 = 3_000;

/// B2–B4, B6, B10, B12, B17, B20–B27, B29–B37, B40–B43, B45, B77, B78
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
