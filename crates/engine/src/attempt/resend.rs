//! Whether a request may be sent again, so that requests with side effects are not accidentally sent twice.

use comity_core::outcome::Outcome;
use http::Method;

use crate::transport::TransportError;

/// Whether a request with this method may be sent again after a response with this outcome, or after this transport
/// error.
pub(crate) fn may_resend(method: &Method, outcome: Outcome, cause: Option<&TransportError>) -> bool {
    match cause {
        _ if method.is_idempotent() => true,
        Some(cause) => !cause.may_have_arrived(),
        // A server that answers "not now" has not processed the request.
        None => matches!(outcome, Outcome::RateLimited | Outcome::Blocked | Outcome::Unavailable),
    }
}

/// The explanation for users if it may not.
pub(crate) const NOT_RESENT: &str = "not retried, because the server may have received the request";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Phase;

    #[test]
    fn a_post_that_may_have_arrived_is_not_sent_again() {
        let (broken, slow) = (TransportError::GivenUp, TransportError::TimedOut(Phase::FirstByte));
        let early = TransportError::TimedOut(Phase::Connect);
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            assert!(may_resend(&method, Outcome::Timeout, Some(&slow)), "{method}");
        }
        for method in [Method::POST, Method::PATCH] {
            assert!(!may_resend(&method, Outcome::Timeout, Some(&slow)), "{method}");
            assert!(!may_resend(&method, Outcome::Timeout, Some(&broken)), "{method}");
            assert!(may_resend(&method, Outcome::Timeout, Some(&early)), "{method}");
            assert!(may_resend(&method, Outcome::RateLimited, None), "{method}");
            assert!(!may_resend(&method, Outcome::ServerError, None), "{method}");
        }
    }
}
