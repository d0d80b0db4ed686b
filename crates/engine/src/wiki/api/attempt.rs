//! What came of one request: what it means for the pace, and for whoever asked.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use comity_core::headers::Told;
use comity_core::outcome::{Answer, Outcome};
use comity_core::time::Timestamp;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use url::Url;

use super::Api;
use crate::transport::TransportError;
use crate::wiki::answers::{Answered, Envelope, Rest};
use crate::wiki::error::{Code, WikiError};
use crate::{lock, shown};

/// What came of one request.
pub(super) struct Attempt {
    /// 0 when there was no answer at all.
    pub(super) status: u16,
    pub(super) told: Told,
    pub(super) to: Option<Url>,
    pub(super) body: Bytes,
    pub(super) broken: Option<TransportError>,
}

impl Attempt {
    pub(super) fn broken(cause: TransportError) -> Self {
        Self { status: 0, told: Told::default(), to: None, body: Bytes::new(), broken: Some(cause) }
    }
}

impl Api {
    /// What an attempt means for the pace, and for whoever asked.
    pub(super) fn judge<T: DeserializeOwned + Default>(
        &self,
        attempt: Attempt,
    ) -> (Answer, Result<Answered<T>, WikiError>) {
        let Attempt { status, told, to, body, broken } = attempt;
        let api = || self.address();
        if let Some(cause) = broken {
            let answer = match status {
                0 => Answer::of_breakdown(cause.breakdown()),
                // It answered more than we want: it is not to blame.
                _ if cause.is_final() => Answer::of_status(status, told),
                // The head came, and asked for what it asked for.
                _ => Answer { told, ..Answer::of_breakdown(cause.breakdown()) },
            };
            return (answer, Err(WikiError::Transport { api: api(), cause }));
        }
        let answer = Answer::of_status(status, told);
        if let (300..=399, Some(to)) = (status, to) {
            return (answer, Err(WikiError::Moved { api: api(), to: shown::url(&to) }));
        }
        // Some wikis give their errors a status of their own; the code says more.
        match self.read::<T>(&body) {
            Ok(Ok(answered)) if status == 200 => (answer, Ok(answered)),
            Ok(Err((code, info))) => {
                let outcome = match (code.outcome(), answer.outcome) {
                    (Outcome::Answered, status) if status.is_penalty() => status,
                    (outcome, _) => outcome,
                };
                (Answer { outcome, told }, Err(WikiError::Refused { api: api(), code, info }))
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
