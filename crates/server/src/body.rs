//! Reading JSON bodies, within limits of size and time. An error names the field, its value and what is allowed there.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::poll_immediate;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::error::Elapsed;

use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire::JsonObject;

/// A JSON body of this type, in a request or a response.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Service> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        require_json(&parts.headers)?;
        let limits = service.limits();
        let bytes = collect(&parts.headers, body, limits.body_max, limits.idle_timeout).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut bytes = Vec::with_capacity(256);
        match serde_json::to_writer(&mut bytes, &self.0) {
            Ok(()) => {
                let mut response = Response::new(Body::from(bytes));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Reads a body of at most `bytes_max` bytes within `timeout`.
pub(crate) async fn collect(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    timeout: Duration,
) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(Kind::TooLarge, format!("the request body exceeds {bytes_max} bytes (serve.body_max)"))
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let reading = Limited::new(body, bytes_max).collect();
    match in_time(timeout, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => {
            Err(Problem::new(Kind::NotJson, "the request body is incomplete: the connection failed"))
        }
        Err(_) => Err(Problem::new(Kind::TooSlow, "timed out reading the request body (serve.idle_timeout)")),
    }
}

/// Waits for `future` with a timeout. A future that is ready immediately doesn't cost a timer.
pub(crate) async fn in_time<F: Future>(timeout: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    match poll_immediate(&mut future).await {
        Some(output) => Ok(output),
        None => tokio::time::timeout(timeout, future).await,
    }
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    match essence.eq_ignore_ascii_case(b"application/json") {
        true => Ok(()),
        false => Err(Problem::new(Kind::MediaType, "expected Content-Type: application/json")),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // The fast path first. The field at fault is looked for only if parsing fails.
    let parsed = serde_json::from_slice::<JsonObject<T>>(bytes).map_err(|error| explain::<T>(bytes, &error));
    parsed.map(|JsonObject(value)| value)
}

/// Finds out which field a parse error is about, and what is allowed there.
fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let Ok(whole) = serde_json::from_slice::<Value>(bytes) else {
        return Problem::new(Kind::NotJson, format!("the request body is not valid JSON: {error}"));
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let (field, message) = match serde_path_to_error::deserialize::<_, JsonObject<T>>(&mut reader) {
        Err(error) => (error.path().to_string(), error.inner().to_string()),
        Ok(_) => (".".to_owned(), error.to_string()),
    };
    // The field says more than a line and column.
    let message = message.split(" at line ").next().unwrap_or_default();
    // A message without "expected" is one of our own, and is itself what is allowed.
    let (what, allowed) = message.split_once(", expected ").unwrap_or((message, message));
    let field = if field == "." { "body".to_owned() } else { field };
    if let Some(name) = what.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = match field.strip_suffix(name) {
            Some(_) => field.clone(),
            None if field == "body" => name.to_owned(),
            None => format!("{field}.{name}"),
        };
        return Problem::field(&field, "", "a single value; the field appears more than once");
    }
    if let Some(name) = what.strip_prefix("unknown field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = match field.strip_suffix(name) {
            Some(_) => field.clone(),
            None if field == "body" => name.to_owned(),
            None => format!("{field}.{name}"),
        };
        return Problem::field(&field, "", &format!("a known field: {allowed}"));
    }
    if let Some(name) = what.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = if field == "body" { name.to_owned() } else { format!("{field}.{name}") };
        return Problem::field(&field, "", "a value; the field is missing");
    }
    let value = find(&whole, &field).map(|value| shown(&field, value)).unwrap_or_default();
    Problem::field(&field, &value, allowed)
}

/// The value at a path such as `checks[3].intent`.
fn find<'a>(whole: &'a Value, path: &str) -> Option<&'a Value> {
    if path == "body" {
        return Some(whole);
    }
    let mut at = whole;
    for step in path.split(['.', '[']) {
        at = match step.strip_suffix(']') {
            Some(index) => at.get(index.parse::<usize>().ok()?)?,
            None => at.get(step)?,
        };
    }
    Some(at)
}

/// A value as shown in an error. Permits, URLs and headers may contain secrets and are not shown.
fn shown(field: &str, value: &Value) -> String {
    let may_be_secret = ["body", "permit", "url", "headers"].iter().any(|word| field.contains(word));
    match value {
        Value::Object(_) => "{…}".to_owned(),
        Value::Array(_) => "[…]".to_owned(),
        Value::String(_) if may_be_secret => "\"…\"".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn problem<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        let problem = parse::<T>(text.as_bytes()).unwrap_err();
        format!("{problem:?}")
    }

    #[test]
    fn an_error_names_the_field_its_value_and_what_is_allowed() {
        for (text, parts) in [
            (r#"{"domain": 5}"#, &["domain = 5: expected a string"][..]),
            (
                r#"{"domain": "a.example", "intent": "post"}"#,
                &["intent = \"post\": expected", "fetch", "api"],
            ),
            (r#"{"domian": "a.example"}"#, &["domian: expected a known field", "`domain`"]),
            (r#"{"domain": null}"#, &["domain = null: expected a string"]),
            ("[]", &["body = […]: expected an object"]),
            ("5", &["body = 5: expected an object"]),
        ] {
            let detail = problem::<wire::CheckRequest>(text);
            assert!(parts.iter().all(|part| detail.contains(&part.escape_debug().to_string())), "{detail}");
        }
        for wrong in ["200.5", "-1", "-1.0", "9223372036854775808", "1e300"] {
            let detail =
                problem::<wire::RecordRequest>(&format!(r#"{{"domain": "a.example", "status": {wrong}}}"#));
            assert!(detail.contains("expected a whole number from 0"), "{detail}");
        }
        let detail = problem::<wire::RecordRequest>(r#"{"domain": "a.example", "status": "200"}"#);
        assert!(detail.contains("status = \\\"200\\\": expected a JSON number"), "{detail}");
        let detail = problem::<wire::CheckBatchRequest>(
            r#"{"checks": [{"domain": "a.example"}, {"domain": "b", "intent": 1}]}"#,
        );
        assert!(detail.contains("checks[1].intent"), "{detail}");
        let detail = problem::<wire::CheckBatchRequest>(r#"{"checks": [["https://a.example/"]]}"#);
        assert!(detail.contains("checks[0] = […]: expected an object"), "{detail}");
        assert!(
            problem::<wire::CheckBatchRequest>("{}")
                .contains("checks: expected a value; the field is missing")
        );
    }

    #[test]
    fn whole_numbers_may_be_written_as_floats() {
        for (text, status) in
            [("200", 200), ("200.0", 200), ("2e2", 200), ("9e18", 9_000_000_000_000_000_000)]
        {
            let record: wire::RecordRequest =
                parse(format!(r#"{{"domain": "a.example", "status": {text}}}"#).as_bytes()).unwrap();
            assert_eq!(record.status, Some(status), "{text}");
        }
    }

    /// B75
    #[test]
    fn secrets_are_not_repeated_in_errors() {
        let detail = problem::<wire::RecordRequest>(
            r#"{"permit": 7, "url": "https://u:secret@a.example/?key=secret"}"#,
        );
        assert!(detail.contains("permit") && !detail.contains("secret"), "{detail}");
    }
}
