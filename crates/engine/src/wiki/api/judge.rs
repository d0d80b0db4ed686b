//! The answer of an API: what it means for the pace, and for whoever asked. Much of that stands in its body (B67).

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
use crate::wiki::answers::{Answered, Envelope, Rest};
use crate::wiki::error::{Code, WikiError};
use crate::{lock, shown};

/// Takes an answer of the API, and judges it by what stands in its body.
pub(super) struct Taken<'a, T> {
    api: &'a Api,
    url: &'a Url,
    body: BytesMut,
    /// What it is to whoever asked.
    pub(super) result: Option<Result<Answered<T>, WikiError>>,
    /// Whether the server named a time to come back.
    pub(super) is_told: bool,
}

impl<'a, T> Taken<'a, T> {
    pub(super) fn new(api: &'a Api, url: &'a Url) -> Self {
        Self { api, url, body: BytesMut::new(), result: None, is_told: false }
    }
}

impl<T: DeserializeOwned + Default + Send> Sink for Taken<'_, T> {
    type Error = Infallible;

    async fn begin(&mut self, head: &Head) -> Result<Wanted, Infallible> {
        if self.api.options.login.is_some() {
            self.api.session.take_cookies(&head.headers);
        }
        Ok(Wanted::Whole { max: u64::MAX })
    }

    fn piece(&mut self, piece: Bytes) -> Result<(), Infallible> {
        self.body.extend_from_slice(&piece);
        Ok(())
    }

    fn judge(&mut self, head: &Head, answer: Answer) -> Answer {
        self.is_told = answer.told.names_a_time();
        let location = head.headers.get(LOCATION);
        let to = location.and_then(|to| self.url.join(to.to_str().ok()?).ok());
        let (answer, result) = self.api.judge::<T>(head.status, answer, to.as_ref(), &self.body);
        self.result = Some(result);
        answer
    }
}

impl Api {
    /// What an answer means for the pace, and for whoever asked.
    fn judge<T: DeserializeOwned + Default>(
        &self,
        status: u16,
        answer: Answer,
        to: Option<&Url>,
        body: &[u8],
    ) -> (Answer, Result<Answered<T>, WikiError>) {
        let api = || self.address();
        if let (300..=399, Some(to)) = (status, to) {
            return (answer, Err(WikiError::Moved { api: api(), to: shown::url(to) }));
        }
        // Some wikis give their errors a status of their own; the code says more.
        match self.read::<T>(body) {
            Ok(Ok(answered)) if status == 200 => (answer, Ok(answered)),
            Ok(Err((code, info))) => {
                let outcome = match (code.outcome(), answer.outcome) {
                    (Outcome::Answered, status) if status.is_penalty() => status,
                    (outcome, _) => outcome,
                };
                (Answer { outcome, ..answer }, Err(WikiError::Refused { api: api(), code, info }))
            }
            _ if matches!(status, 404 | 410) => (answer, Err(WikiError::NotThere { api: api(), status })),
            _ if status != 200 => (answer, Err(WikiError::Status { api: api(), status })),
            // Asking again does not make it easier to understand.
            Err(what @ WikiError::NotUnderstood { .. }) => (answer, Err(what)),
            Err(what) => (Outcome::ServerError.into(), Err(what)),
            Ok(Ok(answered)) => (answer, Ok(answered)),
        }
    }

    /// The answer in a body, or the code it says no with.
    fn read<T: DeserializeOwned + Default>(
        &self,
        body: &[u8],
    ) -> Result<Result<Answered<T>, (Code, String)>, WikiError> {
        let envelope: Envelope<T> = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => return Err(self.unreadable(body, &error)),
        };
        let Envelope { error, rest, query, login, batchcomplete, .. } = &envelope;
        let is_one = error.is_some() || query.is_some() || login.is_some() || batchcomplete.is_some();
        if !is_one && rest.is_empty() {
            return Err(WikiError::NotJson { api: self.address(), what: "the JSON of something else" });
        }
        self.is_one.store(true, Ordering::Relaxed);
        if let Some(refusal) = envelope.error {
            // As long as a sentence, whatever a wiki has to say: errors are logged and kept.
            let [code, info] =
                [refusal.code, refusal.info].map(|text| shown::line(&text).unwrap_or_default());
            return Ok(Err((Code::of(&code), info)));
        }
        self.warn(&envelope.warnings);
        let rest: Rest = envelope.rest.into_iter().map(|(key, value)| (key, plain(value))).collect();
        Ok(Ok(Answered {
            query: envelope.query.unwrap_or_default(),
            rest: (!rest.is_empty()).then_some(rest),
            login: envelope.login,
            at: envelope.curtimestamp.and_then(|at| Timestamp::parse(&at).ok()),
        }))
    }

    fn unreadable(&self, body: &[u8], error: &serde_json::Error) -> WikiError {
        let api = self.address();
        let begins = body.trim_ascii_start();
        if begins.is_empty() {
            return WikiError::NotJson { api, what: "nothing" };
        }
        if begins.starts_with(b"<") {
            return WikiError::NotJson { api, what: "a page" };
        }
        if serde_json::from_slice::<IgnoredAny>(body).is_err() {
            return match error.is_eof() {
                true => WikiError::Unexpected { api, what: "its answer broke off".to_owned() },
                false => WikiError::NotJson { api, what: "something else" },
            };
        }
        WikiError::NotUnderstood { api, what: shown::line(&error.to_string()).unwrap_or_default() }
    }

    /// Tells each warning once.
    fn warn(&self, warnings: &serde_json::Map<String, Value>) {
        for (module, warning) in warnings {
            let text = warning["warnings"].as_str().map_or_else(|| warning.to_string(), str::to_owned);
            let [module, text] = [module, &text].map(|text| shown::line(text).unwrap_or_default());
            let mut warned = lock(&self.warned);
            if warned.len() < WARNINGS_MAX && warned.insert(format!("{module}: {text}")) {
                tracing::warn!(api = %self.address(), module, "the wiki warns: {text}");
            }
        }
    }
}

/// A value of a query, which may come as a number.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

/// A wiki that has more to say than that is not listened to.
const WARNINGS_MAX: usize = 100;
