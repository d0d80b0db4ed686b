//! Which origins the operator listed in a job. There is one row per origin, written when its first URL is added, so that
//! following a redirect does not require searching the tasks.

use std::borrow::Cow;
use std::collections::HashSet;

use comity_core::task::JobId;

use super::failure::Result;
use super::param::text;
use super::tx::Tx;

impl Tx<'_> {
    /// Records that the operator listed URLs of these origins.
    pub(super) fn list_origins(&mut self, job: i64, mut origins: Vec<Cow<'_, str>>) -> Result<()> {
        // Neighbors mostly have the same one, so that few are left to sort.
        origins.dedup();
        origins.sort_unstable();
        origins.dedup();
        if origins.is_empty() {
            return Ok(());
        }
        let origins: Vec<Cow<'_, str>> = origins.iter().map(|origin| text(origin)).collect();
        // Those that are known are skipped before anything is written.
        let sql = "INSERT INTO origin (job_id, origin) SELECT $1, given FROM unnest($2) AS given
            WHERE NOT EXISTS (SELECT 1 FROM origin WHERE job_id = $1 AND origin = given)
            ORDER BY given COLLATE \"C\" ON CONFLICT DO NOTHING";
        self.change(sql, &[&job, &origins]).map(|_| ())
    }

    /// For each of these origins, whether the operator listed a URL of it.
    pub(super) fn lists(&mut self, job: JobId, origins: &[String]) -> Result<Vec<bool>> {
        let asked: Vec<Cow<'_, str>> = origins.iter().map(|origin| text(origin)).collect();
        let sql = "SELECT origin FROM origin WHERE job_id = $1 AND origin = ANY($2)";
        let rows = self.rows(sql, &[&(job.0 as i64), &asked])?;
        let listed: HashSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        Ok(asked.iter().map(|origin| listed.contains(&**origin)).collect())
    }
}
