//! Which processes hold domains, and which of them are still alive.
//!
//! Each holder keeps a file next to the database locked while it lives, and the operating system frees the lock when it
//! dies. Only the very file that a holder locked proves its death. If that file is missing or was replaced, nothing is
//! known, and its owner creates a new one with its next heartbeat.
//!
//! A process that is stopped (SIGSTOP) keeps its lock, so leases are watched as well: a holder whose lease was not
//! renewed for [`LEASE`] on *our* clock may not send any more by its own clock, however much the two differ.

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::files::{self, FileId};
use super::writer::Tx;
use super::{at, us};
use crate::LEASE;
use crate::domains::HolderId;

/// How a store finds out which holders are alive.
#[derive(Debug, Clone)]
pub(super) enum Liveness {
    /// One locked file per holder, in a folder next to the database.
    Files { folder: PathBuf, database: PathBuf },
    /// All holders are in this process.
    InProcess(Arc<Mutex<HashSet<i64>>>),
}

/// The proof that a holder is alive; dropping it counts as its death.
#[derive(Debug)]
pub(super) enum Proof {
    /// Locked files, the current one last. Earlier ones stay locked, because a deleted file may be put back.
    Files(Vec<File>, FileId),
    InProcess(Arc<Mutex<HashSet<i64>>>, i64),
}

/// What a holder's lock file shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Lives,
    Died,
    /// The file is missing, unreadable, or not the one that the holder locked.
    Unknown,
}

/// The lease ends last seen of other holders, and since when each has been unchanged.
#[derive(Debug, Default)]
pub(super) struct LeaseWatch(HashMap<i64, (i64, Timestamp)>);

impl LeaseWatch {
    pub(super) fn forget(&mut self, holder: i64) {
        self.0.remove(&holder);
    }
}

impl Liveness {
    pub(super) fn beside(database: &Path) -> Self {
        Self::Files { folder: files::beside(database, "-holders"), database: database.to_owned() }
    }

    /// Proves that `holder` is alive until the proof is dropped.
    pub(super) fn prove(&self, holder: i64) -> std::io::Result<Proof> {
        match self {
            Self::Files { folder, database } => {
                let (file, id) = lock_file(folder, database, holder)?;
                Ok(Proof::Files(vec![file], id))
            }
            Self::InProcess(liveness) => {
                liveness.lock().unwrap_or_else(PoisonError::into_inner).insert(holder);
                Ok(Proof::InProcess(liveness.clone(), holder))
            }
        }
    }

    /// Makes sure that others can see the proof, because its file may have been deleted.
    pub(super) fn renew(&self, holder: i64, proof: &mut Proof) {
        let (Self::Files { folder, database }, Proof::Files(locked, id)) = (self, proof) else { return };
        if FileId::of(&folder.join(holder.to_string())) == Some(*id) {
            return;
        }
        // If that fails, others rely on its lease alone.
        if let Ok((file, new)) = lock_file(folder, database, holder) {
            if locked.len() >= LOCKED_MAX {
                locked.remove(0);
            }
            locked.push(file);
            *id = new;
        }
    }

    /// What the lock file of a holder shows. `proof` identifies the file; older versions did not record it.
    fn sign_of(&self, holder: i64, proof: Option<&str>) -> Sign {
        match self {
            Self::Files { folder, .. } => {
                let Ok(file) = File::open(folder.join(holder.to_string())) else { return Sign::Unknown };
                let Ok(id) = file.metadata().map(|file| FileId::read(&file)) else { return Sign::Unknown };
                if proof.is_some_and(|proof| proof != id.to_string()) {
                    return Sign::Unknown;
                }
                match file.try_lock_shared() {
                    Ok(()) => Sign::Died,
                    Err(TryLockError::WouldBlock) => Sign::Lives,
                    Err(TryLockError::Error(_)) => Sign::Unknown,
                }
            }
            Self::InProcess(liveness) => {
                let lives = liveness.lock().unwrap_or_else(PoisonError::into_inner).contains(&holder);
                if lives { Sign::Lives } else { Sign::Died }
            }
        }
    }

    /// Whether a holder is known to be dead; a stopped process is not.
    pub(super) fn has_died(&self, holder: i64, proof: Option<&str>) -> bool {
        self.sign_of(holder, proof) == Sign::Died
    }

    /// Whether any live process has a lock file in the folder.
    pub(super) fn is_anyone_alive(&self) -> bool {
        let Self::Files { folder, .. } = self else { return false };
        if !files::is_own_folder(folder) {
            return false;
        }
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.file_name());
        let mut holders = names.filter_map(|name| name.to_str()?.parse().ok());
        holders.any(|holder| self.sign_of(holder, None) == Sign::Lives)
    }

    pub(super) fn forget(&self, holder: i64) {
        if let Self::Files { folder, .. } = self
            && files::is_own_folder(folder)
        {
            // Nobody can be this holder again, so its file is no longer needed.
            let _ = std::fs::remove_file(folder.join(holder.to_string()));
            // The last process removes the folder; this fails while it contains other files.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Creates a file in `folder` and locks it.
fn lock_file(folder: &Path, database: &Path, holder: i64) -> std::io::Result<(File, FileId)> {
    let path = folder.join(holder.to_string());
    let mut failed = None;
    // Another process may remove the empty folder in between, but not every time.
    for _ in 0..LOCK_TRIES {
        let made =
            files::create_folder_like(folder, database).and_then(|()| files::create_like(&path, database));
        let locked = made.and_then(|file| match file.try_lock() {
            Ok(()) => Ok((FileId::read(&file.metadata()?), file)),
            // Ids are never reused: whoever has locked this file does not belong to this store.
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                Err(error.into())
            }
        });
        match locked {
            Ok((id, file)) if FileId::of(&path) == Some(id) => return Ok((file, id)),
            Ok(_) => {}
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| std::io::Error::other("it keeps being deleted")))
}

impl Proof {
    /// Identifies the locked file, for others to check.
    pub(super) fn file_id(&self) -> Option<String> {
        match self {
            Self::Files(_, id) => Some(id.to_string()),
            Self::InProcess(..) => None,
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        match self {
            // The file stays. Others notice that it is no longer locked, and remove it.
            Self::Files(locked, _) => locked.iter().for_each(|file| drop(file.unlock())),
            Self::InProcess(liveness, holder) => {
                liveness.lock().unwrap_or_else(PoisonError::into_inner).remove(holder);
            }
        }
    }
}

/// Whether a holder is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HolderState {
    Lives,
    /// It may have sent requests until this time.
    Died(Timestamp),
}

impl Tx<'_> {
    /// Assigns an id. Its owner proves that it is alive before anybody can check.
    pub(super) fn register(&self, name: &str, now: Timestamp) -> rusqlite::Result<HolderId> {
        let sql = "INSERT INTO holders (name, since_us, until_us) VALUES (?1, ?2, ?3)";
        self.sql.prepare_cached(sql)?.execute(params![name, us(now), us(now + LEASE)])?;
        Ok(HolderId(self.sql.last_insert_rowid()))
    }

    /// Records which file proves that a holder is alive.
    pub(super) fn save_proof(&self, holder: HolderId, proof: Option<String>) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET proof = ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder.0, proof]).map(|_| ())
    }

    /// Renews a holder's lease. False if it has been declared dead.
    pub(super) fn renew(&self, holder: HolderId, now: Timestamp) -> rusqlite::Result<bool> {
        let sql = "UPDATE holders SET until_us = ?2 WHERE id = ?1 AND died_us IS NULL";
        Ok(self.sql.prepare_cached(sql)?.execute(params![holder.0, us(now + LEASE)])? == 1)
    }

    /// Unregisters a holder that stops. Domains that it did not release count as left by a dead holder.
    pub(super) fn unregister(
        &mut self,
        liveness: &Liveness,
        holder: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let sql = "SELECT until_us FROM holders WHERE id = ?1 AND died_us IS NULL";
        let until = self.sql.prepare_cached(sql)?.query_row([holder.0], |row| row.get(0)).optional()?;
        if let Some(until) = until {
            self.mark_dead(holder.0, self.latest(holder.0, until, now), now)?;
        }
        self.cache.ended.push((liveness.clone(), holder.0));
        Ok(())
    }

    /// Declares a holder dead because it lost what it held. Whoever takes its domains learns when.
    pub(super) fn drop_holder(&self, holder: HolderId) -> rusqlite::Result<()> {
        let sql = "SELECT until_us FROM holders WHERE id = ?1 AND died_us IS NULL";
        let until = self.sql.prepare_cached(sql)?.query_row([holder.0], |row| row.get(0)).optional()?;
        match until.map(at) {
            Some(until) => self.mark_dead(holder.0, until, until),
            None => Ok(()),
        }
    }

    /// Whether a holder may still write.
    pub(super) fn is_holder(&self, holder: HolderId) -> rusqlite::Result<bool> {
        self.sql.prepare_cached("SELECT 1 FROM holders WHERE id = ?1 AND died_us IS NULL")?.exists([holder.0])
    }

    /// Whether any holder other than `me` may be using the store's time. If its lock file shows nothing, it does until
    /// its lease ends.
    pub(super) fn has_live_peers(
        &self,
        liveness: &Liveness,
        me: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let sql = "SELECT id, until_us, proof FROM holders WHERE died_us IS NULL AND id <> ?1";
        let mut statement = self.sql.prepare_cached(sql)?;
        let mut rows = statement.query([me.0])?;
        while let Some(row) = rows.next()? {
            let (id, until, proof) = (row.get(0)?, at(row.get(1)?), row.get::<_, Option<String>>(2)?);
            match liveness.sign_of(id, proof.as_deref()) {
                Sign::Lives => return Ok(true),
                Sign::Unknown if now < until => return Ok(true),
                Sign::Unknown | Sign::Died => {}
            }
        }
        Ok(false)
    }

    /// Whether a holder seems to be alive, without recording anything. If its lock file shows nothing, it does until
    /// its lease ends.
    pub(super) fn seems_alive(&self, liveness: &Liveness, holder: i64) -> rusqlite::Result<bool> {
        let sql = "SELECT proof, until_us > CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM holders
            WHERE id = ?1 AND died_us IS NULL";
        let row = self
            .sql
            .prepare_cached(sql)?
            .query_row([holder], |row| Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?)));
        Ok(row.optional()?.is_some_and(|(proof, lasts)| match liveness.sign_of(holder, proof.as_deref()) {
            Sign::Lives => true,
            Sign::Died => false,
            Sign::Unknown => lasts,
        }))
    }

    /// Checks whether a holder is alive, and records its death if not.
    pub(super) fn check_holder(
        &mut self,
        liveness: &Liveness,
        holder: i64,
        now: Timestamp,
    ) -> rusqlite::Result<HolderState> {
        let row = self
            .sql
            .prepare_cached("SELECT until_us, died_us, proof FROM holders WHERE id = ?1")?
            .query_row([holder], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, Option<String>>(2)?))
            })
            .optional()?;
        let died_at = match row {
            // The row of a holder that unregistered is gone; what it did not release counts as lost now.
            None => return Ok(HolderState::Died(now)),
            Some((_, Some(died), _)) => return Ok(HolderState::Died(at(died))),
            Some((until, None, proof)) if liveness.sign_of(holder, proof.as_deref()) == Sign::Died => {
                self.latest(holder, until, now)
            }
            Some((until, None, _)) => {
                let seen = self.cache.watch.0.entry(holder).or_insert((until, now));
                if seen.0 != until {
                    *seen = (until, now);
                }
                if now.since(seen.1) < LEASE {
                    return Ok(HolderState::Lives);
                }
                now
            }
        };
        self.mark_dead(holder, died_at, now)?;
        self.cache.ended.push((liveness.clone(), holder));
        Ok(HolderState::Died(died_at))
    }

    /// The latest time at which a dead holder may have sent a request. Its clock may be behind ours, but it was alive
    /// when we last saw a heartbeat.
    fn latest(&self, holder: i64, until: i64, now: Timestamp) -> Timestamp {
        let seen_at = self.cache.watch.0.get(&holder).map_or(Timestamp::NEVER, |seen| seen.1);
        now.min(at(until).max(seen_at))
    }

    /// Checks every holder other than `me`.
    pub(super) fn check_others(
        &mut self,
        liveness: &Liveness,
        me: HolderId,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let others: Vec<i64> = self
            .sql
            .prepare_cached("SELECT id FROM holders WHERE died_us IS NULL AND id <> ?1")?
            .query_map([me.0], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        others.into_iter().try_for_each(|other| self.check_holder(liveness, other, now).map(|_| ()))?;
        // A dead holder's row stays while a domain still refers to it.
        let sql = "DELETE FROM holders WHERE died_us IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM domains WHERE domains.holder = holders.id)";
        self.sql.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Records a death, and frees the lanes of the dead holder.
    fn mark_dead(&self, holder: i64, died_at: Timestamp, now: Timestamp) -> rusqlite::Result<()> {
        let sql = "UPDATE holders SET died_us = ?2 WHERE id = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder, us(died_at)])?;
        let sql = "UPDATE lanes SET holder = NULL, due_us = ?2 WHERE holder = ?1";
        self.sql.prepare_cached(sql)?.execute(params![holder, us(now)])?;
        let sql = "UPDATE domains SET wanted_by = NULL WHERE wanted_by = ?1";
        self.sql.prepare_cached(sql)?.execute([holder])?;
        Ok(())
    }
}

/// The name a holder registered with.
pub(super) fn name(sql: &Connection, holder: i64) -> rusqlite::Result<String> {
    let row = sql
        .prepare_cached("SELECT name FROM holders WHERE id = ?1")?
        .query_row([holder], |row| Ok(row.get(0).ok()))
        .optional()?
        .flatten();
    Ok(row.unwrap_or_else(|| "another process".to_owned()))
}

/// The maximum number of its own lock files that a holder keeps open.
const LOCKED_MAX: usize = 4;
const LOCK_TRIES: usize = 5;
