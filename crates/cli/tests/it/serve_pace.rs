//! Callers of a service that really fetch, judged by the server's log: next to a job on the same store, and across a
//! kill.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::comity::{World, list};
use crate::log::{assert_each_once, assert_spaced, now_us, to_text, wait_until};
use crate::nginx::Nginx;
use crate::service::{Answered, Service, ask, post};

/// B9: programs that ask over HTTP and a job on the same store share one pace.
#[test]
fn callers_and_a_job_share_the_pace_of_a_host() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.write("comity.toml", "robots = \"ignore\"\n[default]\nmin_delay = \"200ms\"\nlearning = \"off\"\n");
    let service = Service::start(&world);
    let callers = Callers::start(&service, &nginx, 3);
    nginx.wait_for(3);
    let input = world.write("list", &list(&nginx.url(), "job", 20));
    let input = input.to_str().unwrap();
    let fetch = world.start(&["fetch", "--input", input, "--format", "none"]);
    fetch.wait().expect(0);
    callers.stop();
    service.stop().expect(0);
    let log = nginx.log();
    assert_spaced(&log, 200);
    assert_each_once(&log, "job", 20);
    let first = log.iter().position(|hit| hit.path.starts_with("/job")).unwrap();
    let last = log.iter().rposition(|hit| hit.path.starts_with("/job")).unwrap();
    let between = log[first..last].iter().filter(|hit| hit.path.starts_with("/caller")).count();
    assert!(between >= 4, "they did not take turns:\n{}", to_text(&log));
}

/// B78, B80: permits of a killed service count as in flight until they are recorded or their leases end.
#[test]
fn permits_survive_a_kill_until_their_leases_end() {
    let world = World::new();
    let service = Service::start(&world);
    let ask = json!({ "domain": "example.org", "lease_ms": 600_000 });
    let granted = post(service.address, "/v1/check", &ask).expect(200);
    assert_eq!(granted["proceed"], true, "{granted}");
    service.running.kill().expect("it still ran");
    let service = Service::start(&world);
    let waits = post(service.address, "/v1/check", &ask).expect(200);
    assert_eq!(waits["limit"], "lease", "{waits}");
    assert!((300_000..=600_000).contains(&waits["wait_ms"].as_u64().unwrap()), "{waits}");
    let record = json!({ "permit": granted["permit"], "status": 200 });
    assert_ne!(post(service.address, "/v1/record", &record).expect(200)["standing"], "repeated");
    let next = post(service.address, "/v1/acquire", &ask).expect(200);
    assert_eq!(next["proceed"], true, "{next}");
    service.stop().expect(0);
}

/// B77: after a kill under load, the next service assumes a request was sent at the last moment.
#[test]
fn no_caller_proceeds_early_after_a_kill() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.write("comity.toml", "[default]\nmin_delay = \"300ms\"\nlearning = \"off\"\n");
    let mut service = Service::start(&world);
    let callers = Callers::start(&service, &nginx, 4);
    for kills in 1..=3 {
        nginx.wait_for(6 * kills);
        service.running.kill().expect("it still ran");
        service = Service::start(&world);
        callers.ask_at(service.address);
    }
    nginx.wait_for(24);
    callers.stop();
    assert_spaced(&nginx.log(), 300);
}

/// B37
#[test]
fn learned_delays_and_server_deadlines_survive_a_kill() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"10ms\"\n");
    let service = Service::start(&world);
    let permit = service.post("/v1/check", &json!({"domain": "a.example"}))["permit"].clone();
    let recorded =
        service.post("/v1/record", &json!({"permit": permit, "status": 429, "retry_after": "120"}));
    let until = recorded["held_until"].as_str().unwrap().to_owned();
    let delay = recorded["adaptive_delay_seconds"].as_f64().unwrap();
    assert!(delay > 0.0, "{recorded}");
    // Another domain only learned something: that is stored a moment later.
    service.post("/v1/check", &json!({"domain": "b.example"}));
    service.post("/v1/record", &json!({"domain": "b.example", "outcome": "rate_limited"}));
    let kept = "SELECT adaptive_delay_seconds > 0 FROM domains WHERE domain = 'b.example'";
    wait_until("b.example is stored", || {
        world.sql().query_row(kept, [], |row| row.get::<_, bool>(0)).unwrap_or(false)
    });
    let learnt = service.get("/v1/domains/b.example")["adaptive_delay_seconds"].clone();
    service.running.kill().expect("it still ran");

    let service = Service::start(&world);
    let reply = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&reply["proceed"], &reply["origin"]), (&json!(false), &json!("server")), "{reply}");
    assert!((60_000..=120_000).contains(&reply["wait_ms"].as_u64().unwrap()), "{reply}");
    let domain = service.get("/v1/domains/a.example");
    assert_eq!(domain["server_until"].as_str(), Some(until.as_str()), "{domain}");
    assert_eq!(domain["adaptive_delay_seconds"].as_f64(), Some(delay), "{domain}");
    assert_eq!(service.get("/v1/domains/b.example")["adaptive_delay_seconds"], learnt);
    // The permit is still valid, and recording it again does no harm.
    let again = service.post("/v1/record", &json!({"permit": permit, "status": 200}));
    assert_eq!(again["outcome"], "success", "{again}");
    let reply = service.post("/v1/peek", &json!({"domain": "a.example"}));
    assert_eq!(reply["origin"], "server", "{reply}");
}

/// Programs that ask, fetch and record until they are stopped.
struct Callers {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    service: Mutex<SocketAddr>,
    site: SocketAddr,
    over: AtomicBool,
}

impl Callers {
    fn start(service: &Service, nginx: &Nginx, count: usize) -> Self {
        let site = nginx.url()["http://".len()..].parse().unwrap();
        let shared = Shared { service: Mutex::new(service.address), site, over: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let call = |nth: usize| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.call(nth))
        };
        let threads = (0..count).map(call).collect();
        Self { shared, threads }
    }

    /// Uses another address of the service from now on.
    fn ask_at(&self, service: SocketAddr) {
        *self.shared.service.lock().unwrap_or_else(PoisonError::into_inner) = service;
    }

    fn stop(self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

impl Shared {
    fn call(&self, nth: usize) {
        while !self.over.load(Ordering::Relaxed) {
            // One that waits in line, and one that polls.
            let (path, ask) = match nth % 2 {
                0 => ("/v1/acquire", json!({"url": format!("http://{}/", self.site), "max_wait_ms": 2_000})),
                _ => ("/v1/check", json!({"url": format!("http://{}/", self.site)})),
            };
            let Some(reply) = self.post(path, &ask) else { continue };
            if reply["proceed"] != true {
                let wait = reply["wait_ms"].as_u64().unwrap().min(100);
                std::thread::sleep(Duration::from_millis(wait));
                continue;
            }
            let written = fetch(self.site, &format!("/caller{nth}"));
            // Rounded down: a start that is too late is better than one that is too early.
            let latency_ms = (now_us() - written) / 1_000;
            self.post(
                "/v1/record",
                &json!({"permit": reply["permit"], "status": 200, "latency_ms": latency_ms}),
            );
        }
    }

    /// `None` while the service is not running.
    fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let service = *self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = ask(service, "POST", path, "Content-Type: application/json\r\n", &body.to_string());
        answered.ok().filter(|answered: &Answered| answered.status == 200).map(|answered| answered.json())
    }
}

/// Fetches a page, and returns the latest time at which the request can have been written.
fn fetch(site: SocketAddr, path: &str) -> i64 {
    let mut stream = TcpStream::connect(site).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {site}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let written = now_us();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    written
}
