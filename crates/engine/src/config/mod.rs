//! Settings. The file `comity.toml` overrides the defaults, `COMITY_…` variables override the file, and flags or
//! constructor parameters override the variables. All problems are reported at once, each with where it was found.
//!
//! Modules in reading order: `settings` (what can be set besides rules), `keys` (names, defaults and meanings),
//! `file` with `lines` (its line numbers), `env` and `overrides` (where settings are read from), `layer` (the form they
//! share), `merge` (combines the layers), `origins` (where the values of a rule come from); `value`, `size`, `allow_private`, `token`, `request` and `secret` parse single values; `error` words the
//! problems; `markdown` renders the keys as a page of the documentation.
//!
//! What the settings of a rule mean is defined in [`comity_core::rule`]. Nothing here opens a store or a socket.

mod allow_private;
mod env;
mod error;
mod file;
mod keys;
mod layer;
mod lines;
mod markdown;
mod merge;
mod origins;
mod overrides;
mod request;
mod secret;
mod settings;
mod size;
mod token;
mod value;

#[cfg(test)]
mod tests;

pub use allow_private::PrivateAllowance;
pub use env::environment;
pub use error::{ConfigError, ConfigProblem};
pub use file::read_file;
pub use keys::{KEYS, Key};
pub use origins::{FieldOrigin, FieldSource, Place, RuleOrigins};
pub use overrides::Overrides;
pub use secret::{StoreUrl, exposure_warning, has_password, without_password};
pub use settings::{
    ArchiveFormat, HttpSettings, HttpsMode, JobSettings, LogFormat, LogLevel, LogSettings, ProxyConfig,
    RobotsPolicy, ScrapeSettings, ServeSettings, UpkeepSettings, WarcSettings,
};
pub use size::Size;
pub use token::{Role, Token};

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_core::domain::Pattern;
use comity_core::rule::{Fields, LearningName, Profile, RuleTable};
use comity_core::time::Span;

use crate::request::RequestTable;
use error::Label;

/// The complete configuration, merged from all sources and checked.
///
/// The rule settings are here for display. [`Config::rules`] was built from them when they were loaded and does not
/// follow later changes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The database.
    pub store: StoreUrl,
    /// The profile in use: the one that was set, or else [`Sources::default_profile`].
    pub profile: &'static str,
    /// Whether the profile was set by any source.
    pub profile_named: bool,
    /// `[default]`: settings for every domain, which override the profile's.
    pub default: Fields,
    /// `[domains."X"]`, sorted by name.
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
    /// `[proxy]`
    pub proxy: ProxyConfig,
    /// `log_level` and `log_format`.
    pub log: LogSettings,
    /// `[default.request]` and `[domains."X".request]`
    pub request: Arc<RequestTable>,
    /// Whether the file contains a secret in plain text.
    pub has_secrets: bool,
    rules: Arc<RuleTable>,
    /// Where the values of rules were written, by canonical path.
    labels: Arc<BTreeMap<String, Label>>,
}

/// Where settings come from. Later fields override earlier ones.
pub struct Sources<'a> {
    /// The profile to use if none is set: `comity wiki` starts from `archiver`.
    pub default_profile: Profile,
    /// The name of the file as messages show it, and its text.
    pub file: Option<(&'a str, &'a str)>,
    /// Environment variables; unrelated names are ignored. See [`environment`].
    pub env: Vec<(String, String)>,
    /// Flags, or parameters of a constructor.
    pub overrides: Overrides,
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
        merge.take_all(sources.overrides.entries());
        merge.finish(sources.default_profile)
    }

    /// Every key with its default and meaning, as commented-out TOML.
    pub fn reference() -> String {
        keys::reference()
    }

    /// Every key as a Markdown page, with the values it allows and the variable that sets it.
    pub fn reference_markdown() -> String {
        markdown::reference()
    }

    /// The rules of every domain, built from the profile, `[default]`, `[domains]`, `--delay` and `--learning`.
    pub fn rules(&self) -> &Arc<RuleTable> {
        &self.rules
    }

    /// The `User-Agent` to send, with the contact if one is set.
    pub fn user_agent(&self) -> String {
        self.with_contact(&self.http.user_agent)
    }

    /// `agent` with the contact appended, if one is set and `agent` does not contain it yet.
    pub(crate) fn with_contact(&self, agent: &str) -> String {
        match &self.http.contact {
            Some(contact) if !agent.contains(contact.as_str()) => format!("{agent} (+{contact})"),
            _ => agent.to_owned(),
        }
    }
}

/// Defaults only: profile `standard`, SQLite in the working directory.
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
            proxy: ProxyConfig::default(),
            log: LogSettings::default(),
            request: Arc::default(),
            has_secrets: false,
            rules: Arc::default(),
            labels: Arc::default(),
        }
    }
}

/// No sources; the profile is `standard`.
impl Default for Sources<'_> {
    fn default() -> Self {
        Self {
            default_profile: Profile::standard(),
            file: None,
            env: Vec::new(),
            overrides: Overrides::default(),
        }
    }
}
