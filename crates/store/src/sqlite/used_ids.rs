//! Ids of tasks, lanes and domains, none of which is ever used twice: processes remember them longer than the rows
//! exist, and what is left of one row must never be attributed to another.
//!
//! On its own, SQLite gives out the highest id plus one, and so gives out the highest id again once its row is deleted.

use super::writer::Tx;

/// A table whose ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    Tasks,
    Lanes,
    Domains,
}

impl Tx<'_> {
    /// The lowest id above all that rows of this table have or had. The ids above it are unused, too.
    pub(super) fn unused_id(&self, ids: Ids) -> rusqlite::Result<i64> {
        let sql = match ids {
            Ids::Tasks => "SELECT 1 + max(used_task, coalesce((SELECT max(id) FROM tasks), 0)) FROM identity",
            Ids::Lanes => "SELECT 1 + max(used_lane, coalesce((SELECT max(id) FROM lanes), 0)) FROM identity",
            Ids::Domains => {
                "SELECT 1 + max(used_domain, coalesce((SELECT max(id) FROM domains), 0)) FROM identity"
            }
        };
        self.sql.prepare_cached(sql)?.query_row([], |row| row.get(0))
    }

    /// Records the highest ids in use. Call it before rows are deleted that may have them.
    pub(super) fn note_used_ids(&self) -> rusqlite::Result<()> {
        let sql = "UPDATE identity SET
            used_task = max(used_task, coalesce((SELECT max(id) FROM tasks), 0)),
            used_lane = max(used_lane, coalesce((SELECT max(id) FROM lanes), 0)),
            used_domain = max(used_domain, coalesce((SELECT max(id) FROM domains), 0))";
        self.sql.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}
