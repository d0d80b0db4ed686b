//! Every key: its path, its default and what it means. The reference is written from here, and so are the
//! names of the variables and what an unknown key is compared with.

/// A key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Where it stands, such as `job.concurrency`.
    pub path: &'static str,
    /// Its default as TOML; that of a rule is profile `standard`'s.
    pub default: &'static str,
    /// What it means, in a sentence.
    pub meaning: &'static str,
}

impl Key {
    /// The variable that sets it, such as `COMITY_JOB_CONCURRENCY`.
    pub fn variable(&self) -> String {
        format!("COMITY_{}", self.path.to_ascii_uppercase().replace('.', "_"))
    }

    /// The table it stands in and its name there.
    fn split(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }
}

/// The names of the keys in `table`.
pub(super) fn of_table(table: &str) -> Vec<&'static str> {
    KEYS.iter().map(Key::split).filter(|(of, _)| *of == table).map(|(_, name)| name).collect()
}

/// The keys that stand in no table.
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
            // What follows `[default]` is the same for single domains, and is told there.
            text.push_str(if table == "default" { DOMAINS } else { "" });
            text.push_str(&format!("\n[{of}]\n"));
            table = of;
        }
        text.push_str(&format!("# {}\n# {name} = {}\n", key.meaning, key.default));
    }
    text
}

/// Tables whose keys are settings; `default` and `domains` hold rules.
pub(super) const TABLES: [&str; 6] = ["job", "scrape", "upkeep", "warc", "http", "serve"];

const HEAD: &str = "\
# Every setting of Comity with its default. Uncomment a line to change it.
# Each can be set by a variable too, such as COMITY_JOB_CONCURRENCY=8; flags come before variables, variables
# before this file.

";

const DOMAINS: &str = "
# Every key of [default] can be set for one host, for \"*.example.org\" (all hosts below it), or with a port:
#
#   [domains.\"reuters.com\"]
#   min_delay = \"3s\"
#   burst = 2
#
#   [domains.\"reuters.com\".intent.search]
#   min_delay = \"10s\"
#
# One host, or all below it, may also get credentials. ${NAME} stands for a variable, ${file:PATH} for what a file holds;
# docs/requests.md tells who gets them.
#
#   [domains.\"api.example.org\".request]
#   bearer_env = \"API_TOKEN\"                        # or bearer_file, basic_env, basic_file (user:password)
#   headers = { \"X-Api-Key\" = \"${API_KEY}\" }
#   cookies = { session = \"${file:session.txt}\" }
#   robots_credentials = true                        # robots.txt is asked for with them, too
#   insecure = true                                  # its certificate is not checked; one host only
";

const fn key(path: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { path, default, meaning }
}

/// Every key, in the order of the reference. Those of `default` are also those of a domain.
pub const KEYS: [Key; 69] = [
    key("store", r#""sqlite:comity.db""#, r#"Where everything is kept: "sqlite:FILE" or "memory:"."#),
    key(
        "profile",
        r#""standard""#,
        r#"The rules a domain starts from: "standard", "collector", "crawler" or "archiver"."#,
    ),
    key("robots", r#""obey""#, r#"Whether robots.txt is obeyed: "obey" or "ignore"."#),
    key(
        "log_level",
        r#""info""#,
        r#"What is worth a line in the log: "error", "warn", "info", "debug" or "trace". Unset, it is "warn" while a terminal shows progress."#,
    ),
    key("log_format", r#""text""#, r#"How a line of the log looks: "text" or "json"."#),
    key("default.enabled", "true", "Whether requests are paced at all; false is the only way to be unpaced."),
    key("default.min_delay", r#""1s""#, "Least time between two request starts on a domain."),
    key(
        "default.requests_per_second",
        r#""none""#,
        r#"Most request starts in a second, or "none"; the slower of this and min_delay goes."#,
    ),
    key("default.burst", r#""none""#, r#"Most request starts in any burst_window, or "none"."#),
    key("default.burst_window", r#""60s""#, "The length of the sliding window of burst."),
    key(
        "default.backoff",
        r#""exponential""#,
        r#"How waits grow with failures in a row: "exponential", "linear" or "none"."#,
    ),
    key("default.backoff_base", r#""5s""#, "The first wait after a failure."),
    key(
        "default.backoff_max",
        r#""60s""#,
        "The longest wait after failures; 30s where backoff is linear and nothing is set.",
    ),
    key(
        "default.wait_on_429",
        r#""backoff""#,
        r#"What a 429 without Retry-After waits: a duration, "backoff" or "learned"."#,
    ),
    key("default.retry_after_max", r#""24h""#, "The longest wait that a server may ask for."),
    key("default.in_flight", "1", r#"Most requests of a domain on the wire at once, or "unlimited"."#),
    key("default.learning", r#""linear""#, r#"How the delay is learnt from 429s: "linear" or "off"."#),
    key("default.learn.base", r#""1s""#, "The least delay that learning starts from."),
    key("default.learn.step", r#""1s""#, "How much a 429 adds to the learned delay and a probe takes off."),
    key("default.learn.ceiling", r#""60s""#, "The longest delay that is learnt."),
    key("default.learn.probe_after", "20", "How many successes in a row start a probe of a shorter delay."),
    key(
        "default.learn.max_age",
        r#""7d""#,
        "How old a delay that was found too short may get before it is probed again.",
    ),
    key("default.group", r#""none""#, r#"Hosts with the same group share one pace; "none" is no group."#),
    key(
        "default.intent.fetch.min_delay",
        r#""0s""#,
        "Least time between two fetches of pages or files, in addition to min_delay.",
    ),
    key(
        "default.intent.fetch.burst",
        r#""none""#,
        r#"Most fetches of pages or files in any burst_window, or "none"."#,
    ),
    key(
        "default.intent.search.min_delay",
        r#""0s""#,
        "Least time between two searches, in addition to min_delay.",
    ),
    key("default.intent.search.burst", r#""none""#, r#"Most searches in any burst_window, or "none"."#),
    key(
        "default.intent.api.min_delay",
        r#""0s""#,
        "Least time between two API calls, in addition to min_delay.",
    ),
    key("default.intent.api.burst", r#""none""#, r#"Most API calls in any burst_window, or "none"."#),
    key(
        "default.request.headers",
        "{}",
        "Headers that hold no secret, such as Accept-Language, for every site; a site's own are under [domains].",
    ),
    key("default.request.user_agent", r#""""#, r#"The user agent; "" is http.user_agent."#),
    key(
        "default.request.connect_timeout",
        r#""""#,
        r#"How long a connection may take; "" is as [http] says."#,
    ),
    key(
        "default.request.first_byte_timeout",
        r#""""#,
        r#"How long an answer may take to begin; "" is as [http] says."#,
    ),
    key(
        "default.request.total_timeout",
        r#""""#,
        r#"How long a request may take in all; "" is as [http] says."#,
    ),
    key(
        "default.request.proxy",
        r#""""#,
        r#"The proxy: http, https, socks5 or socks5h, or "none"; "" is as the environment says."#,
    ),
    key("job.concurrency", "16", "Most tasks of a job in flight at once."),
    key("job.max_retries", "3", "How often a failed task is tried again."),
    key(
        "job.failure_threshold",
        "20",
        "How many failed tasks in a row give up a domain for the job; 0 is off.",
    ),
    key(
        "job.cancel_streak",
        "0",
        "How many 429s in a row, at a spacing of cancel_delay or more, cancel the job; 0 is off.",
    ),
    key("job.cancel_delay", r#""60s""#, "The spacing from which a 429 counts for cancel_streak."),
    key(
        "scrape.min_interval",
        "1.0",
        r#"Least seconds between two scrapes of a source that has no own setting; "" or 0 is off."#,
    ),
    key("scrape.max_bulk_batch_size", "100", "Most items that one bulk enqueue takes."),
    key(
        "scrape.max_in_flight_per_source",
        r#""none""#,
        r#"Most items of a source that wait or run at once, or "none"."#,
    ),
    key(
        "scrape.max_wait",
        r#""10m""#,
        r#"A run does not wait longer than this for sites that are held back; their items are left for the next. Or "none"."#,
    ),
    key("scrape.out", r#""comity-items""#, "The folder that scraped pages are kept in."),
    key("scrape.format", r#""files""#, r#"How scraped pages are kept: "files", "warc" or "none"."#),
    key(
        "upkeep.patience",
        r#""10m""#,
        "How long work waits for a store that is locked, full or away before it ends.",
    ),
    key(
        "upkeep.keep",
        r#""none""#,
        r#"How long to keep tasks of ended jobs, scrape logs and fetch runs, such as "30d"; "none" keeps everything."#,
    ),
    key("warc.file_max", r#""1GiB""#, "The size from which a WARC file is followed by another."),
    key("http.user_agent", r#""Comity/0.1""#, "What we call ourselves to sites."),
    key(
        "http.contact",
        r#""""#,
        r#"A mail address or URL that sites can write to, sent with user_agent; "" is none."#,
    ),
    key("http.connect_timeout", r#""10s""#, "How long a connection may take to be made."),
    key("http.first_byte_timeout", r#""30s""#, "How long an answer may take to begin."),
    key("http.total_timeout", r#""5m""#, "How long a request may take in all."),
    key("http.body_max", r#""64MiB""#, "The largest body that is kept."),
    key("http.header_max", r#""64KiB""#, "The largest head of an answer that is read."),
    key("http.redirects_max", "10", "Most redirects that are followed one after the other."),
    key(
        "http.allow_private",
        "[]",
        "Hosts, addresses and networks that remote answers may lead to although they are not public.",
    ),
    key("serve.listen", r#""127.0.0.1:7878""#, "Where the service listens."),
    key(
        "serve.tokens",
        "[]",
        r#"Who may use the service: "ROLE:sha256:HEX", where ROLE is "use" or "admin"; comity serve --make-token makes one."#,
    ),
    key(
        "serve.tokens_file",
        r#""""#,
        r#"A file with more of them, one a line, also as "ROLE:TOKEN"; "" is none."#,
    ),
    key("serve.hosts", "[]", "Names that a service without tokens may be called by, beside loopback."),
    key("serve.domains_max", "250000", "Most domains that the service holds at once."),
    key("serve.connections_max", "20000", "Most connections at once."),
    key("serve.body_max", r#""1MiB""#, "The largest body of a request."),
    key("serve.head_max", r#""16KiB""#, "The largest head of a request."),
    key("serve.max_wait", r#""10m""#, "The longest that acquire waits, whatever the caller allows."),
    key("serve.idle_timeout", r#""60s""#, "How long a connection may be idle, or take to send a request."),
    key("serve.metrics_domains", "20", "How many of the slowest domains have metrics of their own."),
];
