//! Stores hooks that have not run yet.

use rusqlite::params;

use super::Sqlite;
use super::writer::Tx;
use crate::Reply;
use crate::domains::HolderId;
use crate::hooks::{HookStore, HookTiming};
use crate::items::{Item, ItemId};

impl HookStore for Sqlite {
    fn claim_hooks(&self, holder: HolderId, timing: HookTiming, limit: u32) -> Reply<'_, Vec<Item>> {
        self.writer.run(move |tx| tx.claim_hooks(holder, timing, limit))
    }

    fn end_hooks(&self, holder: HolderId, items: Vec<ItemId>) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let mut delete = tx.sql.prepare_cached("DELETE FROM hooks WHERE item_id = ?1 AND holder = ?2")?;
            items.iter().try_for_each(|item| delete.execute([item.0, holder.0]).map(|_| ()))
        })
    }

    fn count_hooks(&self) -> Reply<'_, u64> {
        self.read(|tx| {
            let count: i64 =
                tx.sql.prepare_cached("SELECT count(*) FROM hooks")?.query_row([], |row| row.get(0))?;
            Ok(count.max(0) as u64)
        })
    }
}

impl Tx<'_> {
    fn claim_hooks(&self, holder: HolderId, timing: HookTiming, limit: u32) -> rusqlite::Result<Vec<Item>> {
        let sql = "SELECT hooks.item_id FROM hooks JOIN items ON items.id = hooks.item_id
            LEFT JOIN sources ON sources.id = items.source_id
            WHERE (hooks.holder IS NULL OR hooks.holder NOT IN (SELECT id FROM holders WHERE died_us IS NULL))
            AND (items.state IN ('done', 'partial', 'failed') OR items.state = 'none'
                AND (?1 OR NOT coalesce(enabled AND scraping AND auto_scrape, 0)))
            ORDER BY hooks.item_id LIMIT ?2";
        let mut statement = self.sql.prepare_cached(sql)?;
        let ids: Vec<i64> = statement
            .query_map(params![timing == HookTiming::OnceSeen, limit], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let mut items = Vec::with_capacity(ids.len());
        for id in ids {
            let sql = "UPDATE hooks SET holder = ?2 WHERE item_id = ?1";
            self.sql.prepare_cached(sql)?.execute([id, holder.0])?;
            items.extend(self.item(ItemId(id))?);
        }
        Ok(items)
    }
}
