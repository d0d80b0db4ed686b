//! `comity serve` as an operator runs it, and commands with `--server`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::comity::World;
use crate::log::wait_until;
use crate::service::{Service, ask, post};

const SLOW: &str = "[default]\nmin_delay = \"60s\"\nin_flight = \"unlimited\"\n";

#[test]
fn it_prints_its_address_and_stops_on_a_signal() {
    for name in ["TERM", "INT"] {
        let world = World::new();
        let running = world.start(&["serve", "--listen", "127.0.0.1:0"]);
        wait_until("it is listening", || running.said().contains("Listening on http://127.0.0.1:"));
        running.signal(name);
        let done = running.wait().expect(0);
        done.says("open to everyone on this machine");
        done.says("Dashboard: http://127.0.0.1:");
        done.says("stopping");
        assert_eq!(done.stdout, "");
    }
}

/// B11: waiting callers are answered at once when the service stops.
#[test]
fn waiting_callers_are_answered_when_it_stops() {
    let world = World::new();
    world.write("comity.toml", SLOW);
    let service = Service::start(&world);
    assert_eq!(service.post("/v1/check", &json!({"domain": "a.example"}))["proceed"], true);
    let address = service.address;
    let body = json!({"domain": "a.example", "max_wait_ms": 60_000});
    let waiting: Vec<_> = (0..5)
        .map(|_| body.clone())
        .map(|body| std::thread::spawn(move || post(address, "/v1/acquire", &body).expect(200)))
        .collect();
    wait_until("five wait", || service.get("/v1/domains/a.example")["live"]["waiting"] == 5);
    service.stop().expect(0);
    for waiter in waiting {
        let reply = waiter.join().unwrap();
        assert_eq!((&reply["proceed"], &reply["limit"]), (&json!(false), &json!("stopping")), "{reply}");
        assert_eq!(reply["permit"], Value::Null, "{reply}");
    }
    // Everything was released: another service continues, and the slot stays charged.
    let service = Service::start(&world);
    let reply = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&reply["proceed"], &reply["limit"]), (&json!(false), &json!("min_delay")), "{reply}");
}

#[test]
fn beyond_loopback_it_requires_tokens_or_insecure() {
    let world = World::new();
    let refused = world.run(&["serve", "--listen", "0.0.0.0:0"]).expect(2);
    refused.says("listening beyond loopback requires tokens");
    refused.says("--make-token");
    refused.says("--insecure");
    let refused = world.run(&["--json", "serve", "--listen", "[::]:0"]).expect(2);
    assert!(refused.stdout.contains("loopback") || refused.stderr.contains("loopback"), "{refused:?}");
    world.run(&["serve", "--listen", "nowhere"]).expect(2).says("nowhere");
    world.run(&["serve", "--make-token", "root"]).expect(2).says("root");

    let insecure = world.start(&["--json", "serve", "--listen", "0.0.0.0:0", "--insecure"]);
    let mut service = Service::begin(&world, insecure);
    wait_until("it warns", || service.running.said().contains("anyone who can reach this address"));
    service.address.set_ip([127, 0, 0, 1].into());
    assert_eq!(service.get("/healthz")["status"], "ok");
    assert_eq!(service.post("/v1/check", &json!({"domain": "a.example"}))["proceed"], true);
    service.stop().expect(0);
}

#[test]
fn an_address_in_use_is_named_in_the_error() {
    let world = World::new();
    let service = Service::start(&world);
    let address = service.address.to_string();
    world.run(&["serve", "--listen", &address]).expect(2).says(&format!("serve.listen = {address}"));
}

#[test]
fn only_a_valid_token_is_accepted() {
    let world = World::new();
    let made = world.run(&["serve", "--make-token", "use"]).expect(0);
    let token = made.stdout.trim().to_owned();
    let line = made.stderr.lines().find(|line| line.starts_with("tokens = ")).unwrap();
    assert!(!made.stderr.contains(&token), "{}", made.stderr);
    let admin = world.run(&["--json", "serve", "--make-token", "admin"]).expect(0).json();
    world.write("tokens", &format!("# who may steer\n{}\n", admin["line"].as_str().unwrap()));
    world.write("comity.toml", &format!("{SLOW}[serve]\n{line}\ntokens_file = \"tokens\"\n"));
    let service = Service::start(&world);
    let with = |token: &str, path: &str, body: &str| {
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        ask(service.address, "POST", path, &headers, body).unwrap()
    };
    let check = r#"{"domain": "a.example"}"#;
    let outside = post(service.address, "/v1/check", &json!({"domain": "a.example"}));
    assert!(outside.head.to_lowercase().contains("www-authenticate: bearer"), "{}", outside.head);
    outside.expect(401);
    with("not-a-token-at-all", "/v1/check", check).expect(401);
    assert_eq!(with(&token, "/v1/check", check).expect(200)["proceed"], true);
    let record = r#"{"domain": "a.example", "status": 200}"#;
    with(&token, "/v1/record", record).expect(403);
    with(admin["token"].as_str().unwrap(), "/v1/record", record).expect(200);
    // Health needs no token.
    service.get("/healthz");

    let url = service.url();
    let commanded = |token: Option<&str>| {
        let mut command = world.command(&["check", "b.example", "--server", &url]);
        if let Some(token) = token {
            command.env("COMITY_TOKEN", token);
        }
        world.begin(command).wait()
    };
    commanded(None).expect(2).says("COMITY_TOKEN");
    commanded(Some("not-a-token-at-all")).expect(2).says("COMITY_TOKEN");
    commanded(Some(&token)).expect(0).shows("proceed");
    // B75
    let log = service.stop().expect(0).stderr;
    assert!(!log.contains(&token) && !log.contains("not-a-token"), "{log}");
}

#[test]
fn an_unreadable_tokens_file_is_named_in_the_error() {
    let world = World::new();
    world.write("comity.toml", "[serve]\ntokens_file = \"tokens\"\n");
    world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("serve.tokens_file");
    world.write("tokens", "\nuse:short\n");
    world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("line 2");
    // An empty file would mean no tokens, and everyone may do everything: nobody wants that.
    for empty in ["", "\n# none yet\n"] {
        world.write("tokens", empty);
        world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("the file has no tokens");
    }
}

#[test]
fn a_json_log_has_one_object_per_line() {
    let world = World::new();
    let args = ["--json", "--log-level", "debug", "--log-format", "json", "serve", "--listen", "127.0.0.1:0"];
    let service = Service::begin(&world, world.start(&args));
    service.post("/v1/check", &json!({"domain": "a.example"}));
    service.post("/v1/record", &json!({"domain": "a.example", "status": 429}));
    post(service.address, "/v1/check", &json!({"domain": "line\nbreak \u{1b}[31m"})).expect(422);
    let done = service.stop().expect(0);
    let lines: Vec<Value> = done
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    assert!(lines.len() >= 3 && lines.iter().all(Value::is_object), "{}", done.stderr);
    assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
}

/// Commands print the same on the store and through a service.
#[test]
fn commands_print_the_same_through_a_service() {
    let (here, there) = (World::new(), World::new());
    for world in [&here, &there] {
        // So long that the same constraints are in force in both, however slow the machine is.
        world.write("comity.toml", "[default]\nmin_delay = \"600s\"\nin_flight = \"unlimited\"\n");
    }
    let service = Service::start(&there);
    let url = service.url();
    let both = |args: &[&str], code: i32| {
        let direct = here.run(args).expect(code);
        let asked = there.run(&[args, &["--server", &url]].concat()).expect(code);
        let mut by_environment = there.command(&[args, &["--peek"]].concat());
        by_environment.env("COMITY_SERVER", &url);
        if args.contains(&"check") && !args.contains(&"--peek") {
            // Once more without changing anything, with the service named by the environment.
            assert_eq!(there.begin(by_environment).wait().code, Some(1));
        }
        (direct, asked)
    };
    let steps: [(&[&str], i32); 7] = [
        (&["check", "https://a.example/page"], 0),
        (&["check", "a.example"], 1),
        (&["check", "a.example", "--intent", "api"], 1),
        (&["record", "a.example", "success"], 0),
        (&["record", "a.example", "429", "--retry-after", "3000"], 0),
        (&["explain", "a.example"], 0),
        (&["explain", "https://a.example/x", "--intent", "search"], 0),
    ];
    for (args, code) in steps {
        let (direct, asked) = both(args, code);
        assert_eq!(without_numbers(&asked.stdout), without_numbers(&direct.stdout), "{args:?}");
    }
    let steps: [(&[&str], i32); 5] = [
        (&["--json", "check", "b.example"], 0),
        (&["--json", "check", "b.example"], 1),
        (&["--json", "check", "b.example", "--peek"], 1),
        (&["--json", "record", "b.example", "503", "--retry-after", "3000"], 0),
        (&["--json", "explain", "b.example"], 0),
    ];
    for (args, code) in steps {
        let (direct, asked) = both(args, code);
        let (direct, asked) = (shape(&direct.json()), shape(&asked.json()));
        assert_eq!(asked, direct, "{args:?}");
    }
    // Also for a domain that is paused until it is resumed.
    pause(&service, "c.example");
    let briefly = Service::start(&here);
    pause(&briefly, "c.example");
    briefly.stop().expect(0);
    for args in [&["check", "c.example"][..], &["--json", "check", "c.example"], &["explain", "c.example"]] {
        let code = i32::from(args.contains(&"check"));
        let (direct, asked) = both(args, code);
        assert_eq!(asked.stdout, direct.stdout);
        asked.shows(if code == 1 { "refused" } else { "resumes" });
    }
}

#[test]
fn a_permit_can_be_recorded_either_way_and_counts_once() {
    let world = World::new();
    world.write("comity.toml", SLOW);
    let service = Service::start(&world);
    let url = service.url();
    let permit = world.run(&["--json", "check", "a.example", "--server", &url]).expect(0).json();
    let permit = permit["permit"].as_str().unwrap();
    let args = ["--json", "record", permit, "200", "--server", &url];
    assert_eq!(world.run(&args).expect(0).json()["standing"], "fresh");
    assert_eq!(world.run(&args).expect(0).json()["standing"], "repeated");
    assert_eq!(world.run(&args[..4]).expect(0).json()["standing"], "repeated");
    let forged = format!("{}x", &permit[..permit.len() - 1]);
    world.run(&["record", &forged, "200", "--server", &url]).expect(2).says("permit");
}

#[test]
fn exit_codes_show_why_there_is_no_decision() {
    let world = World::new();
    let service = Service::start(&world);
    let url = service.url();
    world.run(&["check", "not a host", "--server", &url]).expect(2).says("not a host");
    world.run(&["check", "a.example", "--intent", "dance", "--server", &url]).expect(2).says("dance");
    world.run(&["record", "a.example", "nonsense", "--server", &url]).expect(2).says("nonsense");
    world.run(&["record", "a.example", "1000", "--server", &url]).expect(2).says("1000");
    world.run(&["check", "a.example", "--server", "ftp://x"]).expect(2).says("--server");
    service.stop().expect(0);
    for command in [&["check", "a.example"][..], &["record", "a.example", "200"], &["explain", "a.example"]] {
        world.run(&[command, &["--server", &url]].concat()).expect(3).says(&url);
    }
}

/// A reload changes rules, and callers stay in line.
#[test]
fn sighup_reloads_the_configuration() {
    let world = World::new();
    world.write("comity.toml", SLOW);
    let service = Service::start(&world);
    let address = service.address;
    assert_eq!(service.post("/v1/check", &json!({"domain": "a.example"}))["proceed"], true);
    let body = json!({"domain": "a.example", "max_wait_ms": 50_000});
    let waiting = std::thread::spawn(move || post(address, "/v1/acquire", &body).expect(200));
    wait_until("one waits", || service.get("/v1/domains/a.example")["live"]["waiting"] == 1);

    world.write("comity.toml", "[default]\nmin_delay = \"fast\"\n");
    service.running.signal("HUP");
    wait_until("it reports the error", || {
        service.running.said().contains("previous rules and tokens stay in effect")
    });
    assert!(service.running.said().contains("min_delay"), "{}", service.running.said());
    let reply = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert!(reply["wait_ms"].as_u64().unwrap() > 60_000, "behind a caller that waits for a minute: {reply}");

    world.write("comity.toml", "[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\n");
    service.running.signal("HUP");
    let reply = waiting.join().unwrap();
    assert_eq!(reply["proceed"], true, "{reply}");
    assert!(reply["waited_ms"].as_u64().unwrap() < 50_000, "{reply}");
    assert!(service.running.said().contains("configuration reloaded"));
    // The charged slot is remembered.
    let reply = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&reply["proceed"], &reply["limit"]), (&json!(false), &json!("min_delay")), "{reply}");
    assert!(reply["wait_ms"].as_u64().unwrap() <= 10_000, "{reply}");
    service.stop().expect(0);
}

/// B11: a caller that disconnects leaves the line.
#[test]
fn a_caller_that_disconnects_leaves_the_line() {
    let world = World::new();
    world.write("comity.toml", SLOW);
    let service = Service::start(&world);
    service.post("/v1/check", &json!({"domain": "a.example"}));

    let waiting = |count: u64| {
        let name = format!("{count} in line");
        wait_until(&name, || service.get("/v1/domains/a.example")["live"]["waiting"] == count);
    };
    let mut streams: Vec<_> = (0..3).map(|_| acquire(&service)).collect();
    waiting(3);
    streams.pop();
    waiting(2);
    streams.clear();
    waiting(0);
    let live = &service.get("/v1/domains/a.example")["live"];
    assert_eq!(live["in_flight"], 1, "{live}");
}

fn pause(service: &Service, domain: &str) {
    let path = format!("/v1/domains/{domain}");
    let headers = "Content-Type: application/json\r\n";
    let reply = ask(service.address, "PATCH", &path, headers, r#"{"paused": true}"#).unwrap().expect(200);
    assert_eq!(reply["paused"], true, "{reply}");
}

/// A connection of a caller that waits in line.
fn acquire(service: &Service) -> std::net::TcpStream {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(service.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let body = r#"{"domain": "a.example", "max_wait_ms": 60000}"#;
    let head =
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ";
    write!(stream, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
    stream
}

/// Replaces each number by `#`, because times differ.
fn without_numbers(text: &str) -> String {
    let digits = text.replace(|c: char| c.is_ascii_digit() || c == '.', "#");
    digits.split('#').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

/// The names of fields, and the values that don't depend on the time.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
        Value::Array(list) => list.iter().map(shape).collect(),
        Value::Number(_) => json!("#"),
        Value::String(text) if text.starts_with("p1.") => json!("permit"),
        Value::String(text) => json!(without_numbers(text)),
        value => value.clone(),
    }
}
