//! Callers of a service really fetch, and the server's log says whether one came too early: beside a job on the same
//! store, and over a kill.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::comity::{World, list};
use crate::log::{assert_each_once, assert_spaced, now_us, told, wait_until};
use crate::nginx::Nginx;
use crate::service::{Answered, Service, ask, post};

/// B9: programs that ask over HTTP and a job on the same store keep one pace.
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
    assert!(between >= 4, "they did not take turns:\n{}", told(&log));
}

/// B78, B80: what a killed service had given out is still on the wire, until it is recorded or its lease ends.
#[test]
fn permits_outlive_a_kill_until_their_leases_end() {
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

/// B77: a service that is killed under load goes on as if it had sent at the last moment.
#[test]
fn nobody_is_let_go_early_after_a_kill() {
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
fn what_was_learnt_and_what_a_server_said_outlive_a_kill() {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"10ms\"\n");
    let service = Service::start(&world);
    let permit = service.post("/v1/check", &json!({"domain": "a.example"}))["permit"].clone();
    let recorded =
        service.post("/v1/record", &json!({"permit": permit, "status": 429, "retry_after": "120"}));
    let until = recorded["held_until"].as_str().unwrap().to_owned();
    let delay = recorded["adaptive_delay_seconds"].as_f64().unwrap();
    assert!(delay > 0.0, "{recorded}");
    // Another domain only learnt something: the store has it a moment later.
    service.post("/v1/check", &json!({"domain": "b.example"}));
    service.post("/v1/record", &json!({"domain": "b.example", "outcome": "rate_limited"}));
    let kept = "SELECT adaptive_delay_seconds > 0 FROM domains WHERE domain = 'b.example'";
    wait_until("b.example is kept", || {
        world.sql().query_row(kept, [], |row| row.get::<_, bool>(0)).unwrap_or(false)
    });
    let learnt = service.get("/v1/domains/b.example")["adaptive_delay_seconds"].clone();
    service.running.kill().expect("it still ran");

    let service = Service::start(&world);
    let told = service.post("/v1/check", &json!({"domain": "a.example"}));
    assert_eq!((&told["proceed"], &told["origin"]), (&json!(false), &json!("server")), "{told}");
    assert!((60_000..=120_000).contains(&told["wait_ms"].as_u64().unwrap()), "{told}");
    let domain = service.get("/v1/domains/a.example");
    assert_eq!(domain["server_until"].as_str(), Some(until.as_str()), "{domain}");
    assert_eq!(domain["adaptive_delay_seconds"].as_f64(), Some(delay), "{domain}");
    assert_eq!(service.get("/v1/domains/b.example")["adaptive_delay_seconds"], learnt);
    // The permit is still known, and the request it stood for is told of once more without harm.
    let again = service.post("/v1/record", &json!({"permit": permit, "status": 200}));
    assert_eq!(again["outcome"], "success", "{again}");
    let told = service.post("/v1/peek", &json!({"domain": "a.example"}));
    assert_eq!(told["origin"], "server", "{told}");
}

/// Programs that ask, fetch and tell, until they are stopped.
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

    /// The service is elsewhere now.
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
            // One that waits in line, and one that asks again and again.
            let (path, ask) = match nth % 2 {
                0 => ("/v1/acquire", json!({"url": format!("http://{}/", self.site), "max_wait_ms": 2_000})),
                _ => ("/v1/check", json!({"url": format!("http://{}/", self.site)})),
            };
            let Some(told) = self.post(path, &ask) else { continue };
            if told["proceed"] != true {
                let wait = told["wait_ms"].as_u64().unwrap().min(100);
                std::thread::sleep(Duration::from_millis(wait));
                continue;
            }
            let written = fetch(self.site, &format!("/caller{nth}"));
            // Rounded down: rather too late a start than too early a one.
            let latency_ms = (now_us() - written) / 1_000;
            self.post(
                "/v1/record",
                &json!({"permit": told["permit"], "status": 200, "latency_ms": latency_ms}),
            );
        }
    }

    /// `None` while the service is away.
    fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let service = *self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = ask(service, "POST", path, "Content-Type: application/json\r\n", &body.to_string());
        answered.ok().filter(|answered: &Answered| answered.status == 200).map(|answered| answered.json())
    }
}

/// Fetches a page; when the request was written, at the latest. What it takes to connect is not known to be over before.
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
