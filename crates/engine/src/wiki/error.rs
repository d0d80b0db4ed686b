//! The errors of the wiki API and archive, and the error codes of MediaWiki.

use comity_core::outcome::Outcome;
use comity_store::StoreError;

use crate::client::SetupError;
use crate::gate::GateError;
use crate::transport::TransportError;

/// Why a wiki could not be read or archived.
#[derive(Debug, thiserror::Error)]
pub enum WikiError {
    /// The text is not the URL of an API.
    #[error("api = {0:?}: expected the URL of a wiki's api.php, such as https://wiki.example/w/api.php")]
    InvalidUrl(String),
    /// The configuration or the transport can't be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is no contact, which the operators of a wiki need to reach whoever archives it.
    #[error(
        "http.contact: expected an email address or URL where the wiki's operators can reach you; it is sent in the \
         User-Agent (COMITY_HTTP_CONTACT)"
    )]
    NoContact,
    /// A password would be sent without encryption.
    #[error("--user: {0} is not https, so the password could be intercepted")]
    InsecureLogin(String),
    /// The wiki rejected the account.
    #[error("--user {user}: login failed: {why}")]
    Login {
        /// The name of the account.
        user: String,
        /// The reason given by the wiki.
        why: String,
    },
    /// The API returned an error.
    #[error("{api}: {code}: {info}")]
    Refused {
        /// The URL of the API.
        api: String,
        /// The error code.
        code: Code,
        /// The error message.
        info: String,
    },
    /// There is no page at this URL.
    #[error("{api}: answered {status}; is this the URL of api.php? Special:Version of the wiki shows it")]
    NotFound {
        /// The URL of the API.
        api: String,
        /// The status.
        status: u16,
    },
    /// The status is not one that an API uses.
    #[error("{api}: answered {status}")]
    Status {
        /// The URL of the API.
        api: String,
        /// The status.
        status: u16,
    },
    /// The wiki has no such namespace.
    #[error("--namespace {namespace}: no such namespace; the wiki has {has}")]
    Namespace {
        /// The number of the namespace.
        namespace: i64,
        /// The existing namespaces.
        has: String,
    },
    /// The API is at another URL.
    #[error("{api}: the API has moved to {to}; use that URL")]
    Moved {
        /// The URL of the API.
        api: String,
        /// The new URL.
        to: String,
    },
    /// The response is not that of an API.
    #[error("{api}: answered with {what} instead of the API's JSON; is this the URL of api.php?")]
    NotJson {
        /// The URL of the API.
        api: String,
        /// What the response is.
        what: &'static str,
    },
    /// The response has an unknown structure.
    #[error("{api}: unknown response format: {what}")]
    UnknownFormat {
        /// The URL of the API.
        api: String,
        /// What is different.
        what: String,
    },
    /// The response is not what MediaWiki usually returns.
    #[error("{api}: {what}")]
    Unexpected {
        /// The URL of the API.
        api: String,
        /// What is wrong with it.
        what: String,
    },
    /// A list has no end.
    #[error("{api}: the list {list} never ends: {why}; everything archived so far is kept")]
    Endless {
        /// The URL of the API.
        api: String,
        /// The list, as it is requested.
        list: String,
        /// How that was detected.
        why: &'static str,
    },
    /// The request failed.
    #[error("{api}: {cause}")]
    Transport {
        /// The URL of the API.
        api: String,
        /// The cause.
        #[source]
        cause: TransportError,
    },
    /// Another process is archiving this wiki.
    #[error("{0}: another process is archiving this wiki into the same store")]
    Taken(String),
    /// Files can't be written.
    #[error("{folder}: {cause}")]
    Folder {
        /// The file or folder.
        folder: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The gate failed.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run was stopped; everything archived so far is kept.
    #[error("stopped; what was archived is kept, and the next run resumes from there")]
    Stopped,
}

/// An error code of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// The databases lag behind; retry later.
    MaxLag,
    /// Too many requests.
    RateLimited,
    /// The database is read-only; reading may fail too.
    ReadOnly,
    /// An internal error of the wiki.
    Internal(String),
    /// The wiki rejects the continuation of a list.
    BadContinue,
    /// The user doesn't have permission.
    Denied(String),
    /// Another error.
    Other(String),
}

impl Code {
    /// Parses a code of the API.
    pub fn of(code: &str) -> Self {
        match code {
            "maxlag" => Self::MaxLag,
            "ratelimited" | "actionthrottledtext" => Self::RateLimited,
            "readonly" => Self::ReadOnly,
            "badcontinue" => Self::BadContinue,
            "readapidenied"
            | "permissiondenied"
            | "assertuserfailed"
            | "assertbotfailed"
            | "assertanonfailed"
            | "assertnameduserfailed"
            | "blocked"
            | "autoblocked" => Self::Denied(code.to_owned()),
            _ if code.starts_with("internal_api_error") || code == "unknownerror" => {
                Self::Internal(code.to_owned())
            }
            _ => Self::Other(code.to_owned()),
        }
    }

    /// The outcome for pacing.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::MaxLag | Self::RateLimited => Outcome::RateLimited,
            Self::ReadOnly => Outcome::Unavailable,
            Self::Internal(_) => Outcome::ServerError,
            Self::BadContinue | Self::Denied(_) | Self::Other(_) => Outcome::Answered,
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MaxLag => "maxlag",
            Self::RateLimited => "ratelimited",
            Self::ReadOnly => "readonly",
            Self::BadContinue => "badcontinue",
            Self::Internal(code) | Self::Denied(code) | Self::Other(code) => code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B67
    #[test]
    fn error_codes_are_mapped_to_outcomes() {
        for (code, outcome) in [
            ("maxlag", Outcome::RateLimited),
            ("ratelimited", Outcome::RateLimited),
            ("readonly", Outcome::Unavailable),
            ("internal_api_error_DBQueryError", Outcome::ServerError),
            ("badcontinue", Outcome::Answered),
            ("readapidenied", Outcome::Answered),
            ("invalidtitle", Outcome::Answered),
        ] {
            assert_eq!(Code::of(code).outcome(), outcome, "{code}");
            assert_eq!(Code::of(code).to_string(), code);
        }
    }
}
