//! How far an archive is. The progress is stored with the archive, and read when it is resumed. The serialized names
//! are part of the stored format and must not change.

use comity_store::wiki::Wiki;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::WikiError;
use super::loop_detector::LoopDetector;
use super::responses::Continuation;

/// How far an archive is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The namespaces that were archived completely at least once.
    #[serde(rename = "whole")]
    pub complete: Vec<i64>,
    /// The time, on the wiki's clock, up to which the complete namespaces are current. Changes are requested from then
    /// on.
    pub since: Option<String>,
    /// When the last round ended, on our clock.
    pub ended_at: Option<String>,
    /// Log entries that the last round handled, and that the next one will get again.
    #[serde(rename = "seen_to")]
    pub handled_entries: Vec<i64>,
    /// How far the list of files is.
    pub files: Files,
    /// The number of the current round, or of the last one.
    pub round: i64,
    /// The current round; `None` between rounds.
    #[serde(rename = "under_way")]
    pub current_round: Option<Round>,
}

/// How far the list of files is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Files {
    /// When all files were last listed, on the wiki's clock.
    pub since: Option<String>,
    /// The list in progress.
    pub listing: Option<Listing>,
}

/// A list of files in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// When it started, on the wiki's clock.
    pub began: String,
    /// Only files uploaded from this time on; `None` for all files.
    pub from: Option<String>,
    /// Where the list continues.
    pub rest: Option<Continuation>,
    /// Detects a list that never ends.
    #[serde(default, rename = "trail")]
    pub loop_detector: LoopDetector,
}

/// A round in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Its namespaces.
    pub namespaces: Vec<i64>,
    /// When it started, on the wiki's clock.
    pub began: String,
    /// How it finds out what to fetch.
    #[serde(rename = "way")]
    pub strategy: Strategy,
    /// The log entries that it handled.
    #[serde(default, rename = "seen_to")]
    pub handled_entries: Vec<i64>,
    /// How far it is.
    pub step: Step,
    /// Detects a list that never ends in this step.
    #[serde(default, rename = "trail")]
    pub loop_detector: LoopDetector,
}

/// How a round finds out what to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// It fetches everything.
    #[serde(rename = "whole")]
    Full,
    /// It uses the wiki's list of recent changes.
    Changes,
    /// It compares all pages with what is stored.
    #[serde(rename = "compared")]
    Compare,
}

/// How far a round is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Listing pages, namespace by namespace.
    Pages {
        /// The index of the namespace.
        nth: usize,
        /// Where the list continues.
        rest: Option<Continuation>,
    },
    /// Reading logs, for changes that lists of pages don't show.
    Logs {
        /// Where the list continues.
        rest: Option<Continuation>,
    },
    /// Fetching revisions, oldest first.
    Revisions {
        /// Only revisions from this time on; `None` for all revisions.
        from: Option<String>,
        /// Where the list continues.
        rest: Option<Continuation>,
    },
    /// Processing the recent changes.
    Changes {
        /// Where the list continues.
        rest: Option<Continuation>,
    },
    /// Fetching incomplete pages one by one.
    Lacking {
        /// The last page that was fetched.
        after: i64,
        /// Where the history of the next page continues.
        rest: Option<Continuation>,
    },
}

impl Step {
    /// What happens in this step, in words.
    pub const fn doing(&self) -> &'static str {
        match self {
            Self::Pages { .. } => "listing pages",
            Self::Revisions { .. } => "fetching revisions",
            Self::Logs { .. } | Self::Changes { .. } => "checking for changes",
            Self::Lacking { .. } => "fetching missing revisions page by page",
        }
    }
}

impl Progress {
    /// The progress of the archive of a wiki.
    pub fn of(wiki: &Wiki) -> Result<Self, WikiError> {
        if wiki.progress.is_null() {
            return Ok(Self::default());
        }
        serde_json::from_value(wiki.progress.clone()).map_err(|error| {
            let what = format!("the progress of its archive cannot be read from the store: {error}");
            WikiError::Unexpected { api: wiki.api.clone(), what }
        })
    }

    pub(super) fn write(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Starts a round.
    pub(super) fn begin(&mut self, strategy: Strategy, namespaces: Vec<i64>, began: String) {
        self.round += 1;
        let step = match strategy {
            Strategy::Full | Strategy::Compare => Step::Pages { nth: 0, rest: None },
            Strategy::Changes => Step::Changes { rest: None },
        };
        self.current_round = Some(Round {
            namespaces,
            began,
            strategy,
            handled_entries: Vec::new(),
            step,
            loop_detector: LoopDetector::default(),
        });
    }

    /// Notes that log entries were handled.
    pub(super) fn add_handled(&mut self, entries: impl IntoIterator<Item = i64>) {
        if let Some(round) = &mut self.current_round {
            round.handled_entries.extend(entries);
            // If there are more, they are handled twice.
            round.handled_entries.truncate(HANDLED_MAX);
        }
    }

    /// The progress with the current round at `step`.
    pub(super) fn at(&self, step: Step) -> Self {
        let mut progress = self.clone();
        if let Some(round) = &mut progress.current_round {
            round.step = step;
        }
        progress
    }

    /// The progress after the current round ended.
    pub(super) fn end(&self, now: String) -> Self {
        let mut progress = self.clone();
        let Some(round) = progress.current_round.take() else { return progress };
        let mut added = round.namespaces.into_iter().filter(|one| !self.complete.contains(one)).peekable();
        // Namespaces that were complete before and not part of this round are not more current now.
        let is_first = self.complete.is_empty();
        let covers = added.peek().is_none() || is_first;
        progress.complete.extend(added);
        progress.complete.sort_unstable();
        if covers || self.since.is_none() {
            progress.since = Some(round.began);
            progress.handled_entries = round.handled_entries;
        }
        progress.ended_at = Some(now);
        progress
    }
}

const HANDLED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_requested_since_all_namespaces_were_current() {
        let mut progress = Progress::default();
        progress.begin(Strategy::Full, vec![0, 4], "t1".to_owned());
        let mut progress = progress.end("n1".to_owned());
        assert_eq!((progress.complete.clone(), progress.since.as_deref()), (vec![0, 4], Some("t1")));
        // A namespace that is added later does not make the others more current.
        progress.begin(Strategy::Full, vec![10], "t2".to_owned());
        let mut progress = progress.end("n2".to_owned());
        assert_eq!((progress.complete.clone(), progress.since.as_deref()), (vec![0, 4, 10], Some("t1")));
        progress.begin(Strategy::Changes, vec![0, 4, 10], "t3".to_owned());
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
