//! Random worlds, completely determined by a seed.

use comity_core::domain::Domain;
use comity_core::rule::{Backoff, Fields, IntentFields, LearnFields, LearningName, WaitOn429};
use comity_core::time::Span;
use fastrand::Rng;

use super::{ClockSource, Fault, FaultKind, HostSpec, WorldSpec};
use crate::site::{Flaky, HintStyle, LimitSpec, SiteSpec};

impl WorldSpec {
    /// The random world of a seed.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let profile = ["standard", "collector", "crawler", "archiver"][rng.usize(..4)];
        let hosts: Vec<HostSpec> = (0..rng.usize(1..=4)).map(|_| host(&mut rng)).collect();
        let processes = rng.usize(1..=3);
        let faults: Vec<Fault> =
            (0..rng.usize(0..=4)).map(|_| fault(&mut rng, processes, hosts.len())).collect();
        // After a reboot, the wall clock is all there is, so it has to be right.
        let boots = faults.iter().any(|fault| fault.kind == FaultKind::Reboot);
        let skews = [0, 0, 60, -60, 3_600, -7_200];
        let skews = (0..processes).map(|_| if boots { 0 } else { *pick(&mut rng, &skews) }).collect();
        Self {
            seed,
            profile,
            processes,
            workers: *pick(&mut rng, &[1, 2, 8, 64]),
            concurrency: *pick(&mut rng, &[1, 4, 16]),
            retries_max: *pick(&mut rng, &[0, 1, 3, 3, 3]),
            hosts,
            skews,
            clock_source: ClockSource::Shared,
            faults,
        }
    }
}

fn host(rng: &mut Rng) -> HostSpec {
    HostSpec {
        site: site(rng),
        fields: fields(rng),
        crawl_delay: *pick(
            rng,
            &[Span::ZERO, Span::ZERO, Span::ZERO, Span::from_millis(2_500), Span::from_secs(70)],
        ),
        connect: *pick(rng, &[Span::ZERO, Span::ZERO, Span::from_millis(40), Span::from_millis(900)]),
        tasks: rng.u32(1..=40),
        searches: rng.u8(..4) == 0,
    }
}

fn site(rng: &mut Rng) -> SiteSpec {
    let from = Span::from_millis(rng.u64(1..200));
    let percent = |rng: &mut Rng| if rng.u8(..4) == 0 { rng.u8(..30) } else { 0 };
    let styles = [
        HintStyle::Absent,
        HintStyle::Seconds,
        HintStyle::Date,
        HintStyle::Wrong,
        HintStyle::Absurd,
        HintStyle::Quota,
    ];
    SiteSpec {
        limit: limit(rng),
        hint_style: *pick(rng, &styles),
        latency: (from, from + Span::from_millis(rng.u64(..3_000))),
        flaky: Flaky {
            errors: percent(rng),
            unavailable: percent(rng),
            hangs: percent(rng) / 3,
            refuses: percent(rng) / 3,
            slow: percent(rng),
            missing: percent(rng),
        },
        clock_ahead: *pick(rng, &[0, 0, 3_600, -7_200]),
    }
}

fn limit(rng: &mut Rng) -> LimitSpec {
    let rate = *pick(rng, &[0.1, 0.5, 1.0, 2.0, 10.0]);
    let count = rng.u32(1..=10);
    let window = Span::from_secs(rng.u64(1..=60));
    match rng.u8(..10) {
        0 | 1 => LimitSpec::Open,
        2 => LimitSpec::TokenBucket { rate, burst: count },
        3 => LimitSpec::LeakyBucket { rate, burst: 0 },
        4 => LimitSpec::LeakyBucket { rate, burst: count },
        5 => LimitSpec::FixedWindow { count, window },
        6 => LimitSpec::SlidingLog { count, window, refused_count: rng.bool() },
        7 => LimitSpec::Concurrency { count: count.min(3) },
        8 => LimitSpec::Ban { after: count, banned: window.times(10), inner: Box::new(limit(rng)) },
        _ => LimitSpec::Steps { each: window.times(5), limits: vec![limit(rng), limit(rng)] },
    }
}

/// Some settings that override the profile.
fn fields(rng: &mut Rng) -> Fields {
    let mut some = |percent: u8| rng.u8(..100) < percent;
    let picks = [some(30), some(30), some(20), some(20), some(30), some(15), some(15), some(15), some(15)];
    let [delay, burst, rate, backoff, wait, in_flight, learning, group, intent] = picks;
    let secs = Span::from_secs;
    Fields {
        min_delay: delay.then(|| *pick(rng, &[Span::ZERO, Span::from_millis(250), secs(2), secs(10)])),
        burst: burst.then(|| Some(rng.u32(1..=6))),
        burst_window: burst.then(|| secs(rng.u64(1..=60))),
        requests_per_second: rate.then(|| Some(*pick(rng, &[0.3, 1.0, 7.0]))),
        backoff: backoff.then(|| *pick(rng, &[Backoff::Exponential, Backoff::Linear, Backoff::None])),
        wait_on_429: wait
            .then(|| *pick(rng, &[WaitOn429::Fixed(secs(7)), WaitOn429::Backoff, WaitOn429::Learned])),
        in_flight: in_flight.then(|| *pick(rng, &[None, Some(1), Some(3)])),
        learning: learning.then(|| *pick(rng, &[LearningName::Linear, LearningName::Off])),
        // In short runs there are probes only if few successes start one.
        learn: LearnFields {
            probe_after: (rng.u8(..100) < 70).then(|| rng.u32(1..=5)),
            step: (rng.u8(..100) < 20).then(|| Span::from_millis(rng.u64(100..=3_000))),
            ..LearnFields::default()
        },
        // Each absurd Retry-After costs this much time.
        retry_after_max: Some(secs(rng.u64(60..=7_200))),
        group: group.then(|| Domain::group("shared").ok()),
        intents: [
            IntentFields::default(),
            IntentFields {
                min_delay: intent.then(|| secs(rng.u64(1..=20))),
                burst: intent.then(|| Some(rng.u32(1..=3))),
            },
            IntentFields::default(),
        ],
        ..Fields::default()
    }
}

fn fault(rng: &mut Rng, processes: usize, hosts: usize) -> Fault {
    Fault {
        at: Span::from_millis(rng.u64(..120_000)),
        process: rng.usize(..processes),
        kind: match rng.u8(..8) {
            0 | 1 => FaultKind::Kill,
            2 | 3 => FaultKind::Restart,
            4 => FaultKind::Step { by: *pick(rng, &[60, -60, 3_600, -3_600, -400_000]) },
            5 if rng.bool() => FaultKind::Reboot,
            5 => FaultKind::Suspend { length: Span::from_secs(rng.u64(1..30_000)) },
            _ => FaultKind::Take { host: rng.usize(..hosts) },
        },
    }
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}
