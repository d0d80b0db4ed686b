//! Signals when a connection is closed, for callers that gave it up and must know when it is gone.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Signals when one connection is closed.
#[derive(Debug, Clone, Default)]
pub struct CloseSignal(CancellationToken);

impl CloseSignal {
    /// Waits until the connection is closed, but not forever, because a shared connection stays open.
    pub(crate) async fn closed(&self) {
        let _ = timeout(CLOSING_MAX, self.0.cancelled()).await;
    }

    pub(super) fn closed_now(&self) {
        self.0.cancel();
    }
}

/// How long to wait at most. A server that reads nothing can delay the end of its connection for two seconds.
const CLOSING_MAX: Duration = Duration::from_secs(3);
