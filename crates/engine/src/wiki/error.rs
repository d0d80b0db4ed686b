//! What can go wrong with a wiki, by the code it gives.

use comity_core::outcome::Outcome;
use comity_store::StoreError;

use crate::client::SetupError;
use crate::gate::GateError;
use crate::transport::TransportError;

/// Why a wiki was not read.
#[derive(Debug, thiserror::Error)]
pub enum WikiError {
    /// That is no address of an API.
    #[error("api = {0:?}: expected the address of a wiki's api.php, such as https://wiki.example/w/api.php")]
    Address(String),
    /// What the environment says, or the connections, cannot be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A wiki's operators must be able to reach whoever archives it.
    #[error(
        "http.contact: expected an address or a page where the wiki's operators reach you; it is part of the \
         User-Agent (COMITY_HTTP_CONTACT)"
    )]
    NoContact,
    /// A password is not sent where others can read it.
    #[error("--user: {0} is not https: the password could be read on the way")]
    Eavesdropped(String),
    /// The wiki does not take the account.
    #[error("--user {user}: the wiki does not log us in: {why}")]
    Login {
        /// Who.
        user: String,
        /// What it says.
        why: String,
    },
    /// The API said no.
    #[error("{api}: {code}: {info}")]
    Refused {
        /// Which.
        api: String,
        /// Its word for it.
        code: Code,
        /// Its sentence.
        info: String,
    },
    /// There is nothing.
    #[error("{api}: answered {status}; is this the address of api.php? Special:Version of the wiki tells it")]
    NotThere {
        /// Where.
        api: String,
        /// The status.
        status: u16,
    },
    /// It answered with a status that means nothing to an API.
    #[error("{api}: answered {status}")]
    Status {
        /// Which.
        api: String,
        /// The status.
        status: u16,
    },
    /// It has no such namespace.
    #[error("--namespace {namespace}: the wiki has {has}")]
    Namespace {
        /// Which.
        namespace: i64,
        /// Those it has.
        has: String,
    },
    /// It is elsewhere.
    #[error("{api}: the API is at {to} now; use that address")]
    Moved {
        /// Which.
        api: String,
        /// Where it is.
        to: String,
    },
    /// It answered with something else than an API does.
    #[error("{api}: answered with {what} instead of the JSON of an API; is this the address of api.php?")]
    NotJson {
        /// Which.
        api: String,
        /// With what.
        what: &'static str,
    },
    /// An answer that is not read here.
    #[error("{api}: its answer is not understood: {what}")]
    NotUnderstood {
        /// Which.
        api: String,
        /// Where it is unlike others.
        what: String,
    },
    /// The answer is not what an API of MediaWiki gives.
    #[error("{api}: {what}")]
    Unexpected {
        /// Which.
        api: String,
        /// What is wrong with it.
        what: String,
    },
    /// A list that would be followed for ever.
    #[error("{api}: the list {list} never ends: {why}; everything archived so far is kept")]
    Endless {
        /// Of which wiki.
        api: String,
        /// Which, as it is asked for.
        list: String,
        /// How that was noticed.
        why: &'static str,
    },
    /// The connection did not work.
    #[error("{api}: {cause}")]
    Transport {
        /// Which.
        api: String,
        /// What happened.
        #[source]
        cause: TransportError,
    },
    /// Somebody else archives it.
    #[error("{0}: another process archives this wiki into the same store")]
    Taken(String),
    /// Files cannot be written.
    #[error("{folder}: {cause}")]
    Folder {
        /// Where.
        folder: String,
        /// Why not.
        #[source]
        cause: std::io::Error,
    },
    /// Nobody can be let go.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The store does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody asked to stop; everything so far is kept.
    #[error("stopped; what was archived is kept, and the next run goes on from there")]
    Stopped,
}

/// The code of an API's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// The databases lag behind: ask later.
    MaxLag,
    /// Too many requests.
    RateLimited,
    /// Nothing can be written at the moment; reading may fail too.
    ReadOnly,
    /// Something broke there.
    Internal(String),
    /// It does not go on from where it was told to.
    BadContinue,
    /// Whoever asks may not.
    Denied(String),
    /// Another.
    Other(String),
}

impl Code {
    /// The code as the API writes it.
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

    /// What it means for the pace (B67).
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
    fn codes_mean_what_they_say() {
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
