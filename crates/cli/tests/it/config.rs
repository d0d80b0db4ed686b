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

/// Each problem is an object with its line, for editors and scripts.
#[test]
fn problems_have_a_line_and_are_objects_in_json() {
    let world = World::new();
    world.write(
        "comity.toml",
        "[http]\ncontact = \"me\"\n\n[domains.example.com]\nmin_delay = 3\n[domains.\"a b\"]\nbrust = 1\n",
    );
    let mut command = world.command(&["--json", "config", "check"]);
    command.env("COMITY_STORE", "mysql://u:secret@h/d");
    let done = world.begin(command).wait().expect(2);
    done.says("error: comity.toml:2: http.contact = \"me\": expected an email address or URL");
    done.says("       comity.toml:4: domains.example.com = {…}: expected quotes around a host: [domains.\"example.com\"]");
    done.says("COMITY_STORE");
    done.says("expected \"sqlite:FILE\", \"postgres://HOST/DATABASE\" or \"memory:\"");
    assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
    let object = done.json();
    assert_eq!(object["code"], 2);
    let problems: Vec<_> = object["problems"].as_array().unwrap().iter().collect();
    let place = |problem: &serde_json::Value| {
        [problem["origin"].clone(), problem["line"].clone(), problem["key"].clone()]
    };
    let places: Vec<_> =
        problems.iter().map(|problem| serde_json::Value::from(place(problem).to_vec())).collect();
    let expected = serde_json::json!([
        ["comity.toml", 2, "http.contact"],
        ["comity.toml", 4, "domains.example.com"],
        ["comity.toml", 5, "domains.example.com.min_delay"],
        ["comity.toml", 6, "domains.\"a b\""],
        ["comity.toml", 7, "domains.\"a b\".brust"],
        ["COMITY_STORE", null, null],
    ]);
    assert_eq!(serde_json::Value::from(places), expected, "{object:#}");
    for problem in problems {
        assert!(done.stderr.contains(problem["message"].as_str().unwrap()), "{problem}");
    }
    assert!(!done.stdout.contains("secret"));
}

/// They may be set where the configuration is used, so the check succeeds; a fetch of that site needs them.
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
    assert!(warnings.len() == 2 && warnings.iter().any(|warning| warning.starts_with(key)), "{warnings:?}");
    world.run(&["fetch", "http://a.example/"]).expect(2).says("the variable NOPE is not set");
    let everywhere = "[default.request]\nheaders = { \"Accept-Language\" = \"${NOPE}\" }\n";
    world.write("comity.toml", everywhere);
    let done = world.run(&["config", "check"]).expect(0);
    done.shows("default.request.headers.accept-language: the variable NOPE is not set; commands that fetch don't start");
    world.run(&["fetch", "http://127.0.0.1:9/"]).expect(2).says("the variable NOPE is not set");
    let mut set = world.command(&["--json", "config", "check"]);
    world.write("token.txt", "secret");
    world.write("comity.toml", &text.replace("/nope", "token.txt"));
    set.env("NOPE", "secret");
    assert_eq!(world.begin(set).wait().expect(0).json()["warnings"], serde_json::json!([]));
}

/// What `config init` writes is where people start: it is accepted as it is, explains itself, and changes nothing.
#[test]
fn config_init_writes_a_commented_file_that_is_accepted() {
    let world = World::new();
    let done = world.run(&["config", "init"]).expect(0);
    done.shows("Wrote comity.toml. Set http.contact in it, then run: comity config check");
    let text = std::fs::read_to_string(world.path("comity.toml")).unwrap();
    let checked = world.run(&["--json", "config", "check"]).expect(0).json();
    assert_eq!((&checked["profile"], &checked["domains"]), (&"standard".into(), &0.into()));
    assert_eq!(checked["warnings"], serde_json::json!([]));
    world.run(&["jobs", "list"]).expect(0);
    // Each setting is explained, on its line or above it.
    let mut explained = false;
    for line in text.lines() {
        match line.trim_start_matches("# ").split_once(" = ").filter(|(key, _)| is_key(key)) {
            Some((_, value)) => {
                assert!(explained || value.contains(" # "), "nothing explains {line:?}:\n{text}");
            }
            None => explained = line.starts_with("# ") || explained && !line.is_empty(),
        }
    }

    // An existing file is kept, unless told otherwise; `--config` names another one.
    world.write("comity.toml", "# mine\n");
    let refused = world.run(&["config", "init"]).expect(2);
    refused.says("comity.toml already exists; use --force to overwrite it");
    let object = world.run(&["--json", "config", "init"]).expect(2).json();
    assert!(object["error"].as_str().unwrap().contains("already exists"), "{object}");
    assert_eq!(std::fs::read_to_string(world.path("comity.toml")).unwrap(), "# mine\n");
    world.run(&["config", "init", "--force"]).expect(0);
    assert_eq!(std::fs::read_to_string(world.path("comity.toml")).unwrap(), text);
    let other = world.run(&["--json", "--config", "other.toml", "config", "init"]).expect(0).json();
    assert_eq!(other["file"], "other.toml");
    assert_eq!(std::fs::read_to_string(world.path("other.toml")).unwrap(), text);
    world.run(&["--config", "no/folder.toml", "config", "init"]).expect(2).says("no/folder.toml");
}

/// Every key in the file exists, and a value that is set is the default: without the `#` the file still is accepted.
#[test]
fn every_key_that_config_init_writes_exists_with_its_default() {
    let world = World::new();
    world.run(&["config", "init"]).expect(0);
    let text = std::fs::read_to_string(world.path("comity.toml")).unwrap();
    let reference = world.run(&["config", "reference"]).expect(0).stdout;
    let defaults = settings(&reference, true);
    assert!(defaults.len() > 40, "{defaults:?}");
    let set = settings(&text, false);
    assert!(set.len() >= 4, "{set:?}");
    for (key, value) in &set {
        assert!(
            defaults.contains(&(key.clone(), value.clone())),
            "{key} = {value} is not the default:\n{reference}"
        );
    }
    // Commented out: examples. They are accepted, and what they name exists.
    let all = settings(&text, true);
    let keys: Vec<&str> = all.iter().map(|(key, _)| key.as_str()).collect();
    for expected in ["domains.\"example.org\".min_delay", "http.contact", "upkeep.keep"] {
        assert!(keys.contains(&expected), "{keys:?}");
    }
    world.write("comity.toml", &uncommented(&text));
    let checked = world.run(&["--json", "config", "check"]).expect(0).json();
    assert_eq!(checked["domains"], 1);
    let warning = "domains.\"example.org\".request.bearer_env: the variable EXAMPLE_TOKEN is not set";
    assert!(checked["warnings"][0].as_str().unwrap().starts_with(warning), "{checked}");
    for (key, value) in &all {
        let wrong =
            uncommented(&text).replace(&format!("{} = {value}", leaf(key)), &format!("{} = []", leaf(key)));
        world.write("comity.toml", &wrong);
        world.run(&["config", "check"]).expect(2).says(leaf(key));
    }
}

/// The settings of a file as (key with its table, value), with those that are commented out if `all`.
fn settings(text: &str, all: bool) -> Vec<(String, String)> {
    let text = if all { uncommented(text) } else { text.to_owned() };
    let mut table = String::new();
    let mut settings = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = format!("{name}.");
        } else if let Some((key, value)) = line.split_once(" = ").filter(|(key, _)| is_key(key)) {
            let value = value.split(" # ").next().unwrap().trim();
            settings.push((format!("{table}{key}"), value.to_owned()));
        }
    }
    settings
}

/// A file without the `# ` in front of its settings and tables.
fn uncommented(text: &str) -> String {
    let line = |line: &str| {
        let rest = line.strip_prefix("# ").or_else(|| line.strip_prefix('#')).unwrap_or(line);
        let is_setting = rest.split_once(" = ").is_some_and(|(key, _)| is_key(key));
        if is_setting || rest.starts_with('[') { rest.to_owned() } else { line.to_owned() }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn leaf(key: &str) -> &str {
    key.rsplit('.').next().unwrap()
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
