//! Stores files of archived wikis.

use rusqlite::{Row, params};

use super::writer::Tx;
use super::{at, us};
use crate::wiki::{FileTally, ListedFile, WikiFile, WikiId};

impl Tx<'_> {
    pub(super) fn keep_file(&self, wiki: WikiId, file: &WikiFile) -> rusqlite::Result<()> {
        // Different content with the same upload time is a different file.
        let sql =
            "INSERT INTO wiki_files (wiki_id, title, at_us, sha1, size, mime, url, user, comment, superseded)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
            ON CONFLICT (wiki_id, title, at_us) DO UPDATE SET
                kept = kept AND (excluded.sha1 IS NULL OR sha1 IS excluded.sha1),
                sha1 = coalesce(excluded.sha1, sha1), size = excluded.size, mime = excluded.mime,
                url = excluded.url, user = excluded.user, comment = excluded.comment,
                superseded = excluded.superseded";
        let WikiFile { title, sha1, mime, url, user, comment, superseded, .. } = file;
        let (at_us, size) = (us(file.at), file.size as i64);
        self.sql
            .prepare_cached(sql)?
            .execute(params![wiki.0, title, at_us, sha1, size, mime, url, user, comment, superseded])?;
        Ok(())
    }

    pub(super) fn files_to_fetch(
        &self,
        wiki: WikiId,
        after: i64,
        limit: u32,
    ) -> rusqlite::Result<Vec<ListedFile>> {
        let sql = files(&format!("AND NOT kept AND url IS NOT NULL AND {HAS_PAGE}"));
        self.sql.prepare_cached(&sql)?.query_map(params![wiki.0, after, limit], listed)?.collect()
    }

    pub(super) fn settle_file(&self, wiki: WikiId, file: i64, problem: Option<&str>) -> rusqlite::Result<()> {
        let sql = "UPDATE wiki_files SET kept = ?2 IS NULL, problem = ?2 WHERE id = ?1 AND wiki_id = ?3";
        self.sql.prepare_cached(sql)?.execute(params![file, problem, wiki.0]).map(|_| ())
    }

    pub(super) fn wiki_files(
        &self,
        wiki: WikiId,
        after: i64,
        limit: u32,
    ) -> rusqlite::Result<Vec<ListedFile>> {
        let sql = files("");
        self.sql.prepare_cached(&sql)?.query_map(params![wiki.0, after, limit], listed)?.collect()
    }

    pub(super) fn tally_files(&self, wiki: WikiId) -> rusqlite::Result<FileTally> {
        let sql = format!(
            "SELECT coalesce(sum(kept OR url IS NOT NULL AND {HAS_PAGE}), 0), coalesce(sum(kept), 0),
                coalesce(sum(iif(kept, size, 0)), 0) FROM wiki_files WHERE wiki_id = ?1"
        );
        let count = |row: &Row<'_>, nth| Ok::<_, rusqlite::Error>(row.get::<_, i64>(nth)?.max(0) as u64);
        let tally = |row: &Row<'_>| {
            Ok(FileTally { files: count(row, 0)?, kept: count(row, 1)?, bytes: count(row, 2)? })
        };
        self.sql.query_row(&sql, [wiki.0], tally)
    }
}

fn listed(row: &Row<'_>) -> rusqlite::Result<ListedFile> {
    Ok(ListedFile {
        id: row.get(0)?,
        file: WikiFile {
            title: row.get(1)?,
            at: at(row.get(2)?),
            sha1: row.get(3)?,
            size: row.get::<_, i64>(4)?.max(0) as u64,
            mime: row.get(5)?,
            url: row.get(6)?,
            user: row.get(7)?,
            comment: row.get(8)?,
            superseded: row.get(9)?,
        },
        kept: row.get(10)?,
        problem: row.get(11)?,
        deleted: row.get(12)?,
    })
}

/// Selects file versions that match an additional condition.
fn files(which: &str) -> String {
    format!(
        "SELECT id, title, at_us, sha1, size, mime, url, user, comment, superseded, kept, problem, NOT {HAS_PAGE}
        FROM wiki_files WHERE wiki_id = ?1 AND id > ?2 {which} ORDER BY id LIMIT ?3"
    )
}

const HAS_PAGE: &str = "EXISTS (SELECT 1 FROM wiki_pages WHERE wiki_pages.wiki_id = wiki_files.wiki_id
    AND wiki_pages.title = wiki_files.title AND NOT deleted)";
