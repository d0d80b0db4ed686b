//! `comity serve` as an operator runs it, and the commands that ask it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::comity::World;
use crate::log::wait_until;
use crate::service::{Service, ask, post};

const SLOW: &str = "[default]\nmin_delay = \"60s\"\nin_flight = \"unlimited\"\n";

#[test]
fn it_says_where_it_listens_and_stops_when_asked() {
    for name in ["TERM", "INT"] {
        let world = World::new();
        let running = world.start(&["serve", "--listen", "127.0.0.1:0"]);
        wait_until("it listens", || running.said().contains("listening on http://127.0.0.1:"));
        running.signal(name);
        let done = running.wait().expect(0);
        done.says("open to everybody on this machine");
        done.says("stopping");
        assert_eq!(done.stdout, "");
    }
}

/// B11: who waits when it stops hears so, and at once.
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
        let told = waiter.join().unwrap();
        assert_eq!((&told["proceed"], &told["limit"]), (&json!(false), &json!("stopping")), "{told}");
        assert_eq!(told["permit"], Value::Null, "{told}");
    }
    // Everything was given back: another goes on, and the slot stays charged.
    let service = Service::start(&world);
    let told = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&told["proceed"], &told["limit"]), (&json!(false), &json!("min_delay")), "{told}");
}

#[test]
fn beyond_loopback_it_wants_tokens_or_a_word() {
    let world = World::new();
    let refused = world.run(&["serve", "--listen", "0.0.0.0:0"]).expect(2);
    refused.says("without tokens only loopback is listened on");
    refused.says("--make-token");
    refused.says("--insecure");
    let told = world.run(&["--json", "serve", "--listen", "[::]:0"]).expect(2);
    assert!(told.stdout.contains("loopback") || told.stderr.contains("loopback"), "{told:?}");
    world.run(&["serve", "--listen", "nowhere"]).expect(2).says("nowhere");
    world.run(&["serve", "--make-token", "root"]).expect(2).says("root");

    let insecure = world.start(&["--json", "serve", "--listen", "0.0.0.0:0", "--insecure"]);
    let mut service = Service::begin(&world, insecure);
    assert!(service.running.said().contains("everybody who reaches this address"));
    service.address.set_ip([127, 0, 0, 1].into());
    assert_eq!(service.get("/healthz")["status"], "ok");
    assert_eq!(service.post("/v1/check", &json!({"domain": "a.example"}))["proceed"], true);
    service.stop().expect(0);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let world = World::new();
    let service = Service::start(&world);
    let address = service.address.to_string();
    world.run(&["serve", "--listen", &address]).expect(2).says(&format!("serve.listen = {address}"));
}

#[test]
fn a_token_that_was_made_opens_the_door_and_no_other() {
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
fn tokens_that_cannot_be_read_are_named() {
    let world = World::new();
    world.write("comity.toml", "[serve]\ntokens_file = \"tokens\"\n");
    world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("serve.tokens_file");
    world.write("tokens", "\nuse:short\n");
    world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("line 2");
    // Without tokens everybody may do everything: that nobody asked for.
    for empty in ["", "\n# none yet\n"] {
        world.write("tokens", empty);
        world.run(&["serve", "--listen", "127.0.0.1:0"]).expect(2).says("no token is in it");
    }
}

#[test]
fn a_json_log_is_one_object_a_line() {
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

/// The commands say the same, whoever decides.
#[test]
fn commands_say_the_same_by_way_of_a_service() {
    let (here, there) = (World::new(), World::new());
    for world in [&here, &there] {
        world.write("comity.toml", SLOW);
    }
    let service = Service::start(&there);
    let url = service.url();
    let both = |args: &[&str], code: i32| {
        let direct = here.run(args).expect(code);
        let asked = there.run(&[args, &["--server", &url]].concat()).expect(code);
        let mut by_environment = there.command(&[args, &["--peek"]].concat());
        by_environment.env("COMITY_SERVER", &url);
        if args.contains(&"check") && !args.contains(&"--peek") {
            // Asked once more, without changing anything: the environment names the service as well.
            assert_eq!(there.begin(by_environment).wait().code, Some(1));
        }
        (direct, asked)
    };
    let steps: [(&[&str], i32); 7] = [
        (&["check", "https://a.example/page"], 0),
        (&["check", "a.example"], 1),
        (&["check", "a.example", "--intent", "api"], 1),
        (&["record", "a.example", "success"], 0),
        (&["record", "a.example", "429", "--retry-after", "120"], 0),
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
        (&["--json", "record", "b.example", "503", "--retry-after", "120"], 0),
        (&["--json", "explain", "b.example"], 0),
    ];
    for (args, code) in steps {
        let (direct, asked) = both(args, code);
        let (direct, asked) = (shape(&direct.json()), shape(&asked.json()));
        assert_eq!(asked, direct, "{args:?}");
    }
    // Of a domain that is paused until somebody resumes it, too.
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
fn a_permit_goes_either_way_and_counts_once() {
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
fn exit_codes_tell_why_there_is_no_decision() {
    let world = World::new();
    let service = Service::start(&world);
    let url = service.url();
    world.run(&["check", "not a host", "--server", &url]).expect(2).says("not a host");
    world.run(&["check", "a.example", "--intent", "dance", "--server", &url]).expect(2).says("dance");
    world.run(&["record", "a.example", "nonsense", "--server", &url]).expect(2).says("nonsense");
    world.run(&["record", "a.example", "999", "--server", &url]).expect(2).says("999");
    world.run(&["check", "a.example", "--server", "ftp://x"]).expect(2).says("--server");
    service.stop().expect(0);
    for command in [&["check", "a.example"][..], &["record", "a.example", "200"], &["explain", "a.example"]] {
        world.run(&[command, &["--server", &url]].concat()).expect(3).says(&url);
    }
}

/// Rules are read again, and nobody in line is sent away.
#[test]
fn a_hangup_reads_the_configuration_again() {
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
    wait_until("it says what is wrong", || service.running.said().contains("stays as it was"));
    assert!(service.running.said().contains("min_delay"), "{}", service.running.said());
    let told = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert!(told["wait_ms"].as_u64().unwrap() > 60_000, "behind somebody who waits for a minute: {told}");

    world.write("comity.toml", "[default]\nmin_delay = \"10s\"\nin_flight = \"unlimited\"\n");
    service.running.signal("HUP");
    let told = waiting.join().unwrap();
    assert_eq!(told["proceed"], true, "{told}");
    assert!(told["waited_ms"].as_u64().unwrap() < 50_000, "{told}");
    assert!(service.running.said().contains("the configuration was read again"));
    // What was charged is not forgotten.
    let told = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&told["proceed"], &told["limit"]), (&json!(false), &json!("min_delay")), "{told}");
    assert!(told["wait_ms"].as_u64().unwrap() <= 10_000, "{told}");
    service.stop().expect(0);
}

/// B11: hanging up frees the place in line.
#[test]
fn who_hangs_up_leaves_the_line() {
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
    let told = ask(service.address, "PATCH", &path, headers, r#"{"paused": true}"#).unwrap().expect(200);
    assert_eq!(told["paused"], true, "{told}");
}

/// A caller in line.
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

/// Each number as `#`: moments differ.
fn without_numbers(text: &str) -> String {
    let digits = text.replace(|c: char| c.is_ascii_digit() || c == '.', "#");
    digits.split('#').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

/// The names of fields, and the values that are not of a moment.
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
