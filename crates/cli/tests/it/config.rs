//! Configuration, profiles, and secrets that must not leak.

use crate::comity::World;
use crate::site::{Answer, Site};

/// B71
#[test]
fn all_configuration_errors_are_reported_at_once() {
    let world = World::new();
    let text = "profile = \"fancy\"\n[default]\nmin_delay = \"fast\"\nbrust = 3\n[job]\nconcurency = 4\n";
    world.write("comity.toml", text);
    for args in [&["config", "check"][..], &["fetch", "http://127.0.0.1:9/"], &["jobs", "list"]] {
        let done = world.run(args).expect(2);
        for word in ["fancy", "fast", "brust", "burst", "concurency", "concurrency", "comity.toml"] {
            done.says(word);
        }
    }
    assert!(!world.store().exists(), "an invalid configuration creates no store");
    world.write("broken.toml", "[default\nmin_delay = 3");
    world.run(&["config", "check", "--config", "broken.toml"]).expect(2).says("broken.toml");
    world.run(&["config", "check", "--config", "missing.toml"]).expect(2).says("missing.toml");
    let mut odd = world.command(&["config", "check", "--config", "fine.toml"]);
    world.write("fine.toml", "");
    odd.env("COMITY_JOB_CONCURENCY", "3");
    world.begin(odd).wait().expect(2).says("COMITY_JOB_CONCURRENCY");
}

/// They may be set where the configuration is used, so the check succeeds; a fetch needs them.
#[test]
fn the_check_reports_missing_variables_and_files() {
    let world = World::new();
    let text =
        "[domains.\"a.example\".request]\nbearer_env = \"NOPE\"\nheaders = { \"X-A\" = \"${file:/nope}\" }\n";
    world.write("comity.toml", text);
    let done = world.run(&["config", "check"]).expect(0);
    done.shows("The configuration is valid");
    let (key, file) =
        ("domains.\"a.example\".request.bearer_env: the variable NOPE is not set", "the file /nope");
    done.shows(&format!("Warning: {key}"));
    done.shows(file);
    let warnings = world.run(&["--json", "config", "check"]).expect(0).json()["warnings"].clone();
    let warnings: Vec<&str> =
        warnings.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(warnings.len() == 2 && warnings.contains(&key), "{warnings:?}");
    world.run(&["fetch", "http://127.0.0.1:9/"]).expect(2).says("the variable NOPE is not set");
    let mut set = world.command(&["--json", "config", "check"]);
    world.write("token.txt", "secret");
    world.write("comity.toml", &text.replace("/nope", "token.txt"));
    set.env("NOPE", "secret");
    assert_eq!(world.begin(set).wait().expect(0).json()["warnings"], serde_json::json!([]));
}

/// B71
#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let world = World::new();
    let profile = |variable: bool, flag: bool| {
        let mut args = vec!["--json", "config", "check"];
        if flag {
            args.extend(["--profile", "archiver"]);
        }
        let mut command = world.command(&args);
        if variable {
            command.env("COMITY_PROFILE", "collector");
        }
        world.begin(command).wait().expect(0).json()["profile"].as_str().unwrap().to_owned()
    };
    assert_eq!(profile(false, false), "standard");
    world.write("comity.toml", "profile = \"crawler\"\n");
    assert_eq!(profile(false, false), "crawler");
    assert_eq!(profile(true, false), "collector");
    assert_eq!(profile(true, true), "archiver");
}

/// B16
#[test]
fn profiles_are_configuration_to_copy() {
    let world = World::new();
    let names = world.run(&["--json", "profiles"]).expect(0).json();
    for name in names["profiles"].as_array().unwrap() {
        let printed = world.run(&["profiles", name.as_str().unwrap()]).expect(0);
        world.write("comity.toml", &printed.stdout);
        world.run(&["config", "check"]).expect(0).shows("The configuration is valid");
    }
    world.run(&["profiles", "fancy"]).expect(2).says("fancy");
    world.run(&["config", "reference"]).expect(0).shows("min_delay");
}

/// B75
#[test]
fn secrets_do_not_reach_the_log() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before % 3 {
        0 => Answer::status(302).header("Location", "/elsewhere?token=topsecret"),
        1 => Answer::status(503).header("Retry-After", "1"),
        _ => Answer::status(404),
    });
    let url = format!("http://ada:sesame@{}/a?token=topsecret", site.authority());
    let bad = "htp://ada:sesame@127.0.0.1/?token=topsecret";
    let input = world.write("list", &format!("{url}\n{bad}\nhttp://ada:sesame@/?token=topsecret\n"));
    for format in ["text", "json"] {
        let done = world.run(&[
            "--log-level",
            "trace",
            "--log-format",
            format,
            "fetch",
            "--input",
            input.to_str().unwrap(),
            "--job",
            format,
            "--delay",
            "20ms",
            "--robots",
            "ignore",
            "--out",
            "pages",
        ]);
        assert!(done.stderr.len() > 200, "no log: {}", done.stderr);
        for secret in ["sesame", "topsecret"] {
            assert!(!done.stderr.contains(secret), "{secret} in the log:\n{}", done.stderr);
            assert!(!done.stdout.contains(secret), "{secret} on stdout:\n{}", done.stdout);
        }
    }
}

/// B72
#[test]
fn logs_go_to_stderr_and_results_to_stdout() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let url = format!("{}/a", site.url());
    let base = ["fetch", &url, "--robots", "ignore", "--format", "none"];
    let json = world.run(&[&["--json", "--log-format", "json"][..], &base].concat()).expect(0);
    assert_eq!(json.stdout.lines().count(), 1, "{}", json.stdout);
    let logged = json.stderr.lines().filter(|line| line.starts_with('{'));
    assert!(logged.clone().count() >= 2, "{}", json.stderr);
    for line in logged {
        let _: serde_json::Value = serde_json::from_str(line).unwrap();
    }
    let quiet = world.run(&[&["--quiet"][..], &base].concat()).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
