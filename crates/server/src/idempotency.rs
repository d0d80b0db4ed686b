//! Idempotency keys: a POST repeated with the same `Idempotency-Key` gets the same response, and nothing is done twice.
//!
//! Responses are kept in memory, limited in number, size and age. A restart forgets them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use comity::core::time::{Span, Timestamp};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use xxhash_rust::xxh3::xxh3_128;

use crate::auth::Caller;
use crate::body;
use crate::problem::{Kind, Problem};
use crate::service::Service;

/// Responses by caller and idempotency key.
#[derive(Debug, Default)]
pub(crate) struct IdempotencyCache(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<Key, Entry>,
    /// Finished entries, oldest first, with the time and size of each.
    order: VecDeque<(Timestamp, usize, Key)>,
    bytes: usize,
}

/// The caller's id, and the key it sent.
type Key = (u64, String);

#[derive(Debug)]
struct Entry {
    /// Hash of method, path and body.
    hash: u128,
    /// `None` while the request is in progress.
    response: Option<(StatusCode, HeaderMap, Bytes)>,
}

/// The result of looking up a key.
enum Lookup {
    /// The key is new. It counts as in progress until the guard is finished or dropped.
    New(InProgress),
    /// The response that was given before.
    Replay(Response),
    /// The key can't be used for this request.
    Refused(Problem),
}

/// Marks a key as in progress. If it is dropped without a response, the key can be used again.
struct InProgress {
    cache: Arc<IdempotencyCache>,
    key: Option<Key>,
}

/// Middleware: if a POST has an idempotency key that was seen before, replays the stored response.
pub(crate) async fn replay_or_run(service: &Service, request: Request, next: Next) -> Response {
    let Some(key) = request.headers().get(HEADER).filter(|_| request.method() == Method::POST) else {
        return next.run(request).await;
    };
    // Boxed, so that requests without a key don't pay for the size of this future.
    match Box::pin(run_with_key(service, key.clone(), request, next)).await {
        Ok(response) => response,
        Err(problem) => axum::response::IntoResponse::into_response(problem),
    }
}

async fn run_with_key(
    service: &Service,
    key: HeaderValue,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let allowed = "1 to 200 visible ASCII characters";
    let key = key
        .to_str()
        .ok()
        .filter(|key| (1..=KEY_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()));
    let key = key.ok_or_else(|| Problem::field("Idempotency-Key", "", allowed))?.to_owned();
    let caller = request.extensions().get::<Caller>().map_or(0, |caller| caller.id);
    let (parts, body) = request.into_parts();
    let limits = service.limits();
    let bytes = body::collect(&parts.headers, body, limits.body_max, limits.idle_timeout).await?;
    let hashed = [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &bytes].join(&0);
    let mut in_progress = match service.idempotency().start((caller, key), xxh3_128(&hashed), service.now()) {
        Lookup::Replay(response) => return Ok(response),
        Lookup::Refused(problem) => return Err(problem),
        Lookup::New(in_progress) => in_progress,
    };
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if !parts.status.is_server_error() {
        in_progress.finish(parts.status, parts.headers.clone(), bytes.clone(), service.now());
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

impl IdempotencyCache {
    /// Looks up a key, and marks it as in progress if it is new.
    fn start(self: &Arc<Self>, key: Key, hash: u128, now: Timestamp) -> Lookup {
        let mut entries = self.lock();
        entries.evict(now);
        match entries.by_key.get(&key) {
            Some(entry) if entry.hash != hash => Lookup::Refused(Problem::field(
                "Idempotency-Key",
                "",
                "a new key; this one was already used for a different request",
            )),
            Some(Entry { response: None, .. }) => Lookup::Refused(Problem::new(
                Kind::Conflict,
                "a request with this Idempotency-Key is still in progress",
            )),
            Some(Entry { response: Some((status, headers, bytes)), .. }) => {
                let mut response = Response::new(Body::from(bytes.clone()));
                *response.status_mut() = *status;
                *response.headers_mut() = headers.clone();
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
                Lookup::Replay(response)
            }
            None => {
                entries.by_key.insert(key.clone(), Entry { hash, response: None });
                Lookup::New(InProgress { cache: self.clone(), key: Some(key) })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Removes expired responses, and the oldest ones while there are too many.
    fn evict(&mut self, now: Timestamp) {
        while let Some((at, bytes, key)) = self.order.front() {
            let fits = self.order.len() <= RESPONSES_MAX && self.bytes <= BYTES_MAX;
            if now.since(*at) < KEEP && fits {
                return;
            }
            self.by_key.remove(key);
            self.bytes = self.bytes.saturating_sub(*bytes);
            self.order.pop_front();
        }
    }
}

impl InProgress {
    /// Stores the response, for later requests with the same key.
    fn finish(&mut self, status: StatusCode, headers: HeaderMap, bytes: Bytes, now: Timestamp) {
        let Some(key) = self.key.take() else { return };
        let mut entries = self.cache.lock();
        if let Some(entry) = entries.by_key.get_mut(&key) {
            let size = bytes.len() + key.1.len();
            entry.response = Some((status, headers, bytes));
            entries.order.push_back((now, size, key));
            entries.bytes += size;
            entries.evict(now);
        }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cache.lock().by_key.remove(&key);
        }
    }
}

pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const KEY_MAX: usize = 200;
/// How long responses are kept: as long as the longest lease.
const KEEP: Span = comity::core::pace::LEASE_MAX;
const RESPONSES_MAX: usize = 50_000;
const BYTES_MAX: usize = 64 << 20;
