//! A client for `comity serve`: commands with `--server` ask a running service instead of the store.

use std::time::Duration;

use serde_json::{Value, json};
use url::Url;

use crate::args::Server;
use crate::exit;

/// A running service.
pub(crate) struct Remote {
    server: Url,
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
        let url =
            Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let server = url.ok_or_else(|| {
            let shown = comity::redact::text(text);
            exit::usage(format!("--server = {shown:?}: expected a URL such as http://127.0.0.1:7878"))
        })?;
        let token = std::env::var("COMITY_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Some(Self { server, token }))
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
        let (server, token) = (comity::redact::url(&self.server), self.token.clone());
        let asking = tokio::task::spawn_blocking(move || send(&url, token.as_deref(), body));
        let (status, text) = asking.await?.map_err(|error| Unreachable(format!("{server}: {error}")))?;
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

fn send(url: &Url, token: Option<&str>, body: Option<Value>) -> Result<(u16, String), ureq::Error> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        // The service is reached directly: a proxy must not see the token.
        .proxy(None)
        .build();
    let agent = ureq::Agent::new_with_config(config);
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut response = match body {
        Some(body) => {
            let mut request = agent.post(url.as_str()).header("content-type", "application/json");
            if let Some(bearer) = &bearer {
                request = request.header("authorization", bearer);
            }
            request.send(body.to_string())?
        }
        None => {
            let mut request = agent.get(url.as_str());
            if let Some(bearer) = &bearer {
                request = request.header("authorization", bearer);
            }
            request.call()?
        }
    };
    Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
}

/// The body of a call: a URL or a domain, under the key that the service expects.
pub(crate) fn named(text: &str) -> Value {
    match text.contains("://") {
        true => json!({ "url": text }),
        false => json!({ "domain": text }),
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
