//! May a request leave? `check` and `acquire` reserve, `peek` does not.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use comity::core::decision::{Decision, Limit, Reason};
use comity::core::domain::Domain;
use comity::core::intent::Intent;
use comity::core::time::{Span, Timestamp};
use comity::gate::{self, Gate, GateError};
use comity::store::StoreError;

use super::host;
use super::lease::lease;
use crate::body::{Json, in_time};
use crate::live::{Arrival, Live};
use crate::permit::Permit;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// May a request leave now? If so, the slot is taken.
#[utoipa::path(post, path = "/v1/check", tag = "decisions", request_body = wire::Ask,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Decision)))]
pub(crate) async fn check(
    State(service): State<Service>,
    Json(ask): Json<wire::Ask>,
) -> Result<Json<wire::Decision>, Problem> {
    let asked = Asked::read(&ask)?;
    let (live, reason, permit) = check_one(&service, &asked, service.now() + HANDOVER).await?;
    Ok(Json(decision(&live, &asked, reason, permit, Span::ZERO)))
}

/// Many at once; answered in the order they were asked.
#[utoipa::path(post, path = "/v1/check/batch", tag = "decisions", request_body = wire::Asks,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Decisions)))]
pub(crate) async fn check_batch(
    State(service): State<Service>,
    Json(asks): Json<wire::Asks>,
) -> Result<Json<wire::Decisions>, Problem> {
    batch_fits("checks", asks.checks.len())?;
    // All are read before anything is reserved.
    let read = |(nth, wire::Object(ask)): (usize, &_)| {
        Asked::read(ask).map_err(|problem| problem.under(&format!("checks[{nth}]")))
    };
    let asked: Vec<Asked> = asks.checks.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let mut made = Vec::with_capacity(asked.len());
    let until = service.now() + HANDOVER;
    for asked in &asked {
        made.push(check_one(&service, asked, until).await);
    }
    // Permits go out with the whole answer: of a caller that hangs up before, nothing stays on the wire (B11).
    let told = asked.iter().zip(made).map(|(asked, made)| match made {
        Ok((live, reason, permit)) => decision(&live, asked, reason, permit, Span::ZERO),
        Err(problem) => undecided(&asked.host, &problem),
    });
    Ok(Json(wire::Decisions { results: told.collect() }))
}

/// May a request leave now? Nothing is reserved.
#[utoipa::path(post, path = "/v1/peek", tag = "decisions", request_body = wire::Ask,
    responses((status = 200, body = wire::Decision)))]
pub(crate) async fn peek(
    State(service): State<Service>,
    Json(ask): Json<wire::Ask>,
) -> Result<Json<wire::Decision>, Problem> {
    let asked = Asked::read(&ask)?;
    let live = service.live()?;
    live.recall(&asked.host).await;
    let (reason, as_of) = live.gate.peek_as_of(&asked.host, asked.intent).await?;
    Ok(Json(decision(&live, &asked, reason, None, Span::ZERO).as_of(as_of)))
}

/// Waits in line until a request may leave, or for as long as the caller allows.
#[utoipa::path(post, path = "/v1/acquire", tag = "decisions", request_body = wire::Acquire,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Decision)))]
pub(crate) async fn acquire(
    State(service): State<Service>,
    Json(ask): Json<wire::Acquire>,
) -> Result<Json<wire::Decision>, Problem> {
    let max_wait_ms = ask.max_wait_ms.unwrap_or(MAX_WAIT_MS);
    let wire::Acquire { url, domain, intent, lease_ms, .. } = ask;
    let asked = Asked::read(&wire::Ask { url, domain, intent, lease_ms })?;
    let began = service.now();
    let max_wait = Span::from_millis(max_wait_ms).min(service.live()?.config.serve.max_wait);
    let until = began + max_wait;
    loop {
        let live = service.live()?;
        let left = || Duration::from(until.since(service.now()));
        let room = prepare(&live, &asked.host).await?;
        let closed = closed_for_good(&live, &asked).await?;
        drop(room);
        // An operator closed the domain until it is resumed: nobody waits in line for that.
        if let Some(reason) = closed {
            service.metrics().decided_as("refuse", reason.limit.as_str());
            return Ok(Json(decision(&live, &asked, Some(reason), None, Span::ZERO)));
        }
        let waiting = tokio::time::timeout(left(), live.gate.acquire_since(&asked.host, asked.intent, began));
        let granted = tokio::select! {
            biased;
            granted = waiting => granted,
            () = service.stopping() => return Ok(Json(stopping(&live, &asked.host, service.now().since(began)))),
        };
        let waited = service.now().since(began);
        match granted {
            Ok(Ok(permit)) => match permit.keep(asked.lease).await {
                Ok(()) => {
                    service.metrics().decided_as("proceed", "none");
                    service.metrics().waited(waited);
                    return Ok(Json(decision(&live, &asked, None, Some(permit), waited)));
                }
                // The domain went to another process this very moment: it is waited for again.
                Err(GateError::Store(StoreError::Lost)) => {}
                Err(error) => return Err(error.into()),
            },
            // Another gate takes its place in a moment, or the service stops.
            Ok(Err(GateError::Closed)) => {
                if service.next_gate(&live).await.is_err() {
                    return Ok(Json(stopping(&live, &asked.host, service.now().since(began))));
                }
            }
            Ok(Err(error)) => return Err(error.into()),
            // The time is up: what is left to wait, or the slot if it came free this very moment.
            Err(_) => {
                let (live, reason, permit) = check_one(&service, &asked, service.now() + BRIEFLY).await?;
                return Ok(Json(decision(&live, &asked, reason, permit, waited)));
            }
        }
    }
}

/// Why nobody goes until an operator says so, if that is so, whoever holds the domain.
async fn closed_for_good(live: &Live, asked: &Asked) -> Result<Option<Reason>, Problem> {
    if !live.gate.holds(&asked.host) {
        let row = live.store.find_domain(live.gate.rules().domain(&asked.host)).await?;
        if row.is_none_or(|row| row.steering.paused_until != Some(Timestamp::MAX)) {
            return Ok(None);
        }
    }
    let reason = live.gate.peek(&asked.host, asked.intent).await?;
    Ok(reason.filter(|reason| reason.until == Timestamp::MAX))
}

/// What is asked for.
struct Asked {
    host: Domain,
    intent: Intent,
    lease: Span,
}

impl Asked {
    fn read(ask: &wire::Ask) -> Result<Self, Problem> {
        let host = host(ask.url.as_deref(), ask.domain.as_deref())?;
        Ok(Self { host, intent: ask.intent.unwrap_or_default().into(), lease: lease(ask.lease_ms)? })
    }
}

/// A decision, and the permit if it says proceed; whoever drops that frees the wire. Waits no longer than `until` for a
/// process that has the domain.
async fn check_one(
    service: &Service,
    asked: &Asked,
    until: Timestamp,
) -> Result<(Arc<Live>, Option<Reason>, Option<gate::Permit>), Problem> {
    loop {
        let live = service.live()?;
        let _room = prepare(&live, &asked.host).await?;
        let left = Duration::from(until.since(service.now()));
        match in_time(left, check_and_keep(&live.gate, asked)).await {
            Ok(Ok((made, permit))) => {
                service.metrics().decided(&made);
                return Ok((live.clone(), made.reason().copied(), permit));
            }
            // The domain went to another process this very moment.
            Ok(Err(GateError::Store(StoreError::Lost))) => {}
            Ok(Err(GateError::Closed)) => service.next_gate(&live).await?,
            Ok(Err(error)) => return Err(error.into()),
            // Another process holds it and has requests on the wire: it hands it over when they are answered.
            Err(_) => {
                let reason = live.gate.store_away().unwrap_or_else(|| held_elsewhere(&live));
                service.metrics().decided_as("wait", reason.limit.as_str());
                return Ok((live.clone(), Some(reason), None));
            }
        }
    }
}

/// A decision, and the permit if it says proceed: kept in the store, so that a crash does not forget it.
async fn check_and_keep(gate: &Gate, asked: &Asked) -> Result<(Decision, Option<gate::Permit>), GateError> {
    let (made, permit) = gate.check(&asked.host, asked.intent).await?;
    if let Some(permit) = &permit {
        permit.keep(asked.lease).await?;
    }
    Ok((made, permit))
}

/// Whether there must be room for a domain that is not held yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It is refused when there is none.
    Needed,
    /// It was held before, or is known: it is heard, whether there is room or not.
    Had,
}

/// Asks the gate in force, and the next one when it is closed for another. Room is kept until it has answered.
pub(super) async fn with_gate<T, A: Future<Output = Result<T, GateError>>>(
    service: &Service,
    host: &Domain,
    room: Room,
    patience: Duration,
    ask: impl Fn(Gate) -> A,
) -> Result<(Arc<Live>, T), Problem> {
    let asking = async {
        loop {
            let live = service.live()?;
            let _room = match room {
                Room::Needed => prepare(&live, host).await?,
                Room::Had => {
                    live.recall(host).await;
                    None
                }
            };
            match ask(live.gate.clone()).await {
                Ok(value) => return Ok((live.clone(), value)),
                Err(GateError::Closed) => service.next_gate(&live).await?,
                Err(error) => return Err(error.into()),
            }
        }
    };
    // A process that has requests of its own on the wire hands the domain over when they are answered.
    let busy = "another process holds the domain and did not hand it over in time; try again";
    in_time(patience, asking).await.map_err(|_| match service.live() {
        Ok(live) if live.gate.store_away().is_none() => Problem::new(Kind::Busy, busy),
        Ok(_) => Problem::new(Kind::Store, "waiting for the store; nothing leaves until it is back"),
        Err(problem) => problem,
    })?
}

/// Before a domain is taken: is there room for it, and does its robots.txt, if it is known, ask for a delay? The room is
/// kept for as long as what comes back is.
async fn prepare<'a>(live: &'a Live, host: &Domain) -> Result<Option<Arrival<'a>>, Problem> {
    let arrival = if live.gate.holds(host) { None } else { Some(live.room()?) };
    live.recall(host).await;
    Ok(arrival)
}

/// A decision as it is told. A permit that goes out with it keeps its place until it is recorded or its lease ends.
fn decision(
    live: &Live,
    asked: &Asked,
    reason: Option<Reason>,
    permit: Option<gate::Permit>,
    waited: Span,
) -> wire::Decision {
    let Asked { host, lease, .. } = asked;
    let permit = permit.map(|permit| {
        let (intent, granted_at) = (permit.intent(), permit.started_at());
        let id = permit.lend(*lease);
        (live.mint.write(&Permit { host: host.clone(), id, intent, granted_at }), *lease)
    });
    wire::Decision::of(&live.gate.rules().domain(host), reason.as_ref(), permit, waited)
}

fn held_elsewhere(live: &Live) -> Reason {
    let now = live.gate.clock().now();
    Reason { limit: Limit::ChangingHands, until: now + Span::from_secs(1), asked_at: now }
}

/// One of many that could not be decided: the others could.
fn undecided(host: &Domain, problem: &Problem) -> wire::Decision {
    wire::Decision::undecided(host, "unavailable", problem.to_string(), Span::ZERO)
}

fn stopping(live: &Live, host: &Domain, waited: Span) -> wire::Decision {
    let reason = "the service stops; ask again when it is back".to_owned();
    wire::Decision::undecided(&live.gate.rules().domain(host), "stopping", reason, waited)
}

/// Whether a batch is neither empty nor too long.
pub(super) fn batch_fits(field: &str, count: usize) -> Result<(), Problem> {
    match (1..=BATCH_MAX).contains(&count) {
        true => Ok(()),
        false => Err(Problem::field(field, &format!("{count} of them"), &format!("1 to {BATCH_MAX}"))),
    }
}

/// Most that one batch asks or tells.
const BATCH_MAX: usize = 1_000;
/// What `acquire` waits when nothing is said.
const MAX_WAIT_MS: u64 = 30_000;
/// How long `check` waits for a process that has the domain.
const HANDOVER: Span = Span::from_millis(2_500);
/// And `acquire`, when its time is up.
const BRIEFLY: Span = Span::from_millis(100);
