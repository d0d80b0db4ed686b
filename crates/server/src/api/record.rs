//! What a request came to.

use std::time::Duration;

use axum::extract::State;
use comity::config::Role;
use comity::core::domain::Domain;
use comity::core::headers::Told;
use comity::core::intent::Intent;
use comity::core::outcome::Answer;
use comity::core::pace::{Passed, Recorded, Standing};
use comity::core::time::{Span, Timestamp};
use comity::gate::{Gate, GateError};

use super::decide::{Room, batch_fits, with_gate};
use super::{fits, host};
use crate::auth::Caller;
use crate::body::Json;
use crate::live::Live;
use crate::permit::Permit;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// Tells what a request came to; the domain's pace learns from it. Telling it twice is harmless.
#[utoipa::path(post, path = "/v1/record", tag = "decisions", request_body = wire::Record,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Recorded)))]
pub(crate) async fn record(
    State(service): State<Service>,
    caller: Caller,
    Json(record): Json<wire::Record>,
) -> Result<Json<wire::Recorded>, Problem> {
    let report = read(&*service.live()?, caller, &record, service.now())?;
    tell(&service, &report, PATIENCE).await.map(Json)
}

/// Many at once, in this order.
#[utoipa::path(post, path = "/v1/record/batch", tag = "decisions", request_body = wire::Records,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer", min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    responses((status = 200, body = wire::Recordeds)))]
pub(crate) async fn record_batch(
    State(service): State<Service>,
    caller: Caller,
    Json(records): Json<wire::Records>,
) -> Result<Json<wire::Recordeds>, Problem> {
    batch_fits("records", records.records.len())?;
    let (live, now) = (service.live()?, service.now());
    // All are read before anything is changed.
    let read = |(nth, wire::Object(record)): (usize, &_)| {
        read(&live, caller, record, now).map_err(|problem| problem.under(&format!("records[{nth}]")))
    };
    let reports: Vec<Report> = records.records.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let mut results = Vec::with_capacity(reports.len());
    let until = now + Span::from(PATIENCE);
    for report in &reports {
        let left = Duration::from(until.since(service.now()));
        let told = tell(&service, report, left).await;
        results.push(told.unwrap_or_else(|problem| unheard(report, &problem)));
    }
    Ok(Json(wire::Recordeds { results }))
}

/// What is reported, and of which request.
struct Report {
    host: Domain,
    of: Of,
    came: Came,
    took: Option<Span>,
}

/// What came of a request.
enum Came {
    /// An answer, or none.
    Answered(Answer),
    /// It was not sent, or its caller gave it up: nothing is known of it.
    Abandoned,
}

impl Came {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(answer) => answer.outcome.as_str(),
            Self::Abandoned => "abandoned",
        }
    }
}

enum Of {
    /// The request of this permit.
    Permit(Passed),
    /// The oldest of that intent that was not reported, or one that left without asking (B25).
    Unasked(Intent),
}

fn read(live: &Live, caller: Caller, record: &wire::Record, now: Timestamp) -> Result<Report, Problem> {
    if let Some(latency_ms) = record.latency_ms.filter(|ms| *ms > LATENCY_MAX_MS) {
        let allowed = format!("milliseconds from 0 to {LATENCY_MAX_MS}");
        return Err(Problem::field("latency_ms", &latency_ms.to_string(), &allowed));
    }
    let took = record.latency_ms.map(Span::from_millis);
    let came = came(record, now)?;
    let Some(text) = &record.permit else {
        if caller.role == Role::Use {
            let what =
                "a token with the role use records what it has a permit for; without one it takes role admin";
            return Err(Problem::new(Kind::Forbidden, what));
        }
        let host = host(record.url.as_deref(), record.domain.as_deref())?;
        let intent = record.intent.unwrap_or_default().into();
        if matches!(came, Came::Abandoned) {
            return Err(Problem::field(
                "outcome",
                "\"abandoned\"",
                "a permit with it: what else would be given back?",
            ));
        }
        return Ok(Report { host, of: Of::Unasked(intent), came, took });
    };
    if record.url.is_some() || record.domain.is_some() || record.intent.is_some() {
        let what = "a permit alone: it knows its domain and intent";
        return Err(Problem::field("permit", "\"…\"", what));
    }
    let permit = permit(live, text)?;
    let passed = Passed { id: permit.id, granted_at: permit.granted_at, took };
    Ok(Report { host: permit.host, of: Of::Permit(passed), came, took })
}

/// The permit that a text is.
pub(super) fn permit(live: &Live, text: &str) -> Result<Permit, Problem> {
    let expected = "a permit that this service gave out";
    live.mint.read(text).ok_or_else(|| Problem::field("permit", "\"…\"", expected))
}

/// The outcome, or what the status and headers come to.
fn came(record: &wire::Record, now: Timestamp) -> Result<Came, Problem> {
    let mut headers: Vec<(&str, &[u8])> = Vec::new();
    let said;
    if let Some(retry_after) = &record.retry_after {
        said = match retry_after {
            wire::RetryAfter::Seconds(seconds) => seconds.to_string(),
            wire::RetryAfter::Text(text) => text.clone(),
        };
        headers.push(("retry-after", said.as_bytes()));
    }
    if let Some(ratelimit) = &record.ratelimit {
        fits("ratelimit", ratelimit, RATELIMIT_MAX)?;
        headers.push(("ratelimit", ratelimit.as_bytes()));
    }
    for (name, value) in record.headers.iter().flatten() {
        headers.push((name, value.as_bytes()));
    }
    let told = if headers.is_empty() { Told::default() } else { Told::read(headers.into_iter(), now) };
    match (record.outcome, record.status) {
        (Some(outcome), None) => Ok(match outcome.known() {
            Some(outcome) => Came::Answered(Answer { told, ..Answer::from(outcome) }),
            None => Came::Abandoned,
        }),
        (None, Some(status)) => match u16::try_from(status) {
            Ok(status @ 100..600) => Ok(Came::Answered(Answer::of_status(status, told))),
            _ => Err(Problem::field("status", &status.to_string(), "a status from 100 to 599")),
        },
        (None, None) => Err(Problem::field("outcome", "", "an outcome, or a status; both are missing")),
        (Some(_), Some(_)) => Err(Problem::field("outcome", "", "an outcome or a status, not both")),
    }
}

async fn tell(service: &Service, report: &Report, patience: Duration) -> Result<wire::Recorded, Problem> {
    let Report { host, came, took, .. } = report;
    let room = match report.of {
        Of::Unasked(_) => Room::Needed,
        // A permit's domain was held when it was given.
        Of::Permit(_) => Room::Had,
    };
    let telling = |gate: Gate| async move { once(&gate, report).await };
    let (live, recorded) = with_gate(service, host, room, patience, telling).await?;
    let standing = match &recorded {
        Ok(recorded) => recorded.standing,
        Err(given_back) => {
            if *given_back {
                Standing::Fresh
            } else {
                Standing::Repeated
            }
        }
    };
    let recorded = recorded.ok();
    if let Some(took) = took {
        service.metrics().fetched(*took);
    }
    let domain = live.gate.rules().domain(host);
    let wait = live.gate.wait(host);
    Ok(wire::Recorded::of(&domain, came.as_str(), standing, recorded.as_ref(), wait))
}

/// What was recorded, or whether a permit was given back.
async fn once(gate: &Gate, report: &Report) -> Result<Result<Recorded, bool>, GateError> {
    let host = &report.host;
    match (&report.of, &report.came) {
        (Of::Permit(passed), Came::Answered(answer)) => {
            gate.record_passed(host, *passed, answer).await.map(Ok)
        }
        (Of::Unasked(intent), Came::Answered(answer)) => {
            gate.record_unasked(host, *intent, answer).await.map(Ok)
        }
        (Of::Permit(passed), Came::Abandoned) => gate.give_back(host, *passed).await.map(Err),
        (Of::Unasked(_), Came::Abandoned) => Ok(Err(false)),
    }
}

/// One of many that could not be recorded: the others could, and this one is told again.
fn unheard(report: &Report, problem: &Problem) -> wire::Recorded {
    tracing::debug!(domain = %report.host, %problem, "could not be recorded");
    wire::Recorded::unheard(&report.host, report.came.as_str())
}

/// How long recording waits for a process that has the domain.
const PATIENCE: Duration = Duration::from_secs(30);
/// A day: no request takes longer.
const LATENCY_MAX_MS: u64 = 86_400_000;
const RATELIMIT_MAX: usize = 4_096;
