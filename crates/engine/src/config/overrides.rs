//! Explicit settings: flags of the command, or parameters of a constructor.

use super::layer::{Entry, Origin, Target};

/// Explicit settings, which override all others. They are text so that messages can quote them. `None` leaves the
/// setting to the other sources, so a default of the command line never overrides the file.
///
/// There is no `Debug` because the URL of the store may contain a password.
#[derive(Clone, Default)]
pub struct Overrides {
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
    /// `serve --listen`
    pub listen: Option<String>,
    /// `proxy --listen`
    pub proxy_listen: Option<String>,
    /// `proxy --https`
    pub proxy_https: Option<String>,
    /// `--wait-max`
    pub proxy_wait_max: Option<String>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// `--log-format`
    pub log_format: Option<String>,
}

impl Overrides {
    pub(super) fn entries(self) -> Vec<Entry> {
        let settings = [
            ("--store", Target::Setting, "store", self.store),
            ("--profile", Target::Setting, "profile", self.profile),
            ("--delay", Target::Delay, "", self.delay),
            ("--learning", Target::Learning, "", self.learning),
            ("--robots", Target::Setting, "robots", self.robots),
            ("--concurrency", Target::Setting, "job.concurrency", self.concurrency),
            ("--max-retries", Target::Setting, "job.max_retries", self.max_retries),
            ("--user-agent", Target::Setting, "http.user_agent", self.user_agent),
            ("--contact", Target::Setting, "http.contact", self.contact),
            ("--listen", Target::Setting, "serve.listen", self.listen),
            ("--listen", Target::Setting, "proxy.listen", self.proxy_listen),
            ("--https", Target::Setting, "proxy.https", self.proxy_https),
            ("--wait-max", Target::Setting, "proxy.wait_max", self.proxy_wait_max),
            ("--log-level", Target::Setting, "log_level", self.log_level),
            ("--log-format", Target::Setting, "log_format", self.log_format),
        ];
        let entry = |(flag, target, path, value): (&str, Target, &str, Option<String>)| {
            let origin = Origin::Single(flag.to_owned());
            Some(Entry { origin, target, path: path.to_owned(), value: value?.into() })
        };
        settings.into_iter().filter_map(entry).collect()
    }
}
