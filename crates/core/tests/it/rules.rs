//! Rules: what can be configured, what is refused, and which rule applies to a domain.

use comity_core::domain::{Domain, Pattern};
use comity_core::learn::Learning;
use comity_core::rule::{Fields, Profile, Rule, RuleTable, WaitOn429};
use comity_core::time::Span;
use serde_json::{Value, json};

fn fields(value: Value) -> Fields {
    Fields::read(value.as_object().unwrap()).unwrap_or_else(|problems| panic!("{problems}"))
}

fn problems(value: Value) -> Vec<String> {
    let problems = Fields::read(value.as_object().unwrap()).unwrap_err();
    problems.0.iter().map(ToString::to_string).collect()
}

fn table(profile: &str, default: Value, rows: &[(&str, Value)]) -> RuleTable {
    let rows: Vec<(Pattern, Fields)> =
        rows.iter().map(|(host, row)| (Pattern::parse(host).unwrap(), fields(row.clone()))).collect();
    let profile = Profile::named(profile).unwrap();
    RuleTable::new(&profile, &fields(default), &rows, None).unwrap_or_else(|problems| panic!("{problems}"))
}

fn delay(table: &RuleTable, host: &str) -> u64 {
    table.rule(&Domain::parse(host).unwrap()).min_delay().as_secs_up()
}

fn rows(hosts: &[&'static str]) -> Vec<(&'static str, Value)> {
    let row = |(nth, host): (usize, &&'static str)| (*host, json!({ "min_delay": format!("{}s", nth + 10) }));
    hosts.iter().enumerate().map(row).collect()
}

/// B15: exact hosts win over wildcards, longer wildcards over shorter ones; a wildcard doesn't match its own suffix
#[test]
fn the_most_specific_row_wins() {
    let hosts = ["a.example.org", "*.example.org", "*.deep.example.org", "other.org"];
    let table = table("standard", json!({}), &rows(&hosts));
    assert_eq!(delay(&table, "a.example.org"), 10);
    assert_eq!(delay(&table, "b.example.org"), 11);
    assert_eq!(delay(&table, "x.y.example.org"), 11);
    assert_eq!(delay(&table, "x.deep.example.org"), 12);
    assert_eq!(delay(&table, "deep.example.org"), 11);
    assert_eq!(delay(&table, "example.org"), 1);
    assert_eq!(delay(&table, "notexample.org"), 1);
}

/// B15: case, trailing dot, IDN spelling and www don't matter; other subdomains don't match
#[test]
fn spelling_does_not_matter() {
    let table =
        table("standard", json!({}), &rows(&["Reuters.COM.", "www.münchen.example", "*.Ünder.example"]));
    for host in ["reuters.com", "REUTERS.com", "www.reuters.com", "reuters.com.", "reuters.com:8443"] {
        assert_eq!(delay(&table, host), 10, "{host}");
    }
    assert_eq!(delay(&table, "news.reuters.com"), 1);
    for host in ["xn--mnchen-3ya.example", "München.example", "www.münchen.example"] {
        assert_eq!(delay(&table, host), 11, "{host}");
    }
    assert_eq!(delay(&table, "a.ünder.example"), 12);
    assert_eq!(delay(&table, "www.ünder.example"), 1, "www.X is X, which *.X does not match");
}

/// B15: a key may have a port; without one it matches all ports
#[test]
fn a_row_with_a_port_is_more_specific() {
    let hosts =
        ["example.org", "example.org:8080", "*.example.org", "*.example.org:8080", "[::1]:8080", "127.0.0.1"];
    let table = table("standard", json!({}), &rows(&hosts));
    assert_eq!(delay(&table, "example.org:9090"), 10);
    assert_eq!(delay(&table, "example.org:8080"), 11);
    assert_eq!(delay(&table, "a.example.org"), 12);
    assert_eq!(delay(&table, "a.example.org:8080"), 13);
    assert_eq!(delay(&table, "[::1]:8080"), 14);
    assert_eq!(delay(&table, "[::1]"), 1);
    assert_eq!(delay(&table, "127.0.0.1:7878"), 15);
}

/// B15: per field, a config row wins over the profile's row, that over [default], and that over the profile's default
#[test]
fn fields_are_merged_by_precedence() {
    let row = json!({ "burst": 7, "intent": { "search": { "min_delay": "20s" } } });
    let default = json!({ "min_delay": "9s", "burst_window": "30s", "intent": { "search": { "burst": 1 } } });
    let table = table("collector", default, &[("finance.yahoo.com", row)]);
    let yahoo = table.rule(&Domain::parse("finance.yahoo.com").unwrap());
    assert_eq!(yahoo.burst().unwrap().count, 7, "from the config row");
    assert_eq!(yahoo.min_delay(), Span::from_secs(2), "the profile's row wins over [default]");
    assert_eq!(yahoo.burst().unwrap().window, Span::from_secs(30), "from [default]");
    assert_eq!(yahoo.wait_on_429(), WaitOn429::Fixed(Span::from_secs(60)), "from the profile's default");
    let search = yahoo.intent(comity_core::intent::Intent::Search);
    assert_eq!((search.min_delay, search.burst.unwrap().count), (Span::from_secs(20), 1));
    assert_eq!(delay(&table, "example.org"), 9);
}

/// B16: `--delay` replaces `min_delay` everywhere
#[test]
fn the_delay_flag_replaces_every_min_delay() {
    let profile = Profile::collector();
    let rows = [(Pattern::parse("example.org").unwrap(), fields(json!({ "min_delay": "9s" })))];
    let table = RuleTable::new(&profile, &Fields::default(), &rows, Some(Span::ZERO)).unwrap();
    for host in ["example.org", "reuters.com", "else.org"] {
        assert_eq!(table.rule(&Domain::parse(host).unwrap()).min_delay(), Span::ZERO);
    }
}

/// B15: hosts of a group share a domain, whose pace remembers enough starts for the most demanding rule
#[test]
fn a_group_is_one_domain() {
    use comity_core::intent::Intent;
    use comity_core::pace::Pace;
    use comity_core::time::Timestamp;
    let slow = json!({ "group": "thomson", "min_delay": "3s", "burst": 2, "in_flight": "unlimited" });
    let fast = json!({ "group": "thomson", "min_delay": "0s", "burst": 5, "in_flight": "unlimited" });
    let table = table("standard", json!({}), &[("reuters.com", slow), ("*.reuters.com", fast)]);
    let [slow, fast] = ["reuters.com", "news.reuters.com"].map(|host| Domain::parse(host).unwrap());
    assert_eq!(table.domain(&slow).as_str(), "group:thomson");
    // Regression: a group matches no row, so the rule of `[default]` was shown for it.
    assert_eq!(table.rule_of(&table.domain(&fast)).min_delay(), Span::from_secs(3));
    assert_eq!(table.rule_of(&fast).min_delay(), Span::ZERO);
    assert_eq!(table.domain(&fast), table.domain(&slow));
    let (slow, fast) = (table.rule(&slow), table.rule(&fast));
    let mut pace = Pace::default();
    let mut ask = |rule: &Rule, secs: i64| {
        let now = Timestamp::from_secs(secs);
        let decision = pace.admit(rule.into(), Intent::Fetch, now);
        decision.reason().map_or("proceed".to_owned(), |reason| {
            format!("{} {}s", reason.limit.as_str(), reason.until.since(now).as_secs_up())
        })
    };
    assert_eq!(ask(slow, 0), "proceed");
    assert_eq!(ask(fast, 0), "proceed", "its own minimum delay, counted from the group's starts");
    assert_eq!(ask(slow, 1), "burst 59s", "its own burst, counting the group's starts");
    assert_eq!(ask(fast, 1), "proceed");
    assert_eq!(ask(fast, 1), "proceed");
    assert_eq!(ask(fast, 1), "proceed");
    assert_eq!(ask(fast, 1), "burst 59s");
    assert_eq!(ask(slow, 60), "burst 1s", "the second latest start was at 1");
}

/// B71: all problems at once, each with key, value and what is allowed
#[test]
fn all_problems_are_reported_at_once() {
    let reported = problems(json!({
        "min_delay": "fast", "burst": 0, "backof": "none", "learn": { "step": "0s", "celing": "1s" },
        "intent": { "serch": {}, "api": { "burst": -1 } }, "requests_per_second": -2, "enabled": "maybe",
        "in_flight": 0,
    }));
    assert_eq!(
        reported,
        [
            "backof = \"none\": expected a key that exists; did you mean backoff?",
            "enabled = \"maybe\": expected true or false",
            "intent.api.burst = -1: expected a whole number from 1 to 10000 or \"none\"",
            "intent.serch = {}: expected a key that exists; did you mean search?",
            "learn.celing = \"1s\": expected a key that exists; did you mean ceiling?",
            "min_delay = \"fast\": expected a duration such as \"3s\" or \"250ms\"",
            "learn.step = \"0s\": expected a duration above zero and of at most 365d",
            "burst = 0: expected a whole number from 1 to 10000 or \"none\"",
            "in_flight = 0: expected a whole number from 1 to 10000 or \"unlimited\"",
            "requests_per_second = -2: expected a number of requests per second from 0.0000001 to 1000000 or \"none\"",
        ]
    );
}

/// B28, B71: NaN, negative, infinite and overflowing values are refused
#[test]
fn invalid_values_are_refused() {
    for (key, values) in [
        ("min_delay", vec![json!("-1s"), json!(1), json!("NaN"), json!("9999999h"), json!(null), json!([])]),
        ("requests_per_second", vec![json!(0), json!("NaN"), json!("inf"), json!(1e300), json!(true)]),
        ("burst", vec![json!(1.5), json!("many"), json!(10_001), json!(u64::MAX)]),
        ("burst_window", vec![json!("0s"), json!(0)]),
        ("backoff", vec![json!("quadratic"), json!(5)]),
        ("backoff_base", vec![json!("0s")]),
        ("backoff_max", vec![json!("0s")]),
        ("wait_on_429", vec![json!("forever"), json!("-1s")]),
        ("retry_after_max", vec![json!("0s"), json!("366d")]),
        ("in_flight", vec![json!(0), json!(-1)]),
        ("learning", vec![json!("quadratic"), json!(false)]),
        ("group", vec![json!("a b"), json!(5)]),
        (
            "learn",
            vec![json!(5), json!({ "probe_after": 0 }), json!({ "base": "x" }), json!({ "max_age": "0s" })],
        ),
        ("learn", vec![json!({ "ceiling": "0s" }), json!({ "step": -1 })]),
        ("intent", vec![json!(5), json!({ "search": 5 }), json!({ "search": { "burst": 0 } })]),
        ("intent", vec![json!({ "search": { "min_delay": "x" } }), json!({ "search": { "delay": "1s" } })]),
        ("enabled", vec![json!("yes"), json!(1)]),
    ] {
        for value in values {
            let reported = problems(json!({ key: value.clone() }));
            assert_eq!(reported.len(), 1, "{key} = {value}: {reported:?}");
            assert!(reported[0].starts_with(key) && reported[0].contains(": expected "), "{reported:?}");
        }
    }
}

/// A kind of learning that doesn't exist is a clear error
#[test]
fn an_unknown_learner_is_named_in_the_error() {
    assert_eq!(
        problems(json!({ "learning": "guess" })),
        ["learning = \"guess\": expected \"linear\", \"bracket\" or \"off\""]
    );
}

/// B20: bracket learning waits as long as it learned, unless the configuration says how long to wait
#[test]
fn bracket_learning_brings_its_own_wait_after_a_429() {
    let wait = |user| {
        let table = RuleTable::new(&Profile::standard(), &fields(user), &[], None).unwrap();
        table.rule(&Domain::parse("a.org").unwrap()).wait_on_429()
    };
    assert_eq!(wait(json!({ "learning": "bracket" })), WaitOn429::Learned);
    assert_eq!(wait(json!({ "learning": "bracket", "wait_on_429": "backoff" })), WaitOn429::Backoff);
    assert_eq!(wait(json!({ "learning": "linear" })), WaitOn429::Backoff);
}

/// B20: `wait_on_429` is a duration or one of two words
#[test]
fn an_invalid_wait_on_429_lists_what_is_accepted() {
    assert_eq!(
        problems(json!({ "wait_on_429": "forever" })),
        [
            "wait_on_429 = \"forever\": expected a duration such as \"3s\" or \"250ms\", \"backoff\" or \"learned\""
        ]
    );
}

/// B18: base and maximum can be set, and must not contradict each other, even across layers
#[test]
fn contradicting_settings_are_reported_with_their_table() {
    let rows = [(Pattern::parse("reuters.com").unwrap(), fields(json!({ "backoff_base": "10m" })))];
    let problems =
        RuleTable::new(&Profile::standard(), &Fields::default(), &rows, None).unwrap_err().to_string();
    assert_eq!(
        problems,
        "domains.\"reuters.com\".backoff_base = \"10m\": expected a duration of at most backoff_max, which is 60s"
    );
    let default = fields(json!({ "backoff_base": "10m", "backoff_max": "2m" }));
    let rows = [
        (Pattern::parse("a.org").unwrap(), Fields::default()),
        (Pattern::parse("b.org").unwrap(), Fields::default()),
    ];
    let problems = RuleTable::new(&Profile::collector(), &default, &rows, None).unwrap_err().to_string();
    assert_eq!(
        problems, "default.backoff_max = \"2m\": expected a duration of at least backoff_base, which is 10m",
        "reported once, where it was written"
    );
    let rule = Rule::new(&fields(json!({ "backoff": "linear", "backoff_base": "2s", "backoff_max": "3s" })))
        .unwrap();
    let waits: Vec<u64> = (1..4).map(|n| rule.ladder().wait(n).unwrap().as_secs_up()).collect();
    assert_eq!(waits, [2, 3, 3]);
    // Invalid settings in code, rather than in a file, are refused as well.
    let wrong =
        Fields { requests_per_second: Some(Some(f64::NAN)), burst: Some(Some(0)), ..Fields::default() };
    assert_eq!(Rule::new(&wrong).unwrap_err().0.len(), 2);
}

/// B16: every profile is valid, and can be copied as a configuration file
#[test]
fn profiles_are_valid_and_print_as_configuration() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).unwrap();
        let text = profile.to_toml();
        let config: toml::Table = text.parse().unwrap_or_else(|error| panic!("{text}\n{error}"));
        let config: Value = serde_json::to_value(config).unwrap();
        assert_eq!(config["profile"], name);
        assert_eq!(fields(config["default"].clone()), profile.default, "{text}");
        for (pattern, row) in &profile.rows {
            assert_eq!(fields(config["domains"][pattern.to_string()].clone()), *row);
        }
        RuleTable::new(&profile, &Fields::default(), &[], None).unwrap();
    }
    let error = Profile::named("polite").unwrap_err().to_string();
    assert_eq!(error, "profile = \"polite\": expected standard, collector, crawler or archiver");
}

/// B16, B28: the table of profiles
#[test]
fn profiles_have_the_documented_numbers() {
    let rule = |name: &str| table(name, json!({}), &[]).rule(&Domain::parse("example.org").unwrap()).clone();
    let shown = |name: &str| {
        let rule = rule(name);
        let learning = match rule.learning() {
            Learning::Off => "off".to_owned(),
            Learning::Bracket(l) => format!("bracket {} {}", l.start, l.ceiling),
            Learning::Linear(l) => format!("{} {} {} {}", l.base, l.step, l.ceiling, l.probe_after),
        };
        let in_flight = rule.in_flight().map_or("unlimited".to_owned(), |limit| limit.to_string());
        let longest = rule.ladder().wait(99).map_or("none".to_owned(), |span| span.to_string());
        let burst =
            rule.burst().map_or("none".to_owned(), |burst| format!("{} per {}", burst.count, burst.window));
        let (delay, wait, max) = (rule.min_delay(), rule.wait_on_429(), rule.retry_after_max());
        format!("{delay} | {burst} | {longest} | {wait} | {learning} | {in_flight} | {max}")
    };
    assert_eq!(shown("standard"), "1s | none | 60s | backoff | 1s 1s 60s 20 | 1 | 24h");
    assert_eq!(shown("collector"), "1s | 5 per 60s | 30s | 60s | off | unlimited | 24h");
    assert_eq!(shown("crawler"), "500ms | none | 60s | learned | 500ms 1s 60s 20 | unlimited | 24h");
    assert_eq!(shown("archiver"), "1s | none | 300s | backoff | off | 1 | 24h".replace("300s", "5m"));
    let standard = RuleTable::default();
    assert_eq!(**standard.rule(&Domain::parse("example.org").unwrap()), Rule::default());
    assert_eq!(comity_core::retry::RETRIES_MAX, 3);
    assert_eq!((comity_core::guard::CONCURRENCY, comity_core::guard::FAILURE_THRESHOLD), (16, 20));
    assert_eq!(comity_core::guard::CANCEL_DELAY, Span::from_secs(60));
}

/// Every setting can be written as TOML and read back
#[test]
fn settings_round_trip_through_toml() {
    let all = fields(json!({
        "enabled": false, "min_delay": "1.5s", "requests_per_second": 0.25, "burst": "none", "burst_window": "90s",
        "backoff": "linear", "backoff_base": "1s", "backoff_max": "2m", "wait_on_429": "3s", "retry_after_max": "2h",
        "in_flight": "unlimited", "learning": "linear",
        "learn": { "base": "1s", "step": "250ms", "ceiling": "30s", "probe_after": 5, "max_age": "3d" },
        "group": "thomson", "intent": { "api": { "min_delay": "1us", "burst": 9 }, "search": { "burst": "none" } },
    }));
    let text = all.to_toml();
    let config: toml::Table = text.parse().unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(fields(serde_json::to_value(config).unwrap()), all, "{text}");
    let ungrouped =
        fields(json!({ "group": "none", "requests_per_second": "none", "burst": "12", "enabled": "true" }));
    let config: toml::Table = ungrouped.to_toml().parse().unwrap();
    assert_eq!(fields(serde_json::to_value(config).unwrap()), ungrouped);
}
