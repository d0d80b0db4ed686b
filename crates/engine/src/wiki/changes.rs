//! What is new since the last round, from the wiki's own list of changes.
//!
//! New revisions are fetched by their numbers, many at once whatever page they are of; pages that a log names (moved,
//! deleted, restored, imported …) are looked at, and fetched again as a whole where their past changed.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::time::Timestamp;
use comity_store::wiki::{Batch, Walked};

use super::answers::{Answered, Change, Changes, Logs, Pages, Rest};
use super::archive::FILE_PAGES;
use super::error::WikiError;
use super::progress::Step;
use super::round::{OVERLAP, Run, page_of};
use super::trail::Trail;

/// What a list of changes leads to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Leads {
    /// Revisions that were made.
    revisions: BTreeSet<i64>,
    /// Revisions that are shown otherwise than before.
    shown_anew: BTreeSet<i64>,
    /// Pages that were edited, and their last edit.
    pages: BTreeMap<i64, i64>,
    /// Titles at which something happened.
    titles: BTreeSet<String>,
    /// Those of them whose past may be another.
    reworked: BTreeSet<String>,
    /// Those of them that are of files.
    files: BTreeSet<String>,
    /// The entries that said so.
    entries: Vec<(i64, Option<Timestamp>)>,
}

impl Leads {
    /// What `changes` lead to, but for what was `seen_to` before.
    fn of(changes: &[Change], namespaces: &[i64], seen_to: &[i64]) -> Self {
        let mut leads = Self::default();
        for change in changes {
            match change.kind == "log" {
                true => leads.add_entry(change, seen_to),
                false if namespaces.contains(&change.ns) => {
                    leads.pages.extend(Some((change.pageid, change.revid)).filter(|(page, _)| *page > 0));
                }
                false => {}
            }
            // An entry of a log may come with a revision too, as that of a move. Whose page it is turns out later: the
            // namespace here is that of the time.
            leads.revisions.extend(Some(change.revid).filter(|revision| *revision > 0));
        }
        leads
    }

    fn add_entry(&mut self, change: &Change, seen_to: &[i64]) {
        let (kind, action) = (change.logtype.as_deref().unwrap_or_default(), change.logaction.as_deref());
        if NOT_OF_PAGES.contains(&kind) {
            return;
        }
        // A page may move into a namespace that is archived: where it comes from does not matter.
        let params = &change.logparams;
        let target = params["target_title"].as_str().map(str::to_owned);
        let named = [Some(change.title.clone()), target];
        let titles = || named.iter().flatten().cloned();
        self.titles.extend(titles());
        if change.ns == FILE_PAGES {
            self.files.extend(titles());
        }
        if seen_to.contains(&change.logid) {
            return;
        }
        match (kind, action) {
            ("delete", Some("revision")) => {
                let ids = params["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
                let number = |id: &serde_json::Value| id.as_i64().or_else(|| id.as_str()?.parse().ok());
                self.shown_anew.extend(ids.iter().filter_map(number));
            }
            ("delete", Some("restore")) | ("merge" | "import", _) => {
                self.reworked.extend(titles());
                self.reworked.extend(params["dest_title"].as_str().map(str::to_owned));
            }
            _ => return,
        }
        self.entries.push((change.logid, Timestamp::parse(&change.timestamp).ok()));
    }
}

impl Run<'_> {
    /// One answer of the list of changes, and what it leads to.
    pub(super) async fn look_at_changes(
        &mut self,
        namespaces: &[i64],
        rest: Option<Rest>,
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
        let anew = Step::Changes { rest: None };
        let Some(answered) = self.next::<Changes>(&params, rest.as_ref(), anew).await? else { return Ok(()) };
        let leads = Leads::of(&answered.query.recentchanges, namespaces, &self.progress.seen_to);
        let made: Vec<i64> = leads.revisions.iter().copied().collect();
        let unknown = self.archive.store.unknown_revisions(self.wiki.id, made).await?;
        // Whose last edit is its newest revision is known as it is.
        let known = self.archive.store.newest_of(self.wiki.id, leads.pages.keys().copied().collect()).await?;
        let mut edited = leads.pages.clone();
        edited.retain(|page, last| !known.contains(&(*page, *last)));
        self.look_at(&leads, edited.into_keys().collect(), namespaces).await?;
        self.fetch_by_number(&unknown, namespaces).await?;
        self.follow(leads, namespaces).await?;
        let (step, walked) = match answered.rest {
            Some(rest) => (Step::Changes { rest: Some(rest) }, Walked::None),
            None => (Step::Lacking { after: 0, rest: None }, Walked::SinceTheirFirst),
        };
        self.keep_at(step, Batch { walked, ..Batch::default() }).await
    }

    /// One answer of the logs since the last round. They tell what a list of pages does not: older revisions that came
    /// back or from elsewhere, and what is shown otherwise.
    pub(super) async fn read_logs(
        &mut self,
        namespaces: &[i64],
        rest: Option<Rest>,
    ) -> Result<(), WikiError> {
        let since = self.since().unwrap_or_default();
        let params = [
            ("list", "logevents"),
            ("ledir", "newer"),
            ("lestart", &*since),
            ("lelimit", "max"),
            ("leprop", "ids|title|type|timestamp|details"),
        ];
        let anew = Step::Logs { rest: None };
        let Some(answered) = self.next::<Logs>(&params, rest.as_ref(), anew).await? else { return Ok(()) };
        let entries: Vec<Change> = answered.query.logevents.into_iter().map(Change::from).collect();
        let leads = Leads::of(&entries, namespaces, &self.progress.seen_to);
        // The pages themselves were just listed.
        let leads = Leads { titles: BTreeSet::new(), files: BTreeSet::new(), ..leads };
        self.look_at(&leads, Vec::new(), namespaces).await?;
        self.follow(leads, namespaces).await?;
        let step = match answered.rest {
            Some(rest) => Step::Logs { rest: Some(rest) },
            None => Step::Revisions { from: Some(since), rest: None },
        };
        self.go_to(step).await
    }

    /// What is left of leads when their pages were looked at.
    async fn follow(&mut self, leads: Leads, namespaces: &[i64]) -> Result<(), WikiError> {
        let shown_anew: Vec<i64> = leads.shown_anew.into_iter().collect();
        self.fetch_by_number(&shown_anew, namespaces).await?;
        if self.archive.folder.is_some() && !leads.files.is_empty() {
            let files: Vec<String> = leads.files.into_iter().collect();
            self.look_at_files(&files).await?;
        }
        // The next round begins a little before this one did, and comes upon the last of them again.
        let began = self.progress.under_way.as_ref().and_then(|it| Timestamp::parse(&it.began).ok());
        let again = leads.entries.iter().filter(|(_, at)| match (at, began) {
            (Some(at), Some(began)) => *at >= began - OVERLAP,
            _ => true,
        });
        self.progress.see_to(again.map(|(entry, _)| *entry).collect::<Vec<_>>());
        Ok(())
    }

    /// Pages as they are now. All of them are kept at once: where one is gone, another may be.
    async fn look_at(
        &mut self,
        leads: &Leads,
        edited: Vec<i64>,
        namespaces: &[i64],
    ) -> Result<(), WikiError> {
        let titles: Vec<String> = leads.titles.union(&leads.reworked).cloned().collect();
        let edited: Vec<String> = edited.iter().map(i64::to_string).collect();
        let mut batch = Batch { titles_are_theirs: true, ..Batch::default() };
        for (by, named) in [("titles", titles), ("pageids", edited)] {
            for named in named.chunks(self.batch) {
                self.look_at_some(by, &named.join("|"), namespaces, &leads.reworked, &mut batch).await?;
            }
        }
        self.keep(batch).await
    }

    async fn look_at_some(
        &self,
        by: &str,
        named: &str,
        namespaces: &[i64],
        reworked: &BTreeSet<String>,
        batch: &mut Batch,
    ) -> Result<(), WikiError> {
        let params = [("prop", "info"), (by, named)];
        let (mut rest, mut trail) = (None, Trail::default());
        loop {
            let api = &self.archive.api;
            let answered: Answered<Pages> = api.follow(&params, rest.as_ref(), &mut trail).await?;
            for page in answered.query.pages {
                if page.missing && page.title.is_empty() {
                    batch.left.push(page.pageid);
                } else if page.missing || page.invalid {
                    batch.missing.push(page.title);
                } else if namespaces.contains(&page.ns) {
                    batch.pages.extend(page_of(&page, false));
                    if reworked.contains(&page.title) {
                        batch.reworked.push(page.pageid);
                    }
                } else {
                    // It moved out of what is archived: here it is gone.
                    batch.left.push(page.pageid);
                }
            }
            rest = answered.rest;
            if rest.is_none() {
                return Ok(());
            }
        }
    }
}

/// Logs of what has nothing to do with pages.
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

    fn leads(changes: serde_json::Value) -> Leads {
        let changes: Vec<Change> = serde_json::from_value(changes).unwrap();
        Leads::of(&changes, &[0, 4], &[7])
    }

    #[test]
    fn edits_lead_to_revisions_and_logs_to_titles() {
        let t = "2026-11-16T14:13:36Z";
        let found = leads(json!([
            { "type": "edit", "ns": 0, "title": "A", "pageid": 1, "revid": 11, "timestamp": t },
            { "type": "new", "ns": 2, "title": "User:B", "pageid": 2, "revid": 12, "timestamp": t },
            { "type": "log", "ns": 2, "title": "User:C", "pageid": 3, "revid": 0, "timestamp": t, "logtype": "move",
              "logaction": "move", "logparams": { "target_ns": 0, "target_title": "C" } },
            { "type": "log", "ns": 0, "title": "D", "pageid": 0, "timestamp": t, "logtype": "delete",
              "logaction": "restore", "logid": 8, "logparams": {} },
            { "type": "log", "ns": 0, "title": "Seen to", "pageid": 0, "timestamp": t, "logtype": "import",
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
            Leads {
                revisions: [11, 12, 13].into(),
                shown_anew: [51, 52].into(),
                pages: [(1, 11)].into(),
                titles: texts(&["User:C", "C", "D", "Seen to", "E", "File:G.png", "File:H.png"]),
                reworked: texts(&["D"]),
                files: texts(&["File:G.png", "File:H.png"]),
                entries: vec![(8, Timestamp::parse(t).ok()), (9, Timestamp::parse(t).ok())],
            }
        );
    }
}
