//! Judges the responses of an API: what they mean for the pace, and for the caller. Much of that is in the body.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use comity_core::outcome::{Answer, Outcome};
use comity_core::time::Timestamp;
use http::header::LOCATION;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use url::Url;

use super::Api;
use crate::attempt::{Head, Sink, Wanted};
use crate::wiki::error::{Code, WikiError};
use crate::wiki::responses::{Continuation, Envelope, QueryResponse};
use crate::{lock, redact};

/// Receives a response of the API, and judges it by its body.
pub(super) struct ResponseSink<'a, T> {
    api: &'a Api,
    url: &'a Url,
    body: BytesMut,
    /// The result for the caller.
    pub(super) result: Option<Result<QueryResponse<T>, WikiError>>,
    /// Whether the server stated when to retry.
    pub(super) has_deadline: bool,
}

impl<'a, T> ResponseSink<'a, T> {
    pub(super) fn new(api: &'a Api, url: &'a Url) -> Self {
        Self { api, url, body: BytesMut::new(), result: None, has_deadline: false }
    }
}

impl<T: DeserializeOwned + Default + Send> Sink for ResponseSink<'_, T> {
    type Error = Infallible;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, Infallible> {
        if self.api.options.login.is_some() {
            self.api.session.take_cookies(&head.headers);
        }
        Ok(Wanted::Whole { max: u64::MAX })
    }

    fn chunk(&mut self, piece: Bytes) -> Result<(), Infallible> {
        self.body.extend_from_slice(&piece);
        Ok(())
    }

    fn judge(&mut self, head: &Head, answer: Answer) -> Answer {
        self.has_deadline = answer.hints.has_deadline();
        let location = head.headers.get(LOCATION);
        let to = location.and_then(|to| self.url.join(to.to_str().ok()?).ok());
        let (answer, result) = self.api.judge::<T>(head.status, answer, to.as_ref(), &self.body);
        self.result = Some(result);
        answer
    }
}

impl Api {
    /// What a response means for the pace, and for the caller.
    fn judge<T: DeserializeOwned + Default>(
        &self,
        status: u16,
        answer: Answer,
        to: Option<&Url>,
        body: &[u8],
    ) -> (Answer, Result<QueryResponse<T>, WikiError>) {
        let api = || self.address();
        if let (300..=399, Some(to)) = (status, to) {
            return (answer, Err(WikiError::Moved { api: api(), to: redact::url(to) }));
        }
        // Some wikis send errors with an error status; the code is more specific.
        match self.read::<T>(body) {
            Ok(Ok(response)) if status == 200 => (answer, Ok(response)),
            Ok(Err((code, info))) => {
                let outcome = match (code.outcome(), answer.outcome) {
                    (Outcome::Answered, status) if status.is_penalty() => status,
                    (outcome, _) => outcome,
                };
                (Answer { outcome, ..answer }, Err(WikiError::Refused { api: api(), code, info }))
            }
            _ if matches!(status, 404 | 410) => (answer, Err(WikiError::NotFound { api: api(), status })),
            _ if status != 200 => (answer, Err(WikiError::Status { api: api(), status })),
            // Retrying would not change the format.
            Err(what @ WikiError::UnknownFormat { .. }) => (answer, Err(what)),
            Err(what) => (Outcome::ServerError.into(), Err(what)),
            Ok(Ok(response)) => (answer, Ok(response)),
        }
    }

    /// Parses a body: a response, or an error code and message.
    fn read<T: DeserializeOwned + Default>(
        &self,
        body: &[u8],
    ) -> Result<Result<QueryResponse<T>, (Code, String)>, WikiError> {
        let envelope: Envelope<T> = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => return Err(self.unreadable(body, &error)),
        };
        let Envelope { error, rest, query, login, batchcomplete, .. } = &envelope;
        let is_api = error.is_some() || query.is_some() || login.is_some() || batchcomplete.is_some();
        if !is_api && rest.is_empty() {
            return Err(WikiError::NotJson { api: self.address(), what: "other JSON" });
        }
        self.is_api.store(true, Ordering::Relaxed);
        if let Some(error) = envelope.error {
            // Errors are logged and stored, so their length is limited.
            let [code, info] = [error.code, error.info].map(|text| redact::line(&text).unwrap_or_default());
            return Ok(Err((Code::of(&code), info)));
        }
        self.warn(&envelope.warnings);
        let rest: Continuation =
            envelope.rest.into_iter().map(|(key, value)| (key, text_of(value))).collect();
        Ok(Ok(QueryResponse {
            query: envelope.query.unwrap_or_default(),
            rest: (!rest.is_empty()).then_some(rest),
            login: envelope.login,
            at: envelope.curtimestamp.and_then(|at| Timestamp::parse(&at).ok()),
        }))
    }

    fn unreadable(&self, body: &[u8], error: &serde_json::Error) -> WikiError {
        let api = self.address();
        let start = body.trim_ascii_start();
        if start.is_empty() {
            return WikiError::NotJson { api, what: "an empty body" };
        }
        if start.starts_with(b"<") {
            return WikiError::NotJson { api, what: "a page" };
        }
        if serde_json::from_slice::<IgnoredAny>(body).is_err() {
            return match error.is_eof() {
                true => WikiError::Unexpected { api, what: "the response was truncated".to_owned() },
                false => WikiError::NotJson { api, what: "neither JSON nor HTML" },
            };
        }
        WikiError::UnknownFormat { api, what: redact::line(&error.to_string()).unwrap_or_default() }
    }

    /// Logs each warning once.
    fn warn(&self, warnings: &serde_json::Map<String, Value>) {
        for (module, warning) in warnings {
            let text = warning["warnings"].as_str().map_or_else(|| warning.to_string(), str::to_owned);
            let [module, text] = [module, &text].map(|text| redact::line(text).unwrap_or_default());
            let mut warned = lock(&self.warned);
            if warned.len() < WARNINGS_MAX && warned.insert(format!("{module}: {text}")) {
                tracing::warn!(api = %self.address(), module, "warning from the wiki: {text}");
            }
        }
    }
}

/// A value of a continuation as text; it may be a number.
fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

/// The maximum number of different warnings that are logged.
const WARNINGS_MAX: usize = 100;
