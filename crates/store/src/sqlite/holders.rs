//! Which processes hold domains, and which of them are still alive.
//!
//! Each holder locks a file beside the database for as long as it lives; the operating system frees the lock of
//! one that died. One that lives but is stopped keeps its lock, so it is also watched: a holder whose time did not
//! move for [`LEASE`] on *our* clock may send nothing any more by its own, whatever the two clocks read.

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::writer::Tx;
use super::{at, us};
use crate::LEASE;
use crate::domains::HolderId;

/// How a store tells who lives.
#[derive(Debug, Clone)]
pub(super) enum Living {
    /// One locked file a holder, in this folder.
    Files(PathBuf),
    /// All holders are in this process.
    Here(Arc<Mutex<HashSet<i64>>>),
}

/// The proof that a holder lives; dropping it is its death.
#[derive(Debug)]
pub(super) enum Proof {
    File(File, PathBuf),
    Here(Arc<Mutex<HashSet<i64>>>, i64),
}

/// What was last seen of other holders: the end of their time, and since when it reads so.
#[derive(Debug, Default)]
pub(super) struct Watch(HashMap<i64, (i64, Timestamp)>);

impl Living {
    pub(super) fn beside(database: &Path) -> Self {
        let mut folder = database.as_os_str().to_owned();
        folder.push("-holders");
        Self::Files(folder.into())
    }

    /// Proves that `holder` lives, until the proof is dropped.
    pub(super) fn prove(&self, holder: i64) -> std::io::Result<Proof> {
        match self {
            Self::Files(folder) => {
                let path = folder.join(holder.to_string());
                let make = || {
                    std::fs::create_dir_all(folder)?;
                    File::options().create(true).truncate(false).write(true).open(&path)
                };
                // Another process may remove the empty folder in between, but not each time.
                let file = make().or_else(|_| make()).or_else(|_| make())?;
                file.try_lock().map_err(std::io::Error::from)?;
                Ok(Proof::File(file, path))
            }
            Self::Here(living) => {
                living.lock().unwrap_or_else(PoisonError::into_inner).insert(holder);
                Ok(Proof::Here(living.clone(), holder))
            }
        }
    }

    fn lives(&self, holder: i64) -> bool {
        match self {
            Self::Files(folder) => match File::open(folder.join(holder.to_string())) {
                Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
                Err(error) => error.kind() != std::io::ErrorKind::NotFound,
            },
            Self::Here(living) => living.lock().unwrap_or_else(PoisonError::into_inner).contains(&holder),
        }
    }

    fn forget(&self, holder: i64) {
        if let Self::Files(folder) = self {
            // Nobody can prove to be this holder again, so the file has served.
            let _ = std::fs::remove_file(folder.join(holder.to_string()));
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        match self {
            Self::File(file, path) => {
                let _ = std::fs::remove_file(&*path);
                let _ = file.unlock();
                // The last one out removes the folder; it stays while others have files in it.
                let _ = path.parent().map(std::fs::remove_dir);
            }
            Self::Here(living, holder) => {
                living.lock().unwrap_or_else(PoisonError::into_inner).remove(holder);
            }
        }
    }
}

/// What can be said of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Lives,
    /// It may have sent until then.
    Died(Timestamp),
}

impl Tx<'_> {
    /// Gives out a number; its owner proves that it lives before anybody can ask.
    pub(super) fn register(&self, name: &str, now: Timestamp) -> rusqlite::Result<HolderId> {
        let sql = "INSERT INTO holders (name, since_us, until_us) VALUES (?1, ?2, ?3)";
        self.sql.prepare_cached(sql)?.execute(params![name, us(now), us(now + LEASE)])?;
        Ok(HolderId(self.sql.last_insert_rowid()))
    }

    /// Renews a holder's time. False when it was given up.
    pub(super) fn renew(&self, holder: HolderId, now: Timestamp) -> rusqlite::Result<bool> {
        let sql = "UPDATE holders SET until_us = ?2 WHERE id = ?1 AND died_us IS NULL";
        Ok(self.sql.prepare_cached(sql)?.execute(params![holder.0, us(now + LEASE)])? == 1)
    }

    /// Whether a holder may still write.
    pub(super) fn is_holder(&self, holder: HolderId) -> rusqlite::Result<bool> {
        self.sql.prepare_cached("SELECT 1 FROM holders WHERE id = ?1 AND died_us IS NULL")?.exists([holder.0])
    }

    /// Looks whether a holder lives; notes its death when it does not.
    pub(super) fn look_at(
        &mut self,
        living: &Living,
        holder: i64,
        now: Timestamp,
    ) -> rusqlite::Result<Standing> {
        let row = self
            .sql
            .prepare_cached("SELECT until_us, died_us FROM holders WHERE id = ?1")?
            .query_row([holder], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?)))
            .optional()?;
        let died_at = match row {
            // A holder whose row is gone was deregistered; what it still held it left without a word.
            None => return Ok(Standing::Died(now)),
            Some((_, Some(died))) => return Ok(Standing::Died(at(died))),
            Some((until, None)) if !living.lives(holder) => {
                // Its clock may be behind ours; it was alive when we last saw it beat.
                let seen_at = self.memory.watch.0.get(&holder).map_or(Timestamp::NEVER, |seen| seen.1);
                now.min(at(until).max(seen_at))
            }
            Some((until, None)) => {
                let seen = self.memory.watch.0.entry(holder).or_insert((until, now));
                if seen.0 != until {
                    *seen = (until, now);
                }
                if now.since(seen.1) < LEASE {
                    return Ok(Standing::Lives);
                }
                now
            }
        };
        self.bury(holder, died_at, now)?;
        living.forget(holder);
        self.memory.watch.0.remove(&holder);
        Ok(Standing::Died(died_at))
    }

    /// Looks at every holder but `me`.
    pub(super) fn look_round(
        &mut self,
        living: &Living,
        me: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let others: Vec<i64> = self
            .sql
            .prepare_cached("SELECT id FROM holders WHERE died_us IS NULL AND id <> ?1")?
            .query_map([me.0], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        others.into_iter().try_for_each(|other| self.look_at(living, other, now).map(|_| ()))?;
        // The dead are remembered for as long as a domain is left as they left it.
        let sql = "DELETE FROM holders WHERE died_us IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM domains WHERE domains.holder = holders.id)";
        self.sql.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Notes a death, and lets the lanes of the dead be claimed again (B74).
    fn bury(&self, holder: i64, died_at: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET died_us = ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder, us(died_at)])?;
        let sql = "UPDATE lanes SET holder = NULL, due_us = ?2 WHERE holder = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder, us(now)])?;
        let sql = "UPDATE domains SET wanted_by = NULL WHERE wanted_by = ?1";
        self.sql.prepare_cached(sql)?.execute([holder])?;
        Ok(())
    }
}

/// The name a holder gave itself.
pub(super) fn name(sql: &Connection, holder: i64) -> rusqlite::Result<String> {
    let row = sql
        .prepare_cached("SELECT name FROM holders WHERE id = ?1")?
        .query_row([holder], |row| Ok(row.get(0).ok()))
        .optional()?
        .flatten();
    Ok(row.unwrap_or_else(|| "another process".to_owned()))
}
