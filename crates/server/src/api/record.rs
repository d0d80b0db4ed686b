//! Recording the outcome of a request.

use std::time::Duration;

use axum::extract::State;
use comity::config::Role;
use comity::core::domain::Domain;
use comity::core::headers::PacingHints;
use comity::core::intent::Intent;
use comity::core::outcome::{Answer, STATUSES};
use comity::core::pace::{Freshness, PermitRef, Recorded};
use comity::core::time::{Span, Timestamp};
use comity::gate::{Gate, GateError};

use super::decide::{DomainLimit, validate_batch_size, with_gate};
use super::{host, validate_length};
use crate::auth::Caller;
use crate::body::Json;
use crate::permit::PermitClaims;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;
use crate::wire;

/// Report the outcome of a request.
///
/// The site's pace is adjusted to it. Recording the same permit twice is harmless. Without a permit, the role
/// `admin` is required; the outcome then counts for the oldest open request of the site and intent, or as a request
/// sent just now.
#[utoipa::path(post, path = "/v1/record", tag = "decisions", request_body = wire::RecordRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "What recording the outcome changed", body = wire::RecordResponse)))]
pub(crate) async fn record(
    State(service): State<Service>,
    caller: Caller,
    Json(record): Json<wire::RecordRequest>,
) -> Result<Json<wire::RecordResponse>, Problem> {
    let report = parse(&*service.state()?, caller, &record, service.now())?;
    apply(&service, &report, HANDOVER_TIMEOUT).await.map(Json)
}

/// Report the outcomes of several requests in one call.
///
/// All reports are validated before anything is recorded. A report that can't be recorded at the moment has the
/// `standing` `unheard`: retry it. The others are recorded.
#[utoipa::path(post, path = "/v1/record/batch", tag = "decisions", request_body = wire::RecordBatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: a repeated call with the same key gets the same response, for ten minutes", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, description = "The results, in the order of the reports", body = wire::RecordBatchResponse)))]
pub(crate) async fn record_batch(
    State(service): State<Service>,
    caller: Caller,
    Json(batch): Json<wire::RecordBatchRequest>,
) -> Result<Json<wire::RecordBatchResponse>, Problem> {
    validate_batch_size("records", batch.records.len())?;
    let (state, now) = (service.state()?, service.now());
    // All reports are parsed before anything is recorded.
    let parse = |(nth, wire::JsonObject(record)): (usize, &_)| {
        parse(&state, caller, record, now).map_err(|problem| problem.under(&format!("records[{nth}]")))
    };
    let reports: Vec<Report> = batch.records.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    let mut results = Vec::with_capacity(reports.len());
    let until = now + Span::from(HANDOVER_TIMEOUT);
    for report in &reports {
        let remaining = Duration::from(until.since(service.now()));
        let recorded = apply(&service, report, remaining).await;
        results.push(recorded.unwrap_or_else(|problem| not_recorded(report, &problem)));
    }
    Ok(Json(wire::RecordBatchResponse { results }))
}

/// A validated report: the outcome of one request.
struct Report {
    host: Domain,
    request: ReportedRequest,
    outcome: ReportedOutcome,
    took: Option<Span>,
}

/// The outcome that was reported.
enum ReportedOutcome {
    /// The request was sent. It may have failed without a response.
    Answered(Answer),
    /// The request was not sent, or the caller gave it up, so nothing is known about it.
    Abandoned,
}

impl ReportedOutcome {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(answer) => answer.outcome.as_str(),
            Self::Abandoned => "abandoned",
        }
    }
}

/// Which request the report is about.
enum ReportedRequest {
    /// The request of this permit.
    Permit(PermitRef),
    /// The oldest open request of this intent, or one that was sent without asking.
    WithoutPermit(Intent),
}

fn parse(
    state: &ServingState,
    caller: Caller,
    record: &wire::RecordRequest,
    now: Timestamp,
) -> Result<Report, Problem> {
    if let Some(latency_ms) = record.latency_ms.filter(|ms| *ms > LATENCY_MAX_MS) {
        let allowed = format!("milliseconds from 0 to {LATENCY_MAX_MS}");
        return Err(Problem::field("latency_ms", &latency_ms.to_string(), &allowed));
    }
    let took = record.latency_ms.map(Span::from_millis);
    let outcome = outcome(record, now)?;
    let Some(text) = &record.permit else {
        if caller.role != Role::Admin {
            let detail = "recording without a permit requires a token with the role admin";
            return Err(Problem::new(Kind::Forbidden, detail));
        }
        let host = host(record.url.as_deref(), record.domain.as_deref())?;
        let intent = record.intent.unwrap_or_default().into();
        if matches!(outcome, ReportedOutcome::Abandoned) {
            return Err(Problem::field(
                "outcome",
                "\"abandoned\"",
                "a permit together with this outcome; without one there is nothing to abandon",
            ));
        }
        return Ok(Report { host, request: ReportedRequest::WithoutPermit(intent), outcome, took });
    };
    if record.url.is_some() || record.domain.is_some() || record.intent.is_some() {
        let allowed = "a permit alone; it already contains the site and the intent";
        return Err(Problem::field("permit", "\"…\"", allowed));
    }
    let claims = verify_permit(state, text)?;
    let permit = PermitRef { id: claims.id, granted_at: claims.granted_at, took };
    Ok(Report { host: claims.host, request: ReportedRequest::Permit(permit), outcome, took })
}

/// Reads a permit, and refuses one that was not issued on this store.
pub(super) fn verify_permit(state: &ServingState, text: &str) -> Result<PermitClaims, Problem> {
    let allowed = "a permit issued by this service";
    state.signer.verify(text).ok_or_else(|| Problem::field("permit", "\"…\"", allowed))
}

/// The reported outcome, given directly or as a status. The headers are taken into account either way.
fn outcome(record: &wire::RecordRequest, now: Timestamp) -> Result<ReportedOutcome, Problem> {
    let mut headers: Vec<(&str, &[u8])> = Vec::new();
    let retry_after_text;
    if let Some(retry_after) = &record.retry_after {
        retry_after_text = match retry_after {
            wire::RetryAfter::Seconds(seconds) => seconds.to_string(),
            wire::RetryAfter::Text(text) => text.clone(),
        };
        headers.push(("retry-after", retry_after_text.as_bytes()));
    }
    if let Some(ratelimit) = &record.ratelimit {
        validate_length("ratelimit", ratelimit, RATELIMIT_MAX)?;
        headers.push(("ratelimit", ratelimit.as_bytes()));
    }
    for (name, value) in record.headers.iter().flatten() {
        headers.push((name, value.as_bytes()));
    }
    let hints =
        if headers.is_empty() { PacingHints::default() } else { PacingHints::read(headers.into_iter(), now) };
    match (record.outcome, record.status) {
        (Some(outcome), None) => Ok(match outcome.to_core() {
            Some(outcome) => ReportedOutcome::Answered(Answer { hints, ..Answer::from(outcome) }),
            None => ReportedOutcome::Abandoned,
        }),
        (None, Some(status)) => match u16::try_from(status) {
            Ok(status) if STATUSES.contains(&status) => {
                Ok(ReportedOutcome::Answered(Answer::of_status(status, hints)))
            }
            _ => Err(Problem::field("status", &status.to_string(), "an HTTP status from 100 to 999")),
        },
        (None, None) => Err(Problem::field("outcome", "", "an outcome or a status; both are missing")),
        (Some(_), Some(_)) => Err(Problem::field("outcome", "", "either an outcome or a status, not both")),
    }
}

/// Passes a report on to the gate of its domain.
async fn apply(
    service: &Service,
    report: &Report,
    timeout: Duration,
) -> Result<wire::RecordResponse, Problem> {
    let Report { host, outcome, took, .. } = report;
    let limit = match report.request {
        ReportedRequest::WithoutPermit(_) => DomainLimit::Enforced,
        // The domain was held when the permit was granted.
        ReportedRequest::Permit(_) => DomainLimit::Exempt,
    };
    let record = |gate: Gate| async move { record_or_return(&gate, report).await };
    let (state, recorded) = with_gate(service, host, limit, timeout, record).await?;
    let standing = match &recorded {
        Ok(recorded) => recorded.freshness,
        Err(returned) => {
            if *returned {
                Freshness::Fresh
            } else {
                Freshness::Repeated
            }
        }
    };
    let recorded = recorded.ok();
    if let Some(took) = took {
        service.metrics().fetched(*took);
    }
    let domain = state.gate.rules().domain(host);
    let wait = state.gate.wait(host);
    Ok(wire::RecordResponse::of(&domain, outcome.as_str(), standing, recorded.as_ref(), wait))
}

/// Records an outcome, or returns an abandoned permit. `Ok` is what was recorded, `Err` whether a permit was returned.
async fn record_or_return(gate: &Gate, report: &Report) -> Result<Result<Recorded, bool>, GateError> {
    let host = &report.host;
    match (&report.request, &report.outcome) {
        (ReportedRequest::Permit(permit), ReportedOutcome::Answered(answer)) => {
            gate.record_passed(host, *permit, answer).await.map(Ok)
        }
        (ReportedRequest::WithoutPermit(intent), ReportedOutcome::Answered(answer)) => {
            gate.record_unasked(host, *intent, answer).await.map(Ok)
        }
        (ReportedRequest::Permit(permit), ReportedOutcome::Abandoned) => {
            gate.give_back(host, *permit).await.map(Err)
        }
        (ReportedRequest::WithoutPermit(_), ReportedOutcome::Abandoned) => Ok(Err(false)),
    }
}

/// The result for a report of a batch that could not be recorded. The caller should retry it.
fn not_recorded(report: &Report, problem: &Problem) -> wire::RecordResponse {
    tracing::debug!(domain = %report.host, %problem, "could not record an outcome");
    wire::RecordResponse::not_recorded(&report.host, report.outcome.as_str())
}

/// How long to wait for another process to hand the domain over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest latency that is accepted: a day.
const LATENCY_MAX_MS: u64 = 86_400_000;
const RATELIMIT_MAX: usize = 4_096;
