//! Asking whether a request may be sent: `check` and `acquire` reserve a slot, `peek` does not.

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
use crate::permit::PermitClaims;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::{DomainReservation, ServingState};
use crate::wire;

/// Ask whether a request may be sent now, without waiting.
///
/// If it may, the slot is reserved and the response contains a permit. Send the request right away, and report its
/// outcome with `/v1/record`. If not, ask again after `wait_ms`.
#[utoipa::path(post, path = "/v1/check", tag = "decisions", request_body = wire::CheckRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The decision", body = wire::DecisionResponse)))]
pub(crate) async fn check(
    State(service): State<Service>,
    Json(check): Json<wire::CheckRequest>,
) -> Result<Json<wire::DecisionResponse>, Problem> {
    let request = PermitRequest::parse(&check)?;
    let (state, reason, permit) = check_one(&service, &request, service.now() + HANDOVER_TIMEOUT).await?;
    Ok(Json(decision(&state, &request, reason, permit, Span::ZERO)))
}

/// Check several requests in one call.
///
/// All checks are validated before any slot is reserved. A check that can't be decided at the moment has the `limit`
/// `unavailable`; the others are decided.
#[utoipa::path(post, path = "/v1/check/batch", tag = "decisions", request_body = wire::CheckBatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The decisions, in the order of the checks", body = wire::DecisionBatchResponse)))]
pub(crate) async fn check_batch(
    State(service): State<Service>,
    Json(batch): Json<wire::CheckBatchRequest>,
) -> Result<Json<wire::DecisionBatchResponse>, Problem> {
    validate_batch_size("checks", batch.checks.len())?;
    // All checks are parsed before anything is reserved.
    let parse = |(nth, wire::JsonObject(check)): (usize, &_)| {
        PermitRequest::parse(check).map_err(|problem| problem.under(&format!("checks[{nth}]")))
    };
    let requests: Vec<PermitRequest> =
        batch.checks.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    let mut decided = Vec::with_capacity(requests.len());
    let until = service.now() + HANDOVER_TIMEOUT;
    for request in &requests {
        decided.push(check_one(&service, request, until).await);
    }
    // Permits are lent only when the whole response is ready. If the caller hangs up before, they are dropped and
    // nothing stays in flight.
    let results = requests.iter().zip(decided).map(|(request, decided)| match decided {
        Ok((state, reason, permit)) => decision(&state, request, reason, permit, Span::ZERO),
        Err(problem) => undecided(&request.host, &problem),
    });
    Ok(Json(wire::DecisionBatchResponse { results: results.collect() }))
}

/// Ask whether a request may be sent now, without reserving anything.
#[utoipa::path(post, path = "/v1/peek", tag = "decisions", request_body = wire::CheckRequest,
    responses((status = 200, description = "The decision, without a permit", body = wire::DecisionResponse)))]
pub(crate) async fn peek(
    State(service): State<Service>,
    Json(check): Json<wire::CheckRequest>,
) -> Result<Json<wire::DecisionResponse>, Problem> {
    let request = PermitRequest::parse(&check)?;
    let state = service.state()?;
    state.load_crawl_delay(&request.host).await;
    let (reason, as_of) = state.gate.peek_as_of(&request.host, request.intent).await?;
    Ok(Json(decision(&state, &request, reason, None, Span::ZERO).as_of(as_of)))
}

/// Wait in line until a request may be sent.
///
/// Callers are served in order. The response comes as soon as the slot is reserved, or after `max_wait_ms` with the
/// remaining wait. Hanging up leaves the line. If an operator paused the site until further notice, the response
/// comes at once, with `refused`.
#[utoipa::path(post, path = "/v1/acquire", tag = "decisions", request_body = wire::AcquireRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The decision: the permit, or how long to wait", body = wire::DecisionResponse)))]
pub(crate) async fn acquire(
    State(service): State<Service>,
    Json(acquire): Json<wire::AcquireRequest>,
) -> Result<Json<wire::DecisionResponse>, Problem> {
    let max_wait_ms = acquire.max_wait_ms.unwrap_or(MAX_WAIT_MS_DEFAULT);
    let wire::AcquireRequest { url, domain, intent, lease_ms, .. } = acquire;
    let request = PermitRequest::parse(&wire::CheckRequest { url, domain, intent, lease_ms })?;
    let started_at = service.now();
    let max_wait = Span::from_millis(max_wait_ms).min(service.state()?.config.serve.max_wait);
    let until = started_at + max_wait;
    loop {
        let state = service.state()?;
        let remaining = || Duration::from(until.since(service.now()));
        let reservation = prepare_domain(&state, &request.host).await?;
        let paused = paused_until_resumed(&state, &request).await?;
        drop(reservation);
        // Nobody waits in line for a domain that is paused until further notice.
        if let Some(reason) = paused {
            service.metrics().decided_as("refuse", reason.limit.as_str());
            return Ok(Json(decision(&state, &request, Some(reason), None, Span::ZERO)));
        }
        let in_line = state.gate.acquire_since(&request.host, request.intent, started_at);
        let waiting = tokio::time::timeout(remaining(), in_line);
        let granted = tokio::select! {
            biased;
            granted = waiting => granted,
            () = service.stopping() => {
                return Ok(Json(stopping(&state, &request.host, service.now().since(started_at))));
            }
        };
        let waited = service.now().since(started_at);
        match granted {
            Ok(Ok(permit)) => match permit.persist(request.lease).await {
                Ok(()) => {
                    service.metrics().decided_as("proceed", "none");
                    service.metrics().waited(waited);
                    return Ok(Json(decision(&state, &request, None, Some(permit), waited)));
                }
                // The domain has just been lost to another process. Wait in line again.
                Err(GateError::Store(StoreError::Lost)) => {}
                Err(error) => return Err(error.into()),
            },
            // The gate is being replaced, or the service is shutting down.
            Ok(Err(GateError::Closed)) => {
                if service.next_gate(&state).await.is_err() {
                    return Ok(Json(stopping(&state, &request.host, service.now().since(started_at))));
                }
            }
            Ok(Err(error)) => return Err(error.into()),
            // Timed out: answer with the remaining wait, or with the slot if it has just become free.
            Err(_) => {
                let until = service.now() + LAST_CHECK_TIMEOUT;
                let (state, reason, permit) = check_one(&service, &request, until).await?;
                return Ok(Json(decision(&state, &request, reason, permit, waited)));
            }
        }
    }
}

/// The reason to refuse, if an operator paused the domain until it is resumed. Works whichever process holds the
/// domain.
async fn paused_until_resumed(
    state: &ServingState,
    request: &PermitRequest,
) -> Result<Option<Reason>, Problem> {
    if !state.gate.holds(&request.host) {
        let row = state.store.find_domain(state.gate.rules().domain(&request.host)).await?;
        if row.is_none_or(|row| row.steering.paused_until != Some(Timestamp::MAX)) {
            return Ok(None);
        }
    }
    let reason = state.gate.peek(&request.host, request.intent).await?;
    Ok(reason.filter(|reason| reason.until == Timestamp::MAX))
}

/// A validated request for a permit.
struct PermitRequest {
    host: Domain,
    intent: Intent,
    lease: Span,
}

impl PermitRequest {
    fn parse(check: &wire::CheckRequest) -> Result<Self, Problem> {
        let host = host(check.url.as_deref(), check.domain.as_deref())?;
        Ok(Self { host, intent: check.intent.unwrap_or_default().into(), lease: lease(check.lease_ms)? })
    }
}

/// Makes a decision. Returns the permit if it says proceed, or else the reason to wait. Dropping the permit unused
/// means that its request is not in flight. Waits until `until` for another process to hand the domain over.
async fn check_one(
    service: &Service,
    request: &PermitRequest,
    until: Timestamp,
) -> Result<(Arc<ServingState>, Option<Reason>, Option<gate::Permit>), Problem> {
    loop {
        let state = service.state()?;
        let _reservation = prepare_domain(&state, &request.host).await?;
        let remaining = Duration::from(until.since(service.now()));
        match in_time(remaining, check_and_persist(&state.gate, request)).await {
            Ok(Ok((decision, permit))) => {
                service.metrics().decided(&decision);
                return Ok((state.clone(), decision.reason().copied(), permit));
            }
            // The domain has just been lost to another process. Ask again.
            Ok(Err(GateError::Store(StoreError::Lost))) => {}
            Ok(Err(GateError::Closed)) => service.next_gate(&state).await?,
            Ok(Err(error)) => return Err(error.into()),
            // Another process holds the domain and has requests in flight. It hands the domain over after they are
            // answered.
            Err(_) => {
                let reason = state.gate.store_unavailable().unwrap_or_else(|| held_elsewhere(&state));
                service.metrics().decided_as("wait", reason.limit.as_str());
                return Ok((state.clone(), Some(reason), None));
            }
        }
    }
}

/// Makes a decision. A permit is saved in the store before it is returned, so that a crash does not forget it.
async fn check_and_persist(
    gate: &Gate,
    request: &PermitRequest,
) -> Result<(Decision, Option<gate::Permit>), GateError> {
    let (decision, permit) = gate.check(&request.host, request.intent).await?;
    if let Some(permit) = &permit {
        permit.persist(request.lease).await?;
    }
    Ok((decision, permit))
}

/// Whether `serve.domains_max` applies to a domain that is not held yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DomainLimit {
    /// The call is refused if the limit is reached.
    Enforced,
    /// The limit does not apply, because the domain was held before or is known.
    Exempt,
}

/// Calls the current gate. If that is being replaced, calls the next one. Fails after `timeout`, for example because
/// another process does not hand the domain over.
pub(super) async fn with_gate<T, A: Future<Output = Result<T, GateError>>>(
    service: &Service,
    host: &Domain,
    limit: DomainLimit,
    timeout: Duration,
    call: impl Fn(Gate) -> A,
) -> Result<(Arc<ServingState>, T), Problem> {
    let calling = async {
        loop {
            let state = service.state()?;
            // The reservation is kept until the gate has answered.
            let _reservation = match limit {
                DomainLimit::Enforced => prepare_domain(&state, host).await?,
                DomainLimit::Exempt => {
                    state.load_crawl_delay(host).await;
                    None
                }
            };
            match call(state.gate.clone()).await {
                Ok(value) => return Ok((state.clone(), value)),
                Err(GateError::Closed) => service.next_gate(&state).await?,
                Err(error) => return Err(error.into()),
            }
        }
    };
    // A process with requests in flight hands the domain over after they are answered.
    let busy = "another process is in charge of the site and did not hand it over in time; try again";
    in_time(timeout, calling).await.map_err(|_| match service.state() {
        Ok(state) if state.gate.store_unavailable().is_none() => Problem::new(Kind::Busy, busy),
        Ok(_) => Problem::new(Kind::Store, "waiting for the store; no request may be sent until it is back"),
        Err(problem) => problem,
    })?
}

/// Prepares for taking a domain: reserves space for it unless it is held already, and applies the crawl-delay of its
/// robots.txt if that is known. The space stays reserved until the result is dropped.
async fn prepare_domain<'a>(
    state: &'a ServingState,
    host: &Domain,
) -> Result<Option<DomainReservation<'a>>, Problem> {
    let reservation = if state.gate.holds(host) { None } else { Some(state.reserve_domain()?) };
    state.load_crawl_delay(host).await;
    Ok(reservation)
}

/// A decision as a response. If it has a permit, that is lent: it counts as in flight until it is recorded or its lease
/// ends.
fn decision(
    state: &ServingState,
    request: &PermitRequest,
    reason: Option<Reason>,
    permit: Option<gate::Permit>,
    waited: Span,
) -> wire::DecisionResponse {
    let PermitRequest { host, lease, .. } = request;
    let permit = permit.map(|permit| {
        let (intent, granted_at) = (permit.intent(), permit.started_at());
        let id = permit.lend(*lease);
        (state.signer.sign(&PermitClaims { host: host.clone(), id, intent, granted_at }), *lease)
    });
    wire::DecisionResponse::of(&state.gate.rules().domain(host), reason.as_ref(), permit, waited)
}

fn held_elsewhere(state: &ServingState) -> Reason {
    let now = state.gate.clock().now();
    Reason { limit: Limit::ChangingHands, until: now + Span::from_secs(1), asked_at: now }
}

/// The result for a check of a batch that could not be decided.
fn undecided(host: &Domain, problem: &Problem) -> wire::DecisionResponse {
    wire::DecisionResponse::undecided(host, "unavailable", problem.to_string(), Span::ZERO)
}

fn stopping(state: &ServingState, host: &Domain, waited: Span) -> wire::DecisionResponse {
    let reason = "the service is shutting down; ask again when it is back".to_owned();
    wire::DecisionResponse::undecided(&state.gate.rules().domain(host), "stopping", reason, waited)
}

/// Refuses batches that are empty or too long.
pub(super) fn validate_batch_size(field: &str, count: usize) -> Result<(), Problem> {
    match (1..=BATCH_MAX).contains(&count) {
        true => Ok(()),
        false => {
            Err(Problem::field(field, &format!("{count} entries"), &format!("1 to {BATCH_MAX} entries")))
        }
    }
}

/// The maximum number of entries in a batch.
const BATCH_MAX: usize = 1_000;
/// How long `acquire` waits by default.
const MAX_WAIT_MS_DEFAULT: u64 = 30_000;
/// How long `check` waits for another process to hand the domain over.
const HANDOVER_TIMEOUT: Span = Span::from_millis(2_500);
/// How long the last check of `acquire` may take, after `max_wait_ms` is over.
const LAST_CHECK_TIMEOUT: Span = Span::from_millis(100);
