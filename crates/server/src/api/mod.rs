//! The HTTP API: routes and handlers, one file per kind of resource. Handlers parse the request, call the engine and
//! write the response; they make no decisions.
//!
//! - `decide`: check, peek and acquire; `record`: outcomes; `lease`: renewing and releasing permits
//! - `domains`, `jobs`, `sources`: inspecting and controlling
//! - `stream`: server-sent events; `health`: health checks, metrics and the API description
//!
//! The doc comments of handlers are the text of the OpenAPI description.

pub(crate) mod decide;
pub(crate) mod domains;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod lease;
pub(crate) mod record;
pub(crate) mod sources;
pub(crate) mod stream;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use comity::core::domain::Domain;
use comity::event::redacted_text;
use http::Method;
use http::request::Parts;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;

use crate::auth::Caller;
use crate::body::Json;
use crate::idempotency;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// Answers requests.
pub(crate) struct Api {
    service: Service,
    router: TowerToHyperService<Router>,
}

impl Api {
    pub(crate) fn new(service: Service) -> Self {
        Self { router: TowerToHyperService::new(router(service.clone())), service }
    }

    /// Answers a request. `check` and `record` bypass the router, because routing and middleware cost as much as a
    /// decision.
    pub(crate) async fn answer(&self, request: http::Request<Incoming>) -> Result<Response, Infallible> {
        let request = request.map(Body::new);
        let route = match (request.method(), request.uri().path()) {
            (&Method::POST, CHECK) => CHECK,
            (&Method::POST, RECORD) => RECORD,
            _ => return self.router.call(request).await,
        };
        if request.headers().contains_key(idempotency::HEADER) {
            return self.router.call(request).await;
        }
        let response = self.fast_path(route, request).await.unwrap_or_else(Problem::into_response);
        Ok(count_response(&self.service, &Method::POST, route, response))
    }

    async fn fast_path(&self, route: &str, request: Request) -> Result<Response, Problem> {
        let caller = caller(&self.service, &request)?;
        let service = State(self.service.clone());
        until_revoked(&self.service, caller, async {
            if route == CHECK {
                let check = Json::from_request(request, &self.service).await?;
                return Ok(decide::check(service, check).await?.into_response());
            }
            let record = Json::from_request(request, &self.service).await?;
            Ok(record::record(service, caller, record).await?.into_response())
        })
        .await
    }
}

/// All routes.
fn router(service: Service) -> Router {
    // These support idempotency keys.
    let idempotent = Router::new()
        .route(CHECK, post(decide::check))
        .route("/v1/check/batch", post(decide::check_batch))
        .route("/v1/acquire", post(decide::acquire))
        .route(RECORD, post(record::record))
        .route("/v1/record/batch", post(record::record_batch))
        .route("/v1/jobs", get(jobs::list).post(jobs::create))
        .route("/v1/jobs/{name}/tasks", post(jobs::add))
        .route("/v1/jobs/{name}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{name}/retry", post(jobs::retry))
        .route_layer(middleware::from_fn_with_state(service.clone(), authenticated_with_idempotency));
    let plain = Router::new()
        .route("/v1/peek", post(decide::peek))
        .route("/v1/renew", post(lease::renew))
        .route("/v1/domains/{domain}/release", post(lease::release))
        .route("/v1/domains", get(domains::list))
        .route("/v1/domains/{domain}", get(domains::show).patch(domains::change).delete(domains::reset))
        .route("/v1/domains/{domain}/explain", get(domains::explain))
        .route("/v1/jobs/{name}", get(jobs::show))
        .route("/v1/sources", get(sources::list))
        .route("/v1/sources/{id}", get(sources::show))
        .route("/v1/events", get(stream::events))
        .route("/metrics", get(health::metrics))
        .route_layer(middleware::from_fn_with_state(service.clone(), authenticated));
    let public = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(health::description))
        .route_layer(middleware::from_fn_with_state(service.clone(), unauthenticated));
    idempotent
        .merge(crate::dashboard::router(&service))
        .merge(plain)
        .merge(public)
        .fallback(async |State(service): State<Service>, request: Request| {
            let detail = "this path does not exist; /openapi.json lists all paths";
            let missing = Problem::new(Kind::NotFound, detail);
            let response = crate::dashboard::unless_browser(&request, missing);
            TrackedRequest::new(&request).finish(&service, response)
        })
        .method_not_allowed_fallback(async |State(service): State<Service>, request: Request| {
            let detail = "this path does not support the method; the Allow header lists those it supports";
            TrackedRequest::new(&request).finish(&service, Problem::new(Kind::Method, detail).into_response())
        })
        .with_state(service)
}

// Each request passes through exactly one of these layers.

/// For paths that need no token.
async fn unauthenticated(State(service): State<Service>, request: Request, next: Next) -> Response {
    let tracked = TrackedRequest::new(&request);
    tracked.finish(&service, next.run(request).await)
}

/// For paths that need a token, if there are tokens.
async fn authenticated(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let tracked = TrackedRequest::new(&request);
    let response = match authenticate(&service, &mut request) {
        Ok(caller) => until_revoked(&service, caller, async { Ok(next.run(request).await) }).await,
        Err(problem) => Err(problem),
    };
    tracked.finish(&service, response.unwrap_or_else(Problem::into_response))
}

/// Like [`authenticated`], for paths that support idempotency keys.
async fn authenticated_with_idempotency(
    State(service): State<Service>,
    mut request: Request,
    next: Next,
) -> Response {
    let tracked = TrackedRequest::new(&request);
    let response = match authenticate(&service, &mut request) {
        Ok(caller) => {
            let answering = async { Ok(idempotency::replay_or_run(&service, request, next).await) };
            until_revoked(&service, caller, answering).await
        }
        Err(problem) => Err(problem),
    };
    tracked.finish(&service, response.unwrap_or_else(Problem::into_response))
}

/// Authenticates a request, and attaches the caller to it.
fn authenticate(service: &Service, request: &mut Request) -> Result<Caller, Problem> {
    let caller = caller(service, request)?;
    request.extensions_mut().insert(caller);
    Ok(caller)
}

/// The caller of a request, or an error if it has no access.
fn caller(service: &Service, request: &Request) -> Result<Caller, Problem> {
    let (uri, headers) = (request.uri(), request.headers());
    let caller = service.supervisor().with_access(|access| access.authenticate(uri, headers))?;
    caller.require_reading(request.method(), uri.path())?;
    Ok(caller)
}

/// Runs a handler until the caller loses its access. Some requests take long, such as those that wait in line.
async fn until_revoked(
    service: &Service,
    caller: Caller,
    answering: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let mut answering = pin!(answering);
    // Nearly all requests are answered at once, and need no watching.
    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await {
        return answer;
    }
    tokio::select! {
        // Checked first, so that a caller who has just lost access doesn't get a slot that has just become free.
        biased;
        () = service.supervisor().until_revoked(caller) => {
            Err(Problem::new(Kind::Unauthorized, "the token was removed, or its role changed, while the request was waiting"))
        }
        answer = answering => answer,
    }
}

/// Route and method of a request, to count it when it is answered.
struct TrackedRequest {
    route: Option<MatchedPath>,
    method: Method,
}

impl TrackedRequest {
    fn new(request: &Request) -> Self {
        Self { route: request.extensions().get().cloned(), method: request.method().clone() }
    }

    fn finish(self, service: &Service, response: Response) -> Response {
        let route = self.route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        count_response(service, &self.method, route, response)
    }
}

/// Counts and logs a response.
pub(crate) fn count_response(
    service: &Service,
    method: &Method,
    route: &str,
    response: Response,
) -> Response {
    service.metrics().answered(route, response.status());
    tracing::debug!(%method, route, status = response.status().as_u16(), "answered");
    response
}

impl FromRequestParts<Service> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Self>().copied();
        caller.ok_or_else(|| Problem::new(Kind::Unauthorized, "the request was not authenticated"))
    }
}

/// The query parameters, or a problem that says what is wrong with them.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Service> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, service).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let reason = text.rsplit("query string: ").next().unwrap_or_default().to_owned();
                Err(Problem::field("query", "", &reason))
            }
        }
    }
}

/// A path parameter.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Service> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, service).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(_) => Err(Problem::new(Kind::NotFound, "not found: a path parameter is malformed")),
        }
    }
}

/// The host named by a `url` or a `domain`. Exactly one of them must be given.
pub(crate) fn host(url: Option<&str>, domain: Option<&str>) -> Result<Domain, Problem> {
    match (url, domain) {
        (Some(url), None) => {
            validate_length("url", url, URL_MAX)?;
            // An invalid URL may contain a password, so it is redacted.
            Domain::of_url(url).map_err(|error| {
                Problem::field("url", &format!("{:?}", redacted_text(&error.value)), error.expected)
            })
        }
        (None, Some(domain)) => self::domain(domain),
        (None, None) => Err(Problem::field("domain", "", "a domain or a url; both are missing")),
        (Some(_), Some(_)) => Err(Problem::field("domain", "", "either a domain or a url, not both")),
    }
}

/// Parses the name of a domain.
pub(crate) fn domain(text: &str) -> Result<Domain, Problem> {
    validate_length("domain", text, DOMAIN_MAX)?;
    Domain::parse(text).map_err(|error| {
        Problem::field("domain", &format!("{:?}", redacted_text(&error.value)), error.expected)
    })
}

/// Refuses a text of more than `max` characters.
pub(crate) fn validate_length(field: &str, text: &str, max: usize) -> Result<(), Problem> {
    // The number of bytes is checked first: it is cheap, and never less than the number of characters.
    match text.len() > max && text.chars().nth(max).is_some() {
        true => Err(Problem::field(field, "\"…\"", &format!("at most {max} characters"))),
        false => Ok(()),
    }
}

/// The route label of requests to paths that don't exist.
const NO_ROUTE: &str = "none";
const CHECK: &str = "/v1/check";
const RECORD: &str = "/v1/record";
/// The longest domain name: 253 characters, a trailing dot and a port.
pub(crate) const DOMAIN_MAX: usize = 260;
/// The longest URL.
pub(crate) const URL_MAX: usize = 8_192;
