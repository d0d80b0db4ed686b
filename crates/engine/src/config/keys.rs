//! Every key with its path, default and meaning. The reference, the names of the environment variables and the
//! suggestions for unknown keys are all derived from this list.

/// A key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The path of the key, such as `job.concurrency`.
    pub path: &'static str,
    /// The default as TOML. For rules it is that of the profile `standard`.
    pub default: &'static str,
    /// What the key means, in one sentence.
    pub meaning: &'static str,
}

impl Key {
    /// The environment variable that sets it, such as `COMITY_JOB_CONCURRENCY`.
    pub fn variable(&self) -> String {
        format!("COMITY_{}", self.path.to_ascii_uppercase().replace('.', "_"))
    }

    /// The table that contains the key, and its name there.
    fn split(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }
}

/// The names of the keys in `table`.
pub(super) fn of_table(table: &str) -> Vec<&'static str> {
    KEYS.iter().map(Key::split).filter(|(of, _)| *of == table).map(|(_, name)| name).collect()
}

/// The keys outside of any table.
pub(super) fn top_level() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(Key::split).filter(|(table, _)| table.is_empty()).map(|(_, name)| name)
}

/// The whole configuration as commented TOML.
pub(super) fn reference() -> String {
    let mut text = HEAD.to_owned();
    let mut table = "";
    for key in &KEYS {
        let (of, name) = key.split();
        if of != table {
            // Domains have the same keys as `[default]`, so they are explained right after it.
            text.push_str(if table == "default" { DOMAINS } else { "" });
            text.push_str(&format!("\n[{of}]\n"));
            table = of;
        }
        text.push_str(&format!("# {}\n# {name} = {}\n", key.meaning, key.default));
    }
    text
}

/// Tables of plain settings; `default` and `domains` hold rules.
pub(super) const TABLES: [&str; 6] = ["job", "scrape", "upkeep", "warc", "http", "serve"];

const HEAD: &str = "\
# Every setting of Comity with its default. Uncomment a line to change it.
# Each can also be set by an environment variable, such as COMITY_JOB_CONCURRENCY=8. Flags override variables, and
# variables override this file.

";

const DOMAINS: &str = "
# Every key of [default] can be set for one host, for \"*.example.org\" (all its subdomains), or with a port:
#
#   [domains.\"reuters.com\"]
#   min_delay = \"3s\"
#   burst = 2
#
#   [domains.\"reuters.com\".intent.search]
#   min_delay = \"10s\"
#
# A host, or all its subdomains, can also get credentials. ${NAME} is replaced by an environment variable, ${file:PATH}
# by the content of a file. docs/requests.md explains which requests carry them.
#
#   [domains.\"api.example.org\".request]
#   bearer_env = \"API_TOKEN\"                        # or bearer_file, basic_env, basic_file (user:password)
#   headers = { \"X-Api-Key\" = \"${API_KEY}\" }
#   cookies = { session = \"${file:session.txt}\" }
#   robots_credentials = true                        # send them when fetching robots.txt, too
#   insecure = true                                  # do not check the certificate; for a single host only
";

const fn key(path: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { path, default, meaning }
}

/// Every key, in the order of the reference. Domains have the same keys as `default`.
pub const KEYS: [Key; 69] = [
    key(
        "store",
        r#""sqlite:comity.db""#,
        r#"Where state is saved: "sqlite:FILE", "postgres://HOST/DATABASE" or "memory:"."#,
    ),
    key(
        "profile",
        r#""standard""#,
        r#"The profile that rules start from: "standard", "collector", "crawler" or "archiver"."#,
    ),
    key("robots", r#""obey""#, r#"Whether to obey robots.txt: "obey" or "ignore"."#),
    key(
        "log_level",
        r#""info""#,
        r#"How much to log: "error", "warn", "info", "debug" or "trace". If unset, "warn" is used while a terminal shows progress."#,
    ),
    key("log_format", r#""text""#, r#"Log format: "text" or "json"."#),
    key("default.enabled", "true", "Whether requests are paced; false turns all pacing off."),
    key("default.min_delay", r#""1s""#, "Minimum time between two requests to a site."),
    key(
        "default.requests_per_second",
        r#""none""#,
        r#"Maximum requests per second, or "none"; the slower of this and min_delay applies."#,
    ),
    key("default.burst", r#""none""#, r#"Maximum request starts in any burst_window, or "none"."#),
    key("default.burst_window", r#""60s""#, "Length of the sliding window for burst."),
    key(
        "default.backoff",
        r#""exponential""#,
        r#"How waits grow with consecutive failures: "exponential", "linear" or "none"."#,
    ),
    key("default.backoff_base", r#""5s""#, "The wait after the first failure."),
    key(
        "default.backoff_max",
        r#""60s""#,
        "The longest wait after failures; defaults to 30s if backoff is linear.",
    ),
    key(
        "default.wait_on_429",
        r#""backoff""#,
        r#"How long to wait after a 429 without Retry-After: a duration, "backoff" or "learned"."#,
    ),
    key("default.retry_after_max", r#""24h""#, "The longest wait that a server may ask for."),
    key("default.in_flight", "1", r#"Maximum requests to a site in flight at once, or "unlimited"."#),
    key("default.learning", r#""linear""#, r#"How the delay is learned from 429s: "linear", "bracket" or "off"."#),
    key("default.learn.base", r#""1s""#, "The smallest delay that learning starts from."),
    key(
        "default.learn.step",
        r#""1s""#,
        "How much a 429 adds to the learned delay, and how much a probe subtracts.",
    ),
    key("default.learn.ceiling", r#""60s""#, "The longest learned delay."),
    key(
        "default.learn.probe_after",
        "20",
        "How many consecutive successes start a probe of a shorter delay.",
    ),
    key(
        "default.learn.max_age",
        r#""7d""#,
        "How long a delay found too short is remembered before it is probed again.",
    ),
    key("default.group", r#""none""#, r#"Hosts with the same group share one pace; "none" means no group."#),
    key(
        "default.intent.fetch.min_delay",
        r#""0s""#,
        "Minimum time between two fetches of pages or files, in addition to min_delay.",
    ),
    key(
        "default.intent.fetch.burst",
        r#""none""#,
        r#"Maximum fetches of pages or files in any burst_window, or "none"."#,
    ),
    key(
        "default.intent.search.min_delay",
        r#""0s""#,
        "Minimum time between two searches, in addition to min_delay.",
    ),
    key("default.intent.search.burst", r#""none""#, r#"Maximum searches in any burst_window, or "none"."#),
    key(
        "default.intent.api.min_delay",
        r#""0s""#,
        "Minimum time between two API calls, in addition to min_delay.",
    ),
    key("default.intent.api.burst", r#""none""#, r#"Maximum API calls in any burst_window, or "none"."#),
    key(
        "default.request.headers",
        "{}",
        "Headers without secrets, such as Accept-Language, sent to every site; headers for one site go under [domains].",
    ),
    key("default.request.user_agent", r#""""#, r#"The User-Agent; "" means http.user_agent."#),
    key(
        "default.request.connect_timeout",
        r#""""#,
        r#"Time limit for connecting; "" means http.connect_timeout."#,
    ),
    key(
        "default.request.first_byte_timeout",
        r#""""#,
        r#"Time limit for the first byte of a response; "" means http.first_byte_timeout."#,
    ),
    key(
        "default.request.total_timeout",
        r#""""#,
        r#"Time limit for a whole request; "" means http.total_timeout."#,
    ),
    key(
        "default.request.proxy",
        r#""""#,
        r#"The proxy: http, https, socks5 or socks5h, or "none"; "" uses the proxy variables of the environment."#,
    ),
    key("job.concurrency", "16", "Maximum requests of a job in flight at once."),
    key("job.max_retries", "3", "Maximum retries per URL."),
    key(
        "job.failure_threshold",
        "20",
        "How many URLs of a site in a row have to fail for a job to give up on the site; 0 turns this off.",
    ),
    key(
        "job.cancel_streak",
        "0",
        "How many consecutive 429s cancel the job if its requests are cancel_delay or more apart; 0 turns this off.",
    ),
    key(
        "job.cancel_delay",
        r#""60s""#,
        "How far apart requests have to be for a 429 to count for cancel_streak.",
    ),
    key(
        "scrape.min_interval",
        "1.0",
        r#"Minimum seconds between two scrapes of a source without its own setting; "" or 0 turns this off."#,
    ),
    key("scrape.max_bulk_batch_size", "100", "Maximum items in one bulk enqueue."),
    key(
        "scrape.max_in_flight_per_source",
        r#""none""#,
        r#"Maximum items of a source waiting or running at once, or "none"."#,
    ),
    key(
        "scrape.max_wait",
        r#""10m""#,
        r#"The longest a run waits for sites that are closed; their items are left for the next run. "none" means no limit."#,
    ),
    key("scrape.out", r#""comity-items""#, "The folder for scraped pages."),
    key("scrape.format", r#""files""#, r#"How scraped pages are saved: "files", "warc" or "none"."#),
    key(
        "upkeep.patience",
        r#""10m""#,
        "How long to wait for a store that is locked, full or unavailable before giving up.",
    ),
    key(
        "upkeep.keep",
        r#""none""#,
        r#"How long to keep the URLs of ended jobs, scrape logs and fetch runs, such as "30d"; "none" keeps everything."#,
    ),
    key("warc.file_max", r#""1GiB""#, "The size at which a new WARC file is started."),
    key("http.user_agent", r#""Comity/0.1""#, "The User-Agent sent to sites."),
    key(
        "http.contact",
        r#""""#,
        r#"An email address or URL where sites can reach you, sent with user_agent; "" means none."#,
    ),
    key("http.connect_timeout", r#""10s""#, "Time limit for connecting."),
    key("http.first_byte_timeout", r#""30s""#, "Time limit for the first byte of a response."),
    key("http.total_timeout", r#""5m""#, "Time limit for a whole request."),
    key("http.body_max", r#""64MiB""#, "The largest response body that is accepted."),
    key(
        "http.header_max",
        r#""64KiB""#,
        "The largest response head (status line and headers) that is read. Over HTTP/1.1, it may also have at most 1,000 \
         header lines.",
    ),
    key("http.redirects_max", "10", "Maximum redirects followed in a row."),
    key(
        "http.allow_private",
        "[]",
        "Hosts, addresses and networks that redirects and links may lead to although they are not public.",
    ),
    key("serve.listen", r#""127.0.0.1:7878""#, "The address that the service listens on."),
    key(
        "serve.tokens",
        "[]",
        r#"Who may use the service: "ROLE:sha256:HEX", where ROLE is "use" or "admin"; comity serve --make-token makes one."#,
    ),
    key(
        "serve.tokens_file",
        r#""""#,
        r#"A file with more tokens, one per line, also as "ROLE:TOKEN"; "" means none."#,
    ),
    key(
        "serve.hosts",
        "[]",
        "Host names under which a service without tokens may be called, besides loopback.",
    ),
    key("serve.domains_max", "250000", "Maximum sites that the service is in charge of at once."),
    key("serve.connections_max", "20000", "Maximum connections at once."),
    key("serve.body_max", r#""1MiB""#, "The largest request body."),
    key("serve.head_max", r#""16KiB""#, "The largest request head (request line and headers)."),
    key("serve.max_wait", r#""10m""#, "The longest that acquire waits, whatever the caller allows."),
    key("serve.idle_timeout", r#""60s""#, "How long a connection may be idle, or take to send a request."),
    key("serve.metrics_domains", "20", "How many of the slowest sites get their own metrics."),
];
