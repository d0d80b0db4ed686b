//! Idempotency keys: who asks again with the same key gets the same answer, and nothing is done twice.
//!
//! Answers are kept in memory for as long as a lease may last, so many and so large at most; a restart forgets them.

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

/// Answers that were given, by who asked with which key.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<Key, Entry>,
    /// In the order they were given, with their size.
    order: VecDeque<(Timestamp, usize, Key)>,
    bytes: usize,
}

/// Who asked, and the key.
type Key = (u64, String);

#[derive(Debug)]
struct Entry {
    /// Of what was asked.
    hash: u128,
    /// `None` while it is under way.
    answer: Option<(StatusCode, HeaderMap, Bytes)>,
}

/// What is known of a key.
enum Known {
    /// Nothing: it is under way from now on, for as long as this is kept.
    New(UnderWay),
    Answered(Response),
    Refused(Problem),
}

/// Somebody works on it; dropped without an answer, the key is free again.
struct UnderWay {
    answers: Arc<Answers>,
    key: Option<Key>,
}

/// Answers a request that carries a key as it was answered before.
pub(crate) async fn same_answer(service: &Service, request: Request, next: Next) -> Response {
    let Some(key) = request.headers().get(HEADER).filter(|_| request.method() == Method::POST) else {
        return next.run(request).await;
    };
    // In a box, so that requests without a key do not carry its room.
    match Box::pin(keyed(service, key.clone(), request, next)).await {
        Ok(response) => response,
        Err(problem) => axum::response::IntoResponse::into_response(problem),
    }
}

async fn keyed(
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
    let asked = [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &bytes].join(&0);
    let mut under_way = match service.answers().begin((caller, key), xxh3_128(&asked), service.now()) {
        Known::Answered(response) => return Ok(response),
        Known::Refused(problem) => return Err(problem),
        Known::New(under_way) => under_way,
    };
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if !parts.status.is_server_error() {
        under_way.answered(parts.status, parts.headers.clone(), bytes.clone(), service.now());
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

impl Answers {
    fn begin(self: &Arc<Self>, key: Key, hash: u128, now: Timestamp) -> Known {
        let mut kept = self.lock();
        kept.forget(now);
        match kept.answers.get(&key) {
            Some(entry) if entry.hash != hash => Known::Refused(Problem::field(
                "Idempotency-Key",
                "",
                "a key that was not used for another request",
            )),
            Some(Entry { answer: None, .. }) => Known::Refused(Problem::new(
                Kind::Conflict,
                "a request with this Idempotency-Key is under way",
            )),
            Some(Entry { answer: Some((status, headers, bytes)), .. }) => {
                let mut response = Response::new(Body::from(bytes.clone()));
                *response.status_mut() = *status;
                *response.headers_mut() = headers.clone();
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
                Known::Answered(response)
            }
            None => {
                kept.answers.insert(key.clone(), Entry { hash, answer: None });
                Known::New(UnderWay { answers: self.clone(), key: Some(key) })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Forgets what is old, and the oldest when there are too many.
    fn forget(&mut self, now: Timestamp) {
        while let Some((at, bytes, key)) = self.order.front() {
            let fits = self.order.len() <= ANSWERS_MAX && self.bytes <= BYTES_MAX;
            if now.since(*at) < KEPT_FOR && fits {
                return;
            }
            self.answers.remove(key);
            self.bytes = self.bytes.saturating_sub(*bytes);
            self.order.pop_front();
        }
    }
}

impl UnderWay {
    fn answered(&mut self, status: StatusCode, headers: HeaderMap, bytes: Bytes, now: Timestamp) {
        let Some(key) = self.key.take() else { return };
        let mut kept = self.answers.lock();
        if let Some(entry) = kept.answers.get_mut(&key) {
            let size = bytes.len() + key.1.len();
            entry.answer = Some((status, headers, bytes));
            kept.order.push_back((now, size, key));
            kept.bytes += size;
            kept.forget(now);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.answers.lock().answers.remove(&key);
        }
    }
}

pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const KEY_MAX: usize = 200;
/// As long as a lease may last.
const KEPT_FOR: Span = comity::core::pace::LEASE_MAX;
const ANSWERS_MAX: usize = 50_000;
const BYTES_MAX: usize = 64 << 20;
