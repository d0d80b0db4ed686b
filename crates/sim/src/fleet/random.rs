//! Random fleets, completely determined by a seed.

use comity_core::time::Span;
use fastrand::Rng;

use super::{Direction, FleetFault, FleetFaultKind, FleetSpec};
use crate::world::WorldSpec;

impl FleetSpec {
    /// The random fleet of a seed.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_f1ee);
        let mut world = WorldSpec::random(seed);
        world.faults.clear();
        world.skews.clear();
        world.processes = rng.usize(2..=4);
        for host in &mut world.hosts {
            host.tasks = host.tasks.min(15);
            // Whether a site is down is decided from all attempts in a row, and a fleet forgets some.
            host.site.flaky.refuses = 0;
            host.fields.retry_after_max = Some(Span::from_secs(rng.u64(20..=120)));
        }
        // Nobody can know that the clock was set if nobody who knew it before still runs.
        let sets_clock = rng.u8(..3) == 0;
        let mut faults: Vec<FleetFault> =
            (0..rng.usize(1..=5)).map(|_| fault(&mut rng, world.processes, sets_clock)).collect();
        // A renewal whose answer comes late, and none after it.
        for nth in 0..faults.len() {
            if let FleetFaultKind::Slow { process, length, .. } = faults[nth].kind
                && rng.bool()
            {
                let at = faults[nth].at + Span::from_millis(rng.u64(..length.as_millis_up().max(1)));
                let length = Span::from_millis(rng.u64(15_000..40_000));
                faults.push(FleetFault {
                    at,
                    kind: FleetFaultKind::Cut { process, direction: Direction::Requests, length },
                });
            }
        }
        // A second failover before the first one's standby exists is another accident.
        let mut failovers = 0;
        faults.retain(|fault| {
            failovers += usize::from(matches!(fault.kind, FleetFaultKind::Failover { .. }));
            failovers <= 1 || !matches!(fault.kind, FleetFaultKind::Failover { .. })
        });
        let clock_ahead = [0, 60, -7_200][rng.usize(..3)];
        Self { world, faults, clock_ahead, without: None }
    }
}

fn fault(rng: &mut Rng, processes: usize, sets_clock: bool) -> FleetFault {
    let process = rng.usize(..processes);
    let length = Span::from_millis(rng.u64(500..40_000));
    let down = Span::from_millis(rng.u64(100..20_000));
    let kind = match rng.u8(..12) {
        0 | 1 if sets_clock => FleetFaultKind::Step { by: [60, -60, 3_600, 15][rng.usize(..4)] },
        0 | 1 => FleetFaultKind::Kill { process },
        2 | 3 => FleetFaultKind::Stop { process, length },
        4..=6 => {
            let direction = [Direction::Requests, Direction::Answers, Direction::Both][rng.usize(..3)];
            FleetFaultKind::Cut { process, direction, length }
        }
        7 => FleetFaultKind::Slow { process, by: Span::from_millis(rng.u64(100..9_000)), length },
        8 => FleetFaultKind::Restart { down },
        _ => {
            let clock_by = if sets_clock { [0, 60, -60, 3_600][rng.usize(..4)] } else { 0 };
            FleetFaultKind::Failover { lag: Span::from_millis(rng.u64(10..8_000)), down, clock_by }
        }
    };
    FleetFault { at: Span::from_millis(rng.u64(100..FAULTS_UNTIL_MS)), kind }
}

/// The last fault happens before this.
const FAULTS_UNTIL_MS: u64 = 60_000;
