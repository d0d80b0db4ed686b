//! Scores one client on one site.

use comity_core::rule::{Fields, LearningName, Profile, Rule, WaitOn429};
use comity_core::time::Span;

use super::clients::{Client, Comity, FixedPace};
use super::peers::{Aimd, AutoThrottle, AwsAdaptive, RateThrottle};
use super::play::{Event, play};
use super::spec::{Family, SiteSpec};

/// Rules to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Contestant {
    Bracket,
    Linear,
    AimdGentle,
    AimdBold,
    AwsAdaptive,
    AutoThrottle,
    RateThrottle,
}

/// How a client did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Score {
    /// Accepted requests in the second half, against the best fixed pace.
    pub goodput: f64,
    /// The share of requests refused in the second half.
    pub refused: f64,
    /// Refusals in the first ten minutes.
    pub early_refusals: usize,
    /// The longest run of refusals.
    pub longest_run: usize,
    /// Seconds until a minute had 90 % of the best pace; infinite if none did.
    pub to_90: f64,
}

impl Contestant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Bracket,
        Self::Linear,
        Self::AimdGentle,
        Self::AimdBold,
        Self::AwsAdaptive,
        Self::AutoThrottle,
        Self::RateThrottle,
    ];

    /// Its name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bracket => "Comity, bracket",
            Self::Linear => "Comity, linear (crawler)",
            Self::AimdGentle => "AIMD +0.1/s, ×0.9",
            Self::AimdBold => "AIMD +1/s, ×0.5",
            Self::AwsAdaptive => "AWS SDK, adaptive mode",
            Self::AutoThrottle => "Scrapy AutoThrottle",
            Self::RateThrottle => "rate_throttle_client",
        }
    }

    /// A client that knows nothing yet.
    pub fn client(self, seed: u64) -> Box<dyn Client> {
        match self {
            Self::Bracket => Box::new(Comity::new(bracket())),
            Self::Linear => Box::new(Comity::new(linear())),
            Self::AimdGentle => Box::new(Aimd::new(0.1, 0.9)),
            Self::AimdBold => Box::new(Aimd::new(1.0, 0.5)),
            Self::AwsAdaptive => Box::new(AwsAdaptive::new(10)),
            Self::AutoThrottle => Box::new(AutoThrottle::new(seed)),
            Self::RateThrottle => Box::new(RateThrottle::new(seed)),
        }
    }
}

/// Bracket learning without a minimum delay.
pub(super) fn bracket() -> Rule {
    rule(Fields {
        min_delay: Some(Span::ZERO),
        in_flight: Some(None),
        learning: Some(LearningName::Bracket),
        wait_on_429: Some(WaitOn429::Learned),
        ..Fields::default()
    })
}

fn linear() -> Rule {
    rule(Profile::crawler().default)
}

fn rule(fields: Fields) -> Rule {
    Rule::new(&fields).unwrap_or_default()
}

/// The most that a fixed pace gets accepted in the second half.
pub fn best_fixed_pace(spec: &SiteSpec, seed: u64) -> f64 {
    let paces: &[f64] = match spec.family {
        // A pace far above the limit would find every free place, at the cost of refusals without end.
        Family::Concurrency => &[0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3],
        _ => &[0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 1.0, 1.01, 1.03, 1.1],
    };
    let accepted = paces.iter().map(|share| {
        let mut fixed = FixedPace::new(share * spec.limit);
        let mut clients: [&mut dyn Client; 1] = [&mut fixed];
        let events = play(spec, &mut clients, seed).events;
        second_half(spec, &events).filter(|event| event.accepted).count()
    });
    let best = accepted.max().unwrap_or(0) as f64;
    match spec.others.is_empty() {
        true => best,
        // Whoever sends faster takes what belongs to others; the fair part is what they leave.
        false => best.min(left_by_others(spec)),
    }
}

fn left_by_others(spec: &SiteSpec) -> f64 {
    let seconds = spec.duration / 2.0;
    let steps = 2_000;
    let at = |nth: i32| seconds + seconds * f64::from(nth) / f64::from(steps);
    let left: f64 = (0..steps).map(|nth| spec.limit - spec.others(at(nth))).sum();
    left / f64::from(steps) * seconds
}

/// Plays a client on a site and scores it against `best`.
pub fn score(spec: &SiteSpec, contestant: Contestant, best: f64, seed: u64) -> Score {
    let mut client = contestant.client(seed);
    let mut clients: [&mut dyn Client; 1] = [client.as_mut()];
    let events = play(spec, &mut clients, seed).events;
    score_of(spec, &events, best)
}

/// Scores what a client did.
pub(super) fn score_of(spec: &SiteSpec, events: &[Event], best: f64) -> Score {
    let late = second_half(spec, events).count();
    let accepted = second_half(spec, events).filter(|event| event.accepted).count();
    let (mut run, mut longest_run) = (0, 0);
    for event in events {
        run = if event.accepted { 0 } else { run + 1 };
        longest_run = longest_run.max(run);
    }
    Score {
        goodput: accepted as f64 / best.max(1.0),
        refused: (late - accepted) as f64 / (late as f64).max(1.0),
        early_refusals: events.iter().filter(|event| event.at < 600.0 && !event.accepted).count(),
        longest_run,
        to_90: to_90(spec, events, best),
    }
}

fn to_90(spec: &SiteSpec, events: &[Event], best: f64) -> f64 {
    let per_minute = best / (spec.duration / 2.0) * 60.0;
    let minutes = (spec.duration / 60.0) as usize + 1;
    let mut accepted = vec![0.0; minutes];
    for event in events.iter().filter(|event| event.accepted) {
        accepted[(event.at / 60.0) as usize] += 1.0;
    }
    let found = accepted.iter().position(|count| *count >= 0.9 * per_minute);
    found.map_or(f64::INFINITY, |minute| (minute + 1) as f64 * 60.0)
}

fn second_half<'a>(spec: &SiteSpec, events: &'a [Event]) -> impl Iterator<Item = &'a Event> {
    let half = spec.duration / 2.0;
    events.iter().filter(move |event| event.at >= half)
}
