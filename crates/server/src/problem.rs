//! How a request is refused: problem details (RFC 9457) that name the field, the value and what is allowed.

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

/// The kinds of problems there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The body is not JSON.
    NotJson,
    /// A field has a wrong type or value, is missing, or is unknown.
    Invalid,
    /// The body is not said to be JSON.
    MediaType,
    /// The body is too large.
    TooLarge,
    /// The body did not come in time.
    TooSlow,
    /// No token, or one that is not known.
    Unauthorized,
    /// The token's role does not go so far.
    Forbidden,
    /// A web page, or somebody who takes us for another host.
    Foreign,
    /// There is no such thing.
    NotFound,
    /// The path takes other methods.
    Method,
    /// It cannot be done as things stand.
    Conflict,
    /// The store does not work.
    Store,
    /// There is no room for more.
    Full,
    /// Another process has the domain.
    Busy,
    /// The service stops.
    Stopping,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), field: None, value: None, allowed: None }
    }

    /// A field with something else than is allowed there.
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

    /// The same, below another field.
    pub(crate) fn under(mut self, parent: &str) -> Self {
        self.field = self.field.map(|field| format!("{parent}.{field}"));
        self.detail = format!("{parent}.{}", self.detail);
        self
    }
}

impl Kind {
    fn status(self) -> StatusCode {
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

    fn title(self) -> &'static str {
        match self {
            Self::NotJson => "the body is not JSON",
            Self::Invalid => "a field is wrong",
            Self::MediaType => "the body is not said to be JSON",
            Self::TooLarge => "the body is too large",
            Self::TooSlow => "the body did not come in time",
            Self::Unauthorized => "a token is needed",
            Self::Forbidden => "the token does not allow it",
            Self::Foreign => "not for web pages or other hosts",
            Self::NotFound => "not found",
            Self::Method => "the path takes other methods",
            Self::Conflict => "not as things stand",
            Self::Store => "the store does not work",
            Self::Full => "there is no room for more",
            Self::Busy => "another process has the domain",
            Self::Stopping => "the service stops",
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let problem = wire::Problem {
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
        // Where the store is, is nobody's business who may only ask.
        tracing::debug!(%error, "the store does not work");
        Self::new(Kind::Store, "the store does not work at the moment; nothing leaves until it does")
    }
}

impl From<GateError> for Problem {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Store(error) => error.into(),
            GateError::Lost => Self::new(Kind::Store, error.to_string()),
            GateError::Closed => {
                Self::new(Kind::Stopping, "the service stops or reads its configuration again")
            }
        }
    }
}

/// What problems are sent as.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";
