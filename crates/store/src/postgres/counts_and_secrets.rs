//! Stores counters and secrets that all processes on a store share.

use super::failure::{Failure, Result};
use super::param::text;
use super::{Postgres, Tx};
use crate::Reply;
use crate::counts::CountStore;
use crate::secrets::SecretStore;

impl CountStore for Postgres {
    fn add_counts(&self, added: Vec<(String, u64)>) -> Reply<'_, ()> {
        self.write(move |tx| {
            let names: Vec<_> = added.iter().map(|(name, _)| text(name)).collect();
            let counts: Vec<i64> =
                added.iter().map(|(_, count)| i64::try_from(*count).unwrap_or(i64::MAX)).collect();
            // In the order of names, so that two callers never wait for each other.
            let sql = "INSERT INTO count (name, value)
                SELECT name, sum(added)::int8 FROM unnest($1, $2) AS new (name, added) GROUP BY name ORDER BY name
                ON CONFLICT (name) DO UPDATE SET value = count.value + excluded.value";
            tx.change(sql, &[&names, &counts]).map(|_| ())
        })
    }

    fn counts(&self) -> Reply<'_, Vec<(String, u64)>> {
        self.read(|tx| {
            let rows = tx.rows("SELECT name, value FROM count", &[])?;
            Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).max(0) as u64)).collect())
        })
    }
}

impl SecretStore for Postgres {
    fn secret(&self, name: String, fresh: Vec<u8>) -> Reply<'_, Vec<u8>> {
        self.write(move |tx| tx.secret(&name, &fresh))
    }
}

impl Tx<'_> {
    fn secret(&mut self, name: &str, fresh: &[u8]) -> Result<Vec<u8>> {
        let name = text(name);
        if let Some(row) = self.row("SELECT value FROM secret WHERE name = $1", &[&name])? {
            return Ok(row.get(0));
        }
        // If another process creates it at the same time, this waits until that has committed.
        let sql = "INSERT INTO secret (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING value";
        let created = self.change_rows(sql, &[&name, &fresh])?;
        let row = match created.into_iter().next() {
            Some(row) => Some(row),
            None => self.row("SELECT value FROM secret WHERE name = $1", &[&name])?,
        };
        row.map(|row| row.get(0)).ok_or_else(|| Failure::Rejected("a new secret is gone".to_owned()))
    }
}
