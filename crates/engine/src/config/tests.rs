//! The layers together: which setting wins, what is rejected, and with which message.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use comity_core::domain::Domain;
use comity_core::learn::Learning;
use comity_core::rule::{Fields, Rule};

use super::*;

fn load(file: &str, env: &[(&str, &str)], overrides: Overrides) -> Result<Config, ConfigError> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::load(Sources { file: Some(("comity.toml", file)), env, overrides, ..Sources::default() })
}

fn of_file(text: &str) -> Config {
    load(text, &[], Overrides::default()).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn wrong_file(text: &str) -> String {
    load(text, &[], Overrides::default()).expect_err(text).to_string()
}

fn of_env(name: &str, value: &str) -> Result<Config, String> {
    load("", &[(name, value)], Overrides::default()).map_err(|error| error.to_string())
}

fn rule(config: &Config, host: &str) -> Rule {
    Rule::clone(config.rules().rule(&Domain::parse(host).unwrap()))
}

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// B71
#[test]
fn each_layer_overrides_the_one_below() {
    let file = "[job]\nconcurrency = 2\nmax_retries = 7\nfailure_threshold = 5";
    let env = [("COMITY_JOB_CONCURRENCY", "3"), ("COMITY_JOB_FAILURE_THRESHOLD", "0"), ("HOME", "/root")];
    let overrides = Overrides { concurrency: text("4"), ..Overrides::default() };
    let shown = |config: Config| {
        let JobSettings { concurrency, max_retries, failure_threshold, cancel_streak, .. } = config.job;
        [concurrency, max_retries, failure_threshold, cancel_streak]
    };
    assert_eq!(shown(Config::default()), [16, 3, 20, 0]);
    assert_eq!(shown(load(file, &[], Overrides::default()).unwrap()), [2, 7, 5, 0]);
    assert_eq!(shown(load(file, &env, Overrides::default()).unwrap()), [3, 7, 0, 0]);
    assert_eq!(shown(load(file, &env, overrides).unwrap()), [4, 7, 0, 0]);
}

/// B71: no flag has a default, so the value of the file applies.
#[test]
fn what_was_not_given_overrides_nothing() {
    let config =
        of_file("store = \"memory:\"\nprofile = \"crawler\"\nrobots = \"ignore\"\nlog_level = \"debug\"");
    assert_eq!((config.store.as_str(), config.profile), ("memory:", "crawler"));
    assert_eq!((config.robots, config.log.level), (RobotsPolicy::Ignore, Some(LogLevel::Debug)));
}

/// B71, B76
#[test]
fn every_given_setting_arrives() {
    let overrides = Overrides {
        store: text("postgres://h/d"),
        profile: text("archiver"),
        delay: text("7s"),
        learning: text("off"),
        robots: text("ignore"),
        concurrency: text("1"),
        max_retries: text("0"),
        user_agent: text("Mine/2"),
        contact: text("me@example.org"),
        listen: text("[::1]:1234"),
        log_level: text("trace"),
        log_format: text("json"),
    };
    let config = load("[domains.\"a.org\"]\nmin_delay = \"1s\"", &[], overrides).unwrap();
    assert_eq!((config.store.as_str(), config.profile), ("postgres://h/d", "archiver"));
    assert_eq!((config.job.concurrency, config.job.max_retries), (1, 0));
    assert_eq!(config.user_agent(), "Mine/2 (+me@example.org)");
    assert_eq!(config.log, LogSettings { level: Some(LogLevel::Trace), format: LogFormat::Json });
    assert_eq!(config.robots, RobotsPolicy::Ignore);
    assert_eq!(config.serve.listen.to_string(), "[::1]:1234");
    assert_eq!(rule(&config, "a.org").min_delay(), Span::from_secs(7));
    assert_eq!(rule(&config, "b.org").learning(), &Learning::Off);
}

/// B75: a variable may contain plain tokens, a file only hashes; neither is shown.
#[test]
fn tokens_are_hashes_from_the_beginning() {
    let plain = ("COMITY_SERVE_TOKENS", "use:correct-horse-battery, admin:sha256-is-no-prefix");
    let config = load("", &[plain], Overrides::default()).unwrap();
    let [user, admin] = &config.serve.tokens[..] else { panic!("{:?}", config.serve.tokens) };
    assert!(user.matches("correct-horse-battery") && admin.matches("sha256-is-no-prefix"));
    assert_eq!((user.role, admin.role), (Role::Use, Role::Admin));
    let hashed = of_file(&format!("[serve]\ntokens = [{:?}]", user.line()));
    assert_eq!(hashed.serve.tokens, [*user]);
    for tokens in ["[\"use:correct-horse-battery\"]", "\"use:correct-horse-battery\"", "[\"use:sha256:12\"]"]
    {
        let error =
            load(&format!("[serve]\ntokens = {tokens}"), &[], Overrides::default()).unwrap_err().to_string();
        assert!(error.contains("serve.tokens = ***: expected a list") && !error.contains("horse"), "{error}");
    }
}

/// B71
#[test]
fn all_problems_are_reported_at_once() {
    let file = r#"
        stroe = "memory:"
        profile = "polite"
        robots = true
        [default]
        min_delay = "fast"
        [domains."reuters.com"]
        min_delay = "fast"
        [domains."eia.gov".learn]
        stepp = "1s"
        [domains."a b"]
        burst = 1
        [domains]
        "Example.org" = { burst = 0 }
        "www.example.org" = 3
        [http]
        allow_private = ["10.0.0.0/8", "10.0.0.1/8"]
        body_max = "64 parsecs"
        contact = "Jürgen"
        total_timeout = 0
        user_agnet = "x"
        [job]
        concurrency = 0
        [scrape]
        min_interval = "soon"
    "#;
    let env = [
        ("COMITY_DEFAULT_LEARN_STEP", "x"),
        ("COMITY_DOMAINS", r#"{ "b.org" = { burst = "many" } }"#),
        ("COMITY_JOB_CONCURENCY", "4"),
        ("COMITY_JOB_CONCURRENCY", "x"),
        ("COMITY_STORE", "postgre://user:hunter2@host/db"),
    ];
    let overrides = Overrides {
        concurrency: text("x"),
        delay: text("-1s"),
        learning: text("bracket"),
        ..Overrides::default()
    };
    let mut problems: Vec<_> = load(file, &env, overrides).unwrap_err().problems().to_vec();
    problems.sort();
    let expected = r#"
--concurrency = "x": expected a whole number from 1 to 10000
--delay = "-1s": expected a duration such as "3s" or "250ms"
--learning = "bracket": expected "linear" or "off": this version has no learner "bracket"
COMITY_DEFAULT_LEARN_STEP = "x": expected a duration such as "3s" or "250ms"
COMITY_DOMAINS: domains."b.org".burst = "many": expected a whole number from 1 to 10000 or "none"
COMITY_JOB_CONCURENCY: expected a variable that exists; did you mean COMITY_JOB_CONCURRENCY?
COMITY_JOB_CONCURRENCY = "x": expected a whole number from 1 to 10000
COMITY_STORE = "postgre://user:***@host/db": expected "sqlite:FILE" or "memory:"
comity.toml: default.min_delay = "fast": expected a duration such as "3s" or "250ms"
comity.toml: domains."Example.org".burst = 0: expected a whole number from 1 to 10000
comity.toml: domains."a b" = {…}: expected a host such as "reuters.com" or a wildcard such as "*.example.org"
comity.toml: domains."eia.gov".learn.stepp = "1s": expected a key that exists; did you mean step?
comity.toml: domains."reuters.com".min_delay = "fast": expected a duration such as "3s" or "250ms"
comity.toml: domains."www.example.org" = 3: expected a table
comity.toml: domains."www.example.org" = 3: expected one table per site; "Example.org" is the same site
comity.toml: http.allow_private = […]: expected hosts, addresses and networks such as ["intranet.example", "10.0.0.0/8"]; "10.0.0.1/8" is none of them
comity.toml: http.body_max = "64 parsecs": expected a size from "1B" to "1TiB", or a number of bytes
comity.toml: http.contact = "Jürgen": expected an email address or URL such as "ops@example.org", of at most 200 visible ASCII characters and no parentheses or backslashes
comity.toml: http.total_timeout = 0: expected a duration above zero and of at most 24h
comity.toml: http.user_agnet = "x": expected a key that exists; did you mean user_agent?
comity.toml: job.concurrency = 0: expected a whole number from 1 to 10000
comity.toml: profile = "polite": expected one of "standard", "collector", "crawler", "archiver"
comity.toml: robots = true: expected one of "obey", "ignore"
comity.toml: scrape.min_interval = "soon": expected decimal seconds with at most two places and eight digits before the point, such as 2.5, or "" for none
comity.toml: stroe = "memory:": expected a key that exists; did you mean store?"#;
    assert_eq!(format!("\n{}", problems.join("\n")), expected);
}

/// B71
#[test]
fn an_unknown_key_is_reported_with_the_nearest_one_in_its_table() {
    for (file, nearest) in [
        ("defualt = 1", "default"),
        ("[domain.\"a.org\"]", "domains"),
        ("[jobs]\nconcurrency = 1", "job"),
        ("[default]\nmin_dealy = \"1s\"", "min_delay"),
        ("[default.learn]\nceling = \"1s\"", "ceiling"),
        ("[default.intent.serach]\nburst = 1", "search"),
        ("[domains.\"a.org\"]\nmin_dealy = \"1s\"", "min_delay"),
        ("[domains.\"a.org\".intent.api]\nburts = 1", "burst"),
        ("[job]\nmax_retry = 1", "max_retries"),
        ("[scrape]\nmin_intervall = 1", "min_interval"),
        ("[http]\nbody_maximum = 1", "body_max"),
    ] {
        let message = wrong_file(file);
        assert!(
            message.ends_with(&format!("did you mean {nearest}?")) && !message.contains('\n'),
            "{file}\n{message}"
        );
    }
    let message = wrong_file("[job]\nzzz = 1");
    assert_eq!(
        message,
        "comity.toml: job.zzz = 1: expected one of concurrency, max_retries, failure_threshold, cancel_streak, \
         cancel_delay"
    );
    let message = of_env("COMITY_ZZZ_QQQ", "hunter2").unwrap_err();
    assert!(
        message.starts_with("COMITY_ZZZ_QQQ: expected a variable that exists")
            && !message.contains("hunter2")
    );
}

/// B71
#[test]
fn every_key_has_a_variable() {
    for key in &KEYS {
        let value: toml::Value = key.default.parse().unwrap();
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Array(_) => String::new(),
            other => other.to_string(),
        };
        of_env(&key.variable(), &value).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(of_env("COMITY_CONFIG", "x.toml").is_ok() && of_env("COMITY_SERVER", "http://x").is_ok());
    let config = of_env("COMITY_DEFAULT_INTENT_SEARCH_MIN_DELAY", "9s").unwrap();
    assert_eq!(config.default.intents[1].min_delay, Some(Span::from_secs(9)));
    let config = of_env("COMITY_DEFAULT_ENABLED", "false").unwrap();
    assert!(!rule(&config, "a.org").enabled());
    let config = of_env("COMITY_HTTP_ALLOW_PRIVATE", "localhost, 10.0.0.0/8").unwrap();
    assert!(config.http.allow_private.allows_host("localhost"));
    assert!(config.http.allow_private.allows_address(IpAddr::from([10, 1, 2, 3])));
}

/// The reference has every key of a rule.
#[test]
fn no_key_of_a_rule_is_missing() {
    let names = KEYS.iter().filter_map(|key| key.path.strip_prefix("default.")?.split('.').next());
    let (names, mut rules) = (BTreeSet::from_iter(names), BTreeSet::from(comity_core::rule::KEYS));
    rules.insert("request");
    assert_eq!(names, rules);
}

/// B15, B71
#[test]
fn the_domains_variable_overrides_rows_of_the_file_key_by_key() {
    let file = "[domains.\"reuters.com\"]\nmin_delay = \"3s\"\nburst = 2";
    let rows = r#"{ "WWW.Reuters.com" = { min_delay = "5s" }, "*.example.org" = { group = "g" } }"#;
    let config = load(file, &[("COMITY_DOMAINS", rows)], Overrides::default()).unwrap();
    let reuters = rule(&config, "reuters.com");
    assert_eq!(
        (reuters.min_delay(), reuters.burst().map(|burst| burst.count)),
        (Span::from_secs(5), Some(2))
    );
    assert_eq!(config.rules().domain(&Domain::parse("a.example.org").unwrap()).as_str(), "group:g");
    let shown: Vec<_> = config.domains.iter().map(|(pattern, _)| pattern.to_string()).collect();
    assert_eq!(shown, ["*.example.org", "reuters.com"]);
    assert!(of_env("COMITY_DOMAINS", "{ a = ").unwrap_err().starts_with("COMITY_DOMAINS: line 1, column "));
    assert_eq!(of_env("COMITY_DOMAINS", "3").unwrap_err(), "COMITY_DOMAINS: domains = 3: expected a table");
}

/// B15
#[test]
fn an_empty_row_still_comes_before_a_wildcard() {
    let wildcard = "[domains.\"*.a.org\"]\nmin_delay = \"9s\"\n";
    let config = of_file(&format!("{wildcard}[domains.\"x.a.org\"]"));
    assert_eq!(rule(&config, "x.a.org").min_delay(), Span::from_secs(1));
    assert_eq!(rule(&config, "y.a.org").min_delay(), Span::from_secs(9));
}

/// B47
#[test]
fn the_old_name_of_the_failure_threshold_works_unless_the_new_one_is_set() {
    let threshold = |env: &[(&str, &str)]| load("", env, Overrides::default()).unwrap().job.failure_threshold;
    assert_eq!(threshold(&[("BBB_JOB_FAILURE_THRESHOLD", "7")]), 7);
    let both = [("BBB_JOB_FAILURE_THRESHOLD", "x"), ("COMITY_JOB_FAILURE_THRESHOLD", "9")];
    assert_eq!(threshold(&both), 9);
    let message = of_env("BBB_JOB_FAILURE_THRESHOLD", "x").unwrap_err();
    assert_eq!(message, "BBB_JOB_FAILURE_THRESHOLD = \"x\": expected a whole number from 0 to 1000000");
}

/// B16
#[test]
fn the_default_profile_depends_on_the_command() {
    let of = |file: &str| {
        let file = Some(("comity.toml", file));
        Config::load(Sources { default_profile: Profile::archiver(), file, ..Sources::default() }).unwrap()
    };
    assert_eq!((of("").profile, of("").profile_named), ("archiver", false));
    let named = of("profile = \"standard\"");
    assert_eq!((named.profile, named.profile_named), ("standard", true));
    assert_eq!(rule(&of(""), "a.org").learning(), &Learning::Off);
    assert_eq!(of_file("").profile, "standard");
}

/// `--learning` changes the learning rule in the rows of the profile and of the file, and nothing else.
#[test]
fn the_learning_flag_applies_to_every_row() {
    let file = "profile = \"collector\"\n[domains.\"a.org\"]\nlearning = \"off\"\nburst = 4";
    let overrides = Overrides { learning: text("linear"), ..Overrides::default() };
    let (plain, learning) = (of_file(file), load(file, &[], overrides).unwrap());
    for host in ["finance.yahoo.com", "x.company-ir", "a.org", "other.org"] {
        assert_eq!(rule(&plain, host).learning(), &Learning::Off, "{host}");
        assert!(matches!(rule(&learning, host).learning(), Learning::Linear(_)), "{host}");
        assert_eq!(rule(&plain, host).burst(), rule(&learning, host).burst(), "{host}");
    }
    let overrides = Overrides { learning: text("off"), ..Overrides::default() };
    let off = load("[default]\nlearning = \"linear\"", &[], overrides).unwrap();
    assert_eq!(rule(&off, "a.org").learning(), &Learning::Off);
}

/// Settings that are only invalid in combination are reported where one of them was written.
#[test]
fn conflicting_settings_are_reported_where_they_were_written() {
    let message = wrong_file("[job]\nconcurrency = 0\n[default]\nbackoff_max = \"2s\"");
    assert_eq!(
        message,
        "comity.toml: job.concurrency = 0: expected a whole number from 1 to 10000\n\
         comity.toml: default.backoff_max = \"2s\": expected a duration of at least backoff_base, which is 5s"
    );
    let env = [("COMITY_DEFAULT_BACKOFF_MAX", "8s")];
    let message = load(
        "[domains.\"WWW.a.org\"]\nbackoff_base = \"10s\"\nbackoff_max = \"9s\"",
        &env,
        Overrides::default(),
    );
    assert_eq!(
        message.unwrap_err().to_string(),
        "comity.toml: domains.\"WWW.a.org\".backoff_max = \"9s\": expected a duration of at least backoff_base, \
         which is 10s"
    );
    let message = of_env("COMITY_DEFAULT_BACKOFF_BASE", "90s").unwrap_err();
    assert!(message.starts_with("COMITY_DEFAULT_BACKOFF_BASE = \"90s\": expected"), "{message}");
    let message = wrong_file("profile = \"archiver\"\n[domains.\"a.org\"]\nbackoff_base = \"10m\"");
    assert!(
        message.starts_with("merged settings: domains.\"a.org\".backoff_max = \"5m\": expected"),
        "{message}"
    );
}

/// B50, B57
#[test]
fn the_global_interval_can_be_turned_off() {
    for off in ["\"\"", "0", "0.00", "-1", "-0.5", "\"0\""] {
        let config = of_file(&format!("[scrape]\nmin_interval = {off}\nmax_in_flight_per_source = 5"));
        assert_eq!(config.scrape.min_interval, None, "{off}");
        assert_eq!(config.scrape.max_in_flight_per_source, Some(5));
    }
    assert_eq!(of_env("COMITY_SCRAPE_MIN_INTERVAL", "").unwrap().scrape.min_interval, None);
    assert_eq!(of_file("[scrape]\nmin_interval = 2.5").scrape.min_interval, Some(Span::from_millis(2_500)));
    for wrong in ["1.001", "nan", "inf", "1e300", "true", "\"1s\""] {
        assert!(
            wrong_file(&format!("[scrape]\nmin_interval = {wrong}")).contains("decimal seconds"),
            "{wrong}"
        );
    }
    assert_eq!(of_file("[scrape]\nmax_bulk_batch_size = 7").scrape.max_bulk_batch_size, 7);
}

/// B66
#[test]
fn the_user_agent_must_be_a_valid_header_value() {
    assert_eq!(Config::default().user_agent(), "Comity/0.1");
    assert_eq!(
        of_file("[http]\ncontact = \"ops@example.org\"").user_agent(),
        "Comity/0.1 (+ops@example.org)"
    );
    for wrong in ["", " a", "a ", "a\\r\\nX-Evil: 1", "Bücher", "a\\u0000", &"a".repeat(201)] {
        let message = wrong_file(&format!("[http]\nuser_agent = \"{wrong}\""));
        assert!(message.contains("visible ASCII") && message.len() < 300, "{message}");
    }
    for wrong in ["a)b", "a\\nb", "a\\\\b"] {
        assert!(wrong_file(&format!("[http]\ncontact = \"{wrong}\"")).contains("no parentheses"), "{wrong}");
    }
}

/// B75
#[test]
fn no_message_contains_a_secret() {
    for file in [
        "store = \"mysql://user:hunter2@host/db\"",
        "stroe = \"postgres://user:hunter2@host/db\"",
        "store = { url = \"hunter2\" }",
        "password = \"hunter2\"",
        "[auth]\nkey = \"hunter2\"",
        "[http]\ncookie = \"hunter2\"",
        "[http]\nproxies = [\"hunter2\"]",
        "[http]\nallow_private = [\"user:hunter2@host\"]",
        "[default]\ntoken = \"hunter2\"",
        "[default]\nmin_delay = { x = \"hunter2\" }",
        "store = \"postgres://user:hunter2@host/db",
        "store = postgres://user:hunter2@host/db",
    ] {
        let message = wrong_file(file);
        assert!(!message.contains("hunter2"), "{message}");
    }
    let config = of_file("store = \"postgres://user:hunter2@host/db\"");
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.store.as_str().contains("hunter2"));
}

#[test]
fn invalid_toml_is_reported_with_line_and_column() {
    assert_eq!(
        wrong_file("[job]\nconcurrency = = 3\n"),
        "comity.toml: line 2, column 15: extra `=`, expected nothing"
    );
    let message = wrong_file("[job]\nconcurrency = 1\nconcurrency = 2\n");
    assert_eq!(message, "comity.toml: line 3, column 1: duplicate key");
    assert!(wrong_file("# é\né = 1").starts_with("comity.toml: line 2, column 1: "));
    // Other problems are reported too, except those that the unparsed file might have fixed.
    let env = [("COMITY_DEFAULT_BACKOFF_BASE", "90s"), ("COMITY_ROBOTS", "maybe")];
    let message = load("[", &env, Overrides::default()).unwrap_err();
    assert_eq!(message.problems().len(), 2, "{message}");
}

#[test]
fn an_empty_file_sets_nothing() {
    for empty in ["", "\n", "# only a comment", "\u{feff}", "[job]\n[http]\n[domains]\n[default]"] {
        let config = of_file(empty);
        assert_eq!((config.job, config.default), (JobSettings::default(), Fields::default()), "{empty:?}");
    }
}

#[test]
fn a_hostile_file_is_rejected_with_a_short_and_harmless_message() {
    let nested = |open: &str, close: &str| format!("a = {}{}", open.repeat(50_000), close.repeat(50_000));
    for file in [
        nested("[", "]"),
        nested("{ a = ", " }"),
        format!("{}x = 1", "a.".repeat(50_000)),
        format!("[{}a]", "a.".repeat(50_000)),
        format!("store = \"{}\"", "x".repeat(1_000_000)),
        format!("{} = 1", "x".repeat(1_000_000)),
        "[job]\nconcurrency = 99999999999999999999999".to_owned(),
        "[job]\nconcurrency = 9223372036854775807".to_owned(),
        "[job]\nconcurrency = 1e308".to_owned(),
        "[default]\nrequests_per_second = nan".to_owned(),
        "[default]\nmin_delay = \"99999999999999999999h\"".to_owned(),
        "store = \"\\u001b[2J\\u202e\\u0000\\u009b\"".to_owned(),
        "\"\\u001b[2J\\n\\u202e\" = 1".to_owned(),
        "[default]\n\"\\u001b[2J\\n\\u202e\" = 1".to_owned(),
        "[domains.\"\\u001b[2J\\n\"]".to_owned(),
    ] {
        let message = wrong_file(&file);
        assert!(message.len() < 700, "{message}");
        assert!(!message.contains(|c: char| c.is_control() || c == '\u{202e}'), "{message:?}");
    }
    let many: String = (0..5_000).map(|nth| format!("x{nth} = 1\n")).collect();
    let message = wrong_file(&many);
    assert!(message.ends_with("\n… and 4900 more") && message.lines().count() == 101);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let message = read_file(Path::new("no/such/comity.toml")).unwrap_err().to_string();
    assert!(message.starts_with("no/such/comity.toml: cannot be read: "), "{message}");
}

/// The reference is a valid file that sets nothing, and sets the defaults once it is uncommented.
#[test]
fn the_reference_shows_the_defaults() {
    let text = Config::reference();
    assert_eq!(of_file(&text).default, Fields::default());
    let uncomment = |line: &str| {
        let setting = line.strip_prefix("# ").filter(|rest| {
            rest.split_once(" = ").is_some_and(|(key, _)| !key.is_empty() && !key.contains([' ', ':']))
        });
        setting.unwrap_or(line).to_owned()
    };
    let lines: Vec<String> = text.lines().map(uncomment).collect();
    assert_eq!(
        lines.iter().filter(|line| line.contains(" = ") && !line.starts_with('#')).count(),
        KEYS.len()
    );
    let (shown, plain) = (of_file(&lines.join("\n")), Config::default());
    assert_eq!(shown.store, plain.store);
    assert_eq!(
        (shown.profile, shown.robots, shown.log.format),
        (plain.profile, plain.robots, plain.log.format)
    );
    assert_eq!((shown.log.level, plain.log.level), (Some(LogLevel::default()), None));
    assert_eq!((&shown.job, &shown.scrape, &shown.http), (&plain.job, &plain.scrape, &plain.http));
    assert_eq!(rule(&shown, "example.org"), rule(&plain, "example.org"));
    for key in &KEYS {
        assert!(key.meaning.ends_with('.'), "{}", key.path);
    }
}
