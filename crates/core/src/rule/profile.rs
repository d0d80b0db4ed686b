//! The four built-in profiles: sets of rules to start from.
//!
//! `standard` is the default. The numbers of `crawler`, `archiver` and `collector` come from requirement documents 1, 2
//! and 3. Configuration and flags override a profile in [`super::RuleTable`].

use super::{Backoff, Fields, LearnFields, LearningName, WaitOn429};
use crate::domain::Pattern;
use crate::time::Span;

/// A named set of rules: defaults for all domains, and rows for some of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name in configuration.
    pub name: &'static str,
    /// Settings for all domains.
    pub default: Fields,
    /// Settings for some domains, which override `default`.
    pub rows: Vec<(Pattern, Fields)>,
}

/// A name that isn't a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("profile = {0:?}: expected standard, collector, crawler or archiver")]
pub struct UnknownProfile(pub String);

impl Profile {
    /// The names of all profiles, the default first.
    pub const NAMES: [&'static str; 4] = ["standard", "collector", "crawler", "archiver"];

    /// The profile called `name`.
    pub fn named(name: &str) -> Result<Self, UnknownProfile> {
        match name {
            "standard" => Ok(Self::standard()),
            "collector" => Ok(Self::collector()),
            "crawler" => Ok(Self::crawler()),
            "archiver" => Ok(Self::archiver()),
            _ => Err(UnknownProfile(name.to_owned())),
        }
    }

    /// What it is for, in one line.
    pub fn about(&self) -> &'static str {
        match self.name {
            "collector" => {
                "a few pages of many sites: 1 s between requests, more for some sites, 60 s after a 429"
            }
            "crawler" => {
                "many pages of many sites: 0.5 s between requests, learned delays, no limit on requests in flight"
            }
            "archiver" => "one site for days: one request per second, exponential backoff from 5 s to 5 min",
            _ => "the default: one request per second, one at a time, exponential backoff, learned delays",
        }
    }

    /// The default: one request per second, one at a time, exponential backoff, learned delays.
    pub fn standard() -> Self {
        let default = Fields {
            learning: Some(LearningName::Linear),
            learn: learn(Span::from_secs(1)),
            in_flight: Some(Some(1)),
            backoff_max: None,
            ..common(Span::from_secs(1), Backoff::Exponential, WaitOn429::Backoff)
        };
        Self { name: "standard", default, rows: Vec::new() }
    }

    /// A few pages of many sites, with limits of their own for some well-known ones.
    pub fn collector() -> Self {
        let of = |delay: u64, burst: u32, backoff: Backoff| Fields {
            min_delay: Some(Span::from_secs(delay)),
            burst: Some(Some(burst)),
            backoff: Some(backoff),
            ..Fields::default()
        };
        let rows = [
            ("finance.yahoo.com", of(2, 3, Backoff::Exponential)),
            ("reuters.com", of(3, 2, Backoff::Exponential)),
            ("*.company-ir", of(1, 5, Backoff::Linear)),
            ("eia.gov", of(1, 10, Backoff::None)),
        ];
        let default = Fields {
            burst: Some(Some(5)),
            ..common(Span::from_secs(1), Backoff::Linear, WaitOn429::Fixed(Span::from_secs(60)))
        };
        let rows = rows.into_iter().filter_map(|(host, fields)| Some((Pattern::parse(host).ok()?, fields)));
        Self { name: "collector", default, rows: rows.collect() }
    }

    /// Many pages of many sites, with delays learned from 429s.
    pub fn crawler() -> Self {
        let default = Fields {
            learning: Some(LearningName::Linear),
            learn: learn(Span::from_millis(500)),
            backoff_base: Some(super::SECOND),
            ..common(Span::from_millis(500), Backoff::Exponential, WaitOn429::Learned)
        };
        Self { name: "crawler", default, rows: Vec::new() }
    }

    /// One request per second for days, with a backoff of up to five minutes.
    pub fn archiver() -> Self {
        let default = Fields {
            in_flight: Some(Some(1)),
            backoff_max: Some(Span::from_secs(300)),
            ..common(Span::from_secs(1), Backoff::Exponential, WaitOn429::Backoff)
        };
        Self { name: "archiver", default, rows: Vec::new() }
    }

    /// The profile as a configuration file, to copy and change.
    pub fn to_toml(&self) -> String {
        let mut text = format!("profile = \"{}\"\n\n[default]\n{}", self.name, self.default.to_toml());
        for (pattern, fields) in &self.rows {
            text.push_str(&format!("\n[domains.\"{pattern}\"]\n{}", fields.to_toml()));
        }
        text
    }
}

/// What all profiles have in common, apart from delay, backoff and the wait after a 429.
fn common(min_delay: Span, backoff: Backoff, wait_on_429: WaitOn429) -> Fields {
    Fields {
        enabled: Some(true),
        min_delay: Some(min_delay),
        burst: Some(None),
        burst_window: Some(super::BURST_WINDOW),
        backoff: Some(backoff),
        backoff_base: Some(super::BACKOFF_BASE),
        wait_on_429: Some(wait_on_429),
        retry_after_max: Some(super::RETRY_AFTER_MAX),
        in_flight: Some(None),
        learning: Some(LearningName::Off),
        ..Fields::default()
    }
}

fn learn(base: Span) -> LearnFields {
    LearnFields {
        base: Some(base),
        step: Some(super::SECOND),
        ceiling: Some(super::LEARN_CEILING),
        probe_after: Some(super::PROBE_AFTER),
        max_age: Some(super::FLOOR_AGE_MAX),
    }
}
