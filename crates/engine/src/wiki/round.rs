//! The rounds of an archive. Each response is stored together with the progress of the round.

use comity_core::time::{Span, Timestamp};
use comity_store::wiki::{Batch, BatchChanges, CompletedPages, Wiki, WikiPage, WikiTenure};
use serde::de::DeserializeOwned;

use super::archive::Archive;
use super::content::revision;
use super::error::{Code, WikiError};
use super::loop_detector::{ListResponse, LoopDetector};
use super::progress::{Progress, Round, Step, Strategy};
use super::responses::{self, AllRevisions, Continuation, Pages, QueryResponse};

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) archive: &'a Archive,
    pub(super) wiki: Wiki,
    pub(super) tenure: WikiTenure,
    pub(super) progress: Progress,
    pub(super) kept: BatchChanges,
    /// How many pages or revisions may be requested at once.
    pub(super) batch: usize,
    /// The oldest change that the wiki still lists.
    pub(super) oldest_change: Option<Timestamp>,
    /// The last page whose missing newest revision was fetched in this round.
    pub(super) newest_up_to: i64,
    /// How often a list was restarted, because the wiki rejected its continuation.
    pub(super) restarts: u32,
}

impl Run<'_> {
    /// Stores the content of a response, and the progress of the archive.
    pub(super) async fn keep(&mut self, batch: Batch) -> Result<(), WikiError> {
        let (round, progress) = (self.progress.round, self.progress.write());
        let batch = Batch { round, progress, ..batch };
        let (pages, revisions) = (batch.pages.len() as u64, batch.revisions.len() as u64);
        self.kept += self.archive.store.keep_wiki(self.tenure, batch).await?;
        self.archive.update_stage(|stage| {
            stage.pages += pages;
            stage.revisions += revisions;
        });
        Ok(())
    }

    /// Continues the round with `step`.
    pub(super) async fn go_to(&mut self, step: Step) -> Result<(), WikiError> {
        self.keep_at(step, Batch::default()).await
    }

    /// Stores the content of a response, and continues the round with `step`.
    pub(super) async fn keep_at(&mut self, step: Step, batch: Batch) -> Result<(), WikiError> {
        self.progress = self.progress.at(step);
        self.keep(batch).await
    }

    /// Continues the current round until it ends. `edits` is the wiki's number of edits.
    pub(super) async fn finish(&mut self, edits: Option<u64>) -> Result<Strategy, WikiError> {
        let mut strategy = Strategy::Full;
        self.newest_up_to = 0;
        if let Some(round) = &self.progress.current_round {
            strategy = round.strategy;
            let before = match strategy {
                Strategy::Full => self.archive.store.count_revisions(self.wiki.id).await?,
                Strategy::Changes | Strategy::Compare => 0,
            };
            self.archive.update_stage(|stage| {
                stage.revisions = before;
                stage.revisions_before = before;
                stage.revisions_expected = edits.filter(|_| strategy == Strategy::Full);
            });
        }
        while let Some(Round { namespaces, step, .. }) = self.progress.current_round.clone() {
            self.archive.update_stage(|stage| stage.doing = step.doing());
            match step {
                Step::Pages { nth, rest } => self.list_pages(&namespaces, nth, rest).await?,
                Step::Logs { rest } => self.read_logs(&namespaces, rest).await?,
                Step::Revisions { from, rest } => self.fetch_revisions(&namespaces, from, rest).await?,
                Step::Changes { rest } => self.process_changes(&namespaces, rest).await?,
                Step::Lacking { after, rest } => self.fetch_lacking(&namespaces, after, rest).await?,
            }
        }
        Ok(strategy)
    }

    /// The next response of a list. If the wiki rejects its continuation, the list is restarted with the step
    /// `restart`; nothing is stored twice.
    pub(super) async fn next<T: DeserializeOwned + Default + ListResponse + Send>(
        &mut self,
        params: &[(&str, &str)],
        rest: Option<&Continuation>,
        restart: Step,
    ) -> Result<Option<QueryResponse<T>>, WikiError> {
        let round = self.progress.current_round.as_ref();
        let mut loop_detector = round.map(|round| round.loop_detector.clone()).unwrap_or_default();
        let response = self.archive.api.follow(params, rest, &mut loop_detector).await;
        if let (Some(round), Ok(_)) = (&mut self.progress.current_round, &response) {
            round.loop_detector = loop_detector;
        }
        match response {
            Err(error) if self.should_restart(&error, rest) => self.go_to(restart).await.map(|()| None),
            response => response.map(Some),
        }
    }

    /// Whether to restart a list because the wiki rejected its continuation. After a few times this is given up.
    pub(super) fn should_restart(&mut self, error: &WikiError, rest: Option<&Continuation>) -> bool {
        let rejected = matches!(error, WikiError::Refused { code: Code::BadContinue, .. }) && rest.is_some();
        self.restarts += u32::from(rejected);
        rejected && self.restarts <= RESTARTS_MAX
    }

    /// Fetches one response of the list of pages of a namespace.
    async fn list_pages(
        &mut self,
        namespaces: &[i64],
        nth: usize,
        rest: Option<Continuation>,
    ) -> Result<(), WikiError> {
        let Some(namespace) = namespaces.get(nth) else {
            return self.go_to(self.after_pages()).await;
        };
        let number = namespace.to_string();
        let params =
            [("generator", "allpages"), ("gaplimit", "max"), ("gapnamespace", &number), ("prop", "info")];
        let restart = Step::Pages { nth, rest: None };
        let Some(response) = self.next::<Pages>(&params, rest.as_ref(), restart).await? else {
            return Ok(());
        };
        let pages = response.query.pages.iter().filter_map(|page| page_of(page, false)).collect();
        let (step, is_last) = match response.rest {
            Some(rest) => (Step::Pages { nth, rest: Some(rest) }, false),
            None => (Step::Pages { nth: nth + 1, rest: None }, nth + 1 == namespaces.len()),
        };
        // A page in none of the namespaces is deleted; one that moved between them is not.
        let fully_listed = if is_last { namespaces.to_vec() } else { Vec::new() };
        self.keep_at(step, Batch { pages, fully_listed, ..Batch::default() }).await
    }

    fn after_pages(&self) -> Step {
        match self.progress.current_round.as_ref().map(|round| round.strategy) {
            Some(Strategy::Compare) => Step::Logs { rest: None },
            _ => Step::Revisions { from: None, rest: None },
        }
    }

    /// Fetches one response of the list of all revisions.
    async fn fetch_revisions(
        &mut self,
        namespaces: &[i64],
        from: Option<String>,
        rest: Option<Continuation>,
    ) -> Result<(), WikiError> {
        let numbers = joined(namespaces);
        let mut params = vec![
            ("list", "allrevisions"),
            ("arvprop", REVISION),
            ("arvslots", "*"),
            ("arvlimit", "max"),
            ("arvdir", "newer"),
            ("arvnamespace", &numbers),
        ];
        if let Some(from) = &from {
            params.push(("arvstart", from));
        }
        let restart = Step::Revisions { from: from.clone(), rest: None };
        let Some(response) = self.next::<AllRevisions>(&params, rest.as_ref(), restart).await? else {
            return Ok(());
        };
        let mut batch = Batch::default();
        let listed = response.query.allrevisions;
        let is_supported = listed.is_some();
        for page in listed.unwrap_or_default() {
            self.add_revisions(page, namespaces, &mut batch)?;
        }
        let step = match response.rest {
            Some(rest) => Step::Revisions { from, rest: Some(rest) },
            None => {
                batch.completed = match (is_supported, &from) {
                    (false, _) => CompletedPages::None,
                    (true, None) => CompletedPages::All,
                    (true, Some(_)) => CompletedPages::WithFirstRevision,
                };
                Step::Lacking { after: 0, rest: None }
            }
        };
        self.keep_at(step, batch).await
    }

    /// Fetches one response of the history of the next incomplete page. If there is none, the round ends.
    async fn fetch_lacking(
        &mut self,
        namespaces: &[i64],
        after: i64,
        rest: Option<Continuation>,
    ) -> Result<(), WikiError> {
        if rest.is_none() && after >= self.newest_up_to {
            let lacking = self.archive.store.lacking_pages(self.wiki.id, after, self.batch as u32).await?;
            self.newest_up_to = lacking.last().map_or(i64::MAX, |page| page.id);
            // If only the newest revision is missing, such as after a move, many are fetched at once.
            let newest = lacking.iter().filter(|page| page.whole).map(|page| page.newest).collect();
            let unknown = self.archive.store.unknown_revisions(self.wiki.id, newest).await?;
            self.fetch_by_id(&unknown, namespaces).await?;
        }
        let lacking = self.archive.store.lacking_pages(self.wiki.id, after, 1).await?;
        let Some(page) = lacking.into_iter().next() else {
            let now = self.archive.api.gate().clock().now().to_string();
            self.progress = self.progress.end(now);
            return self.keep(Batch::default()).await;
        };
        let number = page.id.to_string();
        let params = [
            ("prop", "info|revisions"),
            ("pageids", &number),
            ("rvprop", REVISION),
            ("rvslots", "*"),
            ("rvlimit", "max"),
            ("rvdir", "newer"),
        ];
        let restart = Step::Lacking { after, rest: None };
        let Some(response) = self.next::<Pages>(&params, rest.as_ref(), restart).await? else {
            return Ok(());
        };
        let mut batch = Batch::default();
        let is_over = response.rest.is_none();
        match response.query.pages.into_iter().next() {
            Some(found) if !found.missing => {
                batch.pages.extend(page_of(&found, is_over));
                self.add_revisions(found, namespaces, &mut batch)?;
            }
            // It was deleted in the meantime.
            _ => batch.pages.push(WikiPage { deleted: true, ..page.clone() }),
        }
        let step = match response.rest {
            Some(rest) => Step::Lacking { after, rest: Some(rest) },
            None => Step::Lacking { after: page.id, rest: None },
        };
        self.keep_at(step, batch).await
    }

    /// Fetches revisions by id.
    pub(super) async fn fetch_by_id(
        &mut self,
        revisions: &[i64],
        namespaces: &[i64],
    ) -> Result<(), WikiError> {
        for numbers in revisions.chunks(self.batch) {
            let numbers = joined(numbers);
            let params =
                [("prop", "info|revisions"), ("revids", &*numbers), ("rvprop", REVISION), ("rvslots", "*")];
            let (mut rest, mut loop_detector) = (None, LoopDetector::default());
            loop {
                let api = &self.archive.api;
                let response: QueryResponse<Pages> =
                    api.follow(&params, rest.as_ref(), &mut loop_detector).await?;
                let mut batch = Batch::default();
                for page in response.query.pages {
                    self.add_revisions(page, namespaces, &mut batch)?;
                }
                self.keep(batch).await?;
                rest = response.rest;
                if rest.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Adds the revisions of a page to a batch, and the page itself in case it is new. Pages in other namespaces are
    /// skipped.
    fn add_revisions(
        &self,
        page: responses::Page,
        namespaces: &[i64],
        batch: &mut Batch,
    ) -> Result<(), WikiError> {
        if !namespaces.contains(&page.ns) {
            return Ok(());
        }
        let newest = page.revisions.iter().map(|revision| revision.revid).max();
        batch.mentioned.push(stored_page(&page, page.lastrevid.or(newest).unwrap_or(0), false));
        for one in page.revisions {
            let converted = revision(page.pageid, one);
            let api = || self.archive.api.address();
            batch.revisions.push(converted.map_err(|what| WikiError::Unexpected { api: api(), what })?);
        }
        Ok(())
    }

    /// Starts a round that fetches what is new.
    pub(super) fn begin_update(&mut self, incremental: bool, now: String) {
        let by_changes = incremental && self.changes_reach_back();
        let strategy = if by_changes { Strategy::Changes } else { Strategy::Compare };
        self.progress.begin(strategy, self.progress.complete.clone(), now);
    }

    /// If a round was interrupted for so long that the wiki no longer lists its changes, starts a comparing round
    /// instead.
    pub(super) fn check_resumable(&mut self, now: &str) {
        let step = self.progress.current_round.as_ref().map(|round| &round.step);
        if matches!(step, Some(Step::Changes { .. })) && !self.changes_reach_back() {
            self.begin_update(false, now.to_owned());
        }
    }

    fn changes_reach_back(&self) -> bool {
        let since = self.progress.since.as_deref().and_then(|since| Timestamp::parse(since).ok());
        since.zip(self.oldest_change).is_some_and(|(since, oldest)| oldest <= since)
    }

    /// The time from which on changes are requested: a little before the last round, because clocks and databases lag.
    pub(super) fn since(&self) -> Option<String> {
        let since = Timestamp::parse(self.progress.since.as_deref()?).ok()?;
        Some((since - OVERLAP).to_string())
    }
}

/// A page as it is stored; `None` if the response has no newest revision.
pub(super) fn page_of(page: &responses::Page, whole: bool) -> Option<WikiPage> {
    Some(stored_page(page, page.lastrevid?, whole))
}

fn stored_page(page: &responses::Page, newest: i64, whole: bool) -> WikiPage {
    WikiPage {
        id: page.pageid,
        namespace: page.ns,
        title: page.title.clone(),
        model: page.contentmodel.clone().unwrap_or_default(),
        redirect: page.redirect,
        newest,
        deleted: false,
        whole,
    }
}

/// Numbers as a parameter of a query.
pub(super) fn joined(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join("|")
}

/// The requested fields of a revision.
const REVISION: &str = "ids|flags|timestamp|user|userid|comment|size|sha1|slotsha1|contentmodel|content|tags";
/// How much before the last round changes are requested, because clocks and databases lag.
pub(super) const OVERLAP: Span = Span::from_secs(600);
/// How often lists may be restarted in a run.
const RESTARTS_MAX: u32 = 5;
