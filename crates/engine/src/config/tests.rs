//! The layers together: which setting wins. `problems`: what is rejected, and with which message.

use std::collections::BTreeSet;
use std::net::IpAddr;

use comity_core::domain::Domain;
use comity_core::learn::Learning;
use comity_core::rule::{Fields, Rule};

use super::*;

mod origins;
mod problems;

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
        store: text("sqlite:other.db"),
        profile: text("archiver"),
        delay: text("7s"),
        learning: text("off"),
        robots: text("ignore"),
        concurrency: text("1"),
        max_retries: text("0"),
        user_agent: text("Mine/2"),
        contact: text("me@example.org"),
        listen: text("[::1]:1234"),
        proxy_listen: text("[::1]:1235"),
        proxy_https: text("decrypt"),
        proxy_wait_max: text("9s"),
        log_level: text("trace"),
        log_format: text("json"),
    };
    let config = load("[domains.\"a.org\"]\nmin_delay = \"1s\"", &[], overrides).unwrap();
    assert_eq!((config.store.as_str(), config.profile), ("sqlite:other.db", "archiver"));
    assert_eq!((config.job.concurrency, config.job.max_retries), (1, 0));
    assert_eq!(config.user_agent(), "Mine/2 (+me@example.org)");
    assert_eq!(config.log, LogSettings { level: Some(LogLevel::Trace), format: LogFormat::Json });
    assert_eq!(config.robots, RobotsPolicy::Ignore);
    assert_eq!(config.serve.listen.to_string(), "[::1]:1234");
    assert_eq!(config.proxy.listen.to_string(), "[::1]:1235");
    assert_eq!((config.proxy.https, config.proxy.wait_max), (HttpsMode::Decrypt, Span::from_secs(9)));
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

#[test]
fn an_empty_file_sets_nothing() {
    for empty in ["", "\n", "# only a comment", "\u{feff}", "[job]\n[http]\n[domains]\n[default]"] {
        let config = of_file(empty);
        assert_eq!((config.job, config.default), (JobSettings::default(), Fields::default()), "{empty:?}");
    }
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
