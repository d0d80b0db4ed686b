//! The rounds of an archive, answer by answer: each brings something, which is kept with how far the round is.

use comity_core::time::{Span, Timestamp};
use comity_store::wiki::{Batch, Kept, Walked, Wiki, WikiHold, WikiPage};
use serde::de::DeserializeOwned;

use super::answers::{self, AllRevisions, Answered, Pages, Rest};
use super::archive::Archive;
use super::content::revision;
use super::error::{Code, WikiError};
use super::progress::{Progress, Step, UnderWay, Way};
use super::trail::{Listed, Trail};

/// A run under way.
pub(super) struct Run<'a> {
    pub(super) archive: &'a Archive,
    pub(super) wiki: Wiki,
    pub(super) hold: WikiHold,
    pub(super) progress: Progress,
    pub(super) kept: Kept,
    /// How many pages or revisions may be named at once.
    pub(super) batch: usize,
    /// The oldest change that the wiki still lists.
    pub(super) oldest_change: Option<Timestamp>,
    /// Up to which page newest revisions that lacked were fetched in this round.
    pub(super) newest_up_to: i64,
    /// How often a list was begun anew, because the wiki did not go on with it.
    pub(super) begun_anew: u32,
}

impl Run<'_> {
    /// Keeps what came of an answer, and how far the archive is with it.
    pub(super) async fn keep(&mut self, batch: Batch) -> Result<(), WikiError> {
        let (round, progress) = (self.progress.round, self.progress.write());
        let batch = Batch { round, progress, ..batch };
        let (pages, revisions) = (batch.pages.len() as u64, batch.revisions.len() as u64);
        self.kept += self.archive.store.keep_wiki(self.hold, batch).await?;
        self.archive.tell(|stage| {
            stage.pages += pages;
            stage.revisions += revisions;
        });
        Ok(())
    }

    /// The same where nothing else came of an answer than that the round goes on with `step`.
    pub(super) async fn go_to(&mut self, step: Step) -> Result<(), WikiError> {
        self.keep_at(step, Batch::default()).await
    }

    /// Keeps what came of an answer; the round goes on with `step`.
    pub(super) async fn keep_at(&mut self, step: Step, batch: Batch) -> Result<(), WikiError> {
        self.progress = self.progress.at(step);
        self.keep(batch).await
    }

    /// Goes on with the round under way until it is over. The wiki has had so many `edits`.
    pub(super) async fn finish(&mut self, edits: Option<u64>) -> Result<Way, WikiError> {
        let mut way = Way::Whole;
        self.newest_up_to = 0;
        if let Some(under_way) = &self.progress.under_way {
            way = under_way.way;
            let there = match way {
                Way::Whole => self.archive.store.count_revisions(self.wiki.id).await?,
                Way::Changes | Way::Compared => 0,
            };
            self.archive.tell(|stage| {
                stage.revisions = there;
                stage.revisions_before = there;
                stage.revisions_expected = edits.filter(|_| way == Way::Whole);
            });
        }
        while let Some(UnderWay { namespaces, step, .. }) = self.progress.under_way.clone() {
            self.archive.tell(|stage| stage.doing = step.doing());
            match step {
                Step::Pages { nth, rest } => self.list_pages(&namespaces, nth, rest).await?,
                Step::Logs { rest } => self.read_logs(&namespaces, rest).await?,
                Step::Revisions { from, rest } => self.fetch_revisions(&namespaces, from, rest).await?,
                Step::Changes { rest } => self.look_at_changes(&namespaces, rest).await?,
                Step::Lacking { after, rest } => self.fill_up(&namespaces, after, rest).await?,
            }
        }
        Ok(way)
    }

    /// The next answer of a list. Where the wiki does not go on with it, it is begun anew with `anew`; nothing that is kept
    /// is kept twice.
    pub(super) async fn next<T: DeserializeOwned + Default + Listed + Send>(
        &mut self,
        params: &[(&str, &str)],
        rest: Option<&Rest>,
        anew: Step,
    ) -> Result<Option<Answered<T>>, WikiError> {
        let mut trail = self.progress.under_way.as_ref().map(|it| it.trail.clone()).unwrap_or_default();
        let answered = self.archive.api.follow(params, rest, &mut trail).await;
        if let (Some(under_way), Ok(_)) = (&mut self.progress.under_way, &answered) {
            under_way.trail = trail;
        }
        match answered {
            Err(error) if self.begins_anew(&error, rest) => self.go_to(anew).await.map(|()| None),
            answered => answered.map(Some),
        }
    }

    /// A list that the wiki does not go on with is begun anew, unless that does not help.
    pub(super) fn begins_anew(&mut self, error: &WikiError, rest: Option<&Rest>) -> bool {
        let refused = matches!(error, WikiError::Refused { code: Code::BadContinue, .. }) && rest.is_some();
        self.begun_anew += u32::from(refused);
        refused && self.begun_anew <= ANEW_MAX
    }

    /// One answer of the list of pages of a namespace.
    async fn list_pages(
        &mut self,
        namespaces: &[i64],
        nth: usize,
        rest: Option<Rest>,
    ) -> Result<(), WikiError> {
        let Some(namespace) = namespaces.get(nth) else {
            return self.go_to(self.after_pages()).await;
        };
        let number = namespace.to_string();
        let params =
            [("generator", "allpages"), ("gaplimit", "max"), ("gapnamespace", &number), ("prop", "info")];
        let anew = Step::Pages { nth, rest: None };
        let Some(answered) = self.next::<Pages>(&params, rest.as_ref(), anew).await? else { return Ok(()) };
        let pages = answered.query.pages.iter().filter_map(|page| page_of(page, false)).collect();
        let (step, is_last) = match answered.rest {
            Some(rest) => (Step::Pages { nth, rest: Some(rest) }, false),
            None => (Step::Pages { nth: nth + 1, rest: None }, nth + 1 == namespaces.len()),
        };
        // Who is in none of them is gone; who moved from one to the other is not.
        let looked_through = if is_last { namespaces.to_vec() } else { Vec::new() };
        self.keep_at(step, Batch { pages, looked_through, ..Batch::default() }).await
    }

    fn after_pages(&self) -> Step {
        match self.progress.under_way.as_ref().map(|under_way| under_way.way) {
            Some(Way::Compared) => Step::Logs { rest: None },
            _ => Step::Revisions { from: None, rest: None },
        }
    }

    /// One answer of the list of all revisions.
    async fn fetch_revisions(
        &mut self,
        namespaces: &[i64],
        from: Option<String>,
        rest: Option<Rest>,
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
        let anew = Step::Revisions { from: from.clone(), rest: None };
        let Some(answered) = self.next::<AllRevisions>(&params, rest.as_ref(), anew).await? else {
            return Ok(());
        };
        let mut batch = Batch::default();
        let listed = answered.query.allrevisions;
        let knows = listed.is_some();
        for page in listed.unwrap_or_default() {
            self.sort_in(page, namespaces, &mut batch)?;
        }
        let step = match answered.rest {
            Some(rest) => Step::Revisions { from, rest: Some(rest) },
            None => {
                batch.walked = match (knows, &from) {
                    (false, _) => Walked::None,
                    (true, None) => Walked::All,
                    (true, Some(_)) => Walked::SinceTheirFirst,
                };
                Step::Lacking { after: 0, rest: None }
            }
        };
        self.keep_at(step, batch).await
    }

    /// The next page that lacks something: one answer of its history. When there is none, the round is over.
    async fn fill_up(&mut self, namespaces: &[i64], after: i64, rest: Option<Rest>) -> Result<(), WikiError> {
        if rest.is_none() && after >= self.newest_up_to {
            let lacking = self.archive.store.lacking_pages(self.wiki.id, after, self.batch as u32).await?;
            self.newest_up_to = lacking.last().map_or(i64::MAX, |page| page.id);
            // Where only the newest revision lacks, as after a move, many are fetched at once.
            let newest = lacking.iter().filter(|page| page.whole).map(|page| page.newest).collect();
            let unknown = self.archive.store.unknown_revisions(self.wiki.id, newest).await?;
            self.fetch_by_number(&unknown, namespaces).await?;
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
        let anew = Step::Lacking { after, rest: None };
        let Some(answered) = self.next::<Pages>(&params, rest.as_ref(), anew).await? else { return Ok(()) };
        let mut batch = Batch::default();
        let is_over = answered.rest.is_none();
        match answered.query.pages.into_iter().next() {
            Some(said) if !said.missing => {
                batch.pages.extend(page_of(&said, is_over));
                self.sort_in(said, namespaces, &mut batch)?;
            }
            // It went while we looked.
            _ => batch.pages.push(WikiPage { deleted: true, ..page.clone() }),
        }
        let step = match answered.rest {
            Some(rest) => Step::Lacking { after, rest: Some(rest) },
            None => Step::Lacking { after: page.id, rest: None },
        };
        self.keep_at(step, batch).await
    }

    /// Fetches revisions by their numbers.
    pub(super) async fn fetch_by_number(
        &mut self,
        revisions: &[i64],
        namespaces: &[i64],
    ) -> Result<(), WikiError> {
        for numbers in revisions.chunks(self.batch) {
            let numbers = joined(numbers);
            let params =
                [("prop", "info|revisions"), ("revids", &*numbers), ("rvprop", REVISION), ("rvslots", "*")];
            let (mut rest, mut trail) = (None, Trail::default());
            loop {
                let api = &self.archive.api;
                let answered: Answered<Pages> = api.follow(&params, rest.as_ref(), &mut trail).await?;
                let mut batch = Batch::default();
                for page in answered.query.pages {
                    self.sort_in(page, namespaces, &mut batch)?;
                }
                self.keep(batch).await?;
                rest = answered.rest;
                if rest.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The revisions of a page go into a batch, and the page itself in case it is new. One that is where nothing is
    /// archived is left.
    fn sort_in(&self, page: answers::Page, namespaces: &[i64], batch: &mut Batch) -> Result<(), WikiError> {
        if !namespaces.contains(&page.ns) {
            return Ok(());
        }
        let newest = page.revisions.iter().map(|revision| revision.revid).max();
        batch.sighted.push(kept_page(&page, page.lastrevid.or(newest).unwrap_or(0), false));
        for said in page.revisions {
            let kept = revision(page.pageid, said);
            let api = || self.archive.api.address();
            batch.revisions.push(kept.map_err(|what| WikiError::Unexpected { api: api(), what })?);
        }
        Ok(())
    }

    /// A round that asks for what is new.
    pub(super) fn begin_update(&mut self, incremental: bool, now: String) {
        let way = if incremental && self.changes_reach_back() { Way::Changes } else { Way::Compared };
        self.progress.begin(way, self.progress.whole.clone(), now);
    }

    /// A round that was interrupted for so long that the wiki has forgotten its changes compares instead.
    pub(super) fn look_whether_it_can_go_on(&mut self, now: &str) {
        let step = self.progress.under_way.as_ref().map(|under_way| &under_way.step);
        if matches!(step, Some(Step::Changes { .. })) && !self.changes_reach_back() {
            self.begin_update(false, now.to_owned());
        }
    }

    fn changes_reach_back(&self) -> bool {
        let since = self.progress.since.as_deref().and_then(|since| Timestamp::parse(since).ok());
        since.zip(self.oldest_change).is_some_and(|(since, oldest)| oldest <= since)
    }

    /// From when on changes are asked: a little earlier than what is known, since clocks and databases lag.
    pub(super) fn since(&self) -> Option<String> {
        let since = Timestamp::parse(self.progress.since.as_deref()?).ok()?;
        Some((since - OVERLAP).to_string())
    }
}

/// A page as it is kept; nothing when the answer left out what it is about.
pub(super) fn page_of(said: &answers::Page, whole: bool) -> Option<WikiPage> {
    Some(kept_page(said, said.lastrevid?, whole))
}

fn kept_page(said: &answers::Page, newest: i64, whole: bool) -> WikiPage {
    WikiPage {
        id: said.pageid,
        namespace: said.ns,
        title: said.title.clone(),
        model: said.contentmodel.clone().unwrap_or_default(),
        redirect: said.redirect,
        newest,
        deleted: false,
        whole,
    }
}

/// Numbers as a query lists them.
pub(super) fn joined(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join("|")
}

/// What is asked of a revision.
const REVISION: &str = "ids|flags|timestamp|user|userid|comment|size|sha1|slotsha1|contentmodel|content|tags";
/// How much earlier than the last round ended changes are asked for: clocks and databases lag.
pub(super) const OVERLAP: Span = Span::from_secs(600);
/// How often lists are begun anew in a run.
const ANEW_MAX: u32 = 5;
