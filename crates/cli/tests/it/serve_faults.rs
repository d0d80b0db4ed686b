//! Misbehaving clients: each is rejected, costs little memory, and doesn't affect others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::comity::World;
use crate::log::{TOLERANCE, now_us, wait_until};
use crate::service::{Answered, Service, ask, post};

/// A thousand connections that send a byte now and then are closed in time, and others are served meanwhile.
#[test]
fn slow_clients_are_disconnected() {
    let (world, service) = started("idle_timeout = \"3s\"\n");
    let began = now_us();
    let mut heads: Vec<TcpStream> = (0..700).map(|_| connect(&service)).collect();
    let mut bodies: Vec<TcpStream> = (0..300).map(|_| connect(&service)).collect();
    for stream in &mut heads {
        stream.write_all(b"POST /v1/check HTTP/1.1\r\nX-Slow: ").unwrap();
    }
    for stream in &mut bodies {
        stream.write_all(head("/v1/check", "Content-Length: 1000\r\n").as_bytes()).unwrap();
    }
    let all = || heads.iter().chain(&bodies);
    let mut first_closed = i64::MAX;
    // None is closed before the timeout, and all of them some time after it.
    while all().any(|stream| !is_closed(stream)) {
        if first_closed == i64::MAX && all().any(is_closed) {
            first_closed = now_us();
        }
        assert!(now_us() - began < 120_000_000, "after two minutes some were still open");
        for mut stream in all() {
            let _ = stream.write_all(b"a");
        }
        others_are_served(&service);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(first_closed - began >= 3_000_000 - TOLERANCE, "closed after {} µs", first_closed - began);
    assert!(service.memory_kb("VmHWM") < MOST_KB, "{} kB", service.memory_kb("VmHWM"));
    // A client that doesn't finish its body gets a 408.
    let mut unfinished = connect(&service);
    unfinished.write_all((head("/v1/check", "Content-Length: 1000\r\n") + "{").as_bytes()).unwrap();
    let response = read_to_end(&mut unfinished);
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    drop((heads, bodies));
    wait_until("the connections are gone", || service.metric("comity_http_connections ") <= Some(1.0));
    ends(world, service);
}

/// Connections that are half closed or idle are closed in time.
#[test]
fn half_open_connections_are_closed() {
    let (world, service) = started("idle_timeout = \"2s\"\n");
    let mut silent: Vec<TcpStream> = (0..50).map(|_| connect(&service)).collect();
    let mut halves: Vec<TcpStream> = (0..50).map(|_| connect(&service)).collect();
    for (nth, stream) in halves.iter_mut().enumerate() {
        if nth % 2 == 0 {
            stream.write_all(b"POST /v1/acquire HTTP/1.1\r\nHost: loc").unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
    }
    others_are_served(&service);
    for stream in silent.iter_mut().chain(&mut halves) {
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut answer = Vec::new();
        // Closed or reset, but not open forever.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    }
    wait_until("the connections are gone", || service.metric("comity_http_connections ") <= Some(1.0));
    ends(world, service);
}

#[test]
fn a_megabyte_of_headers_is_rejected() {
    let (world, service) = started("");
    let one = format!("X-Long: {}\r\n", "a".repeat(1_000_000));
    let many: String = (0..20_000).map(|nth| format!("X-{nth}: {}\r\n", "a".repeat(40))).collect();
    for headers in [one, many] {
        for _ in 0..20 {
            let mut stream = connect(&service);
            // The service may stop reading before everything is sent.
            let _ = stream.write_all(format!("GET /healthz HTTP/1.1\r\n{headers}\r\n").as_bytes());
            let answer = read_to_end(&mut stream);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
            others_are_served(&service);
        }
    }
    assert!(service.memory_kb("VmHWM") < MOST_KB, "{} kB", service.memory_kb("VmHWM"));
    ends(world, service);
}

#[test]
fn a_body_of_a_hundred_megabytes_is_rejected_and_not_buffered() {
    let (world, service) = started("");
    let said = ask_raw(&service, &head("/v1/check", "Content-Length: 104857600\r\n"), 100);
    assert_eq!(said.status, 413, "{said:?}");
    assert_eq!(said.json()["type"], "urn:comity:problem:too-large");
    let mut idempotent = head("/v1/check", "Content-Length: 104857600\r\n");
    idempotent.insert_str(idempotent.len() - 2, "Idempotency-Key: one\r\n");
    assert_eq!(ask_raw(&service, &idempotent, 100).status, 413);
    for path in ["/v1/check", "/v1/record/batch", "/v1/jobs"] {
        let chunked = ask_raw(&service, &head(path, "Transfer-Encoding: chunked\r\n"), 100);
        assert_eq!(chunked.status, 413, "{chunked:?}");
        others_are_served(&service);
    }
    assert!(service.memory_kb("VmHWM") < MOST_KB, "{} kB", service.memory_kb("VmHWM"));
    ends(world, service);
}

#[test]
fn invalid_json_is_rejected() {
    let (world, service) = started("");
    let deep = [
        "[".repeat(100_000),
        r#"{"domain":"#.repeat(100_000),
        format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000)),
    ];
    for body in deep {
        let answered = ask(service.address, "POST", "/v1/check", JSON, &body).unwrap();
        answered.expect(400);
    }
    let mut stream = connect(&service);
    let body = b"{\"domain\": \"a\xff\xfe.example\"}";
    stream
        .write_all(
            head("/v1/check", &format!("Content-Length: {}\r\nConnection: close\r\n", body.len())).as_bytes(),
        )
        .unwrap();
    stream.write_all(body).unwrap();
    assert!(read_to_end(&mut stream).starts_with("HTTP/1.1 400"));
    for path in ["/v1/domains/%ff%fe", "/v1/jobs/%ff", "/v1/domains/%00"] {
        let answered = ask(service.address, "GET", path, "", "").unwrap();
        assert!((400..500).contains(&answered.status), "{path}: {answered:?}");
        assert!(answered.head.contains("application/problem+json"), "{answered:?}");
    }
    ends(world, service);
}

#[test]
fn garbage_after_a_request_ends_the_connection() {
    let (world, service) = started("");
    let ok = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for garbage in [
        "\u{1}\u{2}\u{3}\r\n\r\n",
        "GET\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n",
    ] {
        let mut stream = connect(&service);
        stream.write_all(format!("{ok}{ok}{garbage}{ok}").as_bytes()).unwrap();
        let answers = read_to_end(&mut stream);
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{garbage:?}: {answers}");
        assert_eq!(answers.matches("HTTP/1.1 400").count(), 1, "{garbage:?}: {answers}");
        others_are_served(&service);
    }
    ends(world, service);
}

/// Connections beyond the limit get an error, existing ones are served, and new ones are accepted when there is room.
#[test]
fn connections_beyond_the_limit_are_rejected() {
    let (world, service) = started("connections_max = 20\n");
    let keep_alive = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut kept: Vec<TcpStream> = Vec::new();
    // The first connection may still be closing.
    wait_until("twenty are connected", || {
        let mut stream = connect(&service);
        let _ = stream.write_all(keep_alive.as_bytes());
        kept.extend(try_some(&mut stream).filter(|answered| answered.status == 200).map(|_| stream));
        kept.len() == 20
    });
    for _ in 0..50 {
        let mut stream = connect(&service);
        let answer = read_to_end(&mut stream);
        let answer = Answered::read(&answer).unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.head.to_lowercase().contains("retry-after:"), "{answer:?}");
    }
    for stream in &mut kept {
        stream.write_all(keep_alive.as_bytes()).unwrap();
        assert_eq!(read_some(stream).status, 200);
    }
    kept.truncate(10);
    wait_until("there is room again", || {
        ask(service.address, "GET", "/healthz", "", "").is_ok_and(|answered| answered.status == 200)
    });
    assert!(service.metric("comity_http_connections_refused_total") >= Some(50.0));
    ends(world, service);
}

fn started(serve: &str) -> (World, Service) {
    let world = World::new();
    world.write(
        "comity.toml",
        &format!("[default]\nmin_delay = \"0s\"\nin_flight = \"unlimited\"\n[serve]\n{serve}"),
    );
    let service = Service::start(&world);
    others_are_served(&service);
    (world, service)
}

/// Asserts that a well-behaved client is answered soon.
#[track_caller]
fn others_are_served(service: &Service) {
    let began = now_us();
    let reply = post(service.address, "/v1/check", &json!({"domain": "good.example"})).expect(200);
    assert_eq!(reply["proceed"], true, "{reply}");
    assert!(now_us() - began < 30_000_000, "answered after {} µs", now_us() - began);
}

/// Asserts that the service survived, and stops normally.
fn ends(world: World, service: Service) {
    assert_eq!(service.get("/readyz")["status"], "ok");
    service.stop().expect(0);
    drop(world);
}

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

fn head(path: &str, headers: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}{headers}\r\n")
}

/// Sends this many megabytes, as long as the service reads them.
fn ask_raw(service: &Service, head: &str, megabytes: usize) -> Answered {
    let mut stream = connect(service);
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = match head.contains("chunked") {
        true => format!("100000\r\n{}\r\n", " ".repeat(1 << 20)),
        false => " ".repeat(1 << 20),
    };
    for _ in 0..megabytes {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let answer = read_to_end(&mut stream);
    Answered::read(&answer).unwrap_or_else(|| panic!("{answer:?}"))
}

/// What was received before the connection was closed or reset.
fn read_to_end(stream: &mut TcpStream) -> String {
    let (mut all, mut some) = (Vec::new(), [0; 4_096]);
    loop {
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(read) => all.extend_from_slice(&some[..read]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&all)),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// One response on a connection that stays open.
fn read_some(stream: &mut TcpStream) -> Answered {
    try_some(stream).expect("an answer on a connection that stays open")
}

/// One response, or none if the connection was closed.
fn try_some(stream: &mut TcpStream) -> Option<Answered> {
    let mut all = Vec::new();
    while !all.ends_with(b"}") {
        let mut some = [0; 256];
        let read = stream.read(&mut some).ok().filter(|read| *read > 0)?;
        all.extend_from_slice(&some[..read]);
    }
    Answered::read(&String::from_utf8_lossy(&all))
}

/// Whether the peer has closed the connection; received data can still be read.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut some = [0; 512];
    let peeked = stream.peek(&mut some);
    stream.set_nonblocking(false).unwrap();
    match peeked {
        Ok(read) => read == 0 || some.starts_with(b"HTTP"),
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

const JSON: &str = "Content-Type: application/json\r\n";
/// An idle service uses about 20 MB. A thousand connections with their buffers fit into this limit; a body or head that
/// was rejected would not.
const MOST_KB: u64 = 90 * 1_024;
