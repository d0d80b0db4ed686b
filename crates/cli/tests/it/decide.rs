//! `check`, `record`, `explain`.

use serde_json::Value;

use crate::comity::{Running, World};
use crate::log::wait_until;
use crate::service::Service;

/// B1, B3
#[test]
fn check_reserves_the_slot_and_the_next_one_has_to_wait() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"10m\"\nin_flight = \"unlimited\"\n");
    let peeked = world.run(&["--json", "check", "https://example.org/a", "--peek"]).expect(0).json();
    assert_eq!(peeked["proceed"], true, "{peeked}");
    let first = world.run(&["--json", "check", "https://example.org/a"]).expect(0).json();
    assert_eq!((&first["proceed"], &first["wait_ms"]), (&Value::from(true), &Value::from(0)), "{first}");
    assert!(first["permit"].is_string(), "{first}");
    let second = world.run(&["--json", "check", "https://www.example.org/b"]).expect(1).json();
    assert_eq!((&second["proceed"], &second["permit"]), (&Value::from(false), &Value::Null), "{second}");
    let wait = second["wait_ms"].as_u64().unwrap();
    assert!((300_000..=600_000).contains(&wait), "{second}");
    assert!(second["reason"].as_str().unwrap().contains("minimum delay"), "{second}");
    world.run(&["check", "example.org"]).expect(1).shows("wait ");
    world.run(&["check", "other.example"]).expect(0).shows("proceed");
    world.run(&["check", "not a host"]).expect(2);
}

/// It used to say only that a connection was refused.
#[test]
fn a_service_that_is_not_running_is_named_with_its_origin() {
    let world = World::new();
    let server = "http://127.0.0.1:9";
    for args in
        [&["check", "example.org"][..], &["record", "example.org", "success"], &["explain", "example.org"]]
    {
        let mut by_variable = world.command(args);
        by_variable.env("COMITY_SERVER", server);
        let error = |origin: &str| {
            format!(
                "error: could not reach the decision service at {server}/ ({origin}): connection refused by 127.0.0.1:9"
            )
        };
        world.begin(by_variable).wait().expect(3).says(&error("COMITY_SERVER"));
        world.run(&[args, &["--server", server]].concat()).expect(3).says(&error("--server"));
    }
    let mut by_variable = world.command(&["check", "example.org"]);
    by_variable.env("COMITY_SERVER", "nonsense");
    world.begin(by_variable).wait().expect(2).says("COMITY_SERVER = \"nonsense\": expected a URL");
}

/// B3
#[test]
fn of_ten_checks_at_once_one_proceeds() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"10m\"\nin_flight = \"unlimited\"\n");
    let running: Vec<Running> = (0..10).map(|_| world.start(&["--json", "check", "example.org"])).collect();
    let codes: Vec<Option<i32>> = running.into_iter().map(|running| running.wait().code).collect();
    let count = |code| codes.iter().filter(|found| **found == Some(code)).count();
    assert_eq!((count(0), count(1)), (1, 9), "{codes:?}");
}

/// B20, B37: the server's Retry-After is stored.
#[test]
fn a_recorded_retry_after_holds_for_all_processes() {
    let world = World::new();
    world.run(&["check", "example.org"]).expect(0);
    let object =
        world.run(&["--json", "record", "example.org", "429", "--retry-after", "1200"]).expect(0).json();
    assert_eq!(object["outcome"], "rate_limited", "{object}");
    assert!(object["held_until"].is_string(), "{object}");
    let waits = world.run(&["--json", "check", "example.org"]).expect(1).json();
    let wait = waits["wait_ms"].as_u64().unwrap();
    assert!((900_000..=1_200_000).contains(&wait), "{waits}");
    let sql = "SELECT server_until_us IS NOT NULL FROM domains WHERE domain = 'example.org'";
    assert!(world.sql().query_row(sql, [], |row| row.get::<_, bool>(0)).unwrap());
    // A shorter Retry-After doesn't shorten it (B22), and a success doesn't end it.
    world.run(&["record", "example.org", "rate_limited", "--retry-after", "1"]).expect(0);
    // It starts like a permit, but it is a host.
    world.run(&["record", "p1.example.org", "429"]).expect(0);
    world.run(&["record", "example.org", "success"]).expect(0);
    let waits = world.run(&["--json", "check", "example.org"]).expect(1).json();
    assert!(waits["wait_ms"].as_u64().unwrap() >= 800_000, "{waits}");
    world.run(&["record", "example.org", "nonsense"]).expect(2).says("nonsense");
    world.run(&["record", "example.org", "1000"]).expect(2).says("1000");
}

/// B80. Two checks in a row used to freeze a site for ten minutes, with no way out.
#[test]
fn an_unrecorded_permit_has_a_lease_and_can_be_released() {
    let world = World::new();
    world.run(&["domains", "release", "example.org"]).expect(2).says("nothing is known");
    world.run(&["check", "example.org"]).expect(0);
    let waits = world.run(&["--json", "check", "example.org"]).expect(1).json();
    assert_eq!(waits["limit"], "lease", "{waits}");
    assert!((1..=60_000).contains(&waits["wait_ms"].as_u64().unwrap()), "{waits}");
    let checked = world.run(&["check", "example.org"]).expect(1);
    checked.shows("ago has not been recorded; its lease ends in ");
    checked
        .says("comity record example.org STATUS, or without an outcome: comity domains release example.org");
    let explained = world.run(&["explain", "example.org"]).expect(0);
    explained.shows("has not been recorded; its lease ends in ");
    explained
        .shows("comity record example.org STATUS, or without an outcome: comity domains release example.org");
    world.run(&["domains", "release", "example.org"]).expect(0).shows("example.org: 1 permit released");
    let granted = world.run(&["--json", "check", "--wait", "--lease", "10m", "example.org"]).expect(0).json();
    assert_eq!(granted["lease_ms"], 600_000, "{granted}");
    let waits = world.run(&["--json", "check", "example.org"]).expect(1).json();
    assert!((300_000..=600_000).contains(&waits["wait_ms"].as_u64().unwrap()), "{waits}");
    world.run(&["record", granted["permit"].as_str().unwrap(), "abandoned"]).expect(0);
    let released = world.run(&["--json", "domains", "release", "example.org"]).expect(0).json();
    assert_eq!(released["released"], 0, "{released}");
    world.run(&["check", "--wait", "example.org"]).expect(0);
    let expected = "--lease = \"11m\": expected a duration such as \"2m\", at most 10m";
    world.run(&["check", "example.org", "--lease", "11m"]).expect(2).says(expected);
}

/// B2
#[test]
fn explain_lists_every_constraint() {
    let world = World::new();
    world.run(&["check", "example.org"]).expect(0);
    world.run(&["record", "example.org", "rate_limited", "--retry-after", "1200"]).expect(0);
    let explained = world.run(&["--json", "explain", "https://example.org/x"]).expect(0).json();
    assert_eq!(explained["domain"], "example.org");
    assert!((900_000..=1_200_000).contains(&explained["wait_ms"].as_u64().unwrap()), "{explained}");
    let constraints = explained["constraints"].as_array().unwrap();
    for origin in ["server", "rule", "learned"] {
        let found = constraints.iter().find(|constraint| constraint["origin"] == origin);
        let text = found.unwrap_or_else(|| panic!("{origin}: {explained}"))["text"].as_str().unwrap();
        assert!(text.contains(|c: char| c.is_ascii_digit()), "no number: {text}");
    }
    assert_eq!(constraints[0]["origin"], "server", "{explained}");
    let shown = world.run(&["explain", "example.org"]).expect(0);
    for word in ["server", "rule", "learned", "waits"] {
        shown.shows(word);
    }
    // Explaining reserves nothing.
    world.run(&["explain", "other.example"]).expect(0);
    world.run(&["check", "other.example"]).expect(0);
}

/// B26
#[test]
fn intents_are_given_by_name() {
    let world = World::new();
    world.write(
        "comity.toml",
        "[default]\nmin_delay = \"0s\"\n[default.intent.search]\nmin_delay = \"60s\"\n",
    );
    world.run(&["check", "example.org", "--intent", "search"]).expect(0);
    world.run(&["check", "example.org", "--intent", "search"]).expect(1);
    world.run(&["check", "example.org", "--intent", "dance"]).expect(2).says("dance");
}

/// B11, B12: a check that waits in line gets the slot when it is free, on the store and through a service.
#[test]
fn a_check_can_wait_in_line() {
    for there in [false, true] {
        let world = World::new();
        world.write("comity.toml", "[default]\nmin_delay = \"5s\"\nin_flight = \"unlimited\"\n");
        let service = there.then(|| Service::start(&world));
        let url = service.as_ref().map(Service::url);
        let at: Vec<&str> = url.iter().flat_map(|url| ["--server", url]).collect();
        let check = |more: &[&str]| world.start(&[&["--json", "check", "example.org"], more, &at].concat());
        check(&[]).wait().expect(0);
        let waited = check(&["--wait"]).wait().expect(0).json();
        let ms = waited["waited_ms"].as_u64().unwrap();
        // The remaining wait depends on how long two processes take to start.
        assert!(ms > 0 && waited["permit"].is_string(), "there: {there}, {waited}");
        assert!(!check(&[]).wait().expect(1).json()["reason"].as_str().unwrap().is_empty());
        // A check doesn't wait for a paused domain.
        world.run(&["domains", "set", "closed.example", "--pause", "forever"]).expect(0);
        let closed = [&["check", "--wait", "closed.example"], &at[..]].concat();
        world.run(&closed).expect(1).shows("refused: ");
    }
}

/// B11: Ctrl-C ends a wait and frees the slot.
#[test]
fn ctrl_c_ends_a_wait_in_line() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"1h\"\nin_flight = \"unlimited\"\n");
    world.run(&["check", "example.org"]).expect(0);
    let mut waiting = world.start(&["--log-level", "debug", "check", "--wait", "example.org"]);
    wait_until("it waits", || waiting.said().contains("waiting") || waiting.is_over());
    waiting.signal("INT");
    assert_eq!(waiting.wait().code, Some(130));
    let after = world.run(&["--json", "check", "example.org", "--peek"]).expect(1).json();
    assert_eq!(after["limit"], "min_delay", "{after}");
}

/// An outcome must not be lost because a permit was not passed as it was printed.
#[test]
fn a_damaged_permit_is_not_taken_for_a_site() {
    let world = World::new();
    let permit = world.run(&["--json", "check", "example.org"]).expect(0).json();
    let permit = permit["permit"].as_str().unwrap();
    for damaged in [&permit[..20], "p1.AAAA", &format!("\"{permit}\""), &format!("'{permit}'")] {
        world.run(&["record", damaged, "429"]).expect(2).says("expected all of a permit, without quotes");
    }
    let known = world.run(&["--json", "domains", "list"]).expect(0).objects();
    assert!(!format!("{known:?}").contains("p1."), "{known:?}");
    world.run(&["record", permit, "429"]).expect(0).shows("rate_limited recorded");
    world.run(&["record", "p1.lan", "200"]).expect(0).shows("p1.lan: success recorded");
}

#[test]
fn abandoned_gives_a_permit_back_and_000_is_a_network_error() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"0s\"\nin_flight = 1\n");
    let permit = world.run(&["--json", "check", "example.org"]).expect(0).json();
    world.run(&["check", "example.org"]).expect(1).shows("wait ");
    let permit = permit["permit"].as_str().unwrap();
    for standing in ["fresh", "repeated"] {
        let object = world.run(&["--json", "record", permit, "abandoned"]).expect(0).json();
        assert_eq!(
            (&object["outcome"], &object["standing"]),
            (&"abandoned".into(), &standing.into()),
            "{object}"
        );
    }
    world.run(&["check", "example.org"]).expect(0);
    world.run(&["record", "example.org", "abandoned"]).expect(2).says("expected a permit");
    // curl prints 000 if there was no response.
    let object = world.run(&["--json", "record", "example.org", "000"]).expect(0).json();
    assert_eq!(object["outcome"], "network_error", "{object}");
}
