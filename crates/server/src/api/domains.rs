//! What is known of domains, and steering it (B39).

use std::time::Duration;

use axum::extract::State;
use comity::core::domain::Domain;
use comity::core::pace::{Pace, Pinned, Terms};
use comity::core::time::{Span, Timestamp};
use comity::gate::{self, Gate};
use comity::store::domains::DomainRow;
use serde::Deserialize;

use super::decide::{Room, with_gate};
use super::{DOMAIN_MAX, Path, Query, domain, fits};
use crate::auth::Caller;
use crate::body::Json;
use crate::live::Live;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire::{self, moment};

/// Which domains are listed.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// Only those whose name contains this.
    #[serde(default)]
    #[param(required = false, nullable = false, max_length = 260)]
    like: String,
    /// Only those after this one.
    #[serde(default)]
    #[param(required = false, nullable = false, max_length = 260)]
    after: String,
    /// At most so many.
    #[param(required = false, nullable = false, value_type = u32, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Domains in the order of their names.
#[utoipa::path(get, path = "/v1/domains", operation_id = "list_domains", tag = "domains", params(Listed), responses((status = 200, body = wire::Domains)))]
pub(crate) async fn list(
    State(service): State<Service>,
    Query(listed): Query<Listed>,
) -> Result<Json<wire::Domains>, Problem> {
    let limit = limit(listed.limit)?;
    fits("like", &listed.like, DOMAIN_MAX)?;
    fits("after", &listed.after, DOMAIN_MAX)?;
    let live = service.live()?;
    let mut rows = live.store.list_domains(listed.like, listed.after, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| more).map(|row| row.domain.clone());
    let domains = seen(&live, rows).await?;
    Ok(Json(wire::Domains { domains, next }))
}

/// One domain.
#[utoipa::path(get, path = "/v1/domains/{domain}", operation_id = "show_domain", tag = "domains",
    params(("domain" = String, Path, description = "Its name", format = "host", max_length = 260)),
    responses((status = 200, body = wire::Domain)))]
pub(crate) async fn show(
    State(service): State<Service>,
    Path(name): Path<String>,
) -> Result<Json<wire::Domain>, Problem> {
    let host = domain(&name)?;
    shown(&*service.live()?, &host).await.map(Json)
}

/// Sets, pins or pauses a domain.
#[utoipa::path(patch, path = "/v1/domains/{domain}", operation_id = "change_domain", tag = "domains", request_body = wire::DomainChange,
    params(("domain" = String, Path, description = "Its name", format = "host", max_length = 260)),
    responses((status = 200, body = wire::Domain)))]
pub(crate) async fn change(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
    Json(change): Json<wire::DomainChange>,
) -> Result<Json<wire::Domain>, Problem> {
    caller.must_steer()?;
    let host = domain(&name)?;
    let change = Change::read(&change)?;
    let (asked, wanted) = (&host, &change);
    let changing = |gate: Gate| async move {
        gate.with_pace(asked, |pace, terms, now| wanted.apply(pace, terms, now)).await
    };
    let (live, ()) = with_gate(&service, &host, Room::Needed, PATIENCE, changing).await?;
    shown(&live, &host).await.map(Json)
}

/// Forgets what was learnt and our own guesses; what the server said stays.
#[utoipa::path(delete, path = "/v1/domains/{domain}", operation_id = "reset_domain", tag = "domains",
    params(("domain" = String, Path, description = "Its name", format = "host", max_length = 260)),
    responses((status = 200, body = wire::Domain)))]
pub(crate) async fn reset(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::Domain>, Problem> {
    caller.must_steer()?;
    let host = domain(&name)?;
    let live = service.live()?;
    // Nothing is known of it: there is nothing to forget.
    shown(&live, &host).await?;
    let asked = &host;
    let resetting = |gate: Gate| async move { gate.with_pace(asked, |pace, _, now| pace.reset(now)).await };
    let (live, _) = with_gate(&service, &host, Room::Had, PATIENCE, resetting).await?;
    shown(&live, &host).await.map(Json)
}

/// For what a domain is explained.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainedFor {
    /// What the request is for.
    #[param(required = false, nullable = false, value_type = wire::Intent)]
    intent: Option<wire::Intent>,
}

/// Every constraint on the next request to a domain, the binding one first.
#[utoipa::path(get, path = "/v1/domains/{domain}/explain", operation_id = "explain_domain", tag = "domains",
    params(("domain" = String, Path, description = "Its name", format = "host", max_length = 260), ExplainedFor),
    responses((status = 200, body = wire::Explained)))]
pub(crate) async fn explain(
    State(service): State<Service>,
    Path(name): Path<String>,
    Query(explained): Query<ExplainedFor>,
) -> Result<Json<wire::Explained>, Problem> {
    let host = domain(&name)?;
    let intent = explained.intent.unwrap_or_default().into();
    let live = service.live()?;
    live.recall(&host).await;
    let (reasons, as_of) = live.gate.explain_as_of(&host, intent).await?;
    Ok(Json(wire::Explained::of(&live.gate.rules().domain(&host), &reasons, as_of)))
}

/// What an operator wants changed.
struct Change {
    delay: Option<Span>,
    floor: Option<Span>,
    pinned: Option<Pinned>,
    /// Closed until then, or opened.
    paused: Option<Option<Timestamp>>,
}

impl Change {
    fn read(change: &wire::DomainChange) -> Result<Self, Problem> {
        let paused = match (change.paused, change.paused_until.as_deref()) {
            (Some(false), Some(_)) => {
                return Err(Problem::field("paused_until", "", "no moment where paused is false"));
            }
            (_, Some(text)) => {
                let allowed = "a moment such as \"2026-11-16T12:00:00Z\"";
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

/// Most rows of an answer.
pub(super) fn limit(limit: Option<u32>) -> Result<u32, Problem> {
    match limit.unwrap_or(100) {
        limit @ 1..=1_000 => Ok(limit),
        limit => Err(Problem::field("limit", &limit.to_string(), "a whole number from 1 to 1000")),
    }
}

async fn shown(live: &Live, host: &Domain) -> Result<wire::Domain, Problem> {
    let name = live.gate.rules().domain(host);
    let row = live.store.find_domain(name.clone()).await?;
    let unknown = || Problem::new(Kind::NotFound, format!("nothing is known of {name} yet"));
    seen(live, row.into_iter().collect()).await?.pop().ok_or_else(unknown)
}

/// Domains as they are to be seen: those held here as they are, the others as they were published or left (B81).
async fn seen(live: &Live, rows: Vec<DomainRow>) -> Result<Vec<wire::Domain>, Problem> {
    let now = live.gate.clock().now();
    let here = |row: &DomainRow| live.gate.look(&Domain::read_back(&row.domain).ok()?);
    let held: Vec<Option<gate::Live>> = rows.iter().map(here).collect();
    let not_here = rows.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(row, _)| row.clone());
    let mut elsewhere = match live.gate.looker() {
        Some(looker) => looker.see(not_here.collect()).await?.into_iter(),
        None => Vec::new().into_iter(),
    };
    let tell = |(row, held): (DomainRow, Option<gate::Live>)| match held {
        Some(held) => told(row, Some((held, now)), now),
        None => {
            let seen = elsewhere.next();
            let shown = seen.and_then(|seen| Some((seen.live(live.gate.rules(), now)?, seen.as_of?)));
            told(row, shown, now)
        }
    };
    Ok(rows.into_iter().zip(held).map(tell).collect())
}

/// A domain as it is told: what the store keeps, and over it what whoever decides for it knows better.
fn told(row: DomainRow, shown: Option<(gate::Live, Timestamp)>, now: Timestamp) -> wire::Domain {
    let (held, as_of) = shown.unzip();
    let (delay, floor) =
        held.as_ref().map_or((row.kept.delay, row.kept.floor), |held| (held.delay, held.floor));
    let paused_until = held.as_ref().map_or(row.steering.paused_at(now), |held| held.paused_until);
    wire::Domain {
        domain: row.domain,
        adaptive_delay_seconds: delay.as_secs_f64(),
        adaptive_delay_floor_seconds: floor.as_secs_f64(),
        pinned: held.as_ref().map_or(row.steering.pinned, |held| held.pinned),
        paused: paused_until.is_some(),
        paused_until: moment(paused_until),
        server_until: moment(
            held.as_ref().map_or(row.kept.server.map(|(until, _)| until), |held| held.server_until),
        ),
        holder: row.holder,
        tasks_waiting: row.waiting,
        live: held.map(|held| wire::LiveDomain {
            spacing_ms: held.spacing.as_millis_up(),
            wait_ms: held.wait.as_millis_up(),
            next_available: moment(Some(held.next_available(now))),
            in_flight: held.in_flight as u64,
            waiting: held.waiting as u64,
            penalties: held.penalties,
            success_streak: held.streaks.success,
            error_streak: held.streaks.error,
            last_request: moment(held.last_start),
            last_success: moment(held.last_success),
        }),
        as_of: moment(as_of),
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
