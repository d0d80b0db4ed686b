//! The record of what people change through the service: who, what, when, and with which result. It goes to the log and to
//! the audit list of the store.

use std::future::Future;

use comity::store::audit::NewAuditEntry;

use crate::auth::Caller;
use crate::problem::Problem;
use crate::service::Service;

/// A change, as it is recorded.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    action: &'static str,
    target: String,
    impact: String,
}

impl Deed {
    /// Something that is done, such as `cancel`, to something, such as `job nightly`, and what that affects.
    pub(crate) fn new(action: &'static str, target: String, impact: String) -> Self {
        Self { action, target, impact }
    }

    /// Does it, and records who did what, and with which result.
    pub(crate) async fn carry_out<T>(
        self,
        service: &Service,
        caller: Caller,
        doing: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let done = doing.await;
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        let Self { action, target, impact } = self;
        let (who, role) = (caller.name(), caller.role.as_str().to_owned());
        tracing::info!(who, action, target, impact, result, "changed by hand");
        let entry = NewAuditEntry { who, role, action: action.to_owned(), target, impact, result };
        let kept = match service.state() {
            Ok(state) => state.store.add_audit(entry, service.now()).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = kept {
            tracing::error!(%problem, "a change could not be added to the audit list");
        }
        done
    }
}
