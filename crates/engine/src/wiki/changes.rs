//! Fetches what changed since the last round, from the wiki's recent changes and logs.
//!
//! New revisions are fetched by id, many at once across all pages. Pages in log entries (moved, deleted, restored,
//! imported …) are refreshed, and fetched again completely if their history changed.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::time::Timestamp;
use comity_store::wiki::{Batch, CompletedPages};

use super::archive::FILE_PAGES;
use super::error::WikiError;
use super::loop_detector::LoopDetector;
use super::progress::Step;
use super::responses::{Change, Changes, Continuation, Logs, Pages, QueryResponse};
use super::round::{OVERLAP, Run, page_of};

/// What is affected by a list of changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Affected {
    /// New revisions.
    revisions: BTreeSet<i64>,
    /// Revisions whose visibility changed.
    visibility_changed: BTreeSet<i64>,
    /// Edited pages, with their last edit.
    pages: BTreeMap<i64, i64>,
    /// Titles of log entries.
    titles: BTreeSet<String>,
    /// The titles whose history may have changed.
    history_changed: BTreeSet<String>,
    /// The titles that are files.
    files: BTreeSet<String>,
    /// The log entries.
    entries: Vec<(i64, Option<Timestamp>)>,
}

impl Affected {
    /// What is affected by `changes`, except for log entries that were handled before.
    fn of(changes: &[Change], namespaces: &[i64], handled: &[i64]) -> Self {
        let mut affected = Self::default();
        for change in changes {
            match change.kind == "log" {
                true => affected.add_entry(change, handled),
                false if namespaces.contains(&change.ns) => {
                    affected.pages.extend(Some((change.pageid, change.revid)).filter(|(page, _)| *page > 0));
                }
                false => {}
            }
            // A log entry may have a revision too, such as that of a move. Whether its page is archived is decided
            // later, because the namespace here is the one at that time.
            affected.revisions.extend(Some(change.revid).filter(|revision| *revision > 0));
        }
        affected
    }

    fn add_entry(&mut self, change: &Change, handled: &[i64]) {
        let (kind, action) = (change.logtype.as_deref().unwrap_or_default(), change.logaction.as_deref());
        if NOT_OF_PAGES.contains(&kind) {
            return;
        }
        // Namespaces are not checked here, because a page may have moved into an archived one.
        let params = &change.logparams;
        let target = params["target_title"].as_str().map(str::to_owned);
        let named = [Some(change.title.clone()), target];
        let titles = || named.iter().flatten().cloned();
        self.titles.extend(titles());
        if change.ns == FILE_PAGES {
            self.files.extend(titles());
        }
        if handled.contains(&change.logid) {
            return;
        }
        match (kind, action) {
            ("delete", Some("revision")) => {
                let ids = params["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
                let number = |id: &serde_json::Value| id.as_i64().or_else(|| id.as_str()?.parse().ok());
                self.visibility_changed.extend(ids.iter().filter_map(number));
            }
            ("delete", Some("restore")) | ("merge" | "import", _) => {
                self.history_changed.extend(titles());
                self.history_changed.extend(params["dest_title"].as_str().map(str::to_owned));
            }
            _ => return,
        }
        self.entries.push((change.logid, Timestamp::parse(&change.timestamp).ok()));
    }
}

impl Run<'_> {
    /// Fetches one response of the recent changes, and everything affected by it.
    pub(super) async fn process_changes(
        &mut self,
        namespaces: &[i64],
        rest: Option<Continuation>,
    ) -> Result<(), WikiError> {
        let since = self.since().unwrap_or_default();
        let params = [
            ("list", "recentchanges"),
            ("rcdir", "newer"),
            ("rcstart", &*since),
            ("rclimit", "max"),
            ("rcprop", "ids|title|timestamp|loginfo"),
            ("rctype", "edit|new|log"),
        ];
        let restart = Step::Changes { rest: None };
        let Some(response) = self.next::<Changes>(&params, rest.as_ref(), restart).await? else {
            return Ok(());
        };
        let affected =
            Affected::of(&response.query.recentchanges, namespaces, &self.progress.handled_entries);
        let revisions: Vec<i64> = affected.revisions.iter().copied().collect();
        let unknown = self.archive.store.unknown_revisions(self.wiki.id, revisions).await?;
        // A page whose stored newest revision is the last edit is up to date.
        let known =
            self.archive.store.newest_of(self.wiki.id, affected.pages.keys().copied().collect()).await?;
        let mut edited = affected.pages.clone();
        edited.retain(|page, last| !known.contains(&(*page, *last)));
        self.refresh_pages(&affected, edited.into_keys().collect(), namespaces).await?;
        self.fetch_by_id(&unknown, namespaces).await?;
        self.finish_affected(affected, namespaces).await?;
        let (step, completed) = match response.rest {
            Some(rest) => (Step::Changes { rest: Some(rest) }, CompletedPages::None),
            None => (Step::Lacking { after: 0, rest: None }, CompletedPages::WithFirstRevision),
        };
        self.keep_at(step, Batch { completed, ..Batch::default() }).await
    }

    /// Fetches one response of the logs since the last round. They show what a list of pages doesn't: restored and
    /// imported revisions, and changed visibility.
    pub(super) async fn read_logs(
        &mut self,
        namespaces: &[i64],
        rest: Option<Continuation>,
    ) -> Result<(), WikiError> {
        let since = self.since().unwrap_or_default();
        let params = [
            ("list", "logevents"),
            ("ledir", "newer"),
            ("lestart", &*since),
            ("lelimit", "max"),
            ("leprop", "ids|title|type|timestamp|details"),
        ];
        let restart = Step::Logs { rest: None };
        let Some(response) = self.next::<Logs>(&params, rest.as_ref(), restart).await? else { return Ok(()) };
        let entries: Vec<Change> = response.query.logevents.into_iter().map(Change::from).collect();
        let affected = Affected::of(&entries, namespaces, &self.progress.handled_entries);
        // The pages themselves have just been listed.
        let affected = Affected { titles: BTreeSet::new(), files: BTreeSet::new(), ..affected };
        self.refresh_pages(&affected, Vec::new(), namespaces).await?;
        self.finish_affected(affected, namespaces).await?;
        let step = match response.rest {
            Some(rest) => Step::Logs { rest: Some(rest) },
            None => Step::Revisions { from: Some(since), rest: None },
        };
        self.go_to(step).await
    }

    /// Fetches what is affected besides pages and new revisions.
    async fn finish_affected(&mut self, affected: Affected, namespaces: &[i64]) -> Result<(), WikiError> {
        let visibility_changed: Vec<i64> = affected.visibility_changed.into_iter().collect();
        self.fetch_by_id(&visibility_changed, namespaces).await?;
        if self.archive.folder.is_some() && !affected.files.is_empty() {
            let files: Vec<String> = affected.files.into_iter().collect();
            self.refresh_files(&files).await?;
        }
        // The next round starts a little before this one did, and gets the last entries again.
        let began = self.progress.current_round.as_ref().and_then(|it| Timestamp::parse(&it.began).ok());
        let repeated = affected.entries.iter().filter(|(_, at)| match (at, began) {
            (Some(at), Some(began)) => *at >= began - OVERLAP,
            _ => true,
        });
        self.progress.add_handled(repeated.map(|(entry, _)| *entry).collect::<Vec<_>>());
        Ok(())
    }

    /// Refreshes pages. All of them are stored at once, because a title may have passed from one page to another.
    async fn refresh_pages(
        &mut self,
        affected: &Affected,
        edited: Vec<i64>,
        namespaces: &[i64],
    ) -> Result<(), WikiError> {
        let titles: Vec<String> = affected.titles.union(&affected.history_changed).cloned().collect();
        let edited: Vec<String> = edited.iter().map(i64::to_string).collect();
        let mut batch = Batch { titles_are_exclusive: true, ..Batch::default() };
        for (by, named) in [("titles", titles), ("pageids", edited)] {
            for named in named.chunks(self.batch) {
                self.refresh_batch(by, &named.join("|"), namespaces, &affected.history_changed, &mut batch)
                    .await?;
            }
        }
        self.keep(batch).await
    }

    async fn refresh_batch(
        &self,
        by: &str,
        named: &str,
        namespaces: &[i64],
        history_changed: &BTreeSet<String>,
        batch: &mut Batch,
    ) -> Result<(), WikiError> {
        let params = [("prop", "info"), (by, named)];
        let (mut rest, mut loop_detector) = (None, LoopDetector::default());
        loop {
            let api = &self.archive.api;
            let response: QueryResponse<Pages> =
                api.follow(&params, rest.as_ref(), &mut loop_detector).await?;
            for page in response.query.pages {
                if page.missing && page.title.is_empty() {
                    batch.moved_away.push(page.pageid);
                } else if page.missing || page.invalid {
                    batch.missing.push(page.title);
                } else if namespaces.contains(&page.ns) {
                    batch.pages.extend(page_of(&page, false));
                    if history_changed.contains(&page.title) {
                        batch.history_changed.push(page.pageid);
                    }
                } else {
                    // It moved to a namespace that isn't archived.
                    batch.moved_away.push(page.pageid);
                }
            }
            rest = response.rest;
            if rest.is_none() {
                return Ok(());
            }
        }
    }
}

/// Logs that don't concern pages.
const NOT_OF_PAGES: [&str; 9] = [
    "abusefilter",
    "abusefilterblockeddomainhit",
    "block",
    "newusers",
    "patrol",
    "renameuser",
    "rights",
    "spamblacklist",
    "thanks",
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn affected(changes: serde_json::Value) -> Affected {
        let changes: Vec<Change> = serde_json::from_value(changes).unwrap();
        Affected::of(&changes, &[0, 4], &[7])
    }

    #[test]
    fn edits_affect_revisions_and_logs_affect_titles() {
        let t = "2026-11-16T14:13:36Z";
        let found = affected(json!([
            { "type": "edit", "ns": 0, "title": "A", "pageid": 1, "revid": 11, "timestamp": t },
            { "type": "new", "ns": 2, "title": "User:B", "pageid": 2, "revid": 12, "timestamp": t },
            { "type": "log", "ns": 2, "title": "User:C", "pageid": 3, "revid": 0, "timestamp": t, "logtype": "move",
              "logaction": "move", "logparams": { "target_ns": 0, "target_title": "C" } },
            { "type": "log", "ns": 0, "title": "D", "pageid": 0, "timestamp": t, "logtype": "delete",
              "logaction": "restore", "logid": 8, "logparams": {} },
            { "type": "log", "ns": 0, "title": "Handled", "pageid": 0, "timestamp": t, "logtype": "import",
              "logaction": "interwiki", "logid": 7, "logparams": {} },
            { "type": "log", "ns": 2, "title": "User:F", "timestamp": t, "logtype": "newusers", "logaction": "create" },
            { "type": "log", "ns": 6, "title": "File:G.png", "revid": 13, "timestamp": t, "logtype": "move",
              "logaction": "move", "logparams": { "target_ns": 6, "target_title": "File:H.png" } },
            { "type": "log", "ns": 0, "title": "E", "pageid": 5, "timestamp": t, "logtype": "delete",
              "logaction": "revision", "logid": 9, "logparams": { "ids": [51, "52"] } },
        ]));
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(
            found,
            Affected {
                revisions: [11, 12, 13].into(),
                visibility_changed: [51, 52].into(),
                pages: [(1, 11)].into(),
                titles: texts(&["User:C", "C", "D", "Handled", "E", "File:G.png", "File:H.png"]),
                history_changed: texts(&["D"]),
                files: texts(&["File:G.png", "File:H.png"]),
                entries: vec![(8, Timestamp::parse(t).ok()), (9, Timestamp::parse(t).ok())],
            }
        );
    }
}
