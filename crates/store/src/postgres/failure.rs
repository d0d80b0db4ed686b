//! What PostgreSQL's errors mean: who has to do something about them, and whether they may pass.

use comity_core::decision::Outage;
use tokio_postgres::error::SqlState;

/// The result of statements.
pub(super) type Result<T> = std::result::Result<T, Failure>;

/// Why a transaction was rolled back.
#[derive(Debug)]
pub(super) enum Failure {
    /// PostgreSQL refused a statement, or the connection broke.
    Sql(tokio_postgres::Error),
    /// A statement or the connection took too long.
    Timeout,
    /// The server is another one than before, and may lack commits.
    OtherServer(String),
    /// The request itself cannot be carried out.
    Rejected(String),
    /// The holder is dead, or its tenure has ended.
    Lost,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Two transactions were in each other's way: run it again.
    Again,
    /// Wait until the database can be used, and run it again.
    Wait(Outage),
    /// Running it again does not help.
    GiveUp,
}

impl Failure {
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Sql(error) => match error.code() {
                Some(code) => of_code(code),
                // Not an answer of the server: the connection broke.
                None => Remedy::Wait(Outage::Gone),
            },
            Self::Timeout | Self::OtherServer(_) => Remedy::Wait(Outage::Gone),
            Self::Rejected(_) | Self::Lost => Remedy::GiveUp,
        }
    }

    /// Whether the connection can't be used any more.
    pub(super) fn breaks_connection(&self) -> bool {
        match self {
            Self::Sql(error) => error.is_closed() || error.code().is_none() || is_shutdown(error.code()),
            Self::Timeout | Self::OtherServer(_) => true,
            Self::Rejected(_) | Self::Lost => false,
        }
    }

    /// The failure in words.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Sql(error) => match error.as_db_error() {
                Some(db) => match (db.detail(), db.hint()) {
                    (Some(detail), _) => format!("{} ({detail})", db.message()),
                    (None, Some(hint)) => format!("{} ({hint})", db.message()),
                    (None, None) => db.message().to_owned(),
                },
                None => in_words(error),
            },
            Self::Timeout => "the database did not answer in time".to_owned(),
            Self::OtherServer(what) | Self::Rejected(what) => what.clone(),
            Self::Lost => "the site is no longer held".to_owned(),
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// A connection error with its cause: `connection refused` rather than `error connecting to server`.
fn in_words(error: &tokio_postgres::Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let next = error.to_string();
        if !words.contains(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    if words.contains(NO_WRITES) {
        return "this server accepts no writes: it is a standby, or set to read-only".to_owned();
    }
    words
}

/// What the client library says of a server that is not the primary.
const NO_WRITES: &str = "database does not allow writes";

fn is_shutdown(code: Option<&SqlState>) -> bool {
    code.is_some_and(|code| code.code().starts_with("57P") || code.code() == "25P03")
}

fn of_code(code: &SqlState) -> Remedy {
    match (code.code(), &code.code()[..2]) {
        // Serialization failure, deadlock.
        ("40001" | "40P01", _) => Remedy::Again,
        // The disk is full; out of memory; a configured limit, such as temp_file_limit.
        ("53100" | "53200" | "53400", _) => Remedy::Wait(Outage::Full),
        // A lock was not available in time.
        ("55P03", _) => Remedy::Wait(Outage::Locked),
        // Too many connections; shutting down, starting up; a statement was cancelled; connection trouble; a read-only
        // standby in place of the primary; a transaction that did nothing for too long.
        ("53300" | "57014" | "25006" | "25P03", _) | (_, "57" | "08") => Remedy::Wait(Outage::Gone),
        // An input/output error of the server's disk, or damaged data.
        (_, "58") | ("XX001" | "XX002", _) => Remedy::Wait(Outage::Unreadable),
        _ => Remedy::GiveUp,
    }
}
