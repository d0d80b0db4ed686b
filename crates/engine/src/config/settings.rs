//! What there is to set besides rules: robots, jobs, scrapes, HTTP, the service, logs; with defaults and limits.
//!
//! The defaults that people read stand once more in [`super::KEYS`]; a test holds the two together.

use std::net::SocketAddr;
use std::path::PathBuf;

use comity_core::time::Span;
use comity_core::{guard, interval, retry};
use serde_json::Value;

use super::Config;
use super::private::PrivateAllowance;
use super::size::Size;
use super::token::Token;
use super::value::{self, Expected};

/// Whether robots.txt is obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RobotsPolicy {
    /// It is fetched, and what it says goes.
    #[default]
    Obey,
    /// It is not asked for.
    Ignore,
}

/// `[job]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSettings {
    /// Most tasks of a job in flight at once.
    pub concurrency: u32,
    /// How often a failed task is tried again.
    pub max_retries: u32,
    /// How many failures in a row fail the job; 0 is off (B47).
    pub failure_threshold: u32,
    /// How many rate limits in a row cancel the job; 0 is off (B48).
    pub cancel_streak: u32,
    /// Only requests spaced by at least this long count for `cancel_streak`.
    pub cancel_delay: Span,
}

/// `[scrape]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeSettings {
    /// Least time between two scrapes of a source that has no setting of its own; `None` is off (B50).
    pub min_interval: Option<Span>,
    /// Most items that one bulk enqueue takes (B57).
    pub max_bulk_batch_size: u32,
    /// Most items of a source that wait or run at once; `None` is unlimited (B56).
    pub max_in_flight_per_source: Option<u32>,
    /// A run does not wait longer than this for sites that are held back; `None` waits.
    pub max_wait: Option<Span>,
    /// The folder that scraped pages are kept in.
    pub out: PathBuf,
    /// How they are kept.
    pub format: ArchiveFormat,
}

/// How pages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArchiveFormat {
    /// One file a page, and an index.
    #[default]
    Files,
    /// As they were on the wire, in WARC files.
    Warc,
    /// Not at all.
    None,
}

impl ArchiveFormat {
    /// The one that goes by this name.
    pub fn parse(name: &str) -> Option<Self> {
        ARCHIVES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        ARCHIVES.iter().find(|(_, format)| *format == self).map_or("files", |(name, _)| name)
    }
}

/// `[upkeep]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpkeepSettings {
    /// How long work waits for a store that is locked, full or away.
    pub patience: Span,
    /// How long rows that nobody needs any more are kept; for ever without.
    pub keep: Option<Span>,
}

/// `[warc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarcSettings {
    /// The size from which a file is followed by another.
    pub file_max: Size,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// What we are called, without the contact; see [`Config::user_agent`].
    pub user_agent: String,
    /// Whom a site can write to.
    pub contact: Option<String>,
    /// How long a connection may take to be made.
    pub connect_timeout: Span,
    /// How long an answer may take to begin.
    pub first_byte_timeout: Span,
    /// How long a request may take in all.
    pub total_timeout: Span,
    /// The largest body that is kept.
    pub body_max: Size,
    /// The largest head of an answer that is read.
    pub header_max: Size,
    /// Most redirects that are followed one after the other.
    pub redirects_max: u32,
    /// Where remote answers may lead although it is not public (B76).
    pub allow_private: PrivateAllowance,
}

/// `[serve]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// Where the service listens.
    pub listen: SocketAddr,
    /// Who may use it; nobody in here means everybody on loopback.
    pub tokens: Vec<Token>,
    /// A file with more tokens.
    pub tokens_file: Option<PathBuf>,
    /// Names that a service without tokens may be called by, beside loopback.
    pub hosts: Vec<String>,
    /// Most domains held at once.
    pub domains_max: u32,
    /// Most connections at once.
    pub connections_max: u32,
    /// The largest body of a request.
    pub body_max: Size,
    /// The largest head of a request.
    pub head_max: Size,
    /// The longest that `acquire` waits.
    pub max_wait: Span,
    /// How long a connection may be idle, or take to send a request.
    pub idle_timeout: Span,
    /// How many of the slowest domains have metrics of their own.
    pub metrics_domains: u32,
}

/// `log_level` and `log_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSettings {
    /// What is worth a line; `None` when nobody said, and whoever logs takes what fits.
    pub level: Option<LogLevel>,
    /// How a line looks.
    pub format: LogFormat,
}

/// What is worth a line in the log, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// Also backoffs.
    Warn,
    /// Also starts, changes of a delay and deferrals.
    #[default]
    Info,
    /// Also every wait.
    Debug,
    /// Everything.
    Trace,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one object a line.
    Json,
}

impl LogLevel {
    const WORDS: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// The word for it in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// Sets what stands at `path`, one of [`super::KEYS`] that is neither the profile nor a rule's.
    pub(super) fn set(&mut self, path: &str, value: &Value) -> Result<(), Expected> {
        let (job, scrape, http) = (&mut self.job, &mut self.scrape, &mut self.http);
        let serve = &mut self.serve;
        match path {
            "store" => self.store = value::store(value)?,
            "robots" => self.robots = value::word(value, &ROBOTS)?,
            "log_level" => self.log.level = Some(value::word(value, &LogLevel::WORDS)?),
            "log_format" => self.log.format = value::word(value, &FORMATS)?,
            "job.concurrency" => job.concurrency = value::whole(value, 1..=10_000)?,
            "job.max_retries" => job.max_retries = value::whole(value, 0..=1_000)?,
            "job.failure_threshold" => job.failure_threshold = value::whole(value, 0..=STREAK_MAX)?,
            "job.cancel_streak" => job.cancel_streak = value::whole(value, 0..=STREAK_MAX)?,
            "job.cancel_delay" => job.cancel_delay = value::span(value, A_DAY)?,
            "scrape.min_interval" => scrape.min_interval = value::interval(value)?,
            "scrape.max_bulk_batch_size" => scrape.max_bulk_batch_size = value::whole(value, 1..=100_000)?,
            "scrape.max_in_flight_per_source" => {
                scrape.max_in_flight_per_source = value::limit(value, 1..=1_000_000)?;
            }
            "scrape.max_wait" => scrape.max_wait = value::wait(value, A_DAY)?,
            "scrape.out" => scrape.out = value::folder(value)?,
            "scrape.format" => scrape.format = value::word(value, &ARCHIVES)?,
            "upkeep.patience" => self.upkeep.patience = value::span(value, A_DAY)?,
            "upkeep.keep" => self.upkeep.keep = value::age(value, KEEP_MAX)?,
            "warc.file_max" => self.warc.file_max = value::size(value, FILE_MIN..=FILE_MAX)?,
            "http.user_agent" => http.user_agent = value::agent(value)?,
            "http.contact" => http.contact = value::contact(value)?,
            "http.connect_timeout" => http.connect_timeout = value::period(value, A_DAY)?,
            "http.first_byte_timeout" => http.first_byte_timeout = value::period(value, A_DAY)?,
            "http.total_timeout" => http.total_timeout = value::period(value, A_DAY)?,
            "http.body_max" => http.body_max = value::size(value, Size::from_bytes(1)..=BODY_MAX)?,
            "http.header_max" => http.header_max = value::size(value, HEADER_MIN..=HEADER_MAX)?,
            "http.redirects_max" => http.redirects_max = value::whole(value, 0..=100)?,
            "http.allow_private" => http.allow_private = value::allowance(value)?,
            "serve.listen" => serve.listen = value::address(value)?,
            "serve.tokens" => serve.tokens = value::tokens(value)?,
            "serve.tokens_file" => serve.tokens_file = value::file(value)?,
            "serve.hosts" => serve.hosts = value::hosts(value)?,
            "serve.domains_max" => serve.domains_max = value::whole(value, 1..=100_000_000)?,
            "serve.connections_max" => serve.connections_max = value::whole(value, 1..=1_000_000)?,
            "serve.body_max" => serve.body_max = value::size(value, Size::from_kib(1)..=Size::from_mib(64))?,
            "serve.head_max" => serve.head_max = value::size(value, HEADER_MIN..=HEADER_MAX)?,
            "serve.max_wait" => serve.max_wait = value::span(value, A_DAY)?,
            "serve.idle_timeout" => serve.idle_timeout = value::period(value, A_DAY)?,
            "serve.metrics_domains" => serve.metrics_domains = value::whole(value, 0..=1_000)?,
            _ => return Err("a key that exists".to_owned()),
        }
        Ok(())
    }
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            concurrency: guard::CONCURRENCY,
            max_retries: retry::RETRIES_MAX,
            failure_threshold: guard::FAILURE_THRESHOLD,
            cancel_streak: 0,
            cancel_delay: guard::CANCEL_DELAY,
        }
    }
}

impl Default for ScrapeSettings {
    fn default() -> Self {
        Self {
            min_interval: Some(interval::MIN_INTERVAL),
            max_bulk_batch_size: 100,
            max_in_flight_per_source: None,
            max_wait: Some(Span::from_mins(10)),
            out: PathBuf::from("comity-items"),
            format: ArchiveFormat::Files,
        }
    }
}

impl Default for UpkeepSettings {
    fn default() -> Self {
        Self { patience: Span::from_mins(10), keep: None }
    }
}

impl Default for WarcSettings {
    fn default() -> Self {
        Self { file_max: Size::from_mib(1 << 10) }
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            user_agent: AGENT.to_owned(),
            contact: None,
            connect_timeout: Span::from_secs(10),
            first_byte_timeout: Span::from_secs(30),
            total_timeout: Span::from_mins(5),
            body_max: Size::from_mib(64),
            header_max: Size::from_kib(64),
            redirects_max: 10,
            allow_private: PrivateAllowance::default(),
        }
    }
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7878)),
            tokens: Vec::new(),
            tokens_file: None,
            hosts: Vec::new(),
            domains_max: 250_000,
            connections_max: 20_000,
            body_max: Size::from_mib(1),
            head_max: Size::from_kib(16),
            max_wait: Span::from_mins(10),
            idle_timeout: Span::from_secs(60),
            metrics_domains: 20,
        }
    }
}

const ROBOTS: [(&str, RobotsPolicy); 2] = [("obey", RobotsPolicy::Obey), ("ignore", RobotsPolicy::Ignore)];
const ARCHIVES: [(&str, ArchiveFormat); 3] =
    [("files", ArchiveFormat::Files), ("warc", ArchiveFormat::Warc), ("none", ArchiveFormat::None)];
const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const AGENT: &str = concat!("Comity/", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
const STREAK_MAX: u32 = 1_000_000;
const A_DAY: Span = Span::from_hours(24);
/// A hundred years.
const KEEP_MAX: Span = Span::from_hours(24 * 36_525);
const BODY_MAX: Size = Size::from_mib(1 << 20);
const FILE_MIN: Size = Size::from_kib(64);
const FILE_MAX: Size = Size::from_mib(1 << 20);
/// The HTTP/1 reader needs a buffer of at least this.
const HEADER_MIN: Size = Size::from_kib(8);
const HEADER_MAX: Size = Size::from_mib(16);
