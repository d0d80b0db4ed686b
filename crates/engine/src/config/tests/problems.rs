//! What is rejected, with which message and position.

use std::path::Path;

use super::*;

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
        learning: text("guess"),
        ..Overrides::default()
    };
    let error = load(file, &env, overrides).unwrap_err();
    let mut problems: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
    problems.sort();
    let expected = r#"
--concurrency = "x": expected a whole number from 1 to 10000
--delay = "-1s": expected a duration such as "3s" or "250ms"
--learning = "guess": expected "linear", "bracket" or "off"
COMITY_DEFAULT_LEARN_STEP = "x": expected a duration such as "3s" or "250ms"
COMITY_DOMAINS: domains."b.org".burst = "many": expected a whole number from 1 to 10000 or "none"
COMITY_JOB_CONCURENCY: expected a variable that exists; did you mean COMITY_JOB_CONCURRENCY?
COMITY_JOB_CONCURRENCY = "x": expected a whole number from 1 to 10000
COMITY_STORE = "postgre://user:***@host/db": expected STORE
comity.toml:10: domains."eia.gov".learn.stepp = "1s": expected a key that exists; did you mean step?
comity.toml:11: domains."a b" = {…}: expected a host such as "reuters.com" or a wildcard such as "*.example.org"
comity.toml:14: domains."Example.org".burst = 0: expected a whole number from 1 to 10000 or "none"
comity.toml:15: domains."www.example.org" = 3: expected a table
comity.toml:15: domains."www.example.org" = 3: expected one table per site; "Example.org" is the same site
comity.toml:17: http.allow_private = […]: expected hosts, addresses and networks such as ["intranet.example", "10.0.0.0/8"]; "10.0.0.1/8" is none of them
comity.toml:18: http.body_max = "64 parsecs": expected a size from "1B" to "1TiB", or a number of bytes
comity.toml:19: http.contact = "Jürgen": expected an email address or URL such as "ops@example.org" or "https://example.org/bot", of at most 200 visible ASCII characters and no parentheses or backslashes
comity.toml:20: http.total_timeout = 0: expected a duration above zero and of at most 24h
comity.toml:21: http.user_agnet = "x": expected a key that exists; did you mean user_agent?
comity.toml:23: job.concurrency = 0: expected a whole number from 1 to 10000
comity.toml:25: scrape.min_interval = "soon": expected decimal seconds with at most two places and eight digits before the point, such as 2.5, or "" for none
comity.toml:2: stroe = "memory:": expected a key that exists; did you mean store?
comity.toml:3: profile = "polite": expected one of "standard", "collector", "crawler", "archiver"
comity.toml:4: robots = true: expected one of "obey", "ignore"
comity.toml:6: default.min_delay = "fast": expected a duration such as "3s" or "250ms"
comity.toml:8: domains."reuters.com".min_delay = "fast": expected a duration such as "3s" or "250ms""#;
    // A build with PostgreSQL has one kind of store more.
    let store = match cfg!(feature = "postgres") {
        true => r#""sqlite:FILE", "postgres://HOST/DATABASE" or "memory:""#,
        false => r#""sqlite:FILE" or "memory:""#,
    };
    assert_eq!(
        format!("\n{}", problems.join("\n")),
        expected.replace("expected STORE", &format!("expected {store}"))
    );
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
        "comity.toml:2: job.zzz = 1: expected one of concurrency, max_retries, failure_threshold, cancel_streak, \
         cancel_delay"
    );
    let message = of_env("COMITY_ZZZ_QQQ", "hunter2").unwrap_err();
    assert!(
        message.starts_with("COMITY_ZZZ_QQQ: expected a variable that exists")
            && !message.contains("hunter2")
    );
}

/// Settings that are only invalid in combination are reported where one of them was written.
#[test]
fn conflicting_settings_are_reported_where_they_were_written() {
    let message = wrong_file("[job]\nconcurrency = 0\n[default]\nbackoff_max = \"2s\"");
    assert_eq!(
        message,
        "comity.toml:2: job.concurrency = 0: expected a whole number from 1 to 10000\n\
         comity.toml:4: default.backoff_max = \"2s\": expected a duration of at least backoff_base, which is 5s"
    );
    let env = [("COMITY_DEFAULT_BACKOFF_MAX", "8s")];
    let message = load(
        "[domains.\"WWW.a.org\"]\nbackoff_base = \"10s\"\nbackoff_max = \"9s\"",
        &env,
        Overrides::default(),
    );
    assert_eq!(
        message.unwrap_err().to_string(),
        "comity.toml:3: domains.\"WWW.a.org\".backoff_max = \"9s\": expected a duration of at least backoff_base, \
         which is 10s"
    );
    let message = of_env("COMITY_DEFAULT_BACKOFF_BASE", "90s").unwrap_err();
    assert!(message.starts_with("COMITY_DEFAULT_BACKOFF_BASE = \"90s\": expected"), "{message}");
    let message = wrong_file("profile = \"archiver\"\n[domains.\"a.org\"]\nbackoff_base = \"10m\"");
    assert!(
        message.starts_with("comity.toml:3: domains.\"a.org\".backoff_max = \"5m\": expected"),
        "{message}"
    );
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
    let config =
        Config { store: StoreUrl::parse("postgres://user:hunter2@host/db").unwrap(), ..Config::default() };
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn invalid_toml_is_reported_with_line_and_column() {
    assert_eq!(wrong_file("[job]\nconcurrency = = 3\n"), "comity.toml:2:15: extra `=`, expected nothing");
    let message = wrong_file("[job]\nconcurrency = 1\nconcurrency = 2\n");
    assert_eq!(message, "comity.toml:3:1: duplicate key; it is on line 2 already");
    let message = wrong_file("[default] # mine\nmin_delay = \"1s\"\n\n[default]\nburst = 1\n");
    assert_eq!(message, "comity.toml:4:2: duplicate key; it is on line 1 already");
    assert!(wrong_file("# é\né = 1").starts_with("comity.toml:2:1: "));
    // Other problems are reported too, except those that the unparsed file might have fixed.
    let env = [("COMITY_DEFAULT_BACKOFF_BASE", "90s"), ("COMITY_ROBOTS", "maybe")];
    let message = load("[", &env, Overrides::default()).unwrap_err();
    assert_eq!(message.problems().len(), 2, "{message}");
}

/// B71: TOML reads the dots of a host without quotes as nested tables.
#[test]
fn a_host_without_quotes_gets_a_hint() {
    let hint = |line, path: &str, host: &str| {
        format!(
            "comity.toml:{line}: domains.{path} = {{…}}: expected quotes around a host: [domains.\"{host}\"]"
        )
    };
    for (host, settings) in [
        ("example.com", "min_delay = \"2s\""),
        ("example.org", ""),
        ("www.example.co.uk", "burst = 3"),
        ("en.wikipedia.org", "[domains.en.wikipedia.org.learn]\nstep = \"2s\""),
        ("example.net", "[domains.example.net.request]\nproxy = \"none\""),
        ("127.0.0.1", "min_delay = \"0s\""),
    ] {
        let message = wrong_file(&format!("# a comment\n[domains.{host}]\n{settings}"));
        assert_eq!(message, hint(2, host, host));
    }
    assert_eq!(wrong_file("domains.example.de.burst = 2"), hint(1, "example.de", "example.de"));
    // Every host is reported, and what is below it, too.
    let message = wrong_file(
        "[domains.example.com]\nburst = 0\n[domains.example.org.request]\nbearer_env = 3\n[domains.localhost]\nburst = 0",
    );
    let expected = [
        hint(1, "example.com", "example.com"),
        "comity.toml:2: domains.example.com.burst = 0: expected a whole number from 1 to 10000 or \"none\"".to_owned(),
        hint(3, "example.org", "example.org"),
        "comity.toml:4: domains.example.org.request.bearer_env = \"***\": expected the name of a variable such as \
         \"API_TOKEN\", not the secret itself"
            .to_owned(),
        "comity.toml:6: domains.\"localhost\".burst = 0: expected a whole number from 1 to 10000 or \"none\"".to_owned(),
    ];
    assert_eq!(message, expected.join("\n"));
    let message = of_env("COMITY_DOMAINS", "{ example.com = { burst = 2 } }").unwrap_err();
    assert!(message.ends_with("expected quotes around a host: [domains.\"example.com\"]"), "{message}");
    // These aren't even TOML.
    for host in ["*.example.org", "example.org:8080"] {
        let message = wrong_file(&format!("[domains.{host}]\nburst = 2"));
        assert!(message.starts_with("comity.toml:1:"), "{message}");
        assert!(message.ends_with(&format!("; a host needs quotes: [domains.\"{host}\"]")), "{message}");
    }
    let message = wrong_file("[domains.localhost.lern]\nstep = \"1s\"");
    assert!(message.ends_with("did you mean learn?"), "{message}");
}

/// B71
#[test]
fn settings_below_an_invalid_host_are_checked_too() {
    let message = wrong_file("[domains.\"a b\"]\nbrust = 1\n[domains.\"a b\".request]\nproxy = 3");
    let lines: Vec<&str> = message.lines().collect();
    let [host, key, request] = &lines[..] else { panic!("{message}") };
    assert!(host.starts_with("comity.toml:1: domains.\"a b\" = {…}: expected a host"), "{host}");
    assert!(key.starts_with("comity.toml:2: domains.\"a b\".brust = 1: expected"), "{key}");
    assert!(request.starts_with("comity.toml:4: domains.\"a b\".request.proxy = "), "{request}");
}

/// Operators of a site have to be able to reach somebody.
#[test]
fn a_contact_is_an_email_address_or_a_url() {
    for contact in [
        "ops@example.org",
        "mailto:me@localhost",
        "https://example.org/bot",
        "Jane, <jane@x.org>",
        "http://[::1]/ x",
    ] {
        assert_eq!(of_file(&format!("[http]\ncontact = {contact:?}")).http.contact.as_deref(), Some(contact));
    }
    assert_eq!(of_file("[http]\ncontact = \"\"").http.contact, None);
    for wrong in ["me", "@me", "me@", "example.org", "https://", "ftp://example.org/", "call me", " "] {
        let message = wrong_file(&format!("[http]\ncontact = {wrong:?}"));
        assert!(message.contains("expected an email address or URL"), "{wrong}: {message}");
    }
}

/// A build without PostgreSQL says so.
#[cfg(not(feature = "postgres"))]
#[test]
fn a_store_that_this_build_cannot_open_is_unsupported() {
    for message in [
        wrong_file("store = \"postgres://user:hunter2@h/d\""),
        of_env("COMITY_STORE", "postgresql://h/d").unwrap_err(),
    ] {
        assert!(!message.contains("hunter2"), "{message}");
        let expected =
            "expected \"sqlite:FILE\" or \"memory:\"; this build does not support that kind of store";
        assert!(message.ends_with(expected), "{message}");
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
