//! The part of an attempt that layers around other clients share: how long a permit may still wait at departure, and
//! what response headers mean. What a server asks for takes effect as soon as they arrive, while the body is still
//! being read.

use comity_core::headers::PacingHints;
use comity_core::outcome::Answer;
use comity_core::pace::Recorded;
use comity_core::time::{Span, Timestamp};
use http::HeaderMap;

use crate::gate::Permit;

/// The effect of response headers.
pub(crate) struct AppliedHead {
    pub(crate) answer: Answer,
    /// Set for a refusal, which is recorded immediately, whatever happens to its body. Any other response is recorded
    /// when its body has ended, because its request is in flight until then.
    pub(crate) recorded: Option<Recorded>,
}

/// Applies the status and headers of a response that arrived at `at` to the permit's domain.
pub(crate) fn apply_head(
    permit: &mut Permit,
    status: u16,
    headers: &HeaderMap,
    at: Timestamp,
) -> AppliedHead {
    let answer = Answer::of_status(status, pacing_hints(headers, at));
    let recorded = answer.outcome.is_penalty().then(|| permit.settle(&answer));
    if recorded.is_none() && !answer.hints.is_empty() {
        permit.apply_hints(&answer);
    }
    AppliedHead { answer, recorded }
}

/// What response headers say about pacing.
pub(crate) fn pacing_hints(headers: &HeaderMap, now: Timestamp) -> PacingHints {
    PacingHints::read(headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())), now)
}

/// How long a request with an open connection waits to depart before it returns to its place in line. This keeps a
/// source whose interval equals its site's pace from being deferred over a few milliseconds.
pub(crate) const DEPART_WAIT_MAX: Span = Span::from_millis(250);
