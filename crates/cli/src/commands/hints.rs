//! What to type next, about a job that has ended. A hint is only given if the command it names would do something.

use comity::redact::shell_word;
use comity::store::Store;
use comity::store::jobs::{FailureKind, Job, RetryFilter};

/// How to see what failed in a job, and whether and how to retry it; `None` if nothing can be retried.
pub(crate) async fn retry(store: &dyn Store, job: &Job) -> anyhow::Result<Option<String>> {
    let name = shell_word(&job.name);
    if can_retry(store, job, Vec::new()).await? {
        return Ok(Some(format!(
            "To see what failed: comity jobs show {name}; to retry them: comity jobs retry {name}"
        )));
    }
    Ok(can_retry(store, job, GONE.to_vec()).await?.then(|| {
        format!(
            "To see what failed: comity jobs show {name}. Every failure was answered 404 or 410, so these pages are \
             probably gone; to retry them anyway: comity jobs retry {name} --status 404,410"
        )
    }))
}

/// Whether a retry of these failures would do something.
pub(crate) async fn can_retry(
    store: &dyn Store,
    job: &Job,
    failures: Vec<FailureKind>,
) -> anyhow::Result<bool> {
    Ok(store.can_retry(job.id, RetryFilter { failures, ..RetryFilter::default() }).await?)
}

/// Failures that are not retried unless they are named.
const GONE: [FailureKind; 2] = [FailureKind::Status(404), FailureKind::Status(410)];
