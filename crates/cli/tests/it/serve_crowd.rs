//! Ten thousand callers in line at once.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::comity::World;
use crate::log::{now_us, wait_until};
use crate::service::{Service, ask};

const DOMAINS: usize = 100;
const EACH: usize = 100;
const DELAY_US: i64 = 200_000;

/// B10, B12: callers of a domain are served in order and on time; waiting costs little memory and no CPU time.
#[test]
#[ignore = "keeps both cores busy, which others would be judged by: ./test runs it after them"]
fn ten_thousand_callers_wait_in_line() {
    let world = World::new();
    world.write(
        "comity.toml",
        "[default]\nmin_delay = \"200ms\"\nin_flight = \"unlimited\"\nlearning = \"off\"\n",
    );
    let service = Service::start(&world);
    let empty_kb = service.memory_kb("VmRSS");
    // Nothing is granted before all are in line.
    for domain in 0..DOMAINS {
        change(&service, domain, true);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut callers = Vec::new();
    for round in 0..EACH {
        for domain in 0..DOMAINS {
            let address = service.address;
            callers.push((domain, runtime.spawn(call(address, domain))));
        }
        let in_line = ((round + 1) * DOMAINS) as f64;
        // The runtime only works while something is awaited on it.
        wait_until(&format!("{in_line} in line"), || {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
            service.metric("comity_waiting ") == Some(in_line)
        });
    }

    let crowded_kb = service.memory_kb("VmRSS");
    let worked = service.worked();
    std::thread::sleep(QUIET);
    let worked = service.worked() - worked;
    println!("memory {empty_kb} kB, with the crowd {crowded_kb} kB; worked {worked:?} in {QUIET:?}");
    assert!(worked < QUIET / 20, "it used {worked:?} of CPU time in {QUIET:?} although nothing was due");
    assert!(
        crowded_kb - empty_kb < (DOMAINS * EACH) as u64 * CALLER_KB,
        "{empty_kb} kB, then {crowded_kb} kB"
    );

    // Each domain was resumed between the request and its response.
    let opened: Vec<(i64, i64)> = (0..DOMAINS)
        .map(|domain| {
            let asked = now_us();
            change(&service, domain, false);
            (asked, now_us())
        })
        .collect();
    let mut granted = vec![Vec::new(); DOMAINS];
    runtime.block_on(async {
        for (domain, caller) in callers {
            granted[domain].push(caller.await.unwrap());
        }
    });
    let (mut least, mut most) = (i64::MAX, 0);
    for (domain, times) in granted.iter().enumerate() {
        assert!(times.is_sorted(), "domain {domain}: out of order: {times:?}");
        for (nth, at) in (0..).zip(times) {
            let (early, late) =
                (at - opened[domain].0 - nth * DELAY_US, at - opened[domain].1 - nth * DELAY_US);
            assert!(early >= 0, "domain {domain}: caller {nth} was {} µs early", -early);
            assert!(late < LATE_US, "domain {domain}: caller {nth} was {late} µs late");
            (least, most) = (least.min(late), most.max(late));
        }
    }
    println!("late by {least} to {most} µs; memory at most {} kB", service.memory_kb("VmHWM"));
    service.stop().expect(0);
}

/// Pauses a domain, or resumes it.
fn change(service: &Service, domain: usize, paused: bool) {
    // With a pause until resumed, callers would be refused instead of waiting in line.
    let body =
        if paused { json!({ "paused_until": "2999-01-01T00:00:00Z" }) } else { json!({ "paused": false }) };
    let body = body.to_string();
    let path = format!("/v1/domains/d{domain}.example");
    ask(service.address, "PATCH", &path, "Content-Type: application/json\r\n", &body).unwrap().expect(200);
}

/// One caller; returns when it was granted.
async fn call(address: std::net::SocketAddr, domain: usize) -> i64 {
    let body = json!({"domain": format!("d{domain}.example"), "max_wait_ms": 300_000}).to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    let mut first = [0; 1];
    stream.read_exact(&mut first).await.unwrap();
    let at = now_us();
    stream.read_to_string(&mut answer).await.unwrap();
    let reply: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(reply["proceed"], true, "{reply}");
    at
}

const QUIET: Duration = Duration::from_secs(5);
/// The memory that one caller in line may use: a connection with a buffer of 8 KB, a task, a place in line. Measured:
/// 18 kB.
const CALLER_KB: u64 = 30;
/// Measured: 50 ms after twenty seconds. But here one thread reads ten thousand responses, and the machine may be busy.
const LATE_US: i64 = 20_000_000;
