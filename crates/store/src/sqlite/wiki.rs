//! Stores wiki archives.

use comity_core::time::Timestamp;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;

use super::holders::{HolderState, Liveness};
use super::writer::Tx;
use super::{Sqlite, at, us};
use crate::domains::HolderId;
use crate::wiki::{
    Batch, BatchChanges, CompletedPages, Compression, Content, ContentTally, FileTally, Hidden, ListedFile,
    ListedWiki, NamespaceTally, Revision, Slot, Wiki, WikiClaim, WikiId, WikiPage, WikiStore, WikiTenure,
};
use crate::{Reply, StoreError};

impl WikiStore for Sqlite {
    fn claim_wiki(&self, api: String, holder: Option<HolderId>, now: Timestamp) -> Reply<'_, WikiClaim> {
        let liveness = self.liveness.clone();
        self.writer.run(move |tx| tx.claim_wiki(&liveness, &api, holder, now))
    }

    fn find_wiki(&self, api: String) -> Reply<'_, Option<Wiki>> {
        self.read(move |tx| tx.find_wiki(&api))
    }

    fn list_wikis(&self) -> Reply<'_, Vec<ListedWiki>> {
        let liveness = self.liveness.clone();
        self.read(move |tx| tx.list_wikis(&liveness))
    }

    fn keep_wiki(&self, tenure: WikiTenure, batch: Batch) -> Reply<'_, BatchChanges> {
        let kept = self.writer.run(move |tx| match tx.holds_wiki(tenure)? {
            true => tx.keep_wiki(tenure.wiki, &batch).map(Some),
            false => Ok(None),
        });
        Box::pin(async move { kept.await?.ok_or(StoreError::Lost) })
    }

    fn lacking_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>> {
        self.writer.run(move |tx| tx.lacking_pages(wiki, after, limit))
    }

    fn unknown_revisions(&self, wiki: WikiId, revisions: Vec<i64>) -> Reply<'_, Vec<i64>> {
        self.writer.run(move |tx| tx.unknown_revisions(wiki, revisions.clone()))
    }

    fn newest_of(&self, wiki: WikiId, pages: Vec<i64>) -> Reply<'_, Vec<(i64, i64)>> {
        self.writer.run(move |tx| tx.newest_of(wiki, &pages))
    }

    fn wiki_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>> {
        self.read(move |tx| tx.wiki_pages(wiki, after, limit))
    }

    fn page_history(&self, wiki: WikiId, page: i64, after: i64, bytes: u64) -> Reply<'_, Vec<Revision>> {
        self.read(move |tx| tx.page_history(wiki, page, after, bytes))
    }

    fn files_to_fetch(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>> {
        self.writer.run(move |tx| tx.files_to_fetch(wiki, after, limit))
    }

    fn settle_file(&self, tenure: WikiTenure, file: i64, problem: Option<String>) -> Reply<'_, ()> {
        let settled = self.writer.run(move |tx| match tx.holds_wiki(tenure)? {
            true => tx.settle_file(tenure.wiki, file, problem.as_deref()).map(Some),
            false => Ok(None),
        });
        Box::pin(async move { settled.await?.ok_or(StoreError::Lost) })
    }

    fn wiki_files(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>> {
        self.read(move |tx| tx.wiki_files(wiki, after, limit))
    }

    fn tally_files(&self, wiki: WikiId) -> Reply<'_, FileTally> {
        self.read(move |tx| tx.tally_files(wiki))
    }

    fn count_revisions(&self, wiki: WikiId) -> Reply<'_, u64> {
        self.read(move |tx| {
            let sql = "SELECT count(*) FROM wiki_revisions WHERE wiki_id = ?1";
            tx.sql.query_row(sql, [wiki.0], |row| Ok(row.get::<_, i64>(0)?.max(0) as u64))
        })
    }

    fn tally_wiki(&self, wiki: WikiId) -> Reply<'_, (Vec<NamespaceTally>, ContentTally)> {
        self.read(move |tx| tx.tally_wiki(wiki))
    }
}

impl Tx<'_> {
    pub(super) fn claim_wiki(
        &mut self,
        liveness: &Liveness,
        api: &str,
        holder: Option<HolderId>,
        now: Timestamp,
    ) -> rusqlite::Result<WikiClaim> {
        let sql = "INSERT INTO wikis (api, created_us) VALUES (?1, ?2) ON CONFLICT (api) DO NOTHING";
        self.sql.prepare_cached(sql)?.execute(params![api, us(now)])?;
        let holder = holder.map(|holder| holder.0);
        let sql = "SELECT holder FROM wikis WHERE api = ?1";
        let held_by: Option<i64> = self.sql.prepare_cached(sql)?.query_row([api], |row| row.get(0))?;
        if let Some(other) = held_by.filter(|other| Some(*other) != holder)
            && self.check_holder(liveness, other, now)? == HolderState::Lives
        {
            return Ok(WikiClaim::Taken);
        }
        let sql = "UPDATE wikis SET holder = ?2, epoch = epoch + 1 WHERE api = ?1 RETURNING epoch";
        let epoch = self.sql.prepare_cached(sql)?.query_row(params![api, holder], |row| row.get(0))?;
        let wiki = self.find_wiki(api)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let tenure = WikiTenure { wiki: wiki.id, holder: holder.map(HolderId), epoch };
        Ok(WikiClaim::Ours(wiki, tenure))
    }

    /// Whether a claim is still valid.
    fn holds_wiki(&self, tenure: WikiTenure) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM wikis WHERE id = ?1 AND holder IS ?2 AND epoch = ?3
            AND (?2 IS NULL OR EXISTS (SELECT 1 FROM holders WHERE holders.id = ?2 AND died_us IS NULL))";
        let holder = tenure.holder.map(|holder| holder.0);
        self.sql.prepare_cached(sql)?.exists(params![tenure.wiki.0, holder, tenure.epoch])
    }

    pub(super) fn find_wiki(&self, api: &str) -> rusqlite::Result<Option<Wiki>> {
        let sql = "SELECT id, api, site, progress FROM wikis WHERE api = ?1";
        self.sql.prepare_cached(sql)?.query_row([api], wiki_of).optional()
    }

    fn list_wikis(&self, liveness: &Liveness) -> rusqlite::Result<Vec<ListedWiki>> {
        let sql =
            "SELECT id, api, site, progress, contents, bytes, packed_bytes, holder FROM wikis ORDER BY id";
        self.readable("wikis", sql, [], |row| {
            let count = |nth| row.get::<_, i64>(nth).map(|count| count.max(0) as u64);
            let content = ContentTally { pieces: count(4)?, bytes: count(5)?, packed: count(6)? };
            let worked_on = match row.get::<_, Option<i64>>(7)? {
                Some(holder) => self.seems_alive(liveness, holder)?,
                None => false,
            };
            Ok(ListedWiki { wiki: wiki_of(row)?, content, worked_on })
        })
    }

    pub(super) fn keep_wiki(&self, wiki: WikiId, batch: &Batch) -> rusqlite::Result<BatchChanges> {
        let mut kept = BatchChanges::default();
        for page in &batch.pages {
            self.keep_page(wiki, page, batch.round, &mut kept)?;
        }
        for page in &batch.mentioned {
            if !self.has_page(wiki, page.id)? {
                self.keep_page(wiki, page, 0, &mut kept)?;
            }
        }
        for title in &batch.missing {
            let sql = "UPDATE wiki_pages SET deleted = 1 WHERE wiki_id = ?1 AND title = ?2 AND NOT deleted";
            kept.deleted += self.sql.prepare_cached(sql)?.execute(params![wiki.0, title])? as u64;
        }
        for page in &batch.moved_away {
            let sql = "UPDATE wiki_pages SET deleted = 1 WHERE wiki_id = ?1 AND page_id = ?2 AND NOT deleted";
            kept.deleted += self.sql.prepare_cached(sql)?.execute(params![wiki.0, page])? as u64;
        }
        if batch.titles_are_exclusive {
            kept.deleted += self.leave_titles(wiki, &batch.pages)?;
        }
        for page in &batch.history_changed {
            let sql = "UPDATE wiki_pages SET stale = 1 WHERE wiki_id = ?1 AND page_id = ?2";
            self.sql.prepare_cached(sql)?.execute(params![wiki.0, page])?;
        }
        for revision in &batch.revisions {
            self.keep_revision(wiki, revision, &mut kept)?;
        }
        for file in &batch.files {
            self.keep_file(wiki, file)?;
        }
        let listed = match batch.completed {
            CompletedPages::None => None,
            // After that, a missing parent does not exist in the wiki.
            CompletedPages::All => Some(("true", "true")),
            CompletedPages::WithFirstRevision => Some((HAS_FIRST, "false")),
        };
        if let Some((listed, all)) = listed {
            let sql = format!(
                "UPDATE wiki_pages SET whole = 1, suspect = suspect AND NOT (round = ?2 AND {all})
                WHERE wiki_id = ?1 AND NOT whole AND (round = ?2 AND {listed} OR round = 0 AND {HAS_FIRST}) AND {HAS_NEWEST}"
            );
            self.sql.prepare_cached(&sql)?.execute(params![wiki.0, batch.round])?;
        }
        for namespace in &batch.fully_listed {
            let sql = "UPDATE wiki_pages SET deleted = 1
                WHERE wiki_id = ?1 AND namespace = ?2 AND round < ?3 AND NOT deleted";
            let gone = self.sql.prepare_cached(sql)?.execute(params![wiki.0, namespace, batch.round])?;
            kept.deleted += gone as u64;
        }
        let sql = "UPDATE wikis SET progress = ?2, site = coalesce(?3, site) WHERE id = ?1";
        let site = batch.site.as_ref().map(Value::to_string);
        self.sql.prepare_cached(sql)?.execute(params![wiki.0, batch.progress.to_string(), site])?;
        Ok(kept)
    }

    fn has_page(&self, wiki: WikiId, page: i64) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM wiki_pages WHERE wiki_id = ?1 AND page_id = ?2";
        self.sql.prepare_cached(sql)?.exists(params![wiki.0, page])
    }

    /// Marks other pages as deleted that are stored under the titles of `pages`; returns how many.
    fn leave_titles(&self, wiki: WikiId, pages: &[WikiPage]) -> rusqlite::Result<u64> {
        let ids: Vec<i64> = pages.iter().map(|page| page.id).collect();
        let mut gone = 0;
        for page in pages {
            let sql = "SELECT page_id FROM wiki_pages WHERE wiki_id = ?1 AND title = ?2 AND NOT deleted";
            let mut statement = self.sql.prepare_cached(sql)?;
            let there = statement.query_map(params![wiki.0, page.title], |row| row.get::<_, i64>(0))?;
            for other in there.collect::<rusqlite::Result<Vec<i64>>>()? {
                if !ids.contains(&other) {
                    let sql = "UPDATE wiki_pages SET deleted = 1 WHERE wiki_id = ?1 AND page_id = ?2";
                    gone += self.sql.prepare_cached(sql)?.execute(params![wiki.0, other])? as u64;
                }
            }
        }
        Ok(gone)
    }

    fn keep_page(
        &self,
        wiki: WikiId,
        page: &WikiPage,
        round: i64,
        kept: &mut BatchChanges,
    ) -> rusqlite::Result<()> {
        let sql = "SELECT title, deleted FROM wiki_pages WHERE wiki_id = ?1 AND page_id = ?2";
        let before = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?));
        let before = self.sql.prepare_cached(sql)?.query_row(params![wiki.0, page.id], before).optional()?;
        match before {
            None => kept.pages += 1,
            Some((title, deleted)) => {
                kept.moved += u64::from(title != page.title);
                kept.restored += u64::from(deleted && !page.deleted);
            }
        }
        let sql = "INSERT INTO wiki_pages
                (wiki_id, page_id, namespace, title, model, redirect, newest, deleted, whole, round)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
            ON CONFLICT (wiki_id, page_id) DO UPDATE SET namespace = excluded.namespace, title = excluded.title,
                model = excluded.model, redirect = excluded.redirect, newest = excluded.newest,
                deleted = excluded.deleted, round = max(round, excluded.round),
                whole = iif(deleted, excluded.whole, max(whole, excluded.whole)),
                stale = stale AND NOT excluded.whole, suspect = suspect AND NOT excluded.whole";
        let WikiPage { id, namespace, title, model, redirect, newest, deleted, whole } = page;
        self.sql
            .prepare_cached(sql)?
            .execute(params![wiki.0, id, namespace, title, model, redirect, newest, deleted, whole, round])?;
        Ok(())
    }

    fn keep_revision(
        &self,
        wiki: WikiId,
        revision: &Revision,
        kept: &mut BatchChanges,
    ) -> rusqlite::Result<()> {
        if !self.has_revision(wiki, revision.id)? {
            kept.revisions += 1;
            if revision.parent != 0 && !self.has_revision(wiki, revision.parent)? {
                let sql = "UPDATE wiki_pages SET suspect = 1 WHERE wiki_id = ?1 AND page_id = ?2";
                self.sql.prepare_cached(sql)?.execute(params![wiki.0, revision.page])?;
            }
        }
        let has_text = revision.hidden.text || revision.slots.iter().any(|slot| slot.content.is_some());
        kept.textless += u64::from(!has_text);
        let sql = "INSERT INTO wiki_revisions (wiki_id, revision_id, page_id, parent_id, at_us, user, user_id,
                comment, sha1, size, minor, hidden, tags)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
            ON CONFLICT (wiki_id, revision_id) DO UPDATE SET page_id = excluded.page_id,
                parent_id = excluded.parent_id, user = excluded.user, user_id = excluded.user_id,
                comment = excluded.comment, sha1 = excluded.sha1, hidden = excluded.hidden, tags = excluded.tags";
        let Revision { id, page, parent, user, user_id, comment, sha1, minor, .. } = revision;
        self.sql.prepare_cached(sql)?.execute(params![
            wiki.0,
            id,
            page,
            parent,
            us(revision.at),
            user,
            user_id,
            comment,
            sha1,
            revision.size as i64,
            minor,
            bits(revision.hidden),
            Value::from(revision.tags.clone()).to_string(),
        ])?;
        for (nth, slot) in revision.slots.iter().enumerate() {
            let content =
                slot.content.as_ref().map(|content| self.keep_content(wiki, content)).transpose()?;
            // Content that is hidden now may have been visible before: what was saved then stays.
            let sql = "INSERT INTO wiki_slots (wiki_id, revision_id, nth, role, model, format, content_id)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                ON CONFLICT (wiki_id, revision_id, nth) DO UPDATE SET
                    content_id = coalesce(excluded.content_id, content_id)";
            let Slot { role, model, format, .. } = slot;
            let nth = nth as i64;
            let values = params![wiki.0, id, nth, role, model, format, content];
            self.sql.prepare_cached(sql)?.execute(values)?;
        }
        Ok(())
    }

    fn has_revision(&self, wiki: WikiId, revision: i64) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM wiki_revisions WHERE wiki_id = ?1 AND revision_id = ?2";
        self.sql.prepare_cached(sql)?.exists(params![wiki.0, revision])
    }

    fn keep_content(&self, wiki: WikiId, content: &Content) -> rusqlite::Result<i64> {
        let sql = "SELECT id FROM wiki_contents WHERE sha1 = ?1";
        let known = self.sql.prepare_cached(sql)?.query_row([content.sha1], |row| row.get(0)).optional()?;
        if let Some(known) = known {
            return Ok(known);
        }
        let sql = "INSERT INTO wiki_contents (sha1, size, packing, bytes) VALUES (?1, ?2, ?3, ?4)";
        let compression = match content.compression {
            Compression::Plain => "plain",
            Compression::Zstd => "zstd",
        };
        let (size, packed) = (content.size as i64, content.bytes.len() as i64);
        let id =
            self.sql.prepare_cached(sql)?.insert(params![content.sha1, size, compression, content.bytes])?;
        let sql =
            "UPDATE wikis SET contents = contents + 1, bytes = bytes + ?2, packed_bytes = packed_bytes + ?3
            WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![wiki.0, size, packed])?;
        Ok(id)
    }

    pub(super) fn lacking_pages(
        &self,
        wiki: WikiId,
        after: i64,
        limit: u32,
    ) -> rusqlite::Result<Vec<WikiPage>> {
        let sql =
            format!("{PAGES} WHERE wiki_id = ?1 AND page_id > ?2 AND {LACKING} ORDER BY page_id LIMIT ?3");
        let mut statement = self.sql.prepare_cached(&sql)?;
        statement.query_map(params![wiki.0, after, limit], page_of)?.collect()
    }

    pub(super) fn unknown_revisions(&self, wiki: WikiId, revisions: Vec<i64>) -> rusqlite::Result<Vec<i64>> {
        let mut unknown = Vec::new();
        for revision in revisions {
            if !self.has_revision(wiki, revision)? {
                unknown.push(revision);
            }
        }
        Ok(unknown)
    }

    pub(super) fn newest_of(&self, wiki: WikiId, pages: &[i64]) -> rusqlite::Result<Vec<(i64, i64)>> {
        let sql = "SELECT newest FROM wiki_pages WHERE wiki_id = ?1 AND page_id = ?2 AND NOT deleted";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut found = Vec::with_capacity(pages.len());
        for page in pages {
            let newest = statement.query_row(params![wiki.0, page], |row| row.get(0)).optional()?;
            found.extend(newest.map(|newest| (*page, newest)));
        }
        Ok(found)
    }

    pub(super) fn wiki_pages(&self, wiki: WikiId, after: i64, limit: u32) -> rusqlite::Result<Vec<WikiPage>> {
        let sql = format!("{PAGES} WHERE wiki_id = ?1 AND page_id > ?2 ORDER BY page_id LIMIT ?3");
        let mut statement = self.sql.prepare_cached(&sql)?;
        statement.query_map(params![wiki.0, after, limit], page_of)?.collect()
    }

    pub(super) fn page_history(
        &self,
        wiki: WikiId,
        page: i64,
        after: i64,
        bytes: u64,
    ) -> rusqlite::Result<Vec<Revision>> {
        let sql = "SELECT revision_id, page_id, parent_id, at_us, user, user_id, comment, sha1, size, minor, hidden,
                tags FROM wiki_revisions WHERE wiki_id = ?1 AND page_id = ?2 AND revision_id > ?3
            ORDER BY revision_id LIMIT ?4";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query(params![wiki.0, page, after, HISTORY_MAX])?;
        let (mut history, mut taken) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let mut revision = revision_of(row)?;
            revision.slots = self.slots(wiki, revision.id)?;
            let contents = revision.slots.iter().filter_map(|slot| slot.content.as_ref());
            taken += contents.map(|content| content.bytes.len() as u64).sum::<u64>();
            history.push(revision);
            if taken >= bytes {
                break;
            }
        }
        Ok(history)
    }

    fn slots(&self, wiki: WikiId, revision: i64) -> rusqlite::Result<Vec<Slot>> {
        let sql = "SELECT role, model, format, sha1, size, packing, bytes
            FROM wiki_slots LEFT JOIN wiki_contents ON wiki_contents.id = content_id
            WHERE wiki_id = ?1 AND revision_id = ?2 ORDER BY nth";
        let slot = |row: &Row<'_>| {
            let content = match row.get::<_, Option<[u8; 20]>>(3)? {
                Some(sha1) => {
                    let compression = match row.get_ref(5)?.as_str()? {
                        "zstd" => Compression::Zstd,
                        _ => Compression::Plain,
                    };
                    Some(Content {
                        sha1,
                        size: row.get::<_, i64>(4)?.max(0) as u64,
                        compression,
                        bytes: row.get(6)?,
                    })
                }
                None => None,
            };
            Ok(Slot { role: row.get(0)?, model: row.get(1)?, format: row.get(2)?, content })
        };
        self.sql.prepare_cached(sql)?.query_map(params![wiki.0, revision], slot)?.collect()
    }

    pub(super) fn tally_wiki(&self, wiki: WikiId) -> rusqlite::Result<(Vec<NamespaceTally>, ContentTally)> {
        let sql = format!(
            "SELECT namespace, sum(NOT deleted), sum(NOT deleted AND redirect), sum(deleted), sum({LACKING}),
                sum((SELECT count(*) FROM wiki_revisions WHERE wiki_revisions.wiki_id = wiki_pages.wiki_id
                    AND wiki_revisions.page_id = wiki_pages.page_id))
            FROM wiki_pages WHERE wiki_id = ?1 GROUP BY namespace ORDER BY namespace"
        );
        let count = |row: &Row<'_>, nth| Ok::<_, rusqlite::Error>(row.get::<_, i64>(nth)?.max(0) as u64);
        let namespace = |row: &Row<'_>| {
            Ok(NamespaceTally {
                namespace: row.get(0)?,
                pages: count(row, 1)?,
                redirects: count(row, 2)?,
                deleted: count(row, 3)?,
                lacking: count(row, 4)?,
                revisions: count(row, 5)?,
            })
        };
        let namespaces = self.sql.prepare(&sql)?.query_map([wiki.0], namespace)?.collect::<Result<_, _>>()?;
        let sql = "SELECT contents, bytes, packed_bytes FROM wikis WHERE id = ?1";
        let content = |row: &Row<'_>| {
            Ok(ContentTally { pieces: count(row, 0)?, bytes: count(row, 1)?, packed: count(row, 2)? })
        };
        Ok((namespaces, self.sql.query_row(sql, [wiki.0], content)?))
    }
}

fn wiki_of(row: &Row<'_>) -> rusqlite::Result<Wiki> {
    let (site, progress) = (json(row, 2)?, json(row, 3)?);
    Ok(Wiki { id: WikiId(row.get(0)?), api: row.get(1)?, site, progress })
}

fn page_of(row: &Row<'_>) -> rusqlite::Result<WikiPage> {
    Ok(WikiPage {
        id: row.get(0)?,
        namespace: row.get(1)?,
        title: row.get(2)?,
        model: row.get(3)?,
        redirect: row.get(4)?,
        newest: row.get(5)?,
        deleted: row.get(6)?,
        whole: row.get(7)?,
    })
}

fn revision_of(row: &Row<'_>) -> rusqlite::Result<Revision> {
    let tags: String = row.get(11)?;
    Ok(Revision {
        id: row.get(0)?,
        page: row.get(1)?,
        parent: row.get(2)?,
        at: at(row.get(3)?),
        user: row.get(4)?,
        user_id: row.get(5)?,
        comment: row.get(6)?,
        sha1: row.get(7)?,
        size: row.get::<_, i64>(8)?.max(0) as u64,
        minor: row.get(9)?,
        hidden: of_bits(row.get(10)?),
        tags: serde_json::from_str(&tags).unwrap_or_default(),
        slots: Vec::new(),
    })
}

fn json(row: &Row<'_>, nth: usize) -> rusqlite::Result<Value> {
    let Some(text) = row.get::<_, Option<String>>(nth)? else { return Ok(Value::Null) };
    serde_json::from_str(&text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(nth, Type::Text, Box::new(error)))
}

fn bits(hidden: Hidden) -> i64 {
    let Hidden { text, user, comment, suppressed } = hidden;
    [text, comment, user, suppressed].iter().rev().fold(0, |bits, set| bits << 1 | i64::from(*set))
}

/// The bits as in MediaWiki's own column.
fn of_bits(bits: i64) -> Hidden {
    let is = |bit: i64| bits & bit != 0;
    Hidden { text: is(1), comment: is(2), user: is(4), suppressed: is(8) }
}

const PAGES: &str =
    "SELECT page_id, namespace, title, model, redirect, newest, deleted, whole AND NOT stale FROM wiki_pages";
/// The condition for a page with an incomplete history.
const LACKING: &str = "(NOT deleted AND (NOT whole OR stale OR NOT EXISTS (SELECT 1 FROM wiki_revisions
        WHERE wiki_revisions.wiki_id = wiki_pages.wiki_id AND revision_id = newest)
    OR suspect AND EXISTS (SELECT 1 FROM wiki_revisions AS child
        WHERE child.wiki_id = wiki_pages.wiki_id AND child.page_id = wiki_pages.page_id AND child.parent_id <> 0
            AND NOT EXISTS (SELECT 1 FROM wiki_revisions AS parent
                WHERE parent.wiki_id = child.wiki_id AND parent.revision_id = child.parent_id))))";
const HAS_NEWEST: &str = "EXISTS (SELECT 1 FROM wiki_revisions
    WHERE wiki_revisions.wiki_id = wiki_pages.wiki_id AND revision_id = newest)";
const HAS_FIRST: &str = "EXISTS (SELECT 1 FROM wiki_revisions
    WHERE wiki_revisions.wiki_id = wiki_pages.wiki_id AND wiki_revisions.page_id = wiki_pages.page_id
        AND parent_id = 0)";
/// The maximum number of revisions read at once, however small they are.
const HISTORY_MAX: u32 = 1_000;
