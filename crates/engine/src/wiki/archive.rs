//! Archives a wiki: every page of the selected namespaces with every revision, in rounds that can be resumed.
//!
//! The first round lists the pages, 500 per request, and then fetches revisions in chronological order, 50 per request
//! across all pages, which takes far fewer requests than page by page. Pages that are still incomplete (because they
//! were created, restored or imported in the meantime, or because the wiki has no such list) are fetched one by one.
//! Later rounds fetch what changed, see `changes`. Uploaded files are fetched last, if requested, see `files`.

use std::sync::Arc;

use comity_store::Store;
use comity_store::wiki::{Batch, BatchChanges, FileTally, WikiClaim};
use serde_json::Value;
use tokio::sync::watch;

use super::api::Api;
use super::error::WikiError;
use super::files::Folder;
use super::progress::{Progress, Strategy};
use super::responses::{QueryResponse, Site};
use super::round::Run;
use super::site::{SITE, batch_size, check_supported, oldest_change, select_namespaces, stored_site};

/// The archive of a wiki in a store.
pub struct Archive {
    pub(super) api: Api,
    pub(super) store: Arc<dyn Store>,
    pub(super) folder: Option<Folder>,
    stage: watch::Sender<Stage>,
}

/// What to archive, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The namespaces; if empty, all content namespaces of the wiki.
    pub namespaces: Vec<i64>,
    /// Whether to update from the wiki's recent changes only.
    pub incremental: bool,
}

/// The state of a run, to show its progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stage {
    /// What it is doing.
    pub doing: &'static str,
    /// Pages listed.
    pub pages: u64,
    /// Revisions fetched, including those that were there when it was resumed.
    pub revisions: u64,
    /// Revisions that were there when it was resumed.
    pub revisions_before: u64,
    /// The approximate number of all revisions of the wiki, while all of them are fetched.
    pub revisions_expected: Option<u64>,
    /// Files fetched.
    pub files: u64,
    /// Files to fetch.
    pub files_expected: u64,
    /// Requests sent to the API.
    pub requests: u64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The strategy of each round.
    pub strategies: Vec<Strategy>,
    /// What was new.
    pub kept: BatchChanges,
    /// Archived pages that exist in the wiki.
    pub pages: u64,
    /// Archived revisions.
    pub revisions: u64,
    /// Pages that are still incomplete, because the wiki did not return everything.
    pub lacking: u64,
    /// The number of files, if they were requested.
    pub files: Option<FileTally>,
    /// Requests sent to the API.
    pub requests: u64,
    /// How often the wiki rate limited us.
    pub rate_limited: u64,
    /// The wiki's own statistics, for comparison.
    pub statistics: Value,
}

impl Archive {
    /// The archive of the wiki behind `api`, in `store`.
    pub fn new(api: Api, store: Arc<dyn Store>) -> Self {
        Self { api, store, folder: None, stage: watch::Sender::default() }
    }

    /// Also archives uploaded files.
    pub fn with_files(self, folder: Folder) -> Self {
        Self { folder: Some(folder), ..self }
    }

    /// The API of the wiki.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The progress of a run.
    pub fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Archives according to `plan`. If it is interrupted, the next run resumes from there.
    pub async fn run(&self, plan: &Plan) -> Result<Summary, WikiError> {
        let api = &self.api;
        let (holder, now) = (api.gate().holder(), api.gate().clock().now());
        let (wiki, tenure) = match self.store.claim_wiki(api.address(), holder, now).await? {
            WikiClaim::Ours(wiki, tenure) => (wiki, tenure),
            WikiClaim::Taken => return Err(WikiError::Taken(api.address())),
        };
        let progress = Progress::of(&wiki)?;
        self.update_stage(|stage| stage.doing = "fetching site information");
        let site: QueryResponse<Site> = api.ask(SITE, None).await?;
        check_supported(&site.query, api)?;
        let mut run = Run {
            archive: self,
            wiki,
            tenure,
            progress,
            kept: BatchChanges::default(),
            batch: batch_size(&site.query),
            oldest_change: oldest_change(&site.query),
            newest_up_to: 0,
            restarts: 0,
        };
        run.keep(Batch { site: Some(stored_site(&site.query)), ..Batch::default() }).await?;
        let mut namespaces = select_namespaces(&plan.namespaces, &site.query)?;
        if self.folder.is_some() && !namespaces.contains(&FILE_PAGES) {
            namespaces.push(FILE_PAGES);
        }
        let edits = site.query.statistics.get("edits").and_then(Value::as_u64);
        let now = site.at.unwrap_or_else(|| api.gate().clock().now()).to_string();
        let mut strategies = Vec::new();
        if run.progress.current_round.is_some() {
            run.check_resumable(&now);
            strategies.push(run.finish(edits).await?);
        } else if !run.progress.complete.is_empty() {
            run.begin_update(plan.incremental, now.clone());
            strategies.push(run.finish(edits).await?);
        }
        let missing = missing(&namespaces, &run.progress);
        if !missing.is_empty() {
            run.progress.begin(Strategy::Full, missing, now.clone());
            strategies.push(run.finish(edits).await?);
        }
        if let Some(folder) = &self.folder {
            run.list_files(plan.incremental, now).await?;
            run.fetch_files(folder).await?;
        }
        self.summary(run, strategies, site.query).await
    }

    async fn summary(
        &self,
        run: Run<'_>,
        strategies: Vec<Strategy>,
        site: Site,
    ) -> Result<Summary, WikiError> {
        let (namespaces, _) = self.store.tally_wiki(run.wiki.id).await?;
        let sum = |of: fn(&comity_store::wiki::NamespaceTally) -> u64| namespaces.iter().map(of).sum();
        Ok(Summary {
            strategies,
            kept: run.kept,
            pages: sum(|one| one.pages),
            revisions: sum(|one| one.revisions),
            lacking: sum(|one| one.lacking),
            files: match self.folder {
                Some(_) => Some(self.store.tally_files(run.wiki.id).await?),
                None => None,
            },
            requests: self.api.requests(),
            rate_limited: self.api.rate_limited(),
            statistics: Value::Object(site.statistics),
        })
    }

    pub(super) fn update_stage(&self, change: impl FnOnce(&mut Stage)) {
        let requests = self.api.requests();
        self.stage.send_modify(|stage| {
            change(stage);
            stage.requests = requests;
        });
    }
}

/// The selected namespaces that were not archived yet.
fn missing(selected: &[i64], progress: &Progress) -> Vec<i64> {
    selected.iter().copied().filter(|one| !progress.complete.contains(one)).collect()
}

/// The namespace of file pages.
pub(super) const FILE_PAGES: i64 = 6;
