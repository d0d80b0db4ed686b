//! Stores revisions of archived wikis, and their content, which is stored once however often it comes up.

use serde_json::Value;
use tokio_postgres::Row;

use super::failure::Result;
use super::param::{opt_text, text};
use super::tx::Tx;
use super::wiki::{count, rounds};
use super::{at, us};
use crate::wiki::{BatchChanges, Compression, Content, ContentTally, Hidden, Revision, Slot, WikiId};

impl Tx<'_> {
    /// Saves revisions with their content. Returns what content was new.
    pub(super) fn keep_revisions(
        &mut self,
        wiki: WikiId,
        revisions: &[Revision],
        kept: &mut BatchChanges,
    ) -> Result<ContentTally> {
        let contents = self.keep_contents(revisions)?;
        for revisions in rounds(revisions, |revision| revision.id) {
            kept.revisions += self.keep_fields(wiki, &revisions)?;
            self.keep_slots(wiki, &revisions)?;
        }
        let has_text = |revision: &&Revision| {
            revision.hidden.text || revision.slots.iter().any(|slot| slot.content.is_some())
        };
        kept.textless += revisions.iter().filter(|revision| !has_text(revision)).count() as u64;
        Ok(contents)
    }

    /// Saves content that is not there yet; returns what was new. Other wikis may save the same at the same time: in one order,
    /// so that nobody waits for somebody who waits for it.
    fn keep_contents(&mut self, revisions: &[Revision]) -> Result<ContentTally> {
        let slots = revisions.iter().flat_map(|revision| &revision.slots);
        let mut contents: Vec<&Content> = slots.filter_map(|slot| slot.content.as_ref()).collect();
        // The first of several stays, as the sort is stable.
        contents.sort_by_key(|content| content.sha1);
        contents.dedup_by_key(|content| content.sha1);
        let (mut tally, mut rest) = (ContentTally::default(), contents.as_slice());
        while !rest.is_empty() {
            let (some, others) = rest.split_at(fitting(rest));
            let new = self.keep_some_contents(some)?;
            tally.pieces += new.pieces;
            tally.bytes += new.bytes;
            tally.packed += new.packed;
            rest = others;
        }
        Ok(tally)
    }

    fn keep_some_contents(&mut self, contents: &[&Content]) -> Result<ContentTally> {
        let sql = "WITH new AS (
                INSERT INTO wiki_content (sha1, size, packing, bytes)
                SELECT * FROM unnest($1, $2, $3, $4) AS given (sha1, size, packing, bytes) ORDER BY sha1
                ON CONFLICT (sha1) DO NOTHING RETURNING size, octet_length(bytes) AS packed)
            SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(sum(packed), 0)::bigint FROM new";
        let sha1: Vec<&[u8]> = contents.iter().map(|content| content.sha1.as_slice()).collect();
        let sizes: Vec<i64> = contents.iter().map(|content| content.size as i64).collect();
        let packings: Vec<&str> = contents.iter().map(|content| name_of(content.compression)).collect();
        let bytes: Vec<&[u8]> = contents.iter().map(|content| content.bytes.as_slice()).collect();
        let mut new = ContentTally::default();
        for row in self.change_rows(sql, &[&sha1, &sizes, &packings, &bytes])? {
            new = ContentTally { pieces: count(&row, 0), bytes: count(&row, 1), packed: count(&row, 2) };
        }
        Ok(new)
    }

    /// Saves the fields of revisions; returns how many are new. A new one whose parent is not there shows that something is
    /// missing of its page. None of them may be there twice.
    fn keep_fields(&mut self, wiki: WikiId, revisions: &[&Revision]) -> Result<u64> {
        let sql = "WITH given AS (SELECT * FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS given
                (revision_id, page_id, parent_id, at_us, \"user\", user_id, comment, sha1, size, minor, hidden, tags)),
            new AS (SELECT page_id, parent_id FROM given WHERE NOT EXISTS (
                SELECT 1 FROM wiki_revision WHERE wiki_id = $1 AND revision_id = given.revision_id)),
            kept AS (
                INSERT INTO wiki_revision (wiki_id, revision_id, page_id, parent_id, at_us, \"user\", user_id, comment, sha1, size,
                    minor, hidden, tags)
                SELECT $1, given.* FROM given
                ON CONFLICT (wiki_id, revision_id) DO UPDATE SET page_id = excluded.page_id,
                    parent_id = excluded.parent_id, \"user\" = excluded.\"user\", user_id = excluded.user_id,
                    comment = excluded.comment, sha1 = excluded.sha1, hidden = excluded.hidden, tags = excluded.tags),
            suspected AS (
                UPDATE wiki_page SET suspect = true WHERE wiki_id = $1 AND NOT suspect AND page_id IN (
                    SELECT page_id FROM new WHERE parent_id <> 0 AND parent_id NOT IN (SELECT revision_id FROM given)
                        AND NOT EXISTS (SELECT 1 FROM wiki_revision WHERE wiki_id = $1 AND revision_id = new.parent_id)))
            SELECT count(*) FROM new";
        let all = || revisions.iter().copied();
        let ids: Vec<i64> = all().map(|revision| revision.id).collect();
        let pages: Vec<i64> = all().map(|revision| revision.page).collect();
        let parents: Vec<i64> = all().map(|revision| revision.parent).collect();
        let times: Vec<i64> = all().map(|revision| us(revision.at)).collect();
        let users: Vec<_> = all().map(|revision| opt_text(revision.user.as_deref())).collect();
        let user_ids: Vec<i64> = all().map(|revision| revision.user_id).collect();
        let comments: Vec<_> = all().map(|revision| opt_text(revision.comment.as_deref())).collect();
        let sha1: Vec<_> = all().map(|revision| opt_text(revision.sha1.as_deref())).collect();
        let sizes: Vec<i64> = all().map(|revision| revision.size as i64).collect();
        let minor: Vec<bool> = all().map(|revision| revision.minor).collect();
        let hidden: Vec<i64> = all().map(|revision| bits(revision.hidden)).collect();
        let tags: Vec<String> =
            all().map(|revision| Value::from(revision.tags.clone()).to_string()).collect();
        let rows = self.change_rows(
            sql,
            &[
                &wiki.0, &ids, &pages, &parents, &times, &users, &user_ids, &comments, &sha1, &sizes, &minor,
                &hidden, &tags,
            ],
        )?;
        Ok(rows.first().map_or(0, |row| count(row, 0)))
    }

    /// Saves the slots of revisions, after their content. None of the revisions may be there twice.
    fn keep_slots(&mut self, wiki: WikiId, revisions: &[&Revision]) -> Result<()> {
        // Content that is hidden now may have been visible before: what was saved then stays.
        let sql =
            "INSERT INTO wiki_slot AS known (wiki_id, revision_id, nth, role, model, format, content_id)
            SELECT $1, revision_id, nth, role, model, format,
                (SELECT id FROM wiki_content WHERE wiki_content.sha1 = given.sha1)
            FROM unnest($2, $3, $4, $5, $6, $7) AS given (revision_id, nth, role, model, format, sha1)
            ON CONFLICT (wiki_id, revision_id, nth) DO UPDATE SET
                content_id = coalesce(excluded.content_id, known.content_id)";
        let mut slots: Vec<(i64, i64, &Slot)> = Vec::new();
        for revision in revisions {
            slots.extend((0..).zip(&revision.slots).map(|(nth, slot)| (revision.id, nth, slot)));
        }
        if slots.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = slots.iter().map(|(id, ..)| *id).collect();
        let nths: Vec<i64> = slots.iter().map(|(_, nth, _)| *nth).collect();
        let roles: Vec<_> = slots.iter().map(|(.., slot)| text(&slot.role)).collect();
        let models: Vec<_> = slots.iter().map(|(.., slot)| text(&slot.model)).collect();
        let formats: Vec<_> = slots.iter().map(|(.., slot)| text(&slot.format)).collect();
        let sha1: Vec<Option<&[u8]>> = slots
            .iter()
            .map(|(.., slot)| slot.content.as_ref().map(|content| content.sha1.as_slice()))
            .collect();
        self.change(sql, &[&wiki.0, &ids, &nths, &roles, &models, &formats, &sha1]).map(drop)
    }

    /// Those of `revisions` that are not stored.
    pub(super) fn unknown_revisions(&mut self, wiki: WikiId, revisions: &[i64]) -> Result<Vec<i64>> {
        let sql = "SELECT given.id FROM unnest($2) WITH ORDINALITY AS given (id, nth)
            WHERE NOT EXISTS (SELECT 1 FROM wiki_revision WHERE wiki_id = $1 AND revision_id = given.id)
            ORDER BY nth";
        let rows = self.rows(sql, &[&wiki.0, &revisions])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Revisions of a page with their content, as many as fit in `bytes`.
    pub(super) fn page_history(
        &mut self,
        wiki: WikiId,
        page: i64,
        after: i64,
        bytes: u64,
    ) -> Result<Vec<Revision>> {
        // How long content is, is known without reading it.
        let sql = format!(
            "WITH next AS (
                SELECT revision_id, page_id, parent_id, at_us, \"user\", user_id, comment, sha1, size, minor, hidden, tags,
                    coalesce((SELECT sum(octet_length(bytes)) FROM wiki_slot JOIN wiki_content ON wiki_content.id = content_id
                        WHERE wiki_slot.wiki_id = $1 AND wiki_slot.revision_id = wiki_revision.revision_id), 0) AS packed
                FROM wiki_revision WHERE wiki_id = $1 AND page_id = $2 AND revision_id > $3
                ORDER BY revision_id LIMIT {HISTORY_MAX}),
            chosen AS (SELECT *, sum(packed) OVER (ORDER BY revision_id) - packed AS before FROM next)
            SELECT chosen.revision_id, page_id, parent_id, at_us, \"user\", user_id, comment, chosen.sha1, chosen.size, minor,
                hidden, tags, role, model, format, wiki_content.sha1, wiki_content.size, packing, bytes
            FROM chosen LEFT JOIN wiki_slot ON wiki_slot.wiki_id = $1 AND wiki_slot.revision_id = chosen.revision_id
                LEFT JOIN wiki_content ON wiki_content.id = content_id
            WHERE before < $4 ORDER BY chosen.revision_id, nth"
        );
        // At least one.
        let bytes = i64::try_from(bytes.max(1)).unwrap_or(i64::MAX);
        let mut history: Vec<Revision> = Vec::new();
        for row in self.rows(&sql, &[&wiki.0, &page, &after, &bytes])? {
            if history.last().is_none_or(|last| last.id != row.get::<_, i64>(0)) {
                history.push(revision_of(&row));
            }
            if let (Some(revision), Some(slot)) = (history.last_mut(), slot_of(&row)) {
                revision.slots.push(slot);
            }
        }
        Ok(history)
    }
}

/// How many of these fit in one statement; at least one.
fn fitting(contents: &[&Content]) -> usize {
    let mut bytes = 0;
    let too_much = contents.iter().position(|content| {
        let is_first = bytes == 0;
        bytes += content.bytes.len().max(1);
        !is_first && bytes > BYTES_MAX
    });
    too_much.unwrap_or(contents.len())
}

fn revision_of(row: &Row) -> Revision {
    let tags: &str = row.get(11);
    Revision {
        id: row.get(0),
        page: row.get(1),
        parent: row.get(2),
        at: at(row.get(3)),
        user: row.get(4),
        user_id: row.get(5),
        comment: row.get(6),
        sha1: row.get(7),
        size: count(row, 8),
        minor: row.get(9),
        hidden: of_bits(row.get(10)),
        tags: serde_json::from_str(tags).unwrap_or_default(),
        slots: Vec::new(),
    }
}

/// The slot of a row, which may have none.
fn slot_of(row: &Row) -> Option<Slot> {
    let role: Option<String> = row.get(12);
    let sha1: Option<&[u8]> = row.get(15);
    let content = sha1.and_then(|sha1| sha1.try_into().ok()).map(|sha1| Content {
        sha1,
        size: count(row, 16),
        compression: match row.get(17) {
            "zstd" => Compression::Zstd,
            _ => Compression::Plain,
        },
        bytes: row.get(18),
    });
    Some(Slot { role: role?, model: row.get(13), format: row.get(14), content })
}

fn name_of(compression: Compression) -> &'static str {
    match compression {
        Compression::Plain => "plain",
        Compression::Zstd => "zstd",
    }
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

/// The maximum number of revisions read at once, however small they are.
const HISTORY_MAX: u32 = 1_000;
/// The most content that one statement saves, unless one piece is larger: the server holds it in memory.
const BYTES_MAX: usize = 16 << 20;
