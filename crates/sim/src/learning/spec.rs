//! A simulated site: its limiter, how the limit changes, who else uses it, and what its refusals say.

use fastrand::Rng;

use super::limiter::Limiter;

/// A site with its parameters.
#[derive(Debug, Clone)]
pub struct SiteSpec {
    /// What kind of site it is, for tables.
    pub family: Family,
    /// The limiter in its initial state.
    pub limiter: Limiter,
    /// The limit as multiples of the limiter's own, each for so many seconds, over and over.
    pub steps: Vec<(f64, f64)>,
    /// A ban: after so many refusals within a minute, everything is refused for so many seconds.
    pub ban: Option<(u32, f64)>,
    /// Requests per second that other clients of the same quota send, in phases of so many seconds.
    pub others: Vec<(f64, f64)>,
    /// What refusals say.
    pub hint: Hint,
    /// Minimum and maximum seconds until an answer.
    pub latency: (f64, f64),
    /// Requests per second that one client can get at most.
    pub limit: f64,
    /// How long to play it, in seconds.
    pub duration: f64,
}

/// The kinds of sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Family {
    TokenBucket,
    LeakyBucket,
    LeakyNoBurst,
    LeakyQueue,
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    Concurrency,
    Ban,
    Steps,
    DayNight,
    Shared,
}

/// What refusals say about when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Nothing.
    Absent,
    /// Whole seconds, or a date, rounded up.
    Seconds,
    /// A tenth of the time, at least a second.
    TooShort,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::LeakyNoBurst,
        Self::LeakyQueue,
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingCounter,
        Self::Concurrency,
        Self::Ban,
        Self::Steps,
        Self::DayNight,
        Self::Shared,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::LeakyBucket => "leaky bucket",
            Self::LeakyNoBurst => "leaky bucket, no burst",
            Self::LeakyQueue => "leaky bucket, delays",
            Self::FixedWindow => "fixed window",
            Self::SlidingLog => "sliding log",
            Self::SlidingCounter => "sliding counter",
            Self::Concurrency => "concurrency",
            Self::Ban => "ban after refusals",
            Self::Steps => "steps",
            Self::DayNight => "day and night",
            Self::Shared => "shared quota",
        }
    }
}

impl SiteSpec {
    /// The random site of a seed; families take turns.
    pub fn random(seed: u64, hint: Hint) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let family = Family::ALL[(seed % Family::ALL.len() as u64) as usize];
        Self::of(family, hint, &mut rng)
    }

    /// A random site of a family.
    pub fn of(family: Family, hint: Hint, rng: &mut Rng) -> Self {
        let rate = log_uniform(rng, 0.3, 20.0);
        let latency = (0.05, log_uniform(rng, 0.06, 0.25));
        let refused_count = rng.bool();
        let burst = log_uniform(rng, 1.0, 60.0).round();
        let window = [1.0, 10.0, 60.0, 60.0, 300.0][rng.usize(..5)];
        let count = (rate * window).round().max(1.0);
        let windowed = count / window;
        let bucket = Limiter::TokenBucket { rate, burst, tokens: burst, at: 0.0, refused_count };
        let leaky = |burst, queues| Limiter::LeakyBucket { rate, burst, excess: 0.0, at: 0.0, queues };
        let fixed = Limiter::FixedWindow { count, window, nth: -1, used: 0.0, refused_count: false };
        let log = Limiter::SlidingLog { count, window, log: Default::default(), refused_count };
        let counter = Limiter::SlidingCounter { count, window, nth: -1, used: [0.0; 2], refused_count };
        let (limiter, limit) = match family {
            Family::TokenBucket | Family::Steps | Family::DayNight | Family::Shared => (bucket, rate),
            Family::LeakyBucket => (leaky(burst, false), rate),
            Family::LeakyNoBurst => (leaky(0.0, false), rate),
            Family::LeakyQueue => (leaky(burst, true), rate),
            Family::FixedWindow => (fixed, windowed),
            Family::SlidingLog => (log, windowed),
            Family::SlidingCounter => (counter, windowed),
            Family::Concurrency => {
                let count = f64::from(rng.u32(1..=8));
                let mean = (latency.0 + latency.1) / 2.0;
                (Limiter::Concurrency { count, ends: Vec::new() }, count / mean)
            }
            Family::Ban => match rng.u8(..3) {
                0 => (bucket, rate),
                1 => (fixed, windowed),
                _ => (leaky(0.0, false), rate),
            },
        };
        let (steps, duration) = match family {
            Family::Steps => {
                let each = log_uniform(rng, 900.0, 3_600.0);
                (vec![(1.0, each), (rng.f64() * 0.6 + 0.15, each)], each * 6.0)
            }
            Family::DayNight => (vec![(1.0, 43_200.0), (rng.f64() * 0.6 + 0.2, 43_200.0)], 172_800.0),
            _ => (Vec::new(), (6_000.0 / limit).clamp(3_600.0, 14_400.0)),
        };
        let others = match family {
            Family::Shared => {
                let share = rate * (0.1 + 0.3 * rng.f64());
                vec![(share, 600.0), (share * rng.f64(), 600.0)]
            }
            _ => Vec::new(),
        };
        let ban = (family == Family::Ban).then(|| (rng.u32(5..=15), log_uniform(rng, 30.0, 600.0)));
        Self { family, limiter, steps, ban, others, hint, latency, limit, duration }
    }

    /// A token bucket whose limit steps between 5 and 1 requests per second.
    pub fn stepping(each: f64, burst: f64) -> Self {
        let limiter = Limiter::TokenBucket { rate: 5.0, burst, tokens: burst, at: 0.0, refused_count: false };
        let steps = vec![(1.0, each), (0.2, each)];
        Self {
            family: Family::Steps,
            limiter,
            steps,
            ban: None,
            others: Vec::new(),
            hint: Hint::Absent,
            latency: (0.05, 0.25),
            limit: 5.0,
            duration: each * 6.0,
        }
    }

    /// By how much the limit is multiplied at a time.
    pub fn scale(&self, now: f64) -> f64 {
        part(&self.steps, now).unwrap_or(1.0)
    }

    /// Requests per second of other clients at a time.
    pub fn others(&self, now: f64) -> f64 {
        part(&self.others, now).unwrap_or(0.0)
    }
}

/// The value that applies at a time, of values that apply for a while each, over and over.
fn part(parts: &[(f64, f64)], now: f64) -> Option<f64> {
    let whole: f64 = parts.iter().map(|(_, each)| each).sum();
    let mut rest = if whole > 0.0 { now % whole } else { 0.0 };
    for (value, each) in parts {
        if rest < *each {
            return Some(*value);
        }
        rest -= each;
    }
    parts.last().map(|(value, _)| *value)
}

fn log_uniform(rng: &mut Rng, from: f64, to: f64) -> f64 {
    from * (to / from).powf(rng.f64())
}
