//! Who may see and do what on the dashboard: every request passes through here first.
//!
//! Requests for another host, or from pages of other sites, are refused. Pages need a session if there are tokens, and
//! forms the token of their session. The headers keep browsers from loading or running anything that isn't served here.

use std::pin::pin;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use comity::config::Role;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::page::{Failure, path_and_query};
use super::session;
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// Who looks at a page.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    pub(crate) caller: Caller,
    /// Whether there are no tokens, so that nobody logs in.
    pub(crate) open: bool,
    /// The text in the cookie.
    pub(crate) session: String,
    /// The token for forms.
    pub(crate) form_token: String,
}

impl Viewer {
    /// Whether buttons are shown, and work.
    pub(crate) fn may_act(&self) -> bool {
        self.caller.role == Role::Admin
    }
}

/// For pages: needs a session if there are tokens.
pub(crate) async fn page(State(service): State<Service>, request: Request, next: Next) -> Response {
    guarded(&service, request, next, Need::Session).await
}

/// For the login, and for files that every page uses.
pub(crate) async fn public(State(service): State<Service>, request: Request, next: Next) -> Response {
    guarded(&service, request, next, Need::Nothing).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Session,
    Nothing,
}

async fn guarded(service: &Service, mut request: Request, next: Next, need: Need) -> Response {
    let route = request.extensions().get::<axum::extract::MatchedPath>().cloned();
    let method = request.method().clone();
    let response = match admit(service, &mut request, need) {
        Ok(cookie) => {
            let mut response = next.run(request).await;
            if let Some(cookie) = cookie
                && !response.headers().contains_key(SET_COOKIE)
            {
                response.headers_mut().append(SET_COOKIE, cookie);
            }
            response
        }
        Err(response) => *response,
    };
    let route = route.as_ref().map_or("none", |route| route.as_str());
    crate::api::count_response(service, &method, route, secured(response))
}

/// Finds out who looks, and attaches that to the request. Returns a cookie to set, or the response if the request is
/// refused.
fn admit(service: &Service, request: &mut Request, need: Need) -> Result<Option<HeaderValue>, Box<Response>> {
    let supervisor = service.supervisor();
    let checked = supervisor
        .with_access(|access| access.check_browser(request.method(), request.uri(), request.headers()));
    checked.map_err(|problem| Box::new(Failure(problem).into_response()))?;
    let (name, now) = (session::cookie_name(service.port()), service.now());
    let known = session::cookie(request.headers(), &name);
    let open = supervisor.with_access(|access| access.is_open());
    let caller = match &known {
        _ if open => Some(Caller { role: Role::Admin, id: 0 }),
        Some(id) => service.sessions().caller(id, now),
        None => None,
    };
    let caller = caller.filter(|caller| supervisor.with_access(|access| access.still_allows(*caller)));
    let is_new = known.is_none();
    let id = known.unwrap_or_else(session::new_id);
    let cookie = is_new
        .then(|| {
            HeaderValue::from_str(&session::set_cookie(&name, &id, is_encrypted(request.headers()))).ok()
        })
        .flatten();
    if caller.is_none() && need == Need::Session {
        return Err(Box::new(to_login(request)));
    }
    let form_token = service.sessions().form_token(&id);
    // Without a session there is nobody to be; only the login sees this.
    let caller = caller.unwrap_or(Caller { role: Role::View, id: 0 });
    request.extensions_mut().insert(Viewer { caller, open, session: id, form_token });
    Ok(cookie)
}

/// Where somebody who has not logged in is sent.
fn to_login(request: &Request) -> Response {
    if request.uri().path() == super::LIVE {
        let detail = "the session has ended; log in again";
        return Failure(Problem::new(Kind::Unauthorized, detail)).into_response();
    }
    if request.method() != Method::GET {
        return Redirect::to(super::LOGIN).into_response();
    }
    let back = super::text::encoded(&path_and_query(request.uri()));
    let target = if back == "%2F" { super::LOGIN.to_owned() } else { format!("{}?to={back}", super::LOGIN) };
    Redirect::to(&target).into_response()
}

/// Whether a proxy says that the browser's connection is encrypted.
pub(super) fn is_encrypted(headers: &HeaderMap) -> bool {
    headers.get(FORWARDED_PROTO).is_some_and(|proto| proto == "https")
}

pub(super) fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

impl FromRequestParts<Service> for Viewer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Failure> {
        let viewer = parts.extensions.get::<Self>().cloned();
        viewer.ok_or_else(|| Failure(Problem::new(Kind::Unauthorized, "the request was not authenticated")))
    }
}

/// Named values of a query or a form.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(Vec<(String, String)>);

impl Values {
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(text).into_owned().collect())
    }

    /// The value with this name; empty if there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.trim())
    }
}

impl FromRequestParts<Service> for Values {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Failure> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

/// A form that a page of this session sent.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) viewer: Viewer,
    pub(crate) values: Values,
    pub(crate) encrypted: bool,
}

impl FromRequest<Service> for Form {
    type Rejection = Failure;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        let viewer = Viewer::from_request_parts(&mut parts, service).await?;
        let encrypted = is_encrypted(&parts.headers);
        let values = Values::parse(&read(body).await?);
        if !service.sessions().is_form_token(&viewer.session, values.get(FORM_TOKEN)) {
            let detail = "the form is out of date, or was sent by another page; go back, reload the page and try again";
            return Err(Failure(Problem::new(Kind::Foreign, detail)));
        }
        Ok(Self { viewer, values, encrypted })
    }
}

async fn read(body: Body) -> Result<bytes::Bytes, Failure> {
    let reading = pin!(to_bytes(body, FORM_MAX));
    match tokio::time::timeout(std::time::Duration::from_secs(10), reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Failure(Problem::new(Kind::TooLarge, "the form is too large"))),
        Err(_) => Err(Failure(Problem::new(Kind::TooSlow, "the form took too long to arrive"))),
    }
}

/// A form that changes something: only those with the role `admin` may send it.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) viewer: Viewer,
    pub(crate) values: Values,
}

impl FromRequest<Service> for Action {
    type Rejection = Failure;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Failure> {
        let Form { viewer, values, .. } = Form::from_request(request, service).await?;
        viewer.caller.require_admin()?;
        Ok(Self { viewer, values })
    }
}

/// The field of every form with the token of its session.
const FORM_TOKEN: &str = "form_token";
const FORM_MAX: usize = 16 * 1_024;
/// Nothing is loaded from anywhere else, and nothing in a page runs.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
