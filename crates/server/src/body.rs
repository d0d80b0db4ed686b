//! Reading JSON: whole, typed, and with a clear word about what is wrong with it.

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
use crate::wire::Object;

/// A body that is JSON of this type; or an answer.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Service> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        is_json(&parts.headers)?;
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

/// Reads a body, but not more than `most` bytes of it, nor for longer than `patience`.
pub(crate) async fn collect(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    let too_large =
        || Problem::new(Kind::TooLarge, format!("the body has more than {most} bytes (serve.body_max)"));
    let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if said.is_some_and(|said| said > most as u64) {
        return Err(too_large());
    }
    let reading = Limited::new(body, most).collect();
    match in_time(patience, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Kind::NotJson, "the body broke off")),
        Err(_) => Err(Problem::new(Kind::TooSlow, "the body did not come in time")),
    }
}

/// What comes of `future` in time. What is there at once costs no timer.
pub(crate) async fn in_time<F: Future>(patience: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    match poll_immediate(&mut future).await {
        Some(output) => Ok(output),
        None => tokio::time::timeout(patience, future).await,
    }
}

fn is_json(headers: &HeaderMap) -> Result<(), Problem> {
    let said = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = said.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    match essence.eq_ignore_ascii_case(b"application/json") {
        true => Ok(()),
        false => Err(Problem::new(Kind::MediaType, "expected Content-Type: application/json")),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // The quick way first; what is wrong is only looked for when something is.
    let read = serde_json::from_slice::<Object<T>>(bytes).map_err(|error| wrong::<T>(bytes, &error));
    read.map(|Object(value)| value)
}

fn wrong<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let Ok(whole) = serde_json::from_slice::<Value>(bytes) else {
        return Problem::new(Kind::NotJson, format!("the body is not JSON: {error}"));
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let (field, message) = match serde_path_to_error::deserialize::<_, Object<T>>(&mut reader) {
        Err(error) => (error.path().to_string(), error.inner().to_string()),
        Ok(_) => (".".to_owned(), error.to_string()),
    };
    // Where in the text it stands says less than where in the object.
    let message = message.split(" at line ").next().unwrap_or_default();
    // A message without the word is our own, and says what is allowed.
    let (what, allowed) = message.split_once(", expected ").unwrap_or((message, message));
    let field = if field == "." { "body".to_owned() } else { field };
    if let Some(name) = what.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = match field.strip_suffix(name) {
            Some(_) => field.clone(),
            None if field == "body" => name.to_owned(),
            None => format!("{field}.{name}"),
        };
        return Problem::field(&field, "", "one value; it is there more than once");
    }
    if let Some(name) = what.strip_prefix("unknown field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = match field.strip_suffix(name) {
            Some(_) => field.clone(),
            None if field == "body" => name.to_owned(),
            None => format!("{field}.{name}"),
        };
        return Problem::field(&field, "", &format!("a field that exists: {allowed}"));
    }
    if let Some(name) = what.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        let field = if field == "body" { name.to_owned() } else { format!("{field}.{name}") };
        return Problem::field(&field, "", "a value; it is missing");
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

/// A value as it may be shown: permits, and what may be in a URL or a header, are not (B75).
fn shown(field: &str, value: &Value) -> String {
    let secret = ["body", "permit", "url", "headers"].iter().any(|word| field.contains(word));
    match value {
        Value::Object(_) => "{…}".to_owned(),
        Value::Array(_) => "[…]".to_owned(),
        Value::String(_) if secret => "\"…\"".to_owned(),
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
    fn what_is_wrong_is_named_with_field_value_and_what_is_allowed() {
        for (text, parts) in [
            (r#"{"domain": 5}"#, &["domain = 5: expected a string"][..]),
            (
                r#"{"domain": "a.example", "intent": "post"}"#,
                &["intent = \"post\": expected", "fetch", "api"],
            ),
            (r#"{"domian": "a.example"}"#, &["domian: expected a field that exists", "`domain`"]),
            (r#"{"domain": null}"#, &["domain = null: expected a string"]),
            ("[]", &["body = […]: expected an object"]),
            ("5", &["body = 5: expected an object"]),
        ] {
            let told = problem::<wire::Ask>(text);
            assert!(parts.iter().all(|part| told.contains(&part.escape_debug().to_string())), "{told}");
        }
        for wrong in ["200.5", "-1", "-1.0", "9223372036854775808", "1e300"] {
            let told = problem::<wire::Record>(&format!(r#"{{"domain": "a.example", "status": {wrong}}}"#));
            assert!(told.contains("expected a whole number from 0"), "{told}");
        }
        let told = problem::<wire::Record>(r#"{"domain": "a.example", "status": "200"}"#);
        assert!(told.contains("status = \\\"200\\\": expected a JSON number"), "{told}");
        let told =
            problem::<wire::Asks>(r#"{"checks": [{"domain": "a.example"}, {"domain": "b", "intent": 1}]}"#);
        assert!(told.contains("checks[1].intent"), "{told}");
        let told = problem::<wire::Asks>(r#"{"checks": [["https://a.example/"]]}"#);
        assert!(told.contains("checks[0] = […]: expected an object"), "{told}");
        assert!(problem::<wire::Asks>("{}").contains("checks: expected a value; it is missing"));
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        for (text, status) in
            [("200", 200), ("200.0", 200), ("2e2", 200), ("9e18", 9_000_000_000_000_000_000)]
        {
            let record: wire::Record =
                parse(format!(r#"{{"domain": "a.example", "status": {text}}}"#).as_bytes()).unwrap();
            assert_eq!(record.status, Some(status), "{text}");
        }
    }

    /// B75
    #[test]
    fn what_may_be_secret_is_not_repeated() {
        let told =
            problem::<wire::Record>(r#"{"permit": 7, "url": "https://u:secret@a.example/?key=secret"}"#);
        assert!(told.contains("permit") && !told.contains("secret"), "{told}");
    }
}
