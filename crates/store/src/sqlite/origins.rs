//! Which origins the operator listed in a job. There is one row per origin, written when its first URL is added, so
//! that following a redirect does not require searching the tasks.

use std::borrow::Cow;

use comity_core::task::JobId;
use rusqlite::params;

use super::writer::Tx;

impl Tx<'_> {
    /// Records that the operator listed URLs of these origins.
    pub(super) fn list_origins(&self, job: i64, mut origins: Vec<Cow<'_, str>>) -> rusqlite::Result<()> {
        // Neighbors mostly have the same one, so that few are left to sort.
        origins.dedup();
        origins.sort_unstable();
        origins.dedup();
        let sql = "INSERT INTO origins (job_id, origin) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        let mut statement = self.sql.prepare_cached(sql)?;
        origins.iter().try_for_each(|origin| statement.execute(params![job, origin]).map(|_| ()))
    }

    /// Whether the operator listed a URL of this origin.
    pub(super) fn lists(&self, job: JobId, origin: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM origins WHERE job_id = ?1 AND origin = ?2";
        self.sql.prepare_cached(sql)?.exists(params![job.0 as i64, origin])
    }
}
