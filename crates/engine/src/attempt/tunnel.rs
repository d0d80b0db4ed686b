//! Tunnels: a connection whose bytes we never see. The connection itself waits its turn, like a request.

use comity_core::outcome::Answer;

use super::DEPART_WAIT_MAX;
use crate::gate::Permit;
use crate::request::Trust;
use crate::transport::{RawConnection, Request, Transport, TransportError};

/// Why there is no tunnel.
#[derive(Debug)]
pub(crate) enum NoTunnel {
    /// It may not be opened yet after all, or file descriptors ran out.
    Withheld,
    /// The connection failed, which was recorded.
    Failed(TransportError),
    /// It must never be opened. The site is not to blame.
    Never(TransportError),
}

/// Opens a tunnel to the host and port of a URL. What happens in it is unknown, so nothing is learned from it.
pub(crate) async fn open_tunnel(
    transport: &Transport,
    request: Request<'_>,
    mut permit: Permit,
) -> Result<RawConnection, NoTunnel> {
    permit.name_url(request.url);
    let prepared = transport.requests().prepare(request.url, Trust::Relayed, || permit.now());
    let prepared = prepared.map_err(NoTunnel::Never)?;
    let request = Request { options: prepared.options.as_deref(), ..request };
    if !permit.depart_within(DEPART_WAIT_MAX).await {
        return Err(NoTunnel::Withheld);
    }
    match transport.open_raw(&request).await {
        Ok(raw) => {
            permit.sent_unrecorded();
            Ok(raw)
        }
        Err(cause) if cause.is_ours() => Err(NoTunnel::Withheld),
        Err(cause) if cause.is_final() => Err(NoTunnel::Never(cause)),
        Err(cause) => {
            permit.settle(&Answer::of_failure(cause.failure()));
            Err(NoTunnel::Failed(cause))
        }
    }
}
