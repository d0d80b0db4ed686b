//! Stores counters and secrets that all processes on a store share.

use rusqlite::params;

use super::Sqlite;
use crate::Reply;
use crate::counts::CountStore;
use crate::secrets::SecretStore;

impl CountStore for Sqlite {
    fn add_counts(&self, added: Vec<(String, u64)>) -> Reply<'_, ()> {
        self.writer.run(move |tx| {
            let sql = "INSERT INTO counts (name, value) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET value = value + excluded.value";
            let mut add = tx.sql.prepare_cached(sql)?;
            for (name, count) in &added {
                add.execute(params![name, i64::try_from(*count).unwrap_or(i64::MAX)])?;
            }
            Ok(())
        })
    }

    fn counts(&self) -> Reply<'_, Vec<(String, u64)>> {
        self.read(|tx| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.max(0) as u64));
            tx.sql.prepare_cached("SELECT name, value FROM counts")?.query_map([], row)?.collect()
        })
    }
}

impl SecretStore for Sqlite {
    fn secret(&self, name: String, fresh: Vec<u8>) -> Reply<'_, Vec<u8>> {
        self.writer.run(move |tx| {
            let sql = "INSERT OR IGNORE INTO secrets (name, value) VALUES (?1, ?2)";
            tx.sql.prepare_cached(sql)?.execute(params![name, fresh])?;
            let sql = "SELECT value FROM secrets WHERE name = ?1";
            tx.sql.prepare_cached(sql)?.query_row([&name], |row| row.get(0))
        })
    }
}
