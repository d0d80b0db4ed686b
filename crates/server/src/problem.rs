//! Error responses: problem details (RFC 9457) that name the field, its value and what is allowed.

use axum::response::{IntoResponse, Response};
use comity::core::problem::shortened;
use comity::gate::GateError;
use comity::store::StoreError;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};

use crate::wire;

/// Why a request is refused.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    field: Option<String>,
    value: Option<String>,
    allowed: Option<String>,
}

/// The kinds of problems. Each has an HTTP status, a stable name and a title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The body is not valid JSON.
    NotJson,
    /// A field has a wrong type or value, is missing, or is unknown.
    Invalid,
    /// The Content-Type is not JSON.
    MediaType,
    /// The body is too large.
    TooLarge,
    /// The body took too long to arrive.
    TooSlow,
    /// The token is missing or unknown.
    Unauthorized,
    /// The token's role doesn't allow this.
    Forbidden,
    /// The request comes from a web page of another site, or its Host header names another host.
    Foreign,
    /// The resource or path doesn't exist.
    NotFound,
    /// The path doesn't support this method.
    Method,
    /// The current state doesn't allow this.
    Conflict,
    /// The store is unavailable.
    Store,
    /// A limit is reached.
    Full,
    /// Another process holds the domain.
    Busy,
    /// The service is shutting down.
    Stopping,
}

impl Problem {
    /// What kind of problem it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), field: None, value: None, allowed: None }
    }

    /// A field whose value is not allowed. An empty `value` is not shown.
    pub(crate) fn field(field: &str, value: &str, allowed: &str) -> Self {
        let value = shortened(value);
        let detail = match value.is_empty() {
            true => format!("{field}: expected {allowed}"),
            false => format!("{field} = {value}: expected {allowed}"),
        };
        let value = (!value.is_empty()).then_some(value);
        let (field, allowed) = (Some(field.to_owned()), Some(allowed.to_owned()));
        Self { kind: Kind::Invalid, detail, field, value, allowed }
    }

    /// The same problem, with the field as part of `parent`.
    pub(crate) fn under(mut self, parent: &str) -> Self {
        self.field = self.field.map(|field| format!("{parent}.{field}"));
        self.detail = format!("{parent}.{}", self.detail);
        self
    }
}

impl Kind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::NotJson => StatusCode::BAD_REQUEST,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::Foreign => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict => StatusCode::CONFLICT,
            Self::Store | Self::Full | Self::Busy | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::NotJson => "not-json",
            Self::Invalid => "invalid",
            Self::MediaType => "media-type",
            Self::TooLarge => "too-large",
            Self::TooSlow => "too-slow",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Foreign => "foreign",
            Self::NotFound => "not-found",
            Self::Method => "method",
            Self::Conflict => "conflict",
            Self::Store => "store-unavailable",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Stopping => "stopping",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::NotJson => "invalid JSON",
            Self::Invalid => "invalid field",
            Self::MediaType => "unsupported media type",
            Self::TooLarge => "request body too large",
            Self::TooSlow => "request timed out",
            Self::Unauthorized => "missing or unknown token",
            Self::Forbidden => "not allowed with this token",
            Self::Foreign => "wrong Host or cross-site request",
            Self::NotFound => "not found",
            Self::Method => "method not allowed",
            Self::Conflict => "conflict with the current state",
            Self::Store => "store unavailable",
            Self::Full => "limit reached",
            Self::Busy => "another process is in charge of the site",
            Self::Stopping => "service shutting down",
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let problem = wire::ProblemDetails {
            r#type: format!("urn:comity:problem:{}", self.kind.name()),
            title: self.kind.title(),
            status: status.as_u16(),
            detail: self.detail,
            field: self.field,
            value: self.value,
            allowed: self.allowed,
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        match self.kind {
            Kind::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"comity\""));
            }
            Kind::Store | Kind::Full | Kind::Busy | Kind::Stopping => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // The error may name the store's path, which callers needn't know. So it goes to the log only.
        tracing::debug!(%error, "the store is unavailable");
        Self::new(
            Kind::Store,
            "the store is unavailable at the moment; no request may be sent until it is back",
        )
    }
}

impl From<GateError> for Problem {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Store(error) => error.into(),
            GateError::Lost => Self::new(Kind::Store, error.to_string()),
            GateError::Closed => {
                Self::new(Kind::Stopping, "the service is shutting down or reloading its configuration")
            }
        }
    }
}

/// The content type of problem details.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";
