//! Leases of permits: how long a permit counts as in flight if it is not recorded.

use std::time::Duration;

use axum::extract::State;
use comity::core::domain::Domain;
use comity::core::pace::{LEASE, LEASE_MAX, PermitRef};
use comity::core::time::Span;
use comity::gate::Gate;

use super::decide::{DomainLimit, with_gate};
use super::record::verify_permit;
use super::{Path, domain};
use crate::audit::Deed;
use crate::auth::Caller;
use crate::body::Json;
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::wire;

/// Extend the lease of a permit, for a request that takes longer than expected.
#[utoipa::path(post, path = "/v1/renew", tag = "decisions", request_body = wire::RenewRequest,
    responses((status = 200, description = "Whether the lease was extended", body = wire::RenewResponse)))]
pub(crate) async fn renew(
    State(service): State<Service>,
    Json(renew): Json<wire::RenewRequest>,
) -> Result<Json<wire::RenewResponse>, Problem> {
    let lease = lease(renew.lease_ms)?;
    let claims = verify_permit(&*service.state()?, &renew.permit)?;
    let permit = PermitRef { id: claims.id, granted_at: claims.granted_at, took: None };
    let host = &claims.host;
    let renew = |gate: Gate| async move { gate.renew(host, permit, lease).await };
    let (state, renewed) = with_gate(&service, host, DomainLimit::Exempt, HANDOVER_TIMEOUT, renew).await?;
    let domain = state.gate.rules().domain(host).to_string();
    let lease_ms = renewed.map_or(0, |_| lease.as_millis_up());
    Ok(Json(wire::RenewResponse { domain, renewed: renewed.is_some(), lease_ms }))
}

/// Release all outstanding permits of a site.
///
/// Permits that were granted and not recorded no longer count as in flight. Nothing that was learned is forgotten.
/// Requires the role `admin`.
#[utoipa::path(post, path = "/v1/domains/{domain}/release", operation_id = "release_domain", tag = "domains",
    params(("domain" = String, Path, description = "A host, with its port unless that is the default, or a group as `group:NAME`", format = "host", max_length = 260)),
    responses((status = 200, description = "How many permits were released", body = wire::ReleaseResponse)))]
pub(crate) async fn release(
    State(service): State<Service>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<wire::ReleaseResponse>, Problem> {
    caller.require_admin()?;
    let host = domain(&name)?;
    let deed = Deed::new("release", format!("site {host}"), String::new());
    deed.carry_out(&service, caller, release_all(&service, &host)).await.map(Json)
}

/// Releases all outstanding permits of a domain.
pub(crate) async fn release_all(service: &Service, host: &Domain) -> Result<wire::ReleaseResponse, Problem> {
    let state = service.state()?;
    let name = state.gate.rules().domain(host);
    if state.store.find_domain(name.clone()).await?.is_none() {
        return Err(Problem::new(Kind::NotFound, format!("nothing is known about {name} yet")));
    }
    let release = |gate: Gate| async move { gate.release(host).await };
    let (state, released) = with_gate(service, host, DomainLimit::Exempt, HANDOVER_TIMEOUT, release).await?;
    Ok(wire::ReleaseResponse::of(&name, released, state.gate.wait(host)))
}

/// Validates the requested lease, or returns the default.
pub(super) fn lease(lease_ms: Option<u64>) -> Result<Span, Problem> {
    let max = LEASE_MAX.as_millis_up();
    match lease_ms {
        None => Ok(LEASE),
        Some(ms) if (1..=max).contains(&ms) => Ok(Span::from_millis(ms)),
        Some(ms) => {
            Err(Problem::field("lease_ms", &ms.to_string(), &format!("milliseconds from 1 to {max}")))
        }
    }
}

/// How long to wait for another process to hand the domain over.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
