//! Settings: defaults, under the file `comity.toml`, under `COMITY_…` variables, under what was given
//! explicitly (B71). Everything wrong with any of them is told at once, each with where it stands.
//!
//! Modules in reading order: `settings` (what there is to set), `keys` (its names, defaults and meaning),
//! `file`, `env` and `given` (where it is read), `layer` (what they have in common), `merge` (one over the
//! other); `value`, `size`, `private`, `token`, `request` and `secret` read single values, `error` tells what is wrong with them;
//! `page` is the keys as a page of the documentation.
//!
//! What a rule's settings mean is not here but in [`comity_core::rule`]; nothing here opens a store or a
//! socket.

mod env;
mod error;
mod file;
mod given;
mod keys;
mod layer;
mod merge;
mod page;
mod private;
mod request;
mod secret;
mod settings;
mod size;
mod token;
mod value;

#[cfg(test)]
mod tests;

pub use env::environment;
pub use error::ConfigError;
pub use file::read_file;
pub use given::Given;
pub use keys::{KEYS, Key};
pub use private::PrivateAllowance;
pub use secret::{StoreUrl, exposed, has_password, without_password};
pub use settings::{
    ArchiveFormat, HttpSettings, JobSettings, LogFormat, LogLevel, LogSettings, RobotsPolicy, ScrapeSettings,
    ServeSettings, UpkeepSettings, WarcSettings,
};
pub use size::Size;
pub use token::{Role, Token};

use std::sync::Arc;

use comity_core::domain::Pattern;
use comity_core::rule::{Fields, LearningName, Profile, RuleTable};
use comity_core::time::Span;

use crate::request::RequestTable;

/// What everything runs by: merged from all sources and checked.
///
/// The rule settings are here to be looked at; [`Config::rules`] was made of them when they were loaded and
/// does not follow changes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where everything is kept.
    pub store: StoreUrl,
    /// The profile in force: the one that was named, or the one that goes when none is.
    pub profile: &'static str,
    /// Whether a source named the profile.
    pub profile_named: bool,
    /// `[default]`: what goes for every domain, over the profile's.
    pub default: Fields,
    /// `[domains."X"]`, in the order of their names.
    pub domains: Vec<(Pattern, Fields)>,
    /// `--delay`: replaces every `min_delay` for this run.
    pub delay: Option<Span>,
    /// `--learning`: replaces every `learning` for this run.
    pub learning: Option<LearningName>,
    /// Whether robots.txt is obeyed.
    pub robots: RobotsPolicy,
    /// `[job]`
    pub job: JobSettings,
    /// `[scrape]`
    pub scrape: ScrapeSettings,
    /// `[upkeep]`
    pub upkeep: UpkeepSettings,
    /// `[warc]`
    pub warc: WarcSettings,
    /// `[http]`
    pub http: HttpSettings,
    /// `[serve]`
    pub serve: ServeSettings,
    /// `log_level` and `log_format`.
    pub log: LogSettings,
    /// `[default.request]` and `[domains."X".request]`
    pub request: Arc<RequestTable>,
    /// A secret itself stands in the file.
    pub has_secrets: bool,
    rules: Arc<RuleTable>,
}

/// Where settings come from, the lowest first.
pub struct Sources<'a> {
    /// The profile that goes when none is named: `comity wiki` starts from `archiver` (B16).
    pub unnamed_profile: Profile,
    /// The name of the file as messages show it, and its text.
    pub file: Option<(&'a str, &'a str)>,
    /// Variables of the environment; names that are not ours are passed over. See [`environment`].
    pub env: Vec<(String, String)>,
    /// Flags, or parameters of a constructor.
    pub given: Given,
}

impl Config {
    /// Merges all sources over the defaults and checks the result. Every problem is reported.
    pub fn load(sources: Sources<'_>) -> Result<Self, ConfigError> {
        let mut merge = merge::Merge::default();
        if let Some((name, text)) = sources.file {
            let entries = file::entries(name, text, &mut merge.faults);
            merge.take_all(entries);
        }
        let entries = env::entries(sources.env, &mut merge.faults);
        merge.take_all(entries);
        merge.take_all(sources.given.entries());
        merge.finish(sources.unnamed_profile)
    }

    /// Every key with its default and what it means, as TOML that sets nothing until a line is uncommented.
    pub fn reference() -> String {
        keys::reference()
    }

    /// The same as a page of the documentation, with what each key allows and the variable that sets it.
    pub fn reference_page() -> String {
        page::page()
    }

    /// The rules of every domain, from the profile, `[default]`, `[domains]`, `--delay` and `--learning`.
    pub fn rules(&self) -> &Arc<RuleTable> {
        &self.rules
    }

    /// The `User-Agent` to send: the agent, and the contact where there is one (B66).
    pub fn user_agent(&self) -> String {
        self.named(&self.http.user_agent)
    }

    /// The same for an agent of its own.
    pub(crate) fn named(&self, agent: &str) -> String {
        match &self.http.contact {
            Some(contact) if !agent.contains(contact.as_str()) => format!("{agent} (+{contact})"),
            _ => agent.to_owned(),
        }
    }
}

/// No setting at all: profile `standard`, SQLite in the working directory.
impl Default for Config {
    fn default() -> Self {
        let standard = Profile::standard();
        Self {
            store: StoreUrl::default(),
            profile: standard.name,
            profile_named: false,
            default: Fields::default(),
            domains: Vec::new(),
            delay: None,
            learning: None,
            robots: RobotsPolicy::default(),
            job: JobSettings::default(),
            scrape: ScrapeSettings::default(),
            upkeep: UpkeepSettings::default(),
            warc: WarcSettings::default(),
            http: HttpSettings::default(),
            serve: ServeSettings::default(),
            log: LogSettings::default(),
            request: Arc::default(),
            has_secrets: false,
            rules: Arc::default(),
        }
    }
}

/// No source, and `standard` when no profile is named.
impl Default for Sources<'_> {
    fn default() -> Self {
        Self { unnamed_profile: Profile::standard(), file: None, env: Vec::new(), given: Given::default() }
    }
}
