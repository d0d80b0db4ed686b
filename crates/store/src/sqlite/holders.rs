//! Which processes hold domains, and which of them are still alive.
//!
//! Each holder locks a file beside the database for as long as it lives; the operating system frees the lock of
//! one that died. Only the very file that a holder locked proves its death: when that is missing, or another one is in
//! its place, nothing is known, and its owner makes a new one with its next beat. One that lives but is stopped keeps its
//! lock, so every holder is also watched: one whose time did not move for [`LEASE`] on *our* clock may send nothing any
//! more by its own, whatever the two clocks read.

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::files::{self, Mark};
use super::writer::Tx;
use super::{at, us};
use crate::LEASE;
use crate::domains::HolderId;

/// How a store tells who lives.
#[derive(Debug, Clone)]
pub(super) enum Living {
    /// One locked file for each holder, in a folder beside the database.
    Files { folder: PathBuf, database: PathBuf },
    /// All holders are in this process.
    Here(Arc<Mutex<HashSet<i64>>>),
}

/// The proof that a holder lives; dropping it is its death.
#[derive(Debug)]
pub(super) enum Proof {
    /// Locked files, the one in force last: one that was deleted may be put back.
    Files(Vec<File>, Mark),
    Here(Arc<Mutex<HashSet<i64>>>, i64),
}

/// What a holder's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Lives,
    Died,
    /// It is missing, cannot be read, or is not the one that the holder locked.
    Unknown,
}

/// What was last seen of other holders: the end of their time, and since when it reads so.
#[derive(Debug, Default)]
pub(super) struct Watch(HashMap<i64, (i64, Timestamp)>);

impl Living {
    pub(super) fn beside(database: &Path) -> Self {
        Self::Files { folder: files::beside(database, "-holders"), database: database.to_owned() }
    }

    /// Proves that `holder` lives, until the proof is dropped.
    pub(super) fn prove(&self, holder: i64) -> std::io::Result<Proof> {
        match self {
            Self::Files { folder, database } => {
                let (file, mark) = lock_file(folder, database, holder)?;
                Ok(Proof::Files(vec![file], mark))
            }
            Self::Here(living) => {
                living.lock().unwrap_or_else(PoisonError::into_inner).insert(holder);
                Ok(Proof::Here(living.clone(), holder))
            }
        }
    }

    /// Makes sure that others can see the proof: somebody may have deleted its file.
    pub(super) fn renew(&self, holder: i64, proof: &mut Proof) {
        let (Self::Files { folder, database }, Proof::Files(locked, mark)) = (self, proof) else { return };
        if Mark::of(&folder.join(holder.to_string())) == Some(*mark) {
            return;
        }
        // Where that does not work, others go by its time alone.
        if let Ok((file, new)) = lock_file(folder, database, holder) {
            if locked.len() >= LOCKED_MAX {
                locked.remove(0);
            }
            locked.push(file);
            *mark = new;
        }
    }

    /// What is to be seen of a holder whose file is `proof`; holders of older versions did not say which it is.
    fn sign_of(&self, holder: i64, proof: Option<&str>) -> Sign {
        match self {
            Self::Files { folder, .. } => {
                let Ok(file) = File::open(folder.join(holder.to_string())) else { return Sign::Unknown };
                let Ok(mark) = file.metadata().map(|file| Mark::read(&file)) else { return Sign::Unknown };
                if proof.is_some_and(|proof| proof != mark.to_string()) {
                    return Sign::Unknown;
                }
                match file.try_lock_shared() {
                    Ok(()) => Sign::Died,
                    Err(TryLockError::WouldBlock) => Sign::Lives,
                    Err(TryLockError::Error(_)) => Sign::Unknown,
                }
            }
            Self::Here(living) => {
                let lives = living.lock().unwrap_or_else(PoisonError::into_inner).contains(&holder);
                if lives { Sign::Lives } else { Sign::Died }
            }
        }
    }

    /// Whether a holder is seen to have died; one that is stopped is not.
    pub(super) fn has_died(&self, holder: i64, proof: Option<&str>) -> bool {
        self.sign_of(holder, proof) == Sign::Died
    }

    /// Whether any process that lives has a file in the folder.
    pub(super) fn is_anybody(&self) -> bool {
        let Self::Files { folder, .. } = self else { return false };
        if !files::is_own_folder(folder) {
            return false;
        }
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.file_name());
        let mut holders = names.filter_map(|name| name.to_str()?.parse().ok());
        holders.any(|holder| self.sign_of(holder, None) == Sign::Lives)
    }

    fn forget(&self, holder: i64) {
        if let Self::Files { folder, .. } = self
            && files::is_own_folder(folder)
        {
            // Nobody can prove to be this holder again, so the file has served.
            let _ = std::fs::remove_file(folder.join(holder.to_string()));
            // The last one out removes the folder; it stays while others have files in it.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// A file in `folder` that only this process has locked.
fn lock_file(folder: &Path, database: &Path, holder: i64) -> std::io::Result<(File, Mark)> {
    let path = folder.join(holder.to_string());
    let mut failed = None;
    // Another process may remove the empty folder in between, but not each time.
    for _ in 0..LOCK_TRIES {
        let made =
            files::create_folder_like(folder, database).and_then(|()| files::create_like(&path, database));
        let locked = made.and_then(|file| match file.try_lock() {
            Ok(()) => Ok((Mark::read(&file.metadata()?), file)),
            // Numbers are given out once: whoever has locked this one is not of this store.
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                Err(error.into())
            }
        });
        match locked {
            Ok((mark, file)) if Mark::of(&path) == Some(mark) => return Ok((file, mark)),
            Ok(_) => {}
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| std::io::Error::other("it is deleted again and again")))
}

impl Proof {
    /// Which file it is, for others to look at.
    pub(super) fn mark(&self) -> Option<String> {
        match self {
            Self::Files(_, mark) => Some(mark.to_string()),
            Self::Here(..) => None,
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        match self {
            // The file stays, and that nobody has it locked is how others know. Whoever notices removes it.
            Self::Files(locked, _) => locked.iter().for_each(|file| drop(file.unlock())),
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

    /// Notes by which file a holder proves that it lives.
    pub(super) fn proved(&self, holder: HolderId, proof: Option<String>) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET proof = ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder.0, proof]).map(|_| ())
    }

    /// Renews a holder's time. False when it was given up.
    pub(super) fn renew(&self, holder: HolderId, now: Timestamp) -> rusqlite::Result<bool> {
        let sql = "UPDATE holders SET until_us = ?2 WHERE id = ?1 AND died_us IS NULL";
        Ok(self.sql.prepare_cached(sql)?.execute(params![holder.0, us(now + LEASE)])? == 1)
    }

    /// A holder stops. What it did not give back it left as by a death.
    pub(super) fn leave(
        &mut self,
        living: &Living,
        holder: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let sql = "SELECT until_us FROM holders WHERE id = ?1 AND died_us IS NULL";
        let until = self.sql.prepare_cached(sql)?.query_row([holder.0], |row| row.get(0)).optional()?;
        if let Some(until) = until {
            self.bury(holder.0, self.latest(holder.0, until, now), now)?;
        }
        living.forget(holder.0);
        Ok(())
    }

    /// A holder lost what it held, and becomes another one; whoever takes its domains is told when.
    pub(super) fn give_up_holder(&self, holder: HolderId) -> rusqlite::Result<()> {
        let sql = "SELECT until_us FROM holders WHERE id = ?1 AND died_us IS NULL";
        let until = self.sql.prepare_cached(sql)?.query_row([holder.0], |row| row.get(0)).optional()?;
        match until.map(at) {
            Some(until) => self.bury(holder.0, until, until),
            None => Ok(()),
        }
    }

    /// Whether a holder may still write.
    pub(super) fn is_holder(&self, holder: HolderId) -> rusqlite::Result<bool> {
        self.sql.prepare_cached("SELECT 1 FROM holders WHERE id = ?1 AND died_us IS NULL")?.exists([holder.0])
    }

    /// Whether anybody but `me` may go by the time of this store. One of whom nothing is to be seen does while its time
    /// lasts.
    pub(super) fn has_company(
        &self,
        living: &Living,
        me: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let sql = "SELECT id, until_us, proof FROM holders WHERE died_us IS NULL AND id <> ?1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query([me.0])?;
        while let Some(row) = rows.next()? {
            let (id, until, proof) = (row.get(0)?, at(row.get(1)?), row.get::<_, Option<String>>(2)?);
            match living.sign_of(id, proof.as_deref()) {
                Sign::Lives => return Ok(true),
                Sign::Unknown if now < until => return Ok(true),
                Sign::Unknown | Sign::Died => {}
            }
        }
        Ok(false)
    }

    /// Whether a holder lives, as far as can be seen; nothing is noted. One of whom nothing is to be seen does while its
    /// time lasts.
    pub(super) fn seems_alive(&self, living: &Living, holder: i64) -> rusqlite::Result<bool> {
        let sql = "SELECT proof, until_us > CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM holders
            WHERE id = ?1 AND died_us IS NULL";
        let row = self
            .sql
            .prepare_cached(sql)?
            .query_row([holder], |row| Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?)));
        Ok(row.optional()?.is_some_and(|(proof, lasts)| match living.sign_of(holder, proof.as_deref()) {
            Sign::Lives => true,
            Sign::Died => false,
            Sign::Unknown => lasts,
        }))
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
            .prepare_cached("SELECT until_us, died_us, proof FROM holders WHERE id = ?1")?
            .query_row([holder], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, Option<String>>(2)?))
            })
            .optional()?;
        let died_at = match row {
            // A holder whose row is gone was deregistered; what it still held it left without a word.
            None => return Ok(Standing::Died(now)),
            Some((_, Some(died), _)) => return Ok(Standing::Died(at(died))),
            Some((until, None, proof)) if living.sign_of(holder, proof.as_deref()) == Sign::Died => {
                self.latest(holder, until, now)
            }
            Some((until, None, _)) => {
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

    /// When a holder that is dead now may have sent last. Its clock may be behind ours; it was alive when we last saw it
    /// beat.
    fn latest(&self, holder: i64, until: i64, now: Timestamp) -> Timestamp {
        let seen_at = self.memory.watch.0.get(&holder).map_or(Timestamp::NEVER, |seen| seen.1);
        now.min(at(until).max(seen_at))
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

/// Lock files of its own that a holder keeps open.
const LOCKED_MAX: usize = 4;
const LOCK_TRIES: usize = 5;
