//! Store errors. Each variant tells the caller whether retrying makes sense.

use comity_core::decision::Outage;

/// Why a store did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The URL does not name a supported store.
    #[error("store = {url:?}: expected {expected}")]
    Unsupported {
        /// The URL that was given.
        url: String,
        /// What is supported.
        expected: &'static str,
    },
    /// The database could not be opened, read or written. Nothing was changed.
    #[error("{location}: {what}")]
    Unavailable {
        /// Where the database is.
        location: String,
        /// What is wrong, and what to do about it.
        what: String,
        /// The kind of outage, if it may end without anybody fixing the store; `None` if the problem is permanent.
        outage: Option<Outage>,
    },
    /// The database works, but this request failed: a row it needs cannot be read, or a value cannot be stored. Nothing
    /// was changed, other requests are not affected, and retrying does not help.
    #[error("{location}: {what}")]
    Rejected {
        /// Where the database is.
        location: String,
        /// What is wrong.
        what: String,
    },
    /// The store works, but pages or rows could not be written to their folder. It is not the store's error, but it ends the
    /// same work.
    #[error("{location}: {what}")]
    Output {
        /// The file.
        location: String,
        /// What is wrong.
        what: String,
    },
    /// The answer to a commit was lost, and the database could not be asked whether the commit succeeded. Check before
    /// repeating the request.
    #[error("{location}: could not determine whether the last changes were saved: {what}")]
    Uncertain {
        /// Where the database is.
        location: String,
        /// Why the outcome is unknown.
        what: String,
    },
    /// A different store is in the place of the one that was in use. Nothing was changed in it.
    #[error(
        "{location}: this is not the store that was in use before: it was deleted or replaced, or its volume isn't mounted; \
         put the right one back, or restart to use this one"
    )]
    Another {
        /// Where the database is.
        location: String,
    },
    /// The database was written by a newer version of Comity.
    #[error(
        "{location}: written by a newer version of Comity (schema {found}; this version supports up to {known}); \
         upgrade, or use another --store"
    )]
    Newer {
        /// Where the database is.
        location: String,
        /// The schema version of the database.
        found: i64,
        /// The newest schema version supported here.
        known: i64,
    },
    /// This process sent no heartbeat for so long that its domains may have been taken by others.
    #[error("this process missed its heartbeats for too long, and other processes took over its sites")]
    Lost,
    /// The store's thread has ended.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Why the store is unavailable, if that may end without anybody fixing it.
    pub fn outage(&self) -> Option<Outage> {
        match self {
            Self::Unavailable { outage, .. } => *outage,
            _ => None,
        }
    }

    /// The message without the location of the database.
    pub(crate) fn what(&self) -> String {
        let location = match self {
            Self::Unavailable { location, .. }
            | Self::Rejected { location, .. }
            | Self::Output { location, .. }
            | Self::Uncertain { location, .. }
            | Self::Another { location }
            | Self::Newer { location, .. } => location,
            Self::Unsupported { .. } | Self::Lost | Self::Closed => return self.to_string(),
        };
        let all = self.to_string();
        all.strip_prefix(location).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&all).to_owned()
    }
}
