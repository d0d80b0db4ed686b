//! Stores hooks that have not run yet.

use super::Postgres;
use super::failure::Result;
use super::items::{ITEM, item_of};
use super::tx::Tx;
use crate::Reply;
use crate::domains::HolderId;
use crate::hooks::{HookStore, HookTiming};
use crate::items::{Item, ItemId};

impl HookStore for Postgres {
    fn claim_hooks(&self, holder: HolderId, timing: HookTiming, limit: u32) -> Reply<'_, Vec<Item>> {
        self.write(move |tx| tx.claim_hooks(holder, timing, limit))
    }

    fn end_hooks(&self, holder: HolderId, items: Vec<ItemId>) -> Reply<'_, ()> {
        self.write(move |tx| {
            let ids: Vec<i64> = items.iter().map(|item| item.0).collect();
            let sql = "DELETE FROM hook WHERE item_id = ANY($1) AND holder = $2";
            tx.change(sql, &[&ids, &holder.0]).map(|_| ())
        })
    }

    fn count_hooks(&self) -> Reply<'_, u64> {
        self.read(|tx| {
            let count: i64 = tx.one("SELECT count(*) FROM hook", &[])?.get(0);
            Ok(count.max(0) as u64)
        })
    }
}

impl Tx<'_> {
    fn claim_hooks(&mut self, holder: HolderId, timing: HookTiming, limit: u32) -> Result<Vec<Item>> {
        // What a dead process claims is anybody's.
        if !self.is_holder(holder)? {
            return Ok(Vec::new());
        }
        // Whoever claims hooks at the same time takes others.
        let sql = format!(
            "WITH free AS MATERIALIZED (
                SELECT hook.item_id FROM hook JOIN item ON item.id = hook.item_id
                LEFT JOIN source ON source.id = item.source_id
                WHERE NOT EXISTS (SELECT 1 FROM holder WHERE holder.id = hook.holder AND died_us IS NULL)
                AND (item.state IN ('done', 'partial', 'failed') OR item.state = 'none'
                    AND ($1 OR NOT coalesce(enabled AND scraping AND auto_scrape, false)))
                ORDER BY hook.item_id LIMIT $2 FOR UPDATE OF hook SKIP LOCKED
            ), claimed AS (
                UPDATE hook SET holder = $3 FROM free WHERE hook.item_id = free.item_id RETURNING hook.item_id
            )
            SELECT {ITEM} FROM item WHERE id IN (SELECT item_id FROM claimed) ORDER BY id"
        );
        let once_seen = timing == HookTiming::OnceSeen;
        let rows = self.change_rows(&sql, &[&once_seen, &i64::from(limit), &holder.0])?;
        Ok(rows.iter().map(item_of).collect())
    }
}
