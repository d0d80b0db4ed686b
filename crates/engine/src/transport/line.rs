//! Whether a connection is still open, for whoever has given it up and must know that it is gone.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Tells when one connection is closed.
#[derive(Debug, Clone, Default)]
pub struct Line(CancellationToken);

impl Line {
    /// Waits until the connection is closed. One that others share stays open, so this ends after a while.
    pub(crate) async fn closed(&self) {
        let _ = timeout(CLOSING_MAX, self.0.cancelled()).await;
    }

    pub(super) fn cut(&self) {
        self.0.cancel();
    }
}

/// A server that reads nothing can put off the end of its connection for two seconds.
const CLOSING_MAX: Duration = Duration::from_secs(3);
