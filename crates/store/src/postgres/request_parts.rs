//! What identifies a task (URL, method and body), and reading back what it sends.

use comity_core::task::JobId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tasks::{NewTask, RequestParts};

/// What a task sends, as its row has it; `None` for a plain GET. The error says what cannot be read.
pub(super) fn request_of(
    method: Option<String>,
    body: Option<Vec<u8>>,
    headers: Option<String>,
) -> Result<Option<Box<RequestParts>>, String> {
    let Some(method) = method else { return Ok(None) };
    let headers = serde_json::from_str(headers.as_deref().unwrap_or("[]"));
    let headers = headers.map_err(|error| format!("headers: {error}"))?;
    Ok(Some(Box::new(RequestParts { method, body: body.unwrap_or_default(), headers })))
}

/// The key under which a task is looked up.
pub(super) fn key_of(job: JobId, task: &NewTask) -> i64 {
    let plain = xxh3_64_with_seed(task.url.as_bytes(), job.0);
    let key = match &task.sends {
        None => plain,
        // Headers alone do not make a different task.
        Some(sends) if sends.method == "GET" && sends.body.is_empty() => plain,
        Some(sends) => xxh3_64_with_seed(&sends.body, xxh3_64_with_seed(sends.method.as_bytes(), plain)),
    };
    key as i64
}

/// Whether two tasks are the same one: URL, method and body are equal.
pub(super) fn is_same(one: &NewTask, other: &NewTask) -> bool {
    one.url == other.url && sent(one) == sent(other)
}

/// The method and the body of a task.
fn sent(task: &NewTask) -> (&str, &[u8]) {
    task.sends.as_deref().map_or(("GET", &[]), |sends| (&sends.method, &sends.body))
}
