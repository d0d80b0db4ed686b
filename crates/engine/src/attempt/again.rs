//! Whether a request may be sent once more. What changes something at a server is not sent twice by mistake.

use comity_core::outcome::Outcome;
use http::Method;

use crate::transport::TransportError;

/// Whether a request with this method may be repeated after an answer, or after what went wrong.
pub(crate) fn may_repeat(method: &Method, outcome: Outcome, cause: Option<&TransportError>) -> bool {
    match cause {
        _ if method.is_idempotent() => true,
        Some(cause) => !cause.may_have_arrived(),
        // Whoever says "not now" has done nothing.
        None => matches!(outcome, Outcome::RateLimited | Outcome::Blocked | Outcome::Unavailable),
    }
}

/// What a task or a caller is told then.
pub(crate) const NOT_REPEATED: &str = "may have been received, so it is not sent again";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Phase;

    #[test]
    fn what_may_have_been_received_is_not_posted_again() {
        let (broken, slow) = (TransportError::GivenUp, TransportError::TimedOut(Phase::FirstByte));
        let early = TransportError::TimedOut(Phase::Connect);
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            assert!(may_repeat(&method, Outcome::Timeout, Some(&slow)), "{method}");
        }
        for method in [Method::POST, Method::PATCH] {
            assert!(!may_repeat(&method, Outcome::Timeout, Some(&slow)), "{method}");
            assert!(!may_repeat(&method, Outcome::Timeout, Some(&broken)), "{method}");
            assert!(may_repeat(&method, Outcome::Timeout, Some(&early)), "{method}");
            assert!(may_repeat(&method, Outcome::RateLimited, None), "{method}");
            assert!(!may_repeat(&method, Outcome::ServerError, None), "{method}");
        }
    }
}
