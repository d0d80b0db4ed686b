//! Settings that were given explicitly: flags of the command, or parameters of a constructor.

use super::layer::{Entry, Origin, Place};

/// Explicit settings, as text so that a message can repeat them. `None` leaves the layers below as they are,
/// so a default of the command line never overrides the file (B71).
///
/// It has no `Debug`: a store's URL may hold a password.
#[derive(Clone, Default)]
pub struct Given {
    /// `--store`
    pub store: Option<String>,
    /// `--profile`
    pub profile: Option<String>,
    /// `--delay`: replaces every `min_delay`.
    pub delay: Option<String>,
    /// `--learning`: replaces every `learning`.
    pub learning: Option<String>,
    /// `--robots`
    pub robots: Option<String>,
    /// `--concurrency`
    pub concurrency: Option<String>,
    /// `--max-retries`
    pub max_retries: Option<String>,
    /// `--user-agent`
    pub user_agent: Option<String>,
    /// `--contact`
    pub contact: Option<String>,
    /// `--listen`
    pub listen: Option<String>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// `--log-format`
    pub log_format: Option<String>,
}

impl Given {
    pub(super) fn entries(self) -> Vec<Entry> {
        let settings = [
            ("--store", Place::Setting, "store", self.store),
            ("--profile", Place::Setting, "profile", self.profile),
            ("--delay", Place::Delay, "", self.delay),
            ("--learning", Place::Learning, "", self.learning),
            ("--robots", Place::Setting, "robots", self.robots),
            ("--concurrency", Place::Setting, "job.concurrency", self.concurrency),
            ("--max-retries", Place::Setting, "job.max_retries", self.max_retries),
            ("--user-agent", Place::Setting, "http.user_agent", self.user_agent),
            ("--contact", Place::Setting, "http.contact", self.contact),
            ("--listen", Place::Setting, "serve.listen", self.listen),
            ("--log-level", Place::Setting, "log_level", self.log_level),
            ("--log-format", Place::Setting, "log_format", self.log_format),
        ];
        let entry = |(flag, place, path, value): (&str, Place, &str, Option<String>)| {
            let origin = Origin::Single(flag.to_owned());
            Some(Entry { origin, place, path: path.to_owned(), value: value?.into() })
        };
        settings.into_iter().filter_map(entry).collect()
    }
}
