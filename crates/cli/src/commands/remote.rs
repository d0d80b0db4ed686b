//! A client for `comity serve`: commands with `--server` ask a running service instead of the store.

use std::convert::Infallible;

use bytes::Bytes;
use comity::core::time::Span;
use comity::transport::{Lead, Request, SendError, Settings, Transport, TransportError};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method};
use serde_json::{Value, json};
use url::Url;

use crate::args::Server;
use crate::exit;

/// A running service.
pub(crate) struct Remote {
    server: Url,
    /// What named the service: the flag or the variable.
    origin: &'static str,
    token: Option<String>,
}

/// The service could not be reached, or its answer isn't one of a Comity service.
#[derive(Debug)]
pub(crate) struct Unreachable(String);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

impl Remote {
    /// The service that `--server` or `COMITY_SERVER` names, if any.
    pub(crate) fn of(server: &Server) -> anyhow::Result<Option<Self>> {
        let Some(text) = server.server.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let is_variable = std::env::var(VARIABLE).is_ok_and(|value| value == text);
        let origin = if is_variable { VARIABLE } else { FLAG };
        let url =
            Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let server = url.ok_or_else(|| {
            let shown = comity::redact::text(text);
            exit::usage(format!("{origin} = {shown:?}: expected a URL such as http://127.0.0.1:7878"))
        })?;
        let token = std::env::var("COMITY_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Some(Self { server, origin, token }))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        self.ask(path, Some(body)).await
    }

    /// Sends a GET request; `segments` are the parts of the path, escaped here.
    pub(crate) async fn get(&self, segments: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut url = self.server.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url.query_pairs_mut().extend_pairs(query);
        self.ask_url(url, None).await
    }

    async fn ask(&self, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut url = self.server.clone();
        url.set_path(&format!("{}{path}", self.server.path().trim_end_matches('/')));
        self.ask_url(url, body).await
    }

    async fn ask_url(&self, url: Url, body: Option<Value>) -> anyhow::Result<Value> {
        let (server, token) = (comity::redact::url(&self.server), self.token.as_deref());
        let answered = send(&url, token, body).await;
        let (status, text) = answered.map_err(|error| {
            let origin = self.origin;
            Unreachable(format!("could not reach the decision service at {server} ({origin}): {error}"))
        })?;
        let answer = serde_json::from_str::<Value>(&text);
        let answer = answer.map_err(|_| {
            Unreachable(format!("{server}: answered {status} without JSON; is it a Comity service?"))
        })?;
        let detail = || answer["detail"].as_str().unwrap_or("no reason given").to_owned();
        match status {
            200..=299 => Ok(answer),
            500.. => Err(Unreachable(format!("{server}: {}", detail())).into()),
            401 => Err(exit::usage(format!("{server}: {} (set it in COMITY_TOKEN)", detail()))),
            _ => Err(exit::usage(format!("{server}: {}", detail()))),
        }
    }
}

/// Sends a request to the service and returns the status and the body. The service is reached directly: a proxy must not
/// see the token.
async fn send(url: &Url, token: Option<&str>, body: Option<Value>) -> Result<(u16, String), TransportError> {
    let settings = Settings { first_byte_timeout: PATIENCE, total_timeout: PATIENCE, ..Settings::default() };
    let transport = Transport::new(settings)?;
    let mut headers = Vec::new();
    if let Some(token) = token {
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let wrong = |_| TransportError::Settings("COMITY_TOKEN can't be sent in a header".to_owned());
        headers.push((AUTHORIZATION, bearer.map_err(wrong)?));
    }
    let body = body.map(|body| Bytes::from(body.to_string()));
    if body.is_some() {
        headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
    }
    let method = body.as_ref().map(|_| &Method::POST);
    let request =
        Request { method, body: body.as_ref(), headers: &headers, ..Request::new(url, Lead::Listed) };
    let sent = transport.send(request, || async { Ok::<(), Infallible>(()) }).await;
    let mut answered = sent.map_err(|error| match error {
        SendError::Failed(error) => error,
        SendError::Withheld(never) => match never {},
    })?;
    let mut text = Vec::new();
    while let Some(chunk) = answered.body.chunk().await {
        text.extend_from_slice(&chunk?);
    }
    Ok((answered.status, String::from_utf8_lossy(&text).into_owned()))
}

/// The body of a call: a URL or a domain, under the key that the service expects.
pub(crate) fn named(text: &str) -> Value {
    match text.contains("://") {
        true => json!({ "url": text }),
        false => json!({ "domain": text }),
    }
}

const FLAG: &str = "--server";
const VARIABLE: &str = "COMITY_SERVER";
const PATIENCE: Span = Span::from_secs(30);
