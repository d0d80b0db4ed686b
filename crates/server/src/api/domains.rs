//! Domains: list, show and explain them; set, pin, pause and reset them.

use std::time::Duration;

use axum::extract::State;
use comity::client::known_robots;
use comity::core::domain::Domain;
use comity::core::pace::{Pace, Pinned, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{self, Gate};
use comity::redact;
use comity::store::domains::DomainRow;
use serde::Deserialize;
use url::Url;

use super::decide::{DomainLimit, with_gate};
use super::{DOMAIN_MAX, Path, Query, URL_MAX, domain, validate_length};
use crate::audit::Deed;
use crate::auth::Caller;
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;
use crate::wire::{self, time_text};

/// Which sites to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// List only sites whose name contains this text.
    #[serde(default)]
    #[param(required = false, nullable = false, max_length = 260)]
    like: String,
    /// List only sites after this name: the `next` of the previous page.
    #[serde(default)]
    #[param(required = false, nullable = false, max_length = 260)]
    after: String,
    /// The maximum number of sites per page.
    #[param(required = false, nullable = false, value_type = u32, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// List sites, sorted by name.
#[utoipa::path(get, path = "/v1/domains", operation_id = "list_domains", tag = "domains", params(ListParams), responses((status = 200, description = "A page of sites", body = wire::DomainListResponse)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(params): Query<ListParams>,
) -> Result<Json<wire::DomainListResponse>, Problem> {
    let limit = limit(params.limit)?;
    validate_length("like", &params.like, DOMAIN_MAX)?;
    validate_length("after", &params.after, DOMAIN_MAX)?;
    let state = service.state()?;
    let mut rows = state.store.list_domains(params.like, params.after, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| more).map(|row| row.domain.clone());
    let domains = describe_all(&state, rows).await?;
    Ok(Json(wire::DomainListResponse { domains, next }))
}

/// Show what is known about a site.
#[utoipa::path(get, path = "/v1/domains/{domain}", operation_id = "show_domain", tag = "domains",
    params(("domain" = String, Path, description = "A host, with its port unless that is the default, or a group as `group:NAME`", format = "host", max_length = 260)),
    responses((status = 200, description = "The site", body = wire::DomainResponse)))]
pub(crate) async fn show(
    State(service): State<Service>,
    Path(name): Path<String>,
) -> Result<Json<wire::DomainResponse>, Problem> {
    let host = domain(&name)?;
    describe_one(&*service.state()?, &host).await.map(Json)
}

/// Set or pin the learned delay of a site, or pause or resume the site.
///
/// Requires the role `admin`.
#[utoipa::path(patch, path = "/v1/domains/{domain}", operation_id = "change_domain", tag = "domains", request_body = wire::DomainChange,
    params(("domain" = String, Path, description = "A host, with its port unless that is the default, or a group as `group:NAME`", format = "host", max_length = 260)),
    responses((status = 200, description = "The site", body = wire::DomainResponse)))]
pub(crate) async fn change(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
    Json(change): Json<wire::DomainChange>,
) -> Result<Json<wire::DomainResponse>, Problem> {
    caller.require_admin()?;
    let host = domain(&name)?;
    let impact = text_of(&change);
    let change = Change::parse(&change)?;
    let deed = Deed::new("change", format!("site {host}"), impact);
    deed.carry_out(&service, caller, apply_change(&service, &host, &change)).await?;
    describe_one(&*service.state()?, &host).await.map(Json)
}

/// A change in a few words.
fn text_of(change: &wire::DomainChange) -> String {
    let wire::DomainChange {
        adaptive_delay_seconds: delay,
        adaptive_delay_floor_seconds: floor,
        pinned,
        paused,
        paused_until,
    } = change;
    let parts = [
        delay.map(|seconds| format!("learned delay {seconds} s")),
        floor.map(|seconds| format!("floor {seconds} s")),
        pinned.map(|pinned| if pinned { "pinned" } else { "unpinned" }.to_owned()),
        paused.map(|paused| if paused { "paused" } else { "resumed" }.to_owned()),
        paused_until.as_ref().map(|until| format!("paused until {until}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Applies a change to a domain, whoever holds it.
pub(crate) async fn apply_change(service: &Service, host: &Domain, change: &Change) -> Result<(), Problem> {
    let apply = |gate: Gate| async move {
        gate.with_pace(host, |pace, terms, now| change.apply(pace, terms, now)).await
    };
    with_gate(service, host, DomainLimit::Enforced, HANDOVER_TIMEOUT, apply).await.map(drop)
}

/// What to reset.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetParams {
    /// Whether to drop a deadline that the server stated, too. The server may still answer 429.
    #[serde(default)]
    #[param(required = false, nullable = false)]
    deadline: bool,
}

/// Forget what was learned about a site.
///
/// The learned delay and the backoff after failures are reset. Deadlines that the server stated, such as
/// `Retry-After`, stay unless `deadline` is true. Requires the role `admin`.
#[utoipa::path(delete, path = "/v1/domains/{domain}", operation_id = "reset_domain", tag = "domains",
    params(("domain" = String, Path, description = "A host, with its port unless that is the default, or a group as `group:NAME`", format = "host", max_length = 260), ResetParams),
    responses((status = 200, description = "The site", body = wire::DomainResponse)))]
pub(crate) async fn reset(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
    Query(params): Query<ResetParams>,
) -> Result<Json<wire::DomainResponse>, Problem> {
    caller.require_admin()?;
    let host = domain(&name)?;
    let impact = if params.deadline { "also drops what the server asked for" } else { "" };
    let deed = Deed::new("reset", format!("site {host}"), impact.to_owned());
    deed.carry_out(&service, caller, apply_reset(&service, &host, params.deadline)).await?;
    describe_one(&*service.state()?, &host).await.map(Json)
}

/// Forgets what was learned about a domain, and the server's deadline if `deadline` is true.
pub(crate) async fn apply_reset(service: &Service, host: &Domain, deadline: bool) -> Result<(), Problem> {
    // Fails with 404 if nothing is known about the domain.
    describe_one(&*service.state()?, host).await?;
    let reset = |gate: Gate| async move {
        let reset = |pace: &mut Pace, _: Terms<'_>, now| {
            pace.reset(now);
            if deadline { pace.drop_server_deadline(now) } else { None }
        };
        gate.with_pace(host, reset).await
    };
    let (state, dropped) = with_gate(service, host, DomainLimit::Exempt, HANDOVER_TIMEOUT, reset).await?;
    if dropped.is_some() {
        let (domain, now) = (state.gate.rules().domain(host), state.gate.clock().now());
        state.store.retry_now(domain, now).await?;
    }
    Ok(())
}

/// The status of a domain: as it is now if it is held here, otherwise as its holder published or left it.
pub(crate) async fn status_of(
    state: &ServingState,
    domain: &Domain,
) -> Result<Option<gate::DomainStatus>, Problem> {
    if let Some(status) = state.gate.domain_status(domain) {
        return Ok(Some(status));
    }
    let row = state.store.find_domain(domain.clone()).await?;
    let (Some(inspector), Some(row)) = (state.gate.inspector(), row) else { return Ok(None) };
    let seen = inspector.inspect_rows(vec![row]).await?;
    Ok(seen.first().and_then(|seen| seen.status(state.gate.rules(), state.gate.clock().now())))
}

/// Which request to explain.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainParams {
    /// What the request is for.
    #[param(required = false, nullable = false, value_type = wire::IntentParam)]
    intent: Option<wire::IntentParam>,
    /// A URL of this site, to see whether its robots.txt allows it.
    #[param(required = false, nullable = false, format = "http-url", max_length = 8192)]
    url: Option<String>,
}

/// Show everything that delays the next request to a site, and why.
///
/// Lists all constraints, also those that don't delay it at the moment. The one that decides comes first. With `url`,
/// the response also shows whether a robots.txt that is already known forbids that URL; nothing is fetched for this.
#[utoipa::path(get, path = "/v1/domains/{domain}/explain", operation_id = "explain_domain", tag = "domains",
    params(("domain" = String, Path, description = "A host, with its port unless that is the default, or a group as `group:NAME`", format = "host", max_length = 260), ExplainParams),
    responses((status = 200, description = "All constraints on the next request", body = wire::ExplainResponse)))]
pub(crate) async fn explain(
    State(service): State<Service>,
    Path(name): Path<String>,
    Query(params): Query<ExplainParams>,
) -> Result<Json<wire::ExplainResponse>, Problem> {
    let host = domain(&name)?;
    let intent = params.intent.unwrap_or_default().into();
    let state = service.state()?;
    state.load_crawl_delay(&host).await;
    let (reasons, as_of) = state.gate.explain_as_of(&host, intent).await?;
    let robots = match url_of(params.url.as_deref(), &host)? {
        Some(url) => known_robots(&*state.store, &state.config, &url, state.gate.clock().now()).await?,
        None => None,
    };
    let explained = wire::ExplainResponse::of(&state.gate.rules().domain(&host), &reasons, as_of);
    Ok(Json(explained.with_robots(robots)))
}

/// The URL to explain, which has to belong to the domain in the path.
fn url_of(text: Option<&str>, host: &Domain) -> Result<Option<Url>, Problem> {
    let Some(text) = text else { return Ok(None) };
    validate_length("url", text, URL_MAX)?;
    let url = Url::parse(text).ok().filter(|url| Domain::of(url).as_ref() == Some(host));
    let wrong = || Problem::field("url", &format!("{:?}", redact::text(text)), &format!("a URL of {host}"));
    url.map(Some).ok_or_else(wrong)
}

/// A validated change to a domain.
pub(crate) struct Change {
    delay: Option<Span>,
    floor: Option<Span>,
    pinned: Option<Pinned>,
    /// `Some(Some(until))` pauses the domain until then, `Some(None)` resumes it.
    paused: Option<Option<Timestamp>>,
}

impl Change {
    pub(crate) fn parse(change: &wire::DomainChange) -> Result<Self, Problem> {
        let paused = match (change.paused, change.paused_until.as_deref()) {
            (Some(false), Some(_)) => {
                return Err(Problem::field("paused_until", "", "no value, because paused is false"));
            }
            (_, Some(text)) => {
                let allowed = "a time such as \"2026-11-16T12:00:00Z\"";
                let until = Timestamp::parse(text);
                Some(Some(until.map_err(|_| Problem::field("paused_until", &format!("{text:?}"), allowed))?))
            }
            (Some(true), None) => Some(Some(Timestamp::MAX)),
            (Some(false), None) => Some(None),
            (None, None) => None,
        };
        let pinned = change.pinned.map(|pinned| if pinned { Pinned::Yes } else { Pinned::No });
        Ok(Self {
            delay: span("adaptive_delay_seconds", change.adaptive_delay_seconds)?,
            floor: span("adaptive_delay_floor_seconds", change.adaptive_delay_floor_seconds)?,
            pinned,
            paused,
        })
    }

    fn apply(&self, pace: &mut Pace, terms: Terms<'_>, now: Timestamp) {
        if self.delay.is_some() || self.floor.is_some() {
            let floor = self.floor.unwrap_or(pace.learned().floor());
            pace.set_learned(terms, self.delay.unwrap_or(pace.learned().delay()), floor, now);
        }
        if let Some(pinned) = self.pinned {
            pace.pin(pinned);
        }
        match self.paused {
            Some(Some(until)) => pace.pause(Some(until)),
            Some(None) => pace.resume(),
            None => {}
        }
    }
}

fn span(field: &str, seconds: Option<f64>) -> Result<Option<Span>, Problem> {
    let Some(seconds) = seconds else { return Ok(None) };
    match (0.0..=86_400.0).contains(&seconds) {
        true => Ok(Some(Span::from_micros((seconds * 1e6).round() as u64))),
        false => Err(Problem::field(field, &seconds.to_string(), "seconds from 0 to 86400")),
    }
}

/// The page size, which defaults to 100.
pub(super) fn limit(limit: Option<u32>) -> Result<u32, Problem> {
    match limit.unwrap_or(100) {
        limit @ 1..=1_000 => Ok(limit),
        limit => Err(Problem::field("limit", &limit.to_string(), "a whole number from 1 to 1000")),
    }
}

/// Describes one domain, or fails with 404 if nothing is known about it.
async fn describe_one(state: &ServingState, host: &Domain) -> Result<wire::DomainResponse, Problem> {
    let name = state.gate.rules().domain(host);
    let row = state.store.find_domain(name.clone()).await?;
    let unknown = || Problem::new(Kind::NotFound, format!("nothing is known about {name} yet"));
    describe_all(state, row.into_iter().collect()).await?.pop().ok_or_else(unknown)
}

/// Describes domains: those held here as they are now, the others as their holders published or left them. Looking at a
/// domain never takes it.
async fn describe_all(
    state: &ServingState,
    rows: Vec<DomainRow>,
) -> Result<Vec<wire::DomainResponse>, Problem> {
    let now = state.gate.clock().now();
    let here = |row: &DomainRow| state.gate.domain_status(&Domain::read_back(&row.domain).ok()?);
    let held: Vec<Option<gate::DomainStatus>> = rows.iter().map(here).collect();
    let not_here = rows.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(row, _)| row.clone());
    let mut elsewhere = match state.gate.inspector() {
        Some(inspector) => inspector.inspect_rows(not_here.collect()).await?.into_iter(),
        None => Vec::new().into_iter(),
    };
    let with_status = |(row, held): (DomainRow, Option<gate::DomainStatus>)| match held {
        Some(held) => describe(row, Some((held, now)), now),
        None => {
            let inspected = elsewhere.next();
            let status = inspected
                .and_then(|inspected| Some((inspected.status(state.gate.rules(), now)?, inspected.as_of?)));
            describe(row, status, now)
        }
    };
    Ok(rows.into_iter().zip(held).map(with_status).collect())
}

/// Describes a domain by its row in the store, and by its status where that is known: the status is more recent.
fn describe(
    row: DomainRow,
    status: Option<(gate::DomainStatus, Timestamp)>,
    now: Timestamp,
) -> wire::DomainResponse {
    let (held, as_of) = status.unzip();
    let (delay, floor) =
        held.as_ref().map_or((row.kept.delay, row.kept.floor), |held| (held.delay, held.floor));
    let paused_until = held.as_ref().map_or(row.steering.paused_at(now), |held| held.paused_until);
    let server_until =
        held.as_ref().map_or(row.kept.server.map(|(until, _)| until), |held| held.server_until);
    wire::DomainResponse {
        domain: row.domain,
        adaptive_delay_seconds: delay.as_secs_f64(),
        adaptive_delay_floor_seconds: floor.as_secs_f64(),
        pinned: held.as_ref().map_or(row.steering.pinned, |held| held.pinned),
        paused: paused_until.is_some(),
        paused_until: time_text(paused_until),
        // Deadlines in the past no longer matter.
        server_until: time_text(server_until.filter(|until| *until > now)),
        holder: row.holder,
        tasks_waiting: row.waiting,
        live: held.map(|held| wire::LiveDomain {
            spacing_ms: held.spacing.as_millis_up(),
            wait_ms: held.wait.as_millis_up(),
            next_available: time_text(Some(held.next_available(now))),
            in_flight: held.in_flight as u64,
            waiting: held.waiting as u64,
            penalties: held.penalties,
            success_streak: held.streaks.success,
            error_streak: held.streaks.error,
            last_request: time_text(held.last_start),
            last_success: time_text(held.last_success),
        }),
        as_of: time_text(as_of),
    }
}

/// How long to wait for another process to hand the domain over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
