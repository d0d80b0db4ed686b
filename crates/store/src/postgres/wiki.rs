//! Stores wiki archives: claims and pages. Revisions and their content are in `wiki_revisions`, uploaded files in `wiki_files`.
//!
//! A batch is written under a lock on the wiki's row, so nobody else changes the same wiki meanwhile. Its holder's row is locked at
//! the end, so that a dead holder is noticed even while its batch is being written.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;

use comity_core::time::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;

use super::failure::{Failure, Result};
use super::param::text;
use super::time::HOLDER_US;
use super::tx::Tx;
use super::{Postgres, random, us};
use crate::Reply;
use crate::domains::HolderId;
use crate::wiki::{
    Batch, BatchChanges, CompletedPages, ContentTally, FileTally, ListedFile, ListedWiki, NamespaceTally,
    Revision, Wiki, WikiClaim, WikiId, WikiPage, WikiStore, WikiTenure,
};

impl WikiStore for Postgres {
    fn claim_wiki(&self, api: String, holder: Option<HolderId>, now: Timestamp) -> Reply<'_, WikiClaim> {
        self.write(move |tx| tx.claim_wiki(&api, holder, now))
    }

    fn find_wiki(&self, api: String) -> Reply<'_, Option<Wiki>> {
        self.read(move |tx| {
            let sql = "SELECT id, api, site, progress FROM wiki WHERE api = $1";
            tx.row(sql, &[&text(&api)])?.as_ref().map(wiki_of).transpose()
        })
    }

    fn list_wikis(&self) -> Reply<'_, Vec<ListedWiki>> {
        self.read(|tx| {
            let sql = format!(
                "SELECT wiki.id, api, site, progress, contents, bytes, packed_bytes, holder.id IS NOT NULL FROM wiki
                LEFT JOIN holder ON holder.id = wiki.holder AND died_us IS NULL AND until_us > {HOLDER_US}
                ORDER BY wiki.id"
            );
            let rows = tx.rows(&sql, &[])?;
            let listed = rows.iter().filter_map(|row| {
                let count = |nth: usize| row.get::<_, i64>(nth).max(0) as u64;
                let content = ContentTally { pieces: count(4), bytes: count(5), packed: count(6) };
                Some(ListedWiki { wiki: wiki_of(row).ok()?, content, worked_on: row.get(7) })
            });
            Ok(listed.collect())
        })
    }

    fn keep_wiki(&self, tenure: WikiTenure, batch: Batch) -> Reply<'_, BatchChanges> {
        self.write(move |tx| {
            tx.lock_wiki(tenure)?;
            let kept = tx.keep_wiki(tenure.wiki, &batch)?;
            tx.check_archiver(tenure)?;
            Ok(kept)
        })
    }

    fn lacking_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>> {
        self.read(move |tx| tx.pages(wiki, after, limit, &format!("AND {LACKING}")))
    }

    fn unknown_revisions(&self, wiki: WikiId, revisions: Vec<i64>) -> Reply<'_, Vec<i64>> {
        self.read(move |tx| tx.unknown_revisions(wiki, &revisions))
    }

    fn newest_of(&self, wiki: WikiId, pages: Vec<i64>) -> Reply<'_, Vec<(i64, i64)>> {
        self.read(move |tx| {
            let sql = "SELECT page_id, newest FROM unnest($2) WITH ORDINALITY AS given (page_id, nth)
                JOIN wiki_page USING (page_id) WHERE wiki_id = $1 AND NOT deleted ORDER BY nth";
            let rows = tx.rows(sql, &[&wiki.0, &pages])?;
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        })
    }

    fn wiki_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>> {
        self.read(move |tx| tx.pages(wiki, after, limit, ""))
    }

    fn page_history(&self, wiki: WikiId, page: i64, after: i64, bytes: u64) -> Reply<'_, Vec<Revision>> {
        self.read(move |tx| tx.page_history(wiki, page, after, bytes))
    }

    fn files_to_fetch(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>> {
        self.read(move |tx| tx.files_to_fetch(wiki, after, limit))
    }

    fn settle_file(&self, tenure: WikiTenure, file: i64, problem: Option<String>) -> Reply<'_, ()> {
        self.write(move |tx| {
            tx.lock_wiki(tenure)?;
            tx.settle_file(tenure.wiki, file, problem.as_deref())?;
            tx.check_archiver(tenure)
        })
    }

    fn wiki_files(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>> {
        self.read(move |tx| tx.wiki_files(wiki, after, limit))
    }

    fn tally_files(&self, wiki: WikiId) -> Reply<'_, FileTally> {
        self.read(move |tx| tx.tally_files(wiki))
    }

    fn count_revisions(&self, wiki: WikiId) -> Reply<'_, u64> {
        self.read(move |tx| {
            let sql = "SELECT count(*) FROM wiki_revision WHERE wiki_id = $1";
            tx.one(sql, &[&wiki.0]).map(|row| count(&row, 0))
        })
    }

    fn tally_wiki(&self, wiki: WikiId) -> Reply<'_, (Vec<NamespaceTally>, ContentTally)> {
        self.read(move |tx| tx.tally_wiki(wiki))
    }
}

impl Tx<'_> {
    fn claim_wiki(&mut self, api: &str, holder: Option<HolderId>, now: Timestamp) -> Result<WikiClaim> {
        // Whoever creates it or claims it at the same time waits here for the other's commit.
        let sql = "INSERT INTO wiki (api, created_us) VALUES ($1, $2) ON CONFLICT (api) DO UPDATE SET api = excluded.api
            RETURNING id, api, site, progress, holder";
        let rows = self.change_rows(sql, &[&text(api), &us(now)])?;
        let row = rows.first().ok_or_else(|| Failure::Rejected(format!("expected the wiki {api}")))?;
        let (wiki, held_by) = (wiki_of(row)?, row.get::<_, Option<i64>>(4));
        if let Some(other) = held_by.filter(|other| Some(*other) != holder.map(|holder| holder.0)) {
            self.check_holders(&[other], now)?;
            if self.live_holders(&[other])?.contains(&other) {
                return Ok(WikiClaim::Taken);
            }
        }
        let epoch = random();
        let sql = "UPDATE wiki SET holder = $2, epoch = $3 WHERE id = $1";
        self.change(sql, &[&wiki.id.0, &holder.map(|holder| holder.0), &epoch])?;
        let tenure = WikiTenure { wiki: wiki.id, holder, epoch };
        Ok(WikiClaim::Ours(wiki, tenure))
    }

    /// Makes sure that a claim is still valid, and stays so until the end of the transaction.
    fn lock_wiki(&mut self, tenure: WikiTenure) -> Result<()> {
        let sql =
            "SELECT 1 FROM wiki WHERE id = $1 AND holder IS NOT DISTINCT FROM $2 AND epoch = $3 FOR UPDATE";
        let holder = tenure.holder.map(|holder| holder.0);
        match self.exists(sql, &[&tenure.wiki.0, &holder, &tenure.epoch])? {
            true => Ok(()),
            false => Err(Failure::Lost),
        }
    }

    /// Makes sure that the process that archives a wiki was not declared dead, and is not before the commit.
    fn check_archiver(&mut self, tenure: WikiTenure) -> Result<()> {
        match tenure.holder {
            Some(holder) if !self.is_holder(holder)? => Err(Failure::Lost),
            _ => Ok(()),
        }
    }

    fn keep_wiki(&mut self, wiki: WikiId, batch: &Batch) -> Result<BatchChanges> {
        let mut kept = BatchChanges::default();
        for pages in rounds(&batch.pages, |page| page.id) {
            self.keep_pages(wiki, &pages, batch.round, &mut kept)?;
        }
        kept.pages += self.keep_mentioned(wiki, &batch.mentioned)?;
        kept.deleted += self.leave_pages(wiki, batch)?;
        if !batch.history_changed.is_empty() {
            let sql = "UPDATE wiki_page SET stale = true WHERE wiki_id = $1 AND page_id = ANY ($2)";
            self.change(sql, &[&wiki.0, &batch.history_changed])?;
        }
        let contents = self.keep_revisions(wiki, &batch.revisions, &mut kept)?;
        for files in rounds(&batch.files, |file| (&file.title, file.at)) {
            self.keep_files(wiki, &files)?;
        }
        self.complete_pages(wiki, batch)?;
        if !batch.fully_listed.is_empty() {
            let sql = "UPDATE wiki_page SET deleted = true
                WHERE wiki_id = $1 AND namespace = ANY ($2) AND round < $3 AND NOT deleted";
            kept.deleted += self.change(sql, &[&wiki.0, &batch.fully_listed, &batch.round])?;
        }
        let sql = "UPDATE wiki SET progress = $2, site = coalesce($3, site), contents = contents + $4, bytes = bytes + $5,
            packed_bytes = packed_bytes + $6 WHERE id = $1";
        let site = batch.site.as_ref().map(Value::to_string);
        let ContentTally { pieces, bytes, packed } = contents;
        let (pieces, bytes, packed) = (pieces as i64, bytes as i64, packed as i64);
        self.change(sql, &[&wiki.0, &batch.progress.to_string(), &site, &pieces, &bytes, &packed])?;
        Ok(kept)
    }

    /// Saves pages as they are now. None of them may be there twice.
    fn keep_pages(
        &mut self,
        wiki: WikiId,
        pages: &[&WikiPage],
        round: i64,
        kept: &mut BatchChanges,
    ) -> Result<()> {
        let sql = format!(
            "WITH given AS (SELECT * FROM {GIVEN_PAGES}),
            kept AS (
                INSERT INTO wiki_page AS known (wiki_id, page_id, namespace, title, model, redirect, newest, deleted, whole, round)
                SELECT $1, page_id, namespace, title, model, redirect, newest, deleted, whole, $10 FROM given
                ON CONFLICT (wiki_id, page_id) DO UPDATE SET namespace = excluded.namespace, title = excluded.title,
                    model = excluded.model, redirect = excluded.redirect, newest = excluded.newest,
                    deleted = excluded.deleted, round = greatest(known.round, excluded.round),
                    whole = excluded.whole OR NOT known.deleted AND known.whole,
                    stale = known.stale AND NOT excluded.whole, suspect = known.suspect AND NOT excluded.whole)
            SELECT count(*) FILTER (WHERE before.page_id IS NULL), count(*) FILTER (WHERE before.title <> given.title),
                count(*) FILTER (WHERE before.deleted AND NOT given.deleted)
            FROM given LEFT JOIN wiki_page AS before ON before.wiki_id = $1 AND before.page_id = given.page_id"
        );
        let columns = PageColumns::of(pages.iter().copied());
        let PageColumns { ids, namespaces, titles, models, redirects, newest, deleted, whole } = &columns;
        let rows = self.change_rows(
            &sql,
            &[&wiki.0, ids, namespaces, titles, models, redirects, newest, deleted, whole, &round],
        )?;
        for row in &rows {
            kept.pages += count(row, 0);
            kept.moved += count(row, 1);
            kept.restored += count(row, 2);
        }
        Ok(())
    }

    /// Saves pages that are new, and leaves others as they are. Returns how many are.
    fn keep_mentioned(&mut self, wiki: WikiId, pages: &[WikiPage]) -> Result<u64> {
        if pages.is_empty() {
            return Ok(0);
        }
        let sql = format!(
            "INSERT INTO wiki_page (wiki_id, page_id, namespace, title, model, redirect, newest, deleted, whole, round)
            SELECT $1, page_id, namespace, title, model, redirect, newest, deleted, whole, 0 FROM {GIVEN_PAGES}
            ORDER BY nth ON CONFLICT (wiki_id, page_id) DO NOTHING"
        );
        let columns = PageColumns::of(pages.iter());
        let PageColumns { ids, namespaces, titles, models, redirects, newest, deleted, whole } = &columns;
        self.change(&sql, &[&wiki.0, ids, namespaces, titles, models, redirects, newest, deleted, whole])
    }

    /// Marks pages as deleted that are known to be gone. Returns how many.
    fn leave_pages(&mut self, wiki: WikiId, batch: &Batch) -> Result<u64> {
        let missing: Vec<_> = batch.missing.iter().map(|title| text(title)).collect();
        let exclusive = if batch.titles_are_exclusive { batch.pages.as_slice() } else { &[] };
        let titles: Vec<_> = exclusive.iter().map(|page| text(&page.title)).collect();
        let ids: Vec<_> = exclusive.iter().map(|page| page.id).collect();
        if missing.is_empty() && titles.is_empty() && batch.moved_away.is_empty() {
            return Ok(0);
        }
        let sql = "UPDATE wiki_page SET deleted = true WHERE wiki_id = $1 AND NOT deleted
            AND (page_id = ANY ($3) OR hash_of(title) = ANY (ARRAY(SELECT hash_of(gone) FROM unnest($2) AS gone))
                OR hash_of(title) = ANY (ARRAY(SELECT hash_of(taken) FROM unnest($4) AS taken)) AND page_id <> ALL ($5))";
        self.change(sql, &[&wiki.0, &missing, &batch.moved_away, &titles, &ids])
    }

    fn complete_pages(&mut self, wiki: WikiId, batch: &Batch) -> Result<()> {
        let (listed, all) = match batch.completed {
            CompletedPages::None => return Ok(()),
            // After that, a missing parent does not exist in the wiki.
            CompletedPages::All => ("true", "true"),
            CompletedPages::WithFirstRevision => (HAS_FIRST, "false"),
        };
        let sql = format!(
            "UPDATE wiki_page SET whole = true, suspect = suspect AND NOT (round = $2 AND {all})
            WHERE wiki_id = $1 AND NOT whole AND (round = $2 AND {listed} OR round = 0 AND {HAS_FIRST}) AND {HAS_NEWEST}"
        );
        self.change(&sql, &[&wiki.0, &batch.round]).map(drop)
    }

    fn pages(&mut self, wiki: WikiId, after: i64, limit: u32, which: &str) -> Result<Vec<WikiPage>> {
        let sql = format!(
            "SELECT page_id, namespace, title, model, redirect, newest, deleted, whole AND NOT stale FROM wiki_page
            WHERE wiki_id = $1 AND page_id > $2 {which} ORDER BY page_id LIMIT $3"
        );
        let page = |row: &Row| WikiPage {
            id: row.get(0),
            namespace: row.get(1),
            title: row.get(2),
            model: row.get(3),
            redirect: row.get(4),
            newest: row.get(5),
            deleted: row.get(6),
            whole: row.get(7),
        };
        let rows = self.rows(&sql, &[&wiki.0, &after, &i64::from(limit)])?;
        Ok(rows.iter().map(page).collect())
    }

    fn tally_wiki(&mut self, wiki: WikiId) -> Result<(Vec<NamespaceTally>, ContentTally)> {
        let sql = format!(
            "SELECT namespace, count(*) FILTER (WHERE NOT deleted), count(*) FILTER (WHERE NOT deleted AND redirect),
                count(*) FILTER (WHERE deleted), count(*) FILTER (WHERE {LACKING}), coalesce(sum(revisions), 0)::bigint
            FROM wiki_page LEFT JOIN (
                SELECT page_id, count(*) AS revisions FROM wiki_revision WHERE wiki_id = $1 GROUP BY page_id
            ) AS counted USING (page_id)
            WHERE wiki_id = $1 GROUP BY namespace ORDER BY namespace"
        );
        let namespace = |row: &Row| NamespaceTally {
            namespace: row.get(0),
            pages: count(row, 1),
            redirects: count(row, 2),
            deleted: count(row, 3),
            lacking: count(row, 4),
            revisions: count(row, 5),
        };
        let namespaces = self.rows(&sql, &[&wiki.0])?.iter().map(namespace).collect();
        let row = self.one("SELECT contents, bytes, packed_bytes FROM wiki WHERE id = $1", &[&wiki.0])?;
        let contents = ContentTally { pieces: count(&row, 0), bytes: count(&row, 1), packed: count(&row, 2) };
        Ok((namespaces, contents))
    }
}

/// Pages as the columns of one statement.
struct PageColumns<'a> {
    ids: Vec<i64>,
    namespaces: Vec<i64>,
    titles: Vec<Cow<'a, str>>,
    models: Vec<Cow<'a, str>>,
    redirects: Vec<bool>,
    newest: Vec<i64>,
    deleted: Vec<bool>,
    whole: Vec<bool>,
}

impl<'a> PageColumns<'a> {
    fn of(pages: impl Iterator<Item = &'a WikiPage> + Clone) -> Self {
        Self {
            ids: pages.clone().map(|page| page.id).collect(),
            namespaces: pages.clone().map(|page| page.namespace).collect(),
            titles: pages.clone().map(|page| text(&page.title)).collect(),
            models: pages.clone().map(|page| text(&page.model)).collect(),
            redirects: pages.clone().map(|page| page.redirect).collect(),
            newest: pages.clone().map(|page| page.newest).collect(),
            deleted: pages.clone().map(|page| page.deleted).collect(),
            whole: pages.map(|page| page.whole).collect(),
        }
    }
}

/// Splits what a batch has of one kind so that no key is twice in one round: a statement cannot change a row twice. Rounds are
/// in order, and there is almost always one.
pub(super) fn rounds<'a, T, K: Hash + Eq>(all: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<Vec<&'a T>> {
    let (mut rounds, mut seen): (Vec<Vec<&T>>, HashMap<K, usize>) = (Vec::new(), HashMap::new());
    for one in all {
        let nth = seen.entry(key(one)).and_modify(|nth| *nth += 1).or_default();
        if rounds.len() == *nth {
            rounds.push(Vec::new());
        }
        rounds[*nth].push(one);
    }
    rounds
}

/// A count of rows.
pub(super) fn count(row: &Row, nth: usize) -> u64 {
    row.get::<_, i64>(nth).max(0) as u64
}

fn wiki_of(row: &Row) -> Result<Wiki> {
    let api: String = row.get(1);
    let json = |nth: usize, what: &str| match row.get::<_, Option<&str>>(nth) {
        None => Ok(Value::Null),
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Failure::Rejected(format!("the {what} of the wiki {api} cannot be read: {error}"))
        }),
    };
    let (site, progress) = (json(2, "site")?, json(3, "progress")?);
    Ok(Wiki { id: WikiId(row.get(0)), api, site, progress })
}

/// The parameters $2 to $9 as rows.
const GIVEN_PAGES: &str = "unnest($2, $3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY
    AS given (page_id, namespace, title, model, redirect, newest, deleted, whole, nth)";
/// The condition for a page with an incomplete history.
const LACKING: &str = "(NOT deleted AND (NOT whole OR stale OR NOT EXISTS (SELECT 1 FROM wiki_revision
        WHERE wiki_revision.wiki_id = wiki_page.wiki_id AND revision_id = newest)
    OR suspect AND EXISTS (SELECT 1 FROM wiki_revision AS child
        WHERE child.wiki_id = wiki_page.wiki_id AND child.page_id = wiki_page.page_id AND child.parent_id <> 0
            AND NOT EXISTS (SELECT 1 FROM wiki_revision AS parent
                WHERE parent.wiki_id = child.wiki_id AND parent.revision_id = child.parent_id))))";
const HAS_NEWEST: &str = "EXISTS (SELECT 1 FROM wiki_revision
    WHERE wiki_revision.wiki_id = wiki_page.wiki_id AND revision_id = newest)";
const HAS_FIRST: &str = "EXISTS (SELECT 1 FROM wiki_revision
    WHERE wiki_revision.wiki_id = wiki_page.wiki_id AND wiki_revision.page_id = wiki_page.page_id AND parent_id = 0)";
