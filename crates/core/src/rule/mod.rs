//! The limits of a domain: minimum delay, burst, backoff, wait after a 429, learning, requests in flight.
//!
//! A [`Rule`] is always valid: its only constructor takes merged [`Fields`] and may fail, and a rule never changes.
//! What has happened on a domain so far is in [`crate::pace`], not here.

mod fields;
mod profile;
mod read;
mod table;

pub use fields::{Fields, IntentFields, KEYS, LearnFields};
pub use profile::Profile;
pub use table::{Rows, RuleTable};

use std::fmt;

use serde_json::Value;

use crate::backoff::Ladder;
use crate::domain::Domain;
use crate::intent::Intent;
use crate::learn::{BracketRule, Learning, LinearRule};
use crate::problem::{Problem, Problems};
use crate::time::Span;

/// The limits of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    enabled: bool,
    min_delay: Span,
    rate_delay: Span,
    burst: Option<Burst>,
    ladder: Ladder,
    wait_on_429: WaitOn429,
    retry_after_max: Span,
    in_flight: Option<u32>,
    learning: Learning,
    group: Option<Domain>,
    intents: [IntentRule; 3],
    history: History,
}

/// A limit on request starts per sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Maximum number of starts per window.
    pub count: u32,
    /// Length of the window.
    pub window: Span,
}

/// Additional limits for one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IntentRule {
    /// Minimum time between two starts with this intent.
    pub min_delay: Span,
    /// Maximum number of starts with this intent per window.
    pub burst: Option<Burst>,
}

/// How many of the latest starts a pace has to remember for this rule and the other rules of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct History {
    pub(crate) all: u32,
    pub(crate) intents: [u32; 3],
}

/// The kind of backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// Each wait is twice the previous one.
    Exponential,
    /// Each wait is longer by the base.
    Linear,
    /// No wait after failures.
    None,
}

/// How long to wait after a 429 without `Retry-After`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOn429 {
    /// Always this long.
    Fixed(Span),
    /// As long as the backoff.
    Backoff,
    /// As long as the learned delay.
    Learned,
}

/// How the delay is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LearningName {
    /// One step up after a 429, one step down after a run of successes.
    Linear,
    /// A pace between one that works and one that was refused.
    Bracket,
    /// Nothing is learned.
    Off,
}

impl Rule {
    /// Makes a rule from `fields`; missing ones are taken from the profile `standard`. All problems are reported.
    pub fn new(fields: &Fields) -> Result<Self, Problems> {
        let fields = fields.over(&Profile::standard().default);
        let mut problems = Problems(fields.out_of_range());
        let ladder = problems.take(ladder(&fields));
        problems.into_result()?;
        let window = fields.burst_window.unwrap_or(BURST_WINDOW);
        let burst = |count: Option<Option<u32>>| count.flatten().map(|count| Burst { count, window });
        let count = |burst: Option<Burst>| burst.map_or(0, |burst| burst.count);
        let intents = fields.intents.each_ref().map(|intent| IntentRule {
            min_delay: intent.min_delay.unwrap_or_default(),
            burst: burst(intent.burst),
        });
        let burst = burst(fields.burst);
        Ok(Self {
            enabled: fields.enabled.unwrap_or(true),
            min_delay: fields.min_delay.unwrap_or(SECOND),
            rate_delay: fields.requests_per_second.flatten().map_or(Span::ZERO, rate_delay),
            burst,
            ladder: ladder.unwrap_or(Ladder::None),
            wait_on_429: fields.wait_on_429.unwrap_or(WaitOn429::Backoff),
            retry_after_max: fields.retry_after_max.unwrap_or(RETRY_AFTER_MAX),
            in_flight: fields.in_flight.flatten(),
            learning: learning(&fields),
            group: fields.group.flatten(),
            history: History { all: count(burst), intents: intents.map(|intent| count(intent.burst)) },
            intents,
        })
    }

    /// Whether requests are paced at all.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Minimum time between two request starts.
    pub fn min_delay(&self) -> Span {
        self.min_delay
    }

    /// The delay that follows from `requests_per_second`, or zero.
    pub fn rate_delay(&self) -> Span {
        self.rate_delay
    }

    /// Maximum number of starts per window.
    pub fn burst(&self) -> Option<Burst> {
        self.burst
    }

    /// How waits grow with consecutive penalties.
    pub fn ladder(&self) -> Ladder {
        self.ladder
    }

    /// The wait of the limiter's `backoff(attempt)`, with attempts counted from 0; zero if pacing is disabled.
    pub fn backoff(&self, attempt: u32) -> Span {
        if self.enabled { self.ladder.backoff(attempt).unwrap_or_default() } else { Span::ZERO }
    }

    /// How long to wait after a 429 without `Retry-After`.
    pub fn wait_on_429(&self) -> WaitOn429 {
        self.wait_on_429
    }

    /// The longest wait that a server may ask for.
    pub fn retry_after_max(&self) -> Span {
        self.retry_after_max
    }

    /// Maximum number of requests in flight; `None` is unlimited.
    pub fn in_flight(&self) -> Option<u32> {
        self.in_flight
    }

    /// How the delay is learned, with parameters.
    pub fn learning(&self) -> &Learning {
        &self.learning
    }

    /// The group whose pace is shared by the hosts with this rule.
    pub fn group(&self) -> Option<&Domain> {
        self.group.as_ref()
    }

    /// Additional limits for `intent`.
    pub fn intent(&self, intent: Intent) -> &IntentRule {
        &self.intents[intent.index()]
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Remembers at least as many starts as `more`: the pace of a group has to satisfy all rules of its members.
    pub(crate) fn remember(&mut self, more: &History) {
        self.history.all = self.history.all.max(more.all);
        for (mine, more) in self.history.intents.iter_mut().zip(more.intents) {
            *mine = (*mine).max(more);
        }
    }
}

/// The rule of profile `standard`: one request per second.
impl Default for Rule {
    fn default() -> Self {
        // A test proves that the built-in profile is valid.
        Self::new(&Fields::default()).unwrap_or_else(|_| unreachable!("the standard profile is valid"))
    }
}

/// The delay of a rate, rounded up to whole milliseconds.
fn rate_delay(rate: f64) -> Span {
    // Floating-point division of a round rate may end up slightly above the exact number of milliseconds.
    Span::from_millis((1_000.0 / rate - 1e-9).ceil() as u64)
}

fn ladder(fields: &Fields) -> Result<Ladder, Problem> {
    let base = fields.backoff_base.unwrap_or(BACKOFF_BASE);
    let kind = fields.backoff.unwrap_or(Backoff::Exponential);
    let max = fields.backoff_max.unwrap_or(match kind {
        Backoff::Linear => LINEAR_MAX,
        Backoff::Exponential | Backoff::None => EXPONENTIAL_MAX,
    });
    match kind {
        Backoff::None => Ok(Ladder::None),
        // Name the setting that is in the configuration, not a default.
        _ if max < base && fields.backoff_max.is_none() => {
            let expected = format!("a duration of at most backoff_max, which is {max}");
            Err(Problem::new("backoff_base", format!("\"{base}\""), expected))
        }
        _ if max < base => {
            let expected = format!("a duration of at least backoff_base, which is {base}");
            Err(Problem::new("backoff_max", format!("\"{max}\""), expected))
        }
        Backoff::Exponential => Ok(Ladder::Exponential { base, max }),
        Backoff::Linear => Ok(Ladder::Linear { base, max }),
    }
}

fn learning(fields: &Fields) -> Learning {
    match fields.learning.unwrap_or(LearningName::Off) {
        LearningName::Off => Learning::Off,
        LearningName::Linear => Learning::Linear(LinearRule {
            base: fields.learn.base.unwrap_or(SECOND),
            step: fields.learn.step.unwrap_or(SECOND),
            ceiling: fields.learn.ceiling.unwrap_or(LEARN_CEILING),
            probe_after: fields.learn.probe_after.unwrap_or(PROBE_AFTER),
            max_age: fields.learn.max_age.unwrap_or(FLOOR_AGE_MAX),
        }),
        LearningName::Bracket => Learning::Bracket(BracketRule {
            start: fields.learn.base.unwrap_or(SECOND),
            ceiling: fields.learn.ceiling.unwrap_or(LEARN_CEILING),
        }),
    }
}

impl Backoff {
    const WORDS: [(&'static str, Self); 3] =
        [("exponential", Self::Exponential), ("linear", Self::Linear), ("none", Self::None)];

    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exponential => "exponential",
            Self::Linear => "linear",
            Self::None => "none",
        }
    }
}

impl LearningName {
    /// Its name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Bracket => "bracket",
            Self::Off => "off",
        }
    }

    fn read(key: &str, value: &Value) -> Result<Self, Problem> {
        match value.as_str() {
            Some("linear") => Ok(Self::Linear),
            Some("off") => Ok(Self::Off),
            Some("bracket") => Ok(Self::Bracket),
            _ => Err(Problem::new(key, value, "\"linear\", \"bracket\" or \"off\"")),
        }
    }
}

impl WaitOn429 {
    fn read(key: &str, value: &Value) -> Result<Self, Problem> {
        match value.as_str() {
            Some("backoff") => Ok(Self::Backoff),
            Some("learned") => Ok(Self::Learned),
            _ => read::span(key, value).map(Self::Fixed).map_err(|problem| Problem {
                expected: format!("{}, \"backoff\" or \"learned\"", problem.expected),
                ..problem
            }),
        }
    }

    fn fixed(self) -> Option<Span> {
        match self {
            Self::Fixed(span) => Some(span),
            Self::Backoff | Self::Learned => None,
        }
    }
}

impl fmt::Display for WaitOn429 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(span) => write!(f, "{span}"),
            Self::Backoff => f.write_str("backoff"),
            Self::Learned => f.write_str("learned"),
        }
    }
}

const SECOND: Span = Span::from_secs(1);
const BURST_WINDOW: Span = Span::from_secs(60);
const BACKOFF_BASE: Span = Span::from_secs(5);
const EXPONENTIAL_MAX: Span = Span::from_secs(60);
const LINEAR_MAX: Span = Span::from_secs(30);
const RETRY_AFTER_MAX: Span = Span::from_hours(24);
const LEARN_CEILING: Span = Span::from_secs(60);
const PROBE_AFTER: u32 = 20;
const FLOOR_AGE_MAX: Span = Span::from_hours(7 * 24);
