//! Stores file versions of archived wikis. Which wikis and pages there are is in `wiki`.

use tokio_postgres::Row;

use super::failure::Result;
use super::param::{Param, opt_text, text};
use super::tx::Tx;
use super::wiki::count;
use super::{at, us};
use crate::wiki::{FileTally, ListedFile, WikiFile, WikiId};

impl Tx<'_> {
    /// Saves file versions. None of them may be there twice.
    pub(super) fn keep_files(&mut self, wiki: WikiId, files: &[&WikiFile]) -> Result<()> {
        // Different content with the same upload time is a different file.
        let sql = "INSERT INTO wiki_file AS known
                (wiki_id, title, at_us, sha1, size, mime, url, \"user\", comment, superseded)
            SELECT $1, given.* FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10) AS given
            ON CONFLICT (wiki_id, hash_of(title), at_us) DO UPDATE SET
                kept = known.kept AND (excluded.sha1 IS NULL OR known.sha1 IS NOT DISTINCT FROM excluded.sha1),
                sha1 = coalesce(excluded.sha1, known.sha1), size = excluded.size, mime = excluded.mime,
                url = excluded.url, \"user\" = excluded.\"user\", comment = excluded.comment,
                superseded = excluded.superseded";
        let all = || files.iter().copied();
        let titles: Vec<_> = all().map(|file| text(&file.title)).collect();
        let times: Vec<i64> = all().map(|file| us(file.at)).collect();
        let sha1: Vec<_> = all().map(|file| opt_text(file.sha1.as_deref())).collect();
        let sizes: Vec<i64> = all().map(|file| file.size as i64).collect();
        let mimes: Vec<_> = all().map(|file| text(&file.mime)).collect();
        let urls: Vec<_> = all().map(|file| opt_text(file.url.as_deref())).collect();
        let users: Vec<_> = all().map(|file| opt_text(file.user.as_deref())).collect();
        let comments: Vec<_> = all().map(|file| opt_text(file.comment.as_deref())).collect();
        let superseded: Vec<bool> = all().map(|file| file.superseded).collect();
        let params: [&dyn Param; 10] =
            [&wiki.0, &titles, &times, &sha1, &sizes, &mimes, &urls, &users, &comments, &superseded];
        self.change(sql, &params).map(drop)
    }

    pub(super) fn files_to_fetch(&mut self, wiki: WikiId, after: i64, limit: u32) -> Result<Vec<ListedFile>> {
        self.files(wiki, after, limit, &format!("AND NOT kept AND url IS NOT NULL AND {HAS_PAGE}"))
    }

    pub(super) fn settle_file(&mut self, wiki: WikiId, file: i64, problem: Option<&str>) -> Result<()> {
        let sql = "UPDATE wiki_file SET kept = $2 IS NULL, problem = $2 WHERE id = $1 AND wiki_id = $3";
        self.change(sql, &[&file, &opt_text(problem), &wiki.0]).map(drop)
    }

    pub(super) fn wiki_files(&mut self, wiki: WikiId, after: i64, limit: u32) -> Result<Vec<ListedFile>> {
        self.files(wiki, after, limit, "")
    }

    pub(super) fn tally_files(&mut self, wiki: WikiId) -> Result<FileTally> {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE kept OR url IS NOT NULL AND {HAS_PAGE}), count(*) FILTER (WHERE kept),
                coalesce(sum(size) FILTER (WHERE kept), 0)::bigint FROM wiki_file WHERE wiki_id = $1"
        );
        let row = self.one(&sql, &[&wiki.0])?;
        Ok(FileTally { files: count(&row, 0), kept: count(&row, 1), bytes: count(&row, 2) })
    }

    /// File versions that match an additional condition.
    fn files(&mut self, wiki: WikiId, after: i64, limit: u32, which: &str) -> Result<Vec<ListedFile>> {
        let sql = format!(
            "SELECT id, title, at_us, sha1, size, mime, url, \"user\", comment, superseded, kept, problem, NOT {HAS_PAGE}
            FROM wiki_file WHERE wiki_id = $1 AND id > $2 {which} ORDER BY id LIMIT $3"
        );
        Ok(self.rows(&sql, &[&wiki.0, &after, &i64::from(limit)])?.iter().map(listed).collect())
    }
}

fn listed(row: &Row) -> ListedFile {
    ListedFile {
        id: row.get(0),
        file: WikiFile {
            title: row.get(1),
            at: at(row.get(2)),
            sha1: row.get(3),
            size: count(row, 4),
            mime: row.get(5),
            url: row.get(6),
            user: row.get(7),
            comment: row.get(8),
            superseded: row.get(9),
        },
        kept: row.get(10),
        problem: row.get(11),
        deleted: row.get(12),
    }
}

const HAS_PAGE: &str = "EXISTS (SELECT 1 FROM wiki_page WHERE wiki_page.wiki_id = wiki_file.wiki_id
    AND hash_of(wiki_page.title) = hash_of(wiki_file.title) AND NOT deleted)";
