//! The settings of one configuration layer, before layers are merged into a [`super::Rule`].
//!
//! Reading a table reports all its problems at once. Constraints between settings (such as base and maximum of the
//! backoff) are checked when the rule is made.

use serde_json::{Map, Value};

use super::read::{self, Allowed};
use super::{Backoff, LearningName, WaitOn429};
use crate::domain::Domain;
use crate::intent::Intent;
use crate::problem::{Problem, Problems};
use crate::time::Span;

/// One layer of rule settings; a setting that is `None` is inherited from the layer below.
///
/// If a setting has two `Option`s, `Some(None)` means "no limit" and overrides a limit of the layers below.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields {
    /// Whether requests are paced at all.
    pub enabled: Option<bool>,
    /// Minimum time between two request starts.
    pub min_delay: Option<Span>,
    /// Maximum number of request starts per second; the resulting delay is rounded up to whole milliseconds.
    pub requests_per_second: Option<Option<f64>>,
    /// Maximum number of request starts per `burst_window`.
    pub burst: Option<Option<u32>>,
    /// Length of the sliding window of `burst`.
    pub burst_window: Option<Span>,
    /// How waits grow with consecutive penalties.
    pub backoff: Option<Backoff>,
    /// The first wait of the backoff.
    pub backoff_base: Option<Span>,
    /// The longest wait of the backoff; by default 60 s for exponential and 30 s for linear backoff.
    pub backoff_max: Option<Span>,
    /// How long to wait after a 429 without `Retry-After`.
    pub wait_on_429: Option<WaitOn429>,
    /// The longest wait that a server may ask for.
    pub retry_after_max: Option<Span>,
    /// Maximum number of requests in flight.
    pub in_flight: Option<Option<u32>>,
    /// How the delay is learned.
    pub learning: Option<LearningName>,
    /// Parameters of the learned delay.
    pub learn: LearnFields,
    /// Hosts with the same group share one pace.
    pub group: Option<Option<Domain>>,
    /// Additional limits per intent, in the order of [`Intent::ALL`].
    pub intents: [IntentFields; 3],
}

/// The parameters of the learned delay.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LearnFields {
    /// The delay that learning starts from, and the shortest delay it probes.
    pub base: Option<Span>,
    /// How much a 429 adds and a probe subtracts.
    pub step: Option<Span>,
    /// The longest learned delay, unless the base is longer.
    pub ceiling: Option<Span>,
    /// How many consecutive successes start a probe.
    pub probe_after: Option<u32>,
    /// How long ago a floor must have been confirmed for a probe to go below it.
    pub max_age: Option<Span>,
}

/// Additional limits for one intent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IntentFields {
    /// Minimum time between two starts with this intent.
    pub min_delay: Option<Span>,
    /// Maximum number of starts with this intent per `burst_window`.
    pub burst: Option<Option<u32>>,
}

impl Fields {
    /// Reads one configuration table. All unknown keys and invalid values are reported.
    pub fn read(table: &Map<String, Value>) -> Result<Self, Problems> {
        let mut fields = Self::default();
        let mut problems = Problems::default();
        for (key, value) in table {
            match key.as_str() {
                "learn" => fields.learn = LearnFields::read(value, &mut problems),
                "intent" => fields.intents = read_intents(value, &mut problems),
                _ => _ = problems.take(fields.set(key, value)),
            }
        }
        problems.0.extend(fields.out_of_range());
        problems.into_result().map(|()| fields)
    }

    /// These settings, with missing ones inherited from `below`.
    pub fn over(&self, below: &Self) -> Self {
        Self {
            enabled: self.enabled.or(below.enabled),
            min_delay: self.min_delay.or(below.min_delay),
            requests_per_second: self.requests_per_second.or(below.requests_per_second),
            burst: self.burst.or(below.burst),
            burst_window: self.burst_window.or(below.burst_window),
            backoff: self.backoff.or(below.backoff),
            backoff_base: self.backoff_base.or(below.backoff_base),
            backoff_max: self.backoff_max.or(below.backoff_max),
            wait_on_429: self.wait_on_429.or(self.wait_below(below)),
            retry_after_max: self.retry_after_max.or(below.retry_after_max),
            in_flight: self.in_flight.or(below.in_flight),
            learning: self.learning.or(below.learning),
            learn: self.learn.over(&below.learn),
            group: self.group.clone().or_else(|| below.group.clone()),
            intents: Intent::ALL.map(|intent| {
                let (above, below) = (&self.intents[intent.index()], &below.intents[intent.index()]);
                IntentFields {
                    min_delay: above.min_delay.or(below.min_delay),
                    burst: above.burst.or(below.burst),
                }
            }),
        }
    }

    /// The wait after a 429 of the layer below. Bracket learning brings its own: the backoff of a profile that wasn't made
    /// for it would cost more than the refusal.
    fn wait_below(&self, below: &Self) -> Option<WaitOn429> {
        let other = below.learning.is_some_and(|other| other != LearningName::Bracket);
        match below.wait_on_429 {
            Some(WaitOn429::Backoff) if other && self.learning == Some(LearningName::Bracket) => {
                Some(WaitOn429::Learned)
            }
            wait => wait,
        }
    }

    /// Settings that are invalid whatever the other settings are.
    pub(super) fn out_of_range(&self) -> Vec<Problem> {
        let mut wrong = Vec::new();
        let mut check = |key: &str, value: String, allowed: String, holds: bool| {
            if !holds {
                wrong.push(Problem::new(key, value, allowed));
            }
        };
        let is_count = |count: Option<u32>| count.is_none_or(|count| Allowed::Count.count(count));
        let spans = [
            ("min_delay", self.min_delay, Allowed::Delay),
            ("burst_window", self.burst_window, Allowed::Period),
            ("backoff_base", self.backoff_base, Allowed::Period),
            ("backoff_max", self.backoff_max, Allowed::Period),
            ("retry_after_max", self.retry_after_max, Allowed::Period),
            ("wait_on_429", self.wait_on_429.and_then(WaitOn429::fixed), Allowed::Delay),
            ("learn.base", self.learn.base, Allowed::Delay),
            ("learn.step", self.learn.step, Allowed::Period),
            ("learn.ceiling", self.learn.ceiling, Allowed::Period),
            ("learn.max_age", self.learn.max_age, Allowed::Period),
        ];
        let intent_key = |intent: Intent, key: &str| format!("intent.{intent}.{key}");
        for (key, span, allowed) in spans {
            check(key, quoted(span), allowed.to_string(), span.is_none_or(|span| allowed.span(span)));
        }
        for intent in Intent::ALL {
            let fields = &self.intents[intent.index()];
            let (key, delay) = (intent_key(intent, "min_delay"), fields.min_delay);
            check(
                &key,
                quoted(delay),
                Allowed::Delay.to_string(),
                delay.is_none_or(|span| Allowed::Delay.span(span)),
            );
            let (key, burst) = (intent_key(intent, "burst"), fields.burst.flatten());
            check(&key, number(burst), read::count_or_none(&key), is_count(burst));
        }
        for (key, count) in [("burst", self.burst.flatten()), ("in_flight", self.in_flight.flatten())] {
            check(key, number(count), read::count_or_none(key), is_count(count));
        }
        let probe_after = self.learn.probe_after;
        check("learn.probe_after", number(probe_after), Allowed::Count.to_string(), is_count(probe_after));
        let rate = self.requests_per_second.flatten();
        let shown = rate.map(|rate| rate.to_string()).unwrap_or_default();
        check(
            "requests_per_second",
            shown,
            read::rate_or_none(),
            rate.is_none_or(|rate| Allowed::Rate.rate(rate)),
        );
        wrong
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), Problem> {
        match key {
            "enabled" => self.enabled = Some(read::boolean(key, value)?),
            "min_delay" => self.min_delay = Some(read::span(key, value)?),
            "requests_per_second" => self.requests_per_second = Some(read::rate(key, value)?),
            "burst" => self.burst = Some(read::count(key, value)?),
            "burst_window" => self.burst_window = Some(read::span(key, value)?),
            "backoff" => self.backoff = Some(read::word(key, value, &Backoff::WORDS)?),
            "backoff_base" => self.backoff_base = Some(read::span(key, value)?),
            "backoff_max" => self.backoff_max = Some(read::span(key, value)?),
            "wait_on_429" => self.wait_on_429 = Some(WaitOn429::read(key, value)?),
            "retry_after_max" => self.retry_after_max = Some(read::span(key, value)?),
            "in_flight" => self.in_flight = Some(read::count(key, value)?),
            "learning" => self.learning = Some(LearningName::read(key, value)?),
            "group" => self.group = Some(read::group(key, value)?),
            _ => return Err(Problem::unknown_key(key, value, &KEYS)),
        }
        Ok(())
    }

    /// The settings as lines of TOML, in the order of [`KEYS`].
    pub fn to_toml(&self) -> String {
        let limit =
            |limit: Option<u32>, none: &str| limit.map_or(format!("{none:?}"), |count| count.to_string());
        let mut lines = String::new();
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                lines.push_str(&format!("{key} = {value}\n"));
            }
        };
        let span = |span: Option<Span>| span.map(|span| format!("\"{span}\""));
        line("enabled", self.enabled.map(|enabled| enabled.to_string()));
        line("min_delay", span(self.min_delay));
        line(
            "requests_per_second",
            self.requests_per_second
                .map(|rate| rate.map_or("\"none\"".to_owned(), |rate| format!("{rate:?}"))),
        );
        line("burst", self.burst.map(|burst| limit(burst, "none")));
        line("burst_window", span(self.burst_window));
        line("backoff", self.backoff.map(|backoff| format!("{:?}", backoff.as_str())));
        line("backoff_base", span(self.backoff_base));
        line("backoff_max", span(self.backoff_max));
        line("wait_on_429", self.wait_on_429.map(|wait| format!("\"{wait}\"")));
        line("retry_after_max", span(self.retry_after_max));
        line("in_flight", self.in_flight.map(|in_flight| limit(in_flight, "unlimited")));
        line("learning", self.learning.map(|learning| format!("{:?}", learning.as_str())));
        line("learn.base", span(self.learn.base));
        line("learn.step", span(self.learn.step));
        line("learn.ceiling", span(self.learn.ceiling));
        line("learn.probe_after", self.learn.probe_after.map(|count| count.to_string()));
        line("learn.max_age", span(self.learn.max_age));
        let group_name = |group: &Domain| group.as_str().trim_start_matches("group:").to_owned();
        line(
            "group",
            self.group
                .as_ref()
                .map(|group| format!("{:?}", group.as_ref().map_or("none".into(), group_name))),
        );
        for intent in Intent::ALL {
            let fields = &self.intents[intent.index()];
            line(&format!("intent.{intent}.min_delay"), span(fields.min_delay));
            line(&format!("intent.{intent}.burst"), fields.burst.map(|burst| limit(burst, "none")));
        }
        lines
    }
}

impl LearnFields {
    fn read(value: &Value, problems: &mut Problems) -> Self {
        let mut fields = Self::default();
        for (key, value) in read::table("learn", value, problems) {
            let set = match key.as_str() {
                "base" => read::span(key, value).map(|span| fields.base = Some(span)),
                "step" => read::span(key, value).map(|span| fields.step = Some(span)),
                "ceiling" => read::span(key, value).map(|span| fields.ceiling = Some(span)),
                "probe_after" => read::whole(key, value).map(|count| fields.probe_after = Some(count)),
                "max_age" => read::span(key, value).map(|span| fields.max_age = Some(span)),
                _ => Err(Problem::unknown_key(key, value, &LEARN_KEYS)),
            };
            problems.take(set.map_err(|problem| problem.inside("learn")));
        }
        fields
    }

    fn over(&self, below: &Self) -> Self {
        Self {
            base: self.base.or(below.base),
            step: self.step.or(below.step),
            ceiling: self.ceiling.or(below.ceiling),
            probe_after: self.probe_after.or(below.probe_after),
            max_age: self.max_age.or(below.max_age),
        }
    }
}

fn read_intents(value: &Value, problems: &mut Problems) -> [IntentFields; 3] {
    let mut intents: [IntentFields; 3] = Default::default();
    for (name, value) in read::table("intent", value, problems) {
        let Ok(intent) = name.parse::<Intent>() else {
            let names = Intent::ALL.map(Intent::as_str);
            problems.0.push(Problem::unknown_key(name, value, &names).inside("intent"));
            continue;
        };
        let fields = &mut intents[intent.index()];
        let inside = format!("intent.{intent}");
        for (key, value) in read::table(&inside, value, problems) {
            let set = match key.as_str() {
                "min_delay" => read::span(key, value).map(|span| fields.min_delay = Some(span)),
                "burst" => read::count(key, value).map(|count| fields.burst = Some(count)),
                _ => Err(Problem::unknown_key(key, value, &INTENT_KEYS)),
            };
            problems.take(set.map_err(|problem| problem.inside(&inside)));
        }
    }
    intents
}

fn quoted(span: Option<Span>) -> String {
    span.map(|span| format!("\"{span}\"")).unwrap_or_default()
}

fn number(count: Option<u32>) -> String {
    count.map(|count| count.to_string()).unwrap_or_default()
}

/// The keys of a rule in configuration files.
pub const KEYS: [&str; 15] = [
    "enabled",
    "min_delay",
    "requests_per_second",
    "burst",
    "burst_window",
    "backoff",
    "backoff_base",
    "backoff_max",
    "wait_on_429",
    "retry_after_max",
    "in_flight",
    "learning",
    "learn",
    "group",
    "intent",
];
const LEARN_KEYS: [&str; 5] = ["base", "step", "ceiling", "probe_after", "max_age"];
const INTENT_KEYS: [&str; 2] = ["min_delay", "burst"];
