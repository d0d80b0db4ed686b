//! A separate service for each test, on its own port, with a clock that the test moves by hand.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use comity::clock::{Clock, ClockControl};
use comity::config::{Config, Sources};
use comity::core::time::{Span, Timestamp};
use comity_server::{Insecure, Running, ServeError, Service};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A running service, and the control of its clock.
pub(crate) struct TestServer {
    address: SocketAddr,
    running: Mutex<Option<Running>>,
    stopping: Mutex<Option<JoinHandle<()>>>,
    control: ClockControl,
    pub(crate) clock: Clock,
    token: Option<String>,
    /// The number of heartbeats seen, and how far the clock has advanced since the last one.
    heartbeats: Mutex<(f64, Span)>,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A request under construction.
pub(crate) struct TestRequest<'a> {
    server: &'a TestServer,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// The time at which the clock of a service starts.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_794_823_200);

pub(crate) const COLLECTOR: &str = "profile = \"collector\"\n";

pub(crate) fn config(toml: &str) -> Config {
    config_with_env(toml, &[])
}

/// A configuration with environment variables. By default it listens on a free port and keeps its store in memory.
pub(crate) fn config_with_env(toml: &str, env: &[(&str, &str)]) -> Config {
    let mut env: Vec<(String, String)> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    if !toml.contains("listen =") {
        env.push(("COMITY_SERVE_LISTEN".to_owned(), "127.0.0.1:0".to_owned()));
    }
    if !toml.contains("store =") {
        env.push(("COMITY_STORE".to_owned(), "memory:".to_owned()));
    }
    Config::load(Sources { file: Some(("test.toml", toml)), env, ..Sources::default() }).unwrap()
}

/// The first line of a configuration whose store is in `folder`.
pub(crate) fn store_in(folder: &Path) -> String {
    format!("store = \"sqlite:{}\"\n", folder.join("comity.db").display())
}

/// Starts a service with these settings.
pub(crate) async fn serve(toml: &str) -> TestServer {
    serve_with(config(toml)).await
}

pub(crate) async fn serve_with(config: Config) -> TestServer {
    let (clock, control) = Clock::manual(START);
    serve_with_clock(config, clock, control).await.unwrap()
}

/// Starts a service with a clock that others may share.
pub(crate) async fn serve_with_clock(
    config: Config,
    clock: Clock,
    control: ClockControl,
) -> Result<TestServer, ServeError> {
    let running = Service::start_with_clock(config, Insecure::Refused, clock.clone()).await?;
    let address = running.address();
    let (running, stopping) = (Mutex::new(Some(running)), Mutex::default());
    Ok(TestServer {
        address,
        running,
        stopping,
        control,
        clock,
        token: None,
        heartbeats: Mutex::new((0.0, Span::ZERO)),
    })
}

impl TestServer {
    /// The same service, called with this token.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn is_open(&self) -> bool {
        self.running.lock().unwrap().as_ref().unwrap().is_open()
    }

    /// Reloads with another configuration.
    pub(crate) async fn reload(&self, config: Config) -> Result<(), ServeError> {
        let running = self.running.lock().unwrap().take().unwrap();
        let reloaded = with_timeout("a reload", running.reload(config)).await;
        *self.running.lock().unwrap() = Some(running);
        reloaded
    }

    pub(crate) fn clock_control(&self) -> ClockControl {
        self.control.clone()
    }

    pub(crate) async fn stop(&self) {
        self.begin_stop();
        self.wait_stopped().await;
    }

    /// Starts to stop the service, without waiting for it.
    pub(crate) fn begin_stop(&self) {
        let running = self.running.lock().unwrap().take().unwrap();
        let stopping = tokio::spawn(async move { running.stop().await.unwrap() });
        *self.stopping.lock().unwrap() = Some(stopping);
    }

    /// Waits until the service has stopped.
    pub(crate) async fn wait_stopped(&self) {
        let stopping = self.stopping.lock().unwrap().take().unwrap();
        with_timeout("the stop", stopping).await.unwrap();
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> TestRequest<'_> {
        let ask = TestRequest {
            server: self,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        match &self.token {
            Some(token) => ask.header("authorization", &format!("Bearer {token}")),
            None => ask,
        }
    }

    pub(crate) fn post_request(&self, path: &str, body: &Value) -> TestRequest<'_> {
        self.request(Method::POST, path).header("content-type", "application/json").body(body.to_string())
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.post_request(path, &body).send().await
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.request(Method::GET, path).send().await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> TestResponse {
        let ask = self.request(Method::PATCH, path).header("content-type", "application/json");
        ask.body(body.to_string()).send().await
    }

    pub(crate) async fn delete(&self, path: &str) -> TestResponse {
        self.request(Method::DELETE, path).send().await
    }

    pub(crate) async fn check(&self, domain: &str) -> Value {
        self.post("/v1/check", json!({ "domain": domain })).await.ok()
    }

    pub(crate) async fn peek(&self, domain: &str) -> Value {
        self.post("/v1/peek", json!({ "domain": domain })).await.ok()
    }

    pub(crate) async fn record(&self, record: Value) -> Value {
        self.post("/v1/record", record).await.ok()
    }

    /// A permit. The check must proceed.
    pub(crate) async fn permit(&self, domain: &str) -> String {
        permit(&self.check(domain).await)
    }

    /// The value of a metric, named with its labels; 0 if it doesn't exist.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        metric(&self.get("/metrics").await.text(), name)
    }

    /// Advances the clock, slowly enough for the service to send its heartbeats.
    pub(crate) async fn advance(&self, span: Span) {
        let mut remaining = span;
        while !remaining.is_zero() {
            let (count_before, since) = *self.heartbeats.lock().unwrap();
            let step = remaining.min(STEP.less(since));
            self.control.advance(step);
            remaining = remaining.less(step);
            if since + step < STEP {
                *self.heartbeats.lock().unwrap() = (count_before, since + step);
                continue;
            }
            let mut count = count_before;
            let heartbeat = async {
                while count <= count_before {
                    count = self.metric("comity_store_seconds_count").await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            with_timeout("a heartbeat", heartbeat).await;
            *self.heartbeats.lock().unwrap() = (count, Span::ZERO);
        }
    }

    /// Advances the clock to this time after its start.
    pub(crate) async fn until(&self, after: Span) {
        self.advance((START + after).since(self.clock.now())).await;
    }
}

impl TestRequest<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> TestResponse {
        let what = format!("{} {}", self.method, self.path);
        with_timeout(&what, async {
            let response = self.open().await;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            TestResponse { status: parts.status.as_u16(), headers: parts.headers, body }
        })
        .await
    }

    /// Sends the request and returns the response as soon as its headers are there.
    pub(crate) async fn open(self) -> http::Response<Incoming> {
        let address = self.server.address;
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        // The connection is dropped together with this future: that is how a test hangs up.
        let mut connection = Box::pin(connection);
        let mut request = Request::builder().method(self.method).uri(&self.path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", address.to_string());
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(self.body))).unwrap();
        let mut answered = Box::pin(sender.send_request(request));
        let response = tokio::select! {
            biased;
            response = &mut answered => response.unwrap(),
            ended = &mut connection => {
                ended.unwrap();
                answered.await.unwrap()
            }
        };
        tokio::spawn(connection);
        response
    }
}

impl TestResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The JSON of a successful response.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json");
        self.json()
    }

    /// The problem details of a response with this status.
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for word in ["type", "title", "detail"] {
            assert!(problem[word].as_str().is_some_and(|text| !text.is_empty()), "{word}: {problem}");
        }
        problem
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(crate) fn permit(decision: &Value) -> String {
    assert_eq!(decision["proceed"], true, "{decision}");
    decision["permit"].as_str().unwrap_or_else(|| panic!("no permit: {decision}")).to_owned()
}

/// The value of a metric in the text of `/metrics`, named with its labels.
pub(crate) fn metric(text: &str, name: &str) -> f64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value).unwrap_or(0.0)
}

pub(crate) const fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

/// Waits until a condition is true, and fails the test if that takes too long.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    with_timeout(what, waiting).await;
}

/// Waits for a future, and fails the test instead of hanging.
pub(crate) async fn with_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    let finished = tokio::time::timeout(Duration::from_secs(120), future).await;
    finished.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// A heartbeat is due every two seconds, and the lease ends after ten.
const STEP: Span = Span::from_millis(2_500);
