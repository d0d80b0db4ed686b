//! Stores who changed what.

use comity_core::time::Timestamp;
use rusqlite::params;

use super::{Sqlite, at, us};
use crate::Reply;
use crate::audit::{AuditEntry, AuditStore, NewAuditEntry};

impl AuditStore for Sqlite {
    fn add_audit(&self, entry: NewAuditEntry, now: Timestamp) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let NewAuditEntry { who, role, action, target, impact, result } = &entry;
            let sql = "INSERT INTO audit (at_us, who, role, action, target, impact, result)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let row = params![us(now), who, role, action, target, impact, result];
            tx.sql.prepare_cached(sql)?.execute(row).map(|_| ())
        })
    }

    fn page_audit(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<AuditEntry>> {
        self.read(move |tx| {
            let sql = "SELECT id, at_us, who, role, action, target, impact, result FROM audit
                WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
            tx.readable("audit", sql, params![before.unwrap_or(i64::MAX), limit], |row| {
                let entry = NewAuditEntry {
                    who: row.get(2)?,
                    role: row.get(3)?,
                    action: row.get(4)?,
                    target: row.get(5)?,
                    impact: row.get(6)?,
                    result: row.get(7)?,
                };
                Ok(AuditEntry { id: row.get(0)?, at: at(row.get(1)?), entry })
            })
        })
    }
}
