//! What can be asked, one file for each kind of thing. Handlers read, ask the engine and write; they decide nothing.
//!
//! - `decide`: check, peek, acquire; `record`: what came of it; `lease`: how long permits keep their place
//! - `domains`, `jobs`, `sources`: looking and steering
//! - `stream`: server-sent events; `health`: health, metrics, the description of all this
//!
//! A dashboard will be one more file beside them, over the same `live`.

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
use comity::event::shown_text;
use http::Method;
use http::request::Parts;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;

use crate::again;
use crate::auth::Caller;
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// What answers requests.
pub(crate) struct Api {
    service: Service,
    routed: TowerToHyperService<Router>,
}

impl Api {
    pub(crate) fn new(service: Service) -> Self {
        Self { routed: TowerToHyperService::new(router(service.clone())), service }
    }

    /// Answers a request. What is asked all the time goes straight to its handler: routes and layers cost as much as a
    /// decision.
    pub(crate) async fn answer(&self, request: http::Request<Incoming>) -> Result<Response, Infallible> {
        let request = request.map(Body::new);
        let route = match (request.method(), request.uri().path()) {
            (&Method::POST, CHECK) => CHECK,
            (&Method::POST, RECORD) => RECORD,
            _ => return self.routed.call(request).await,
        };
        if request.headers().contains_key(again::HEADER) {
            return self.routed.call(request).await;
        }
        let response = self.straight(route, request).await.unwrap_or_else(Problem::into_response);
        Ok(answered(&self.service, &Method::POST, route, response))
    }

    async fn straight(&self, route: &str, request: Request) -> Result<Response, Problem> {
        let caller = caller(&self.service, &request)?;
        let service = State(self.service.clone());
        while_admitted(&self.service, caller, async {
            if route == CHECK {
                let ask = Json::from_request(request, &self.service).await?;
                return Ok(decide::check(service, ask).await?.into_response());
            }
            let record = Json::from_request(request, &self.service).await?;
            Ok(record::record(service, caller, record).await?.into_response())
        })
        .await
    }
}

/// Everything that can be asked.
fn router(service: Service) -> Router {
    // What is done once, however often it is asked with one key.
    let once = Router::new()
        .route(CHECK, post(decide::check))
        .route("/v1/check/batch", post(decide::check_batch))
        .route("/v1/acquire", post(decide::acquire))
        .route(RECORD, post(record::record))
        .route("/v1/record/batch", post(record::record_batch))
        .route("/v1/jobs", get(jobs::list).post(jobs::create))
        .route("/v1/jobs/{name}/tasks", post(jobs::add))
        .route("/v1/jobs/{name}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{name}/retry", post(jobs::retry))
        .route_layer(middleware::from_fn_with_state(service.clone(), known_callers_once));
    let known = Router::new()
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
        .route_layer(middleware::from_fn_with_state(service.clone(), known_callers));
    let open = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(health::description))
        .route_layer(middleware::from_fn_with_state(service.clone(), everybody));
    once.merge(known)
        .merge(open)
        .fallback(async |State(service): State<Service>, request: Request| {
            let what = "there is nothing at this path; /openapi.json lists what there is";
            Seen::new(&request).answered(&service, Problem::new(Kind::NotFound, what).into_response())
        })
        .method_not_allowed_fallback(async |State(service): State<Service>, request: Request| {
            let what = "Allow says which methods the path takes";
            Seen::new(&request).answered(&service, Problem::new(Kind::Method, what).into_response())
        })
        .with_state(service)
}

// Each request passes one layer.

/// Everybody may ask.
async fn everybody(State(service): State<Service>, request: Request, next: Next) -> Response {
    let seen = Seen::new(&request);
    seen.answered(&service, next.run(request).await)
}

/// Lets in whoever may ask.
async fn known_callers(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let seen = Seen::new(&request);
    let response = match admit(&service, &mut request) {
        Ok(caller) => while_admitted(&service, caller, async { Ok(next.run(request).await) }).await,
        Err(problem) => Err(problem),
    };
    seen.answered(&service, response.unwrap_or_else(Problem::into_response))
}

/// The same, and who asks again with the same key gets the same answer.
async fn known_callers_once(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let seen = Seen::new(&request);
    let response = match admit(&service, &mut request) {
        Ok(caller) => {
            let answering = async { Ok(again::same_answer(&service, request, next).await) };
            while_admitted(&service, caller, answering).await
        }
        Err(problem) => Err(problem),
    };
    seen.answered(&service, response.unwrap_or_else(Problem::into_response))
}

/// Says who asks, if they may.
fn admit(service: &Service, request: &mut Request) -> Result<Caller, Problem> {
    let caller = caller(service, request)?;
    request.extensions_mut().insert(caller);
    Ok(caller)
}

/// Who asks, if they may.
fn caller(service: &Service, request: &Request) -> Result<Caller, Problem> {
    service.current().with_door(|door| door.admit(request.uri(), request.headers()))
}

/// Answers a request that may take long, such as one that waits in line, for as long as its caller may ask.
async fn while_admitted(
    service: &Service,
    caller: Caller,
    answering: impl Future<Output = Result<Response, Problem>>,
) -> Result<Response, Problem> {
    let mut answering = pin!(answering);
    // Nearly all are answered at once, and need not look out for anything.
    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(answering.as_mut().poll(context))).await {
        return answer;
    }
    tokio::select! {
        // First, so that whoever was let in before gets nothing that came free only now.
        biased;
        () = service.current().until_barred(caller) => {
            Err(Problem::new(Kind::Unauthorized, "the token was revoked, or its role changed, while the request waited"))
        }
        answer = answering => answer,
    }
}

/// A request that is to be counted when it is answered.
struct Seen {
    route: Option<MatchedPath>,
    method: Method,
}

impl Seen {
    fn new(request: &Request) -> Self {
        Self { route: request.extensions().get().cloned(), method: request.method().clone() }
    }

    fn answered(self, service: &Service, response: Response) -> Response {
        let route = self.route.as_ref().map_or(NOWHERE, MatchedPath::as_str);
        answered(service, &self.method, route, response)
    }
}

/// Counts an answer.
fn answered(service: &Service, method: &Method, route: &str, response: Response) -> Response {
    service.metrics().answered(route, response.status());
    tracing::debug!(%method, route, status = response.status().as_u16(), "answered");
    response
}

impl FromRequestParts<Service> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Self>().copied();
        caller.ok_or_else(|| Problem::new(Kind::Unauthorized, "nobody said who asks"))
    }
}

/// The parameters of a query, or a clear word about what is wrong with them.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Service> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        match axum::extract::Query::<T>::from_request_parts(parts, service).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let what = text.rsplit("query string: ").next().unwrap_or_default().to_owned();
                Err(Problem::field("query", "", &what))
            }
        }
    }
}

/// A piece of the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Service> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, service).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(_) => Err(Problem::new(Kind::NotFound, "not found: the path cannot be read")),
        }
    }
}

/// The host that a `url` or a `domain` names; exactly one of them is there.
pub(crate) fn host(url: Option<&str>, domain: Option<&str>) -> Result<Domain, Problem> {
    match (url, domain) {
        (Some(url), None) => {
            fits("url", url, URL_MAX)?;
            // What cannot be read may hold a password.
            Domain::of_url(url).map_err(|error| {
                Problem::field("url", &format!("{:?}", shown_text(&error.value)), error.expected)
            })
        }
        (None, Some(domain)) => self::domain(domain),
        (None, None) => Err(Problem::field("domain", "", "a domain, or a url; both are missing")),
        (Some(_), Some(_)) => Err(Problem::field("domain", "", "a domain or a url, not both")),
    }
}

/// The host that the name of a domain means.
pub(crate) fn domain(text: &str) -> Result<Domain, Problem> {
    fits("domain", text, DOMAIN_MAX)?;
    Domain::parse(text)
        .map_err(|error| Problem::field("domain", &format!("{:?}", shown_text(&error.value)), error.expected))
}

/// Whether a text is not longer than `most` characters.
pub(crate) fn fits(field: &str, text: &str, most: usize) -> Result<(), Problem> {
    // Bytes are counted first: they are never fewer.
    match text.len() > most && text.chars().nth(most).is_some() {
        true => Err(Problem::field(field, "\"…\"", &format!("at most {most} characters"))),
        false => Ok(()),
    }
}

/// The route of what is asked where there is nothing.
const NOWHERE: &str = "none";
const CHECK: &str = "/v1/check";
const RECORD: &str = "/v1/record";
/// The longest name of a domain: 253 characters, a dot at its end, and a port.
pub(crate) const DOMAIN_MAX: usize = 260;
/// The longest URL.
pub(crate) const URL_MAX: usize = 8_192;
