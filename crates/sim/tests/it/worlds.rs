//! Random worlds: at least a thousand in every run of the tests, each checked by what its sites saw.

use comity_sim::shrink;
use comity_sim::world::WorldSpec;

const WORLDS: u64 = 3_000;

/// B4, B12, B17, B20, B21, B23, B26, B29, B37, B40, B41, B45, B77, B78
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
