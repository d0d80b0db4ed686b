//! How far an archive is: kept with what it has, and read again when it goes on.

use comity_store::wiki::Wiki;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answers::Rest;
use super::error::WikiError;
use super::trail::Trail;

/// How far an archive is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Namespaces whose every page was archived at least once.
    pub whole: Vec<i64>,
    /// The wiki's clock when what is whole was last known to be current: changes are asked from then on.
    pub since: Option<String>,
    /// When the last round ended, by our clock.
    pub ended_at: Option<String>,
    /// Entries of logs that the last round saw to, and that the next one comes upon again.
    pub seen_to: Vec<i64>,
    /// How far the list of files is.
    pub files: Files,
    /// The round under way, or the last one.
    pub round: i64,
    /// What is under way; nothing between rounds.
    pub under_way: Option<UnderWay>,
}

/// How far the list of files is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Files {
    /// The wiki's clock when all files were last listed.
    pub since: Option<String>,
    /// The list under way.
    pub listing: Option<Listing>,
}

/// A list of files under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The wiki's clock when it began.
    pub began: String,
    /// Files that were uploaded from this moment on; all of them when there is none.
    pub from: Option<String>,
    /// Where it goes on.
    pub rest: Option<Rest>,
    /// How it was followed so far.
    #[serde(default)]
    pub trail: Trail,
}

/// A round under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderWay {
    /// The namespaces it is about.
    pub namespaces: Vec<i64>,
    /// The wiki's clock when it began.
    pub began: String,
    /// How it finds out what there is.
    pub way: Way,
    /// Entries of logs that it saw to.
    #[serde(default)]
    pub seen_to: Vec<i64>,
    /// How far it is.
    pub step: Step,
    /// How the list of that step was followed so far.
    #[serde(default)]
    pub trail: Trail,
}

/// How it is found out what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Everything is asked for.
    Whole,
    /// From the wiki's list of changes.
    Changes,
    /// By comparing all pages with what is known of them.
    Compared,
}

/// How far a round is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Pages are listed, namespace by namespace.
    Pages {
        /// Which of the namespaces.
        nth: usize,
        /// Where its list goes on.
        rest: Option<Rest>,
    },
    /// Logs are read, for what lists of pages do not tell.
    Logs {
        /// Where the list goes on.
        rest: Option<Rest>,
    },
    /// Revisions are fetched, the oldest first.
    Revisions {
        /// From this moment on; from the beginning when there is none.
        from: Option<String>,
        /// Where their list goes on.
        rest: Option<Rest>,
    },
    /// What the wiki lists as changed is looked at.
    Changes {
        /// Where the list goes on.
        rest: Option<Rest>,
    },
    /// Pages that lack something are fetched one by one.
    Lacking {
        /// After this page.
        after: i64,
        /// Where the history of the next one goes on.
        rest: Option<Rest>,
    },
}

impl Step {
    /// What is done in it.
    pub const fn doing(&self) -> &'static str {
        match self {
            Self::Pages { .. } => "listing pages",
            Self::Revisions { .. } => "fetching revisions",
            Self::Logs { .. } | Self::Changes { .. } => "looking at what changed",
            Self::Lacking { .. } => "fetching what is missing, page by page",
        }
    }
}

impl Progress {
    /// How far the archive of a wiki is.
    pub fn of(wiki: &Wiki) -> Result<Self, WikiError> {
        if wiki.progress.is_null() {
            return Ok(Self::default());
        }
        serde_json::from_value(wiki.progress.clone()).map_err(|error| {
            let what = format!("how far its archive is cannot be read from the store: {error}");
            WikiError::Unexpected { api: wiki.api.clone(), what }
        })
    }

    pub(super) fn write(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, way: Way, namespaces: Vec<i64>, began: String) {
        self.round += 1;
        let step = match way {
            Way::Whole | Way::Compared => Step::Pages { nth: 0, rest: None },
            Way::Changes => Step::Changes { rest: None },
        };
        self.under_way =
            Some(UnderWay { namespaces, began, way, seen_to: Vec::new(), step, trail: Trail::default() });
    }

    /// Entries of logs were seen to.
    pub(super) fn see_to(&mut self, entries: impl IntoIterator<Item = i64>) {
        if let Some(under_way) = &mut self.under_way {
            under_way.seen_to.extend(entries);
            // A few more than that are seen to twice.
            under_way.seen_to.truncate(SEEN_TO_MAX);
        }
    }

    /// The round under way is at `step` now.
    pub(super) fn at(&self, step: Step) -> Self {
        let mut progress = self.clone();
        if let Some(under_way) = &mut progress.under_way {
            under_way.step = step;
        }
        progress
    }

    /// The round under way is over.
    pub(super) fn end(&self, now: String) -> Self {
        let mut progress = self.clone();
        let Some(under_way) = progress.under_way.take() else { return progress };
        let mut added = under_way.namespaces.into_iter().filter(|one| !self.whole.contains(one)).peekable();
        // What was whole before, and not looked at in this round, is as old as it was.
        let is_first = self.whole.is_empty();
        let covers = added.peek().is_none() || is_first;
        progress.whole.extend(added);
        progress.whole.sort_unstable();
        if covers || self.since.is_none() {
            progress.since = Some(under_way.began);
            progress.seen_to = under_way.seen_to;
        }
        progress.ended_at = Some(now);
        progress
    }
}

const SEEN_TO_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_asked_from_when_all_was_current() {
        let mut progress = Progress::default();
        progress.begin(Way::Whole, vec![0, 4], "t1".to_owned());
        let mut progress = progress.end("n1".to_owned());
        assert_eq!((progress.whole.clone(), progress.since.as_deref()), (vec![0, 4], Some("t1")));
        // A namespace that joins later does not make the others younger.
        progress.begin(Way::Whole, vec![10], "t2".to_owned());
        let mut progress = progress.end("n2".to_owned());
        assert_eq!((progress.whole.clone(), progress.since.as_deref()), (vec![0, 4, 10], Some("t1")));
        progress.begin(Way::Changes, vec![0, 4, 10], "t3".to_owned());
        let progress = progress.end("n3".to_owned());
        assert_eq!((progress.since.as_deref(), progress.ended_at.as_deref()), (Some("t3"), Some("n3")));
        let mut wiki = Wiki {
            id: comity_store::wiki::WikiId(1),
            api: String::new(),
            site: Value::Null,
            progress: progress.write(),
        };
        assert_eq!(Progress::of(&wiki).unwrap(), progress);
        wiki.progress = serde_json::json!({ "round": "many" });
        assert!(Progress::of(&wiki).unwrap_err().to_string().contains("cannot be read"));
    }
}
