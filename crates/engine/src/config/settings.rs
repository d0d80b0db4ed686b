//! The settings besides rules (robots, jobs, scrapes, HTTP, the service, logs), with defaults and limits.
//!
//! [`super::KEYS`] repeats the defaults for the reference; a test makes sure that the two agree.

use std::net::SocketAddr;
use std::path::PathBuf;

use comity_core::time::Span;
use comity_core::{guard, interval, retry};
use serde_json::Value;

use super::Config;
use super::allow_private::PrivateAllowance;
use super::size::Size;
use super::token::Token;
use super::value::{self, Expected};

/// Whether robots.txt is obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RobotsPolicy {
    /// robots.txt is fetched and obeyed.
    #[default]
    Obey,
    /// robots.txt is not fetched.
    Ignore,
}

/// `[job]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSettings {
    /// Maximum tasks of a job in flight at once.
    pub concurrency: u32,
    /// Maximum retries per task.
    pub max_retries: u32,
    /// How many consecutive failures make a job give up a domain; 0 turns this off.
    pub failure_threshold: u32,
    /// How many consecutive 429s cancel the job; 0 turns this off.
    pub cancel_streak: u32,
    /// Only requests spaced at least this far apart count for `cancel_streak`.
    pub cancel_delay: Span,
}

/// `[scrape]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeSettings {
    /// Minimum time between two scrapes of a source without its own setting; `None` turns this off.
    pub min_interval: Option<Span>,
    /// Maximum items in one bulk enqueue.
    pub max_bulk_batch_size: u32,
    /// Maximum items of a source waiting or running at once; `None` is unlimited.
    pub max_in_flight_per_source: Option<u32>,
    /// The longest a run waits for sites that are closed; `None` means no limit.
    pub max_wait: Option<Span>,
    /// The folder for scraped pages.
    pub out: PathBuf,
    /// How scraped pages are stored.
    pub format: ArchiveFormat,
}

/// How pages are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArchiveFormat {
    /// One file per page, and an index.
    #[default]
    Files,
    /// WARC files, with the traffic as it was on the wire.
    Warc,
    /// Pages are not stored.
    None,
}

impl ArchiveFormat {
    /// The format with this name.
    pub fn parse(name: &str) -> Option<Self> {
        ARCHIVES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        ARCHIVES.iter().find(|(_, format)| *format == self).map_or("files", |(name, _)| name)
    }
}

/// `[upkeep]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpkeepSettings {
    /// How long to wait for a store that is locked, full or unavailable.
    pub patience: Span,
    /// How long to keep rows that are no longer needed; `None` keeps them forever.
    pub keep: Option<Span>,
}

/// `[warc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarcSettings {
    /// The size at which a new file is started.
    pub file_max: Size,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The user agent without the contact; see [`Config::user_agent`].
    pub user_agent: String,
    /// An email address or URL where sites can reach the operator.
    pub contact: Option<String>,
    /// Time limit for connecting.
    pub connect_timeout: Span,
    /// Time limit for the first byte of a response.
    pub first_byte_timeout: Span,
    /// Time limit for a whole request.
    pub total_timeout: Span,
    /// The largest response body that is kept.
    pub body_max: Size,
    /// The largest response head (status line and headers) that is read.
    pub header_max: Size,
    /// Maximum redirects followed in a row.
    pub redirects_max: u32,
    /// Where redirects and links may lead although it is not public.
    pub allow_private: PrivateAllowance,
}

/// `[serve]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSettings {
    /// The address the service listens on.
    pub listen: SocketAddr,
    /// Who may use the service. If it is empty, everybody on loopback may.
    pub tokens: Vec<Token>,
    /// A file with more tokens.
    pub tokens_file: Option<PathBuf>,
    /// Host names under which a service without tokens may be called, besides loopback.
    pub hosts: Vec<String>,
    /// Maximum domains held at once.
    pub domains_max: u32,
    /// Maximum connections at once.
    pub connections_max: u32,
    /// The largest request body.
    pub body_max: Size,
    /// The largest request head (request line and headers).
    pub head_max: Size,
    /// The longest that `acquire` waits.
    pub max_wait: Span,
    /// How long a connection may be idle, or take to send a request.
    pub idle_timeout: Span,
    /// How many of the slowest domains get their own metrics.
    pub metrics_domains: u32,
}

/// `[proxy]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyConfig {
    /// The address the proxy listens on.
    pub listen: SocketAddr,
    /// What happens to https.
    pub https: HttpsMode,
    /// The folder with the certificate authority for decrypting.
    pub ca: PathBuf,
    /// The ports that CONNECT may lead to.
    pub connect_ports: Vec<u16>,
    /// How long a request waits in line.
    pub wait_max: Span,
    /// Who may use the proxy. If it is empty, everybody on loopback may.
    pub tokens: Vec<Token>,
    /// Maximum connections at once.
    pub connections_max: u32,
    /// The largest request head (request line and headers).
    pub head_max: Size,
    /// How long a connection may be idle, or take to send the head of a request.
    pub idle_timeout: Span,
}

/// What a proxy does with https.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HttpsMode {
    /// It passes the encrypted bytes on: only connections are paced.
    #[default]
    Tunnel,
    /// It decrypts it: every request is paced.
    Decrypt,
}

/// `log_level` and `log_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSettings {
    /// How much to log; `None` if it is not set, which leaves the choice to the logger.
    pub level: Option<LogLevel>,
    /// The format of a log line.
    pub format: LogFormat,
}

/// How much to log, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Only failures.
    Error,
    /// Also backoffs.
    Warn,
    /// Also starts, changed delays and deferrals.
    #[default]
    Info,
    /// Also every wait.
    Debug,
    /// Everything.
    Trace,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object per line.
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

    /// The name in the configuration.
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
    /// Sets the key at `path`: any of [`super::KEYS`] except the profile and the keys of rules.
    pub(super) fn set(&mut self, path: &str, value: &Value) -> Result<(), Expected> {
        let (job, scrape, http) = (&mut self.job, &mut self.scrape, &mut self.http);
        let (serve, proxy) = (&mut self.serve, &mut self.proxy);
        match path {
            "store" => self.store = value::store(value)?,
            "robots" => self.robots = value::one_of(value, &ROBOTS)?,
            "log_level" => self.log.level = Some(value::one_of(value, &LogLevel::WORDS)?),
            "log_format" => self.log.format = value::one_of(value, &FORMATS)?,
            "job.concurrency" => job.concurrency = value::integer(value, 1..=10_000)?,
            "job.max_retries" => job.max_retries = value::integer(value, 0..=1_000)?,
            "job.failure_threshold" => job.failure_threshold = value::integer(value, 0..=STREAK_MAX)?,
            "job.cancel_streak" => job.cancel_streak = value::integer(value, 0..=STREAK_MAX)?,
            "job.cancel_delay" => job.cancel_delay = value::duration(value, A_DAY)?,
            "scrape.min_interval" => scrape.min_interval = value::interval(value)?,
            "scrape.max_bulk_batch_size" => scrape.max_bulk_batch_size = value::integer(value, 1..=100_000)?,
            "scrape.max_in_flight_per_source" => {
                scrape.max_in_flight_per_source = value::integer_or_none(value, 1..=1_000_000)?;
            }
            "scrape.max_wait" => scrape.max_wait = value::duration_or_none(value, A_DAY)?,
            "scrape.out" => scrape.out = value::folder(value)?,
            "scrape.format" => scrape.format = value::one_of(value, &ARCHIVES)?,
            "upkeep.patience" => self.upkeep.patience = value::duration(value, A_DAY)?,
            "upkeep.keep" => self.upkeep.keep = value::positive_duration_or_none(value, KEEP_MAX)?,
            "warc.file_max" => self.warc.file_max = value::size(value, FILE_MIN..=FILE_MAX)?,
            "http.user_agent" => http.user_agent = value::agent(value)?,
            "http.contact" => http.contact = value::contact(value)?,
            "http.connect_timeout" => http.connect_timeout = value::positive_duration(value, A_DAY)?,
            "http.first_byte_timeout" => http.first_byte_timeout = value::positive_duration(value, A_DAY)?,
            "http.total_timeout" => http.total_timeout = value::positive_duration(value, A_DAY)?,
            "http.body_max" => http.body_max = value::size(value, Size::from_bytes(1)..=BODY_MAX)?,
            "http.header_max" => http.header_max = value::size(value, HEADER_MIN..=HEADER_MAX)?,
            "http.redirects_max" => http.redirects_max = value::integer(value, 0..=100)?,
            "http.allow_private" => http.allow_private = value::allowance(value)?,
            "serve.listen" => serve.listen = value::address(value)?,
            "serve.tokens" => serve.tokens = value::tokens(value)?,
            "serve.tokens_file" => serve.tokens_file = value::file(value)?,
            "serve.hosts" => serve.hosts = value::hosts(value)?,
            "serve.domains_max" => serve.domains_max = value::integer(value, 1..=100_000_000)?,
            "serve.connections_max" => serve.connections_max = value::integer(value, 1..=1_000_000)?,
            "serve.body_max" => serve.body_max = value::size(value, Size::from_kib(1)..=Size::from_mib(64))?,
            "serve.head_max" => serve.head_max = value::size(value, HEADER_MIN..=HEADER_MAX)?,
            "serve.max_wait" => serve.max_wait = value::duration(value, A_DAY)?,
            "serve.idle_timeout" => serve.idle_timeout = value::positive_duration(value, A_DAY)?,
            "serve.metrics_domains" => serve.metrics_domains = value::integer(value, 0..=1_000)?,
            "proxy.listen" => proxy.listen = value::address(value)?,
            "proxy.https" => proxy.https = value::one_of(value, &HTTPS)?,
            "proxy.ca" => proxy.ca = value::folder(value)?,
            "proxy.connect_ports" => proxy.connect_ports = value::ports(value)?,
            "proxy.wait_max" => proxy.wait_max = value::duration(value, A_DAY)?,
            "proxy.tokens" => proxy.tokens = value::tokens(value)?,
            "proxy.connections_max" => proxy.connections_max = value::integer(value, 1..=1_000_000)?,
            "proxy.head_max" => proxy.head_max = value::size(value, HEADER_MIN..=HEADER_MAX)?,
            "proxy.idle_timeout" => proxy.idle_timeout = value::positive_duration(value, A_DAY)?,
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

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7879)),
            https: HttpsMode::Tunnel,
            ca: PathBuf::from("comity-ca"),
            connect_ports: vec![443],
            wait_max: Span::from_mins(5),
            tokens: Vec::new(),
            connections_max: 10_000,
            head_max: Size::from_kib(64),
            idle_timeout: Span::from_secs(60),
        }
    }
}

const HTTPS: [(&str, HttpsMode); 2] = [("tunnel", HttpsMode::Tunnel), ("decrypt", HttpsMode::Decrypt)];
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
/// The HTTP/1 reader needs a buffer of at least this size.
const HEADER_MIN: Size = Size::from_kib(8);
const HEADER_MAX: Size = Size::from_mib(16);
