//! A service of its own for each test, on a port of its own, by a clock that is moved by hand.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use comity::clock::{Clock, Hands};
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

/// A service that listens, and the hands of its clock.
pub(crate) struct Served {
    address: SocketAddr,
    running: Mutex<Option<Running>>,
    stopping: Mutex<Option<JoinHandle<()>>>,
    hands: Hands,
    pub(crate) clock: Clock,
    token: Option<String>,
    /// Beats that were seen, and how far the clock went since.
    beaten: Mutex<(f64, Span)>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// One request, as it is put together.
pub(crate) struct Ask<'a> {
    served: &'a Served,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// When the clock of a service begins.
pub(crate) const BEGIN: Timestamp = Timestamp::from_secs(1_794_823_200);

pub(crate) const COLLECTOR: &str = "profile = \"collector\"\n";

pub(crate) fn config(toml: &str) -> Config {
    configured(toml, &[])
}

/// A configuration with variables of the environment; it listens wherever there is room.
pub(crate) fn configured(toml: &str, env: &[(&str, &str)]) -> Config {
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

/// The first line of a configuration whose store lies in `folder`.
pub(crate) fn store_in(folder: &Path) -> String {
    format!("store = \"sqlite:{}\"\n", folder.join("comity.db").display())
}

/// A service by these settings.
pub(crate) async fn serve(toml: &str) -> Served {
    serve_with(config(toml)).await
}

pub(crate) async fn serve_with(config: Config) -> Served {
    let (clock, hands) = Clock::manual(BEGIN);
    serve_by(config, clock, hands).await.unwrap()
}

/// A service by a clock that others go by too.
pub(crate) async fn serve_by(config: Config, clock: Clock, hands: Hands) -> Result<Served, ServeError> {
    let running = Service::start_by(config, Insecure::Refused, clock.clone()).await?;
    let address = running.address();
    let (running, stopping) = (Mutex::new(Some(running)), Mutex::default());
    Ok(Served {
        address,
        running,
        stopping,
        hands,
        clock,
        token: None,
        beaten: Mutex::new((0.0, Span::ZERO)),
    })
}

impl Served {
    /// The same, asked by whoever has this token.
    pub(crate) fn by(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn is_open(&self) -> bool {
        self.running.lock().unwrap().as_ref().unwrap().is_open()
    }

    /// Goes on with another configuration.
    pub(crate) async fn reload(&self, config: Config) -> Result<(), ServeError> {
        let running = self.running.lock().unwrap().take().unwrap();
        let reloaded = soon("a reload", running.reload(config)).await;
        *self.running.lock().unwrap() = Some(running);
        reloaded
    }

    pub(crate) fn hands(&self) -> Hands {
        self.hands.clone()
    }

    pub(crate) async fn stop(&self) {
        self.stop_soon();
        self.stopped().await;
    }

    /// Begins to stop.
    pub(crate) fn stop_soon(&self) {
        let running = self.running.lock().unwrap().take().unwrap();
        let stopping = tokio::spawn(async move { running.stop().await.unwrap() });
        *self.stopping.lock().unwrap() = Some(stopping);
    }

    /// Waits for its end.
    pub(crate) async fn stopped(&self) {
        let stopping = self.stopping.lock().unwrap().take().unwrap();
        soon("the stop", stopping).await.unwrap();
    }

    pub(crate) fn ask(&self, method: Method, path: &str) -> Ask<'_> {
        let ask = Ask { served: self, method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() };
        match &self.token {
            Some(token) => ask.header("authorization", &format!("Bearer {token}")),
            None => ask,
        }
    }

    pub(crate) fn posting(&self, path: &str, body: &Value) -> Ask<'_> {
        self.ask(Method::POST, path).header("content-type", "application/json").body(body.to_string())
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.posting(path, &body).send().await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path).send().await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answer {
        let ask = self.ask(Method::PATCH, path).header("content-type", "application/json");
        ask.body(body.to_string()).send().await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path).send().await
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

    /// A permit that must be there.
    pub(crate) async fn permit(&self, domain: &str) -> String {
        permit(&self.check(domain).await)
    }

    /// The value of a metric, named with its labels; 0 when it is not there.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        metric(&self.get("/metrics").await.text(), name)
    }

    /// Moves the clock, slowly enough for the service to tell its store that it lives.
    pub(crate) async fn advance(&self, span: Span) {
        let mut left = span;
        while !left.is_zero() {
            let (seen, since) = *self.beaten.lock().unwrap();
            let step = left.min(STEP.less(since));
            self.hands.advance(step);
            left = left.less(step);
            if since + step < STEP {
                *self.beaten.lock().unwrap() = (seen, since + step);
                continue;
            }
            let mut now = seen;
            let beat = async {
                while now <= seen {
                    now = self.metric("comity_store_seconds_count").await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            soon("a beat", beat).await;
            *self.beaten.lock().unwrap() = (now, Span::ZERO);
        }
    }

    /// Moves the clock to so long after its beginning.
    pub(crate) async fn until(&self, after: Span) {
        self.advance((BEGIN + after).since(self.clock.now())).await;
    }
}

impl Ask<'_> {
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

    pub(crate) async fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.path);
        soon(&what, async {
            let response = self.open().await;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer { status: parts.status.as_u16(), headers: parts.headers, body }
        })
        .await
    }

    /// The answer as soon as it begins.
    pub(crate) async fn open(self) -> http::Response<Incoming> {
        let address = self.served.address;
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        // It ends with whoever waits for the answer: that is how one hangs up.
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

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// What was asked for.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json");
        self.json()
    }

    /// Why it was refused, with this status.
    pub(crate) fn refused(&self, status: u16) -> Value {
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

/// The value of a metric in a text, named with its labels.
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

/// Waits until `is_so`, which it must become soon.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let becomes = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(what, becomes).await;
}

/// The end of what must not take long; a test that hangs tells so.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(Duration::from_secs(120), future).await;
    ended.unwrap_or_else(|_| panic!("{what} did not end"))
}

/// A beat is due every two seconds, and the lease ends after ten.
const STEP: Span = Span::from_millis(2_500);
