//! Waiting in line on behalf of a client, for a limited time, and the answer if that was not enough.

use std::pin::pin;
use std::time::Duration;

use comity_core::decision::Reason;
use comity_core::domain::Domain;
use comity_core::intent::Intent;
use comity_core::time::Span;
use http::StatusCode;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Proxy;
use super::answer::Refused;
use crate::gate::{GateError, Permit};

/// A client's place in line.
pub(super) struct Line<'a> {
    proxy: &'a Proxy,
    host: &'a Domain,
    /// Cancelled when the client has hung up.
    gone: &'a CancellationToken,
    until: Instant,
    /// How long the client has waited so far.
    pub(super) waited: Span,
    /// What it waited for.
    pub(super) reason: Option<String>,
}

/// Why a client got no permit.
pub(super) enum NotGranted {
    /// It has hung up.
    Gone,
    /// It gets this answer.
    Refused(Refused),
}

impl<'a> Line<'a> {
    pub(super) fn new(proxy: &'a Proxy, host: &'a Domain, gone: &'a CancellationToken) -> Self {
        let until = Instant::now() + Duration::from(proxy.0.settings.wait_max);
        Self { proxy, host, gone, until, waited: Span::ZERO, reason: None }
    }

    /// Waits for a permit.
    pub(super) async fn permit(&mut self) -> Result<Permit, NotGranted> {
        let gate = &self.proxy.0.gate;
        if self.proxy.0.settings.fail_fast {
            return self.permit_now().await;
        }
        let began_at = gate.clock().now();
        let mut acquiring = pin!(gate.acquire(self.host, Intent::Fetch));
        let granted = tokio::select! {
            biased;
            granted = acquiring.as_mut() => Some(granted),
            reason = self.delay() => {
                self.reason = reason.map(|reason| reason.to_string()).or(self.reason.take());
                None
            }
        };
        let granted = match granted {
            Some(granted) => Ok(granted),
            None => {
                let granted = self.limited(acquiring).await;
                let waited = gate.clock().now().since(began_at);
                self.waited += waited;
                self.proxy.0.counts.waited(waited);
                granted
            }
        };
        granted?.map_err(|error| NotGranted::Refused(of_gate(&error)))
    }

    /// A permit if one is free at this moment.
    async fn permit_now(&mut self) -> Result<Permit, NotGranted> {
        let checked = self.proxy.0.gate.check(self.host, Intent::Fetch).await;
        let (decision, permit) = checked.map_err(|error| NotGranted::Refused(of_gate(&error)))?;
        match (permit, decision) {
            (Some(permit), _) => Ok(permit),
            (None, decision) => Err(self.too_early(decision.reason().copied())),
        }
    }

    /// Awaits something that must not take longer than the client waits.
    pub(super) async fn limited<T>(&self, waiting: impl Future<Output = T>) -> Result<T, NotGranted> {
        tokio::select! {
            biased;
            done = waiting => Ok(done),
            () = self.gone.cancelled() => Err(NotGranted::Gone),
            () = self.proxy.0.stopping.cancelled() => {
                let stopping = "the proxy is shutting down";
                Err(NotGranted::Refused(Refused::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", stopping)))
            }
            () = sleep_until(self.until) => {
                Err(self.too_long(self.delay().await))
            }
        }
    }

    /// What delays the next request to the site, apart from others in line.
    async fn delay(&self) -> Option<Reason> {
        let reasons = self.proxy.0.gate.explain(self.host, Intent::Fetch).await.unwrap_or_default();
        reasons.into_iter().filter(Reason::binds).max_by_key(|reason| reason.until)
    }

    /// The answer to a client that doesn't wait.
    pub(super) fn too_early(&self, reason: Option<Reason>) -> NotGranted {
        let detail = "the request would have to wait for its turn";
        NotGranted::Refused(self.refused(StatusCode::TOO_MANY_REQUESTS, detail.to_owned(), reason))
    }

    fn too_long(&self, reason: Option<Reason>) -> NotGranted {
        let wait_max = self.proxy.0.settings.wait_max;
        let detail = format!("the request waited in line for {wait_max}, which is proxy.wait_max");
        NotGranted::Refused(self.refused(StatusCode::SERVICE_UNAVAILABLE, detail, reason))
    }

    fn refused(&self, status: StatusCode, detail: String, reason: Option<Reason>) -> Refused {
        let text = reason.as_ref().map(ToString::to_string);
        let detail = text.iter().fold(detail, |detail, text| format!("{detail}: {text}"));
        let retry_after =
            Some(reason.map_or(Span::from_secs(1), |reason| Span::from_millis(reason.wait_ms())));
        Refused { retry_after, reason: text, ..Refused::new(status, "wait", detail) }
    }
}

fn of_gate(error: &GateError) -> Refused {
    tracing::debug!(%error, "no permit for a proxied request");
    let detail =
        "no request may be sent at the moment: the store is unavailable, or the proxy is shutting down";
    let retry_after = Some(Span::from_secs(2));
    Refused { retry_after, ..Refused::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail) }
}
