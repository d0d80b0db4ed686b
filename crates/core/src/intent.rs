//! What a request is for. A rule may set stricter limits for one intent than for the domain as a whole.

use std::fmt;
use std::str::FromStr;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Intent {
    /// A page or a file.
    #[default]
    Fetch,
    /// A search on the site.
    Search,
    /// A call to the site's API.
    Api,
}

/// A word that isn't an intent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("intent = {0:?}: expected fetch, search or api")]
pub struct UnknownIntent(pub String);

impl Intent {
    /// Every intent, in the order of [`Intent::index`].
    pub const ALL: [Self; 3] = [Self::Fetch, Self::Search, Self::Api];

    /// Its name in configuration and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Search => "search",
            Self::Api => "api",
        }
    }

    /// Its index in [`Intent::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Intent {
    type Err = UnknownIntent;

    fn from_str(word: &str) -> Result<Self, UnknownIntent> {
        let same = |intent: &Self| intent.as_str() == word;
        Self::ALL.into_iter().find(same).ok_or_else(|| UnknownIntent(word.to_owned()))
    }
}
