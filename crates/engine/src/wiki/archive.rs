//! The archive of a wiki: every page of the chosen namespaces with every revision, in rounds that go on where they were.
//!
//! A first round lists the pages, 500 a request, and then fetches revisions in the order they were made, 50 a request
//! whatever page they are of: far fewer requests than page by page. Pages that lack something after that (they were
//! made, restored or imported meanwhile, or the wiki has no such list) are fetched one by one. Later rounds ask for what
//! changed: see `changes`. Files that were uploaded are fetched after that, if they are wanted: see `files`.

use std::sync::Arc;

use comity_store::Store;
use comity_store::wiki::{Batch, FileTally, Kept, WikiClaim};
use serde_json::Value;
use tokio::sync::watch;

use super::answers::{Answered, Site};
use super::api::Api;
use super::error::WikiError;
use super::files::Folder;
use super::progress::{Progress, Way};
use super::round::Run;
use super::site::{SITE, batch_of, chosen, kept_site, must_be_readable, oldest};

/// An archive of a wiki in a store.
pub struct Archive {
    pub(super) api: Api,
    pub(super) store: Arc<dyn Store>,
    pub(super) folder: Option<Folder>,
    stage: watch::Sender<Stage>,
}

/// What to archive, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Which namespaces; all that the wiki calls content when none are named.
    pub namespaces: Vec<i64>,
    /// Whether it suffices to look at what the wiki lists as changed.
    pub incremental: bool,
}

/// Where a run is, for whoever watches it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stage {
    /// What it does.
    pub doing: &'static str,
    /// Pages that it listed.
    pub pages: u64,
    /// Revisions that it fetched, with those that were there when it went on.
    pub revisions: u64,
    /// Those that were there then.
    pub revisions_before: u64,
    /// Revisions that the wiki has in all, about, while all of them are asked for.
    pub revisions_expected: Option<u64>,
    /// Files that it fetched,
    pub files: u64,
    /// of so many.
    pub files_expected: u64,
    /// Requests that it sent to the API.
    pub requests: u64,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How it was found out what there is, round by round.
    pub ways: Vec<Way>,
    /// What was new.
    pub kept: Kept,
    /// Pages that are archived, of those the wiki has.
    pub pages: u64,
    /// Revisions that are archived.
    pub revisions: u64,
    /// Pages that lack something still: the wiki did not give it.
    pub lacking: u64,
    /// What is known of files, if they were wanted.
    pub files: Option<FileTally>,
    /// Requests sent to the API.
    pub requests: u64,
    /// How often the wiki said that this is too much.
    pub rate_limited: u64,
    /// What the wiki counts itself, to compare.
    pub statistics: Value,
}

impl Archive {
    /// The archive of the wiki behind `api`, in `store`.
    pub fn new(api: Api, store: Arc<dyn Store>) -> Self {
        Self { api, store, folder: None, stage: watch::Sender::default() }
    }

    /// The same, with the files that were uploaded.
    pub fn with_files(self, folder: Folder) -> Self {
        Self { folder: Some(folder), ..self }
    }

    /// The API that is asked.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Where a run is, as it goes on.
    pub fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Archives what `plan` says. Whatever happens meanwhile, the next run goes on from there (B69).
    pub async fn run(&self, plan: &Plan) -> Result<Summary, WikiError> {
        let api = &self.api;
        let (holder, now) = (api.gate().holder(), api.gate().clock().now());
        let (wiki, hold) = match self.store.claim_wiki(api.address(), holder, now).await? {
            WikiClaim::Ours(wiki, hold) => (wiki, hold),
            WikiClaim::Taken => return Err(WikiError::Taken(api.address())),
        };
        let progress = Progress::of(&wiki)?;
        self.tell(|stage| stage.doing = "asking the wiki about itself");
        let site: Answered<Site> = api.ask(SITE, None).await?;
        must_be_readable(&site.query, api)?;
        let mut run = Run {
            archive: self,
            wiki,
            hold,
            progress,
            kept: Kept::default(),
            batch: batch_of(&site.query),
            oldest_change: oldest(&site.query),
            newest_up_to: 0,
            begun_anew: 0,
        };
        run.keep(Batch { site: Some(kept_site(&site.query)), ..Batch::default() }).await?;
        let mut namespaces = chosen(&plan.namespaces, &site.query)?;
        if self.folder.is_some() && !namespaces.contains(&FILE_PAGES) {
            namespaces.push(FILE_PAGES);
        }
        let edits = site.query.statistics.get("edits").and_then(Value::as_u64);
        let now = site.at.unwrap_or_else(|| api.gate().clock().now()).to_string();
        let mut ways = Vec::new();
        if run.progress.under_way.is_some() {
            run.look_whether_it_can_go_on(&now);
            ways.push(run.finish(edits).await?);
        } else if !run.progress.whole.is_empty() {
            run.begin_update(plan.incremental, now.clone());
            ways.push(run.finish(edits).await?);
        }
        let missing = missing(&namespaces, &run.progress);
        if !missing.is_empty() {
            run.progress.begin(Way::Whole, missing, now.clone());
            ways.push(run.finish(edits).await?);
        }
        if let Some(folder) = &self.folder {
            run.list_files(plan.incremental, now).await?;
            run.fetch_files(folder).await?;
        }
        self.summary(run, ways, site.query).await
    }

    async fn summary(&self, run: Run<'_>, ways: Vec<Way>, site: Site) -> Result<Summary, WikiError> {
        let (namespaces, _) = self.store.tally_wiki(run.wiki.id).await?;
        let sum = |of: fn(&comity_store::wiki::NamespaceTally) -> u64| namespaces.iter().map(of).sum();
        Ok(Summary {
            ways,
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

    pub(super) fn tell(&self, change: impl FnOnce(&mut Stage)) {
        let requests = self.api.requests();
        self.stage.send_modify(|stage| {
            change(stage);
            stage.requests = requests;
        });
    }
}

/// Of the namespaces that are wanted, those that were not archived yet.
fn missing(wanted: &[i64], progress: &Progress) -> Vec<i64> {
    wanted.iter().copied().filter(|one| !progress.whole.contains(one)).collect()
}

/// The namespace of the pages of files.
pub(super) const FILE_PAGES: i64 = 6;
