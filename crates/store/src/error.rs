//! What can go wrong with a store, answering "should the caller try again?".

use comity_core::decision::Away;

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
        /// What may pass without anybody changing the store; nothing for what stays wrong.
        away: Option<Away>,
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

impl StoreError {
    /// Why the store cannot be used at the moment, where that may pass.
    pub fn away(&self) -> Option<Away> {
        match self {
            Self::Unavailable { away, .. } => *away,
            _ => None,
        }
    }

    /// What is wrong, without which database it is.
    pub(crate) fn what(&self) -> String {
        let place = match self {
            Self::Unavailable { place, .. }
            | Self::Rejected { place, .. }
            | Self::Uncertain { place, .. }
            | Self::Another { place }
            | Self::Newer { place, .. } => place,
            Self::Unsupported { .. } | Self::Lost | Self::Closed => return self.to_string(),
        };
        let all = self.to_string();
        all.strip_prefix(place).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&all).to_owned()
    }
}
