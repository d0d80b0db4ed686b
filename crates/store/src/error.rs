//! What can go wrong with a store, answering "should the caller try again?".

/// Why a store did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No store is opened by such a URL.
    #[error("store = {url:?}: expected {expected}")]
    Unsupported {
        /// What was given.
        url: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The database cannot be opened, read or written. Nothing of what was asked is in it.
    #[error("{place}: {what}")]
    Unavailable {
        /// Which database.
        place: String,
        /// What is wrong and what to do about it.
        what: String,
    },
    /// The database works, but not with what was asked: a row it needs cannot be read, or a value cannot be stored. Nothing
    /// of it was done, others are not affected, and trying again does not help.
    #[error("{place}: {what}")]
    Rejected {
        /// Which database.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The answer to a commit was lost, and the database could not be asked whether it was done. Look again before doing
    /// it a second time.
    #[error("{place}: it is not known whether the last changes were saved: {what}")]
    Uncertain {
        /// Which database.
        place: String,
        /// Why.
        what: String,
    },
    /// Another store is where the one in use was. Nothing was changed in it.
    #[error(
        "{place}: this is not the store that was in use before: it was deleted, replaced, or its volume is not mounted; \
         put that one back, or restart to work with this one"
    )]
    Another {
        /// Which database.
        place: String,
    },
    /// A newer version of Comity wrote the database.
    #[error(
        "{place}: written by a newer version of Comity (schema {found}, this one knows up to {known}); use that \
         version, or another --store"
    )]
    Newer {
        /// Which database.
        place: String,
        /// Its schema.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// This process was silent for so long that its domains were given to others.
    #[error("this process was silent for too long and lost its domains to others")]
    Lost,
    /// The store's thread ended.
    #[error("the store is closed")]
    Closed,
}
