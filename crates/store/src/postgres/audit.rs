//! Stores who changed what.

use comity_core::time::Timestamp;

use super::param::text;
use super::{Postgres, at, us};
use crate::Reply;
use crate::audit::{AuditEntry, AuditStore, NewAuditEntry};

impl AuditStore for Postgres {
    fn add_audit(&self, entry: NewAuditEntry, now: Timestamp) -> Reply<'_, ()> {
        self.write(move |tx| {
            let NewAuditEntry { who, role, action, target, impact, result } = &entry;
            let sql = "INSERT INTO audit_entry (at_us, who, role, action, target, impact, result)
                VALUES ($1, $2, $3, $4, $5, $6, $7)";
            let texts = [who, role, action, target, impact, result].map(|value| text(value));
            let [who, role, action, target, impact, result] = &texts;
            tx.change(sql, &[&us(now), who, role, action, target, impact, result]).map(|_| ())
        })
    }

    fn page_audit(&self, before: Option<i64>, limit: u32) -> Reply<'_, Vec<AuditEntry>> {
        self.read(move |tx| {
            let sql = "SELECT id, at_us, who, role, action, target, impact, result FROM audit_entry
                WHERE id < $1 ORDER BY id DESC LIMIT $2";
            let rows = tx.rows(sql, &[&before.unwrap_or(i64::MAX), &i64::from(limit)])?;
            let entries = rows.iter().map(|row| AuditEntry {
                id: row.get(0),
                at: at(row.get(1)),
                entry: NewAuditEntry {
                    who: row.get(2),
                    role: row.get(3),
                    action: row.get(4),
                    target: row.get(5),
                    impact: row.get(6),
                    result: row.get(7),
                },
            });
            Ok(entries.collect())
        })
    }
}
