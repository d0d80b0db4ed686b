//! The head of an answer is there, and its body on the way: what the server says counts from now on (B20, B24).

use comity_core::headers::Told;
use comity_core::outcome::Answer;
use comity_core::pace::Recorded;
use comity_core::time::Timestamp;
use http::HeaderMap;

use crate::gate::Permit;

/// What a head came to.
pub(crate) struct Heard {
    pub(crate) answer: Answer,
    /// A refusal is recorded at once, whatever becomes of the page that says so nicely. Anything else is recorded when its
    /// body ended: until then its request is on the wire (B78).
    pub(crate) recorded: Option<Recorded>,
}

/// Hears what the head of an answer says.
pub(crate) fn hear(permit: &mut Permit, status: u16, headers: &HeaderMap) -> Heard {
    let answer = Answer::of_status(status, told(headers, permit.now()));
    let recorded = answer.outcome.is_penalty().then(|| permit.settle(&answer));
    if recorded.is_none() && !answer.told.is_silent() {
        permit.heed(&answer);
    }
    Heard { answer, recorded }
}

/// What the headers of an answer ask of us.
pub(crate) fn told(headers: &HeaderMap, now: Timestamp) -> Told {
    Told::read(headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())), now)
}
