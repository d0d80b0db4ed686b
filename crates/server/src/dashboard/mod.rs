//! The dashboard: pages that show why something isn't moving, until when, and who said so.
//!
//! Pages are made here, as HTML, from what holders publish: looking at a site never takes it. They need no script; with
//! one, they are brought up to date while somebody looks. Everything is served from the program, and nothing is loaded
//! from anywhere else. What happens on a click is done by the same code as in `api`.
//!
//! - `guard`, `session`, `login`: who may see and do what
//! - `page`, `assets`, `text`, `chart`: the frame of a page, its files, numbers and times, charts
//! - `live`: the stream that keeps pages up to date
//! - `overview`, `sites`, `site`, `jobs`, `job`, `sources`, `wikis`, `rules`, `events`, `audit`: the pages
//! - `confirm`: what all actions share: the question, what is counted, the log; `site_actions`, `job_actions`

mod assets;
mod audit;
mod chart;
mod confirm;
mod events;
mod guard;
mod job;
mod job_actions;
mod jobs;
mod live;
mod login;
mod overview;
mod page;
mod rules;
mod session;
mod site;
mod site_actions;
mod sites;
mod sources;
mod text;
mod wikis;

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::Method;
use http::header::ACCEPT;

use crate::problem::{Kind, Problem};
use crate::service::Service;
pub(crate) use session::Sessions;

/// The paths of the dashboard.
pub(crate) fn router(service: &Service) -> Router<Service> {
    let pages = Router::new()
        .route("/", get(overview::page))
        .route("/sites", get(sites::page))
        .route("/sites/{domain}", get(site::page))
        .route("/sites/{domain}/{action}", get(site_actions::ask).post(site_actions::act))
        .route("/jobs", get(jobs::page))
        .route("/jobs/{name}", get(job::page))
        .route("/jobs/{name}/export", get(job::export))
        .route("/jobs/{name}/{action}", get(job_actions::ask).post(job_actions::act))
        .route("/sources", get(sources::page))
        .route("/sources/{id}/run", get(sources::ask).post(sources::act))
        .route("/wikis", get(wikis::page))
        .route("/rules", get(rules::page))
        .route("/events", get(events::page))
        .route("/audit", get(audit::page))
        .route(LIVE, get(live::stream))
        .route_layer(middleware::from_fn_with_state(service.clone(), guard::page));
    let public = Router::new()
        .route(LOGIN, get(login::form).post(login::login))
        .route("/logout", post(login::logout))
        .route("/assets/{name}", get(assets::file))
        .route("/favicon.svg", get(assets::icon))
        .route_layer(middleware::from_fn_with_state(service.clone(), guard::public));
    pages.merge(public)
}

/// The response to a request for a path that doesn't exist: a page for people, a problem for programs.
pub(crate) fn unless_browser(request: &Request, problem: Problem) -> Response {
    let accepts = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if request.method() == Method::GET && accepts.contains("text/html") {
        let missing = Problem::new(Kind::NotFound, "there is no such page");
        return guard::secured(page::Failure(missing).into_response());
    }
    problem.into_response()
}

const LOGIN: &str = "/login";
const LIVE: &str = "/live";
