//! How long permits keep their place.

use std::time::Duration;

use axum::extract::State;
use comity::core::pace::{LEASE, LEASE_MAX, Passed};
use comity::core::time::Span;
use comity::gate::Gate;

use super::decide::{Room, with_gate};
use super::record::permit;
use super::{Path, domain};
use crate::auth::Caller;
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// Begins the lease of a permit anew, for a request that takes longer than expected.
#[utoipa::path(post, path = "/v1/renew", tag = "decisions", request_body = wire::Renew,
    responses((status = 200, body = wire::Renewed)))]
pub(crate) async fn renew(
    State(service): State<Service>,
    Json(renew): Json<wire::Renew>,
) -> Result<Json<wire::Renewed>, Problem> {
    let lease = lease(renew.lease_ms)?;
    let permit = permit(&*service.live()?, &renew.permit)?;
    let passed = Passed { id: permit.id, granted_at: permit.granted_at, took: None };
    let host = &permit.host;
    let renewing = |gate: Gate| async move { gate.renew(host, passed, lease).await };
    let (live, renewed) = with_gate(&service, host, Room::Had, PATIENCE, renewing).await?;
    let domain = live.gate.rules().domain(host).to_string();
    let lease_ms = renewed.map_or(0, |_| lease.as_millis_up());
    Ok(Json(wire::Renewed { domain, renewed: renewed.is_some(), lease_ms }))
}

/// Ends the leases of all permits of a domain that were given out and not recorded. Nothing that was learned is forgotten.
#[utoipa::path(post, path = "/v1/domains/{domain}/release", operation_id = "release_domain", tag = "domains",
    params(("domain" = String, Path, description = "Its name", format = "host", max_length = 260)),
    responses((status = 200, body = wire::Released)))]
pub(crate) async fn release(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::Released>, Problem> {
    caller.must_steer()?;
    let host = domain(&name)?;
    let live = service.live()?;
    let name = live.gate.rules().domain(&host);
    if live.store.find_domain(name.clone()).await?.is_none() {
        return Err(Problem::new(Kind::NotFound, format!("nothing is known of {name} yet")));
    }
    let asked = &host;
    let releasing = |gate: Gate| async move { gate.release(asked).await };
    let (live, released) = with_gate(&service, &host, Room::Had, PATIENCE, releasing).await?;
    Ok(Json(wire::Released::of(&name, released, live.gate.wait(&host))))
}

/// The lease that is asked for.
pub(super) fn lease(lease_ms: Option<u64>) -> Result<Span, Problem> {
    let most = LEASE_MAX.as_millis_up();
    match lease_ms {
        None => Ok(LEASE),
        Some(ms) if (1..=most).contains(&ms) => Ok(Span::from_millis(ms)),
        Some(ms) => {
            Err(Problem::field("lease_ms", &ms.to_string(), &format!("milliseconds from 1 to {most}")))
        }
    }
}

/// How long a process that has the domain is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
