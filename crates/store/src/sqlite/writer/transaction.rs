//! One try to do what was asked for in one transaction: whose error it is, and what became of a commit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use comity_core::decision::Away;

use super::{After, Memory, Piece, Run, Tx, Work};
use crate::StoreError;
use crate::sqlite::aside::is_of_one;

/// Why a transaction was not committed.
pub(super) enum Failed {
    /// Nothing of it was done, or it will never be known.
    Undone(StoreError),
    /// The answer to its commit was lost, and the database cannot be asked at the moment.
    Unknown(StoreError),
}

impl Run {
    /// One try. What one caller does wrong is told to that caller, and the others continue without it.
    pub(super) fn attempt(&mut self, batch: &mut [Piece]) -> (Vec<After>, Result<(), Failed>) {
        let mut afters = Vec::with_capacity(batch.len());
        let many = batch.len() > 1;
        let changes = self.connection.total_changes();
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        let mut failed = begun.and_then(|()| self.memory.look_up(&self.connection)).err();
        for piece in batch.iter_mut().filter(|piece| piece.refused.is_some()) {
            if failed.is_some() {
                break;
            }
            let work = &mut piece.work;
            match if many { self.apart(work) } else { self.work(work).map(Ok) } {
                Ok(Ok(after)) => afters.push(after),
                Ok(Err(error)) => {
                    let refused = piece.refused.take();
                    refused.into_iter().for_each(|refused| refused(self.in_use.place.error(&error)));
                }
                Err(error) => failed = Some(error),
            }
        }
        let result = match failed {
            None => self.finish(changes),
            Some(error) => Err(Failed::Undone(self.undo(&error))),
        };
        (afters, result)
    }

    /// Commits. When that fails, the database itself tells whether it was done all the same.
    fn finish(&mut self, changes_before: u64) -> Result<(), Failed> {
        let is_changed = self.connection.total_changes() != changes_before;
        let stamped = if is_changed { self.leave_stamp() } else { Ok(()) };
        if let Some(hook) = self.before_commit.as_ref().filter(|_| is_changed && stamped.is_ok()) {
            hook();
        }
        let Err(error) = stamped.and_then(|()| (self.commit)(&self.connection)) else {
            self.committed(is_changed);
            return Ok(());
        };
        if !self.connection.is_autocommit() || !is_changed {
            return Err(Failed::Undone(self.undo(&error)));
        }
        let away = self.in_use.place.error(&error).away().unwrap_or(Away::Unreadable);
        self.look_up_commit(away, &error.to_string())
    }

    /// Whether the last commit, whose answer was lost, was done.
    pub(super) fn look_up_commit(&mut self, away: Away, why: &str) -> Result<(), Failed> {
        let found = self.find_stamp();
        let (place, what) = (self.in_use.place.to_string(), why.to_owned());
        let uncertain = StoreError::Uncertain { place, what };
        match found {
            Ok(Some(true)) => {
                self.committed(true);
                Ok(())
            }
            Ok(Some(false)) => {
                self.forget();
                let what = format!("the last changes could not be saved: {why}");
                Err(Failed::Undone(self.in_use.place.away(away, what)))
            }
            // Others wrote since: it will never be known.
            Ok(None) => {
                self.forget();
                Err(Failed::Undone(uncertain))
            }
            Err(_) => {
                self.forget();
                Err(Failed::Unknown(uncertain))
            }
        }
    }

    fn committed(&mut self, is_changed: bool) {
        self.has_worked = true;
        if is_changed {
            (self.memory.commits, self.memory.stamp) = (self.memory.commits.wrapping_add(1), self.stamp);
        }
    }

    /// Takes back what a transaction did.
    fn undo(&mut self, error: &rusqlite::Error) -> StoreError {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.forget();
        self.in_use.place.error(error)
    }

    /// Leaves the stamp of this transaction in the database.
    fn leave_stamp(&mut self) -> rusqlite::Result<()> {
        self.stamp = self.stamp.wrapping_add(1);
        let sql = "UPDATE identity SET commits = ?1, stamp = ?2";
        let values = [self.memory.commits.wrapping_add(1), self.stamp];
        self.connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Whether the transaction with our last stamp is in the database; nothing when others wrote since.
    fn find_stamp(&self) -> rusqlite::Result<Option<bool>> {
        let sql = "SELECT commits, stamp FROM identity";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (commits, stamp) = self.connection.prepare_cached(sql)?.query_row([], read)?;
        Ok(match commits.wrapping_sub(self.memory.commits) {
            0 => Some(false),
            1 => Some(stamp == self.stamp),
            _ => None,
        })
    }

    fn work(&mut self, work: &mut Work) -> rusqlite::Result<After> {
        let mut tx = Tx { sql: &self.connection, memory: &mut self.memory };
        // What panics is undone like what fails, and the thread works on for everybody else.
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut tx)));
        done.unwrap_or_else(|_| Err(rusqlite::Error::ToSqlConversionFailure("it panicked".into())))
    }

    /// Does one piece of work of many. The inner error is its own, and the others continue without it.
    fn apart(&mut self, work: &mut Work) -> rusqlite::Result<rusqlite::Result<After>> {
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        run("SAVEPOINT one")?;
        let done = self.work(work);
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        match done {
            Err(error) if is_of_one(&error) => {
                run("ROLLBACK TO one")?;
                run("RELEASE one")?;
                self.forget();
                Ok(Err(error))
            }
            done => {
                let after = done?;
                run("RELEASE one")?;
                Ok(Ok(after))
            }
        }
    }

    /// What was remembered of rows that are not there after all is forgotten.
    pub(super) fn forget(&mut self) {
        let Memory { watch, reported, commits, stamp, .. } = std::mem::take(&mut self.memory);
        self.memory = Memory { watch, reported, commits, stamp, ..Memory::default() };
    }
}
