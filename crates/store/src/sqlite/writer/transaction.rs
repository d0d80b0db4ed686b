//! One attempt to run a batch in one transaction: whose error it is, and whether the commit succeeded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use comity_core::decision::Outage;

use super::{After, Cache, Tx, Work, WorkItem, WriterThread};
use crate::StoreError;
use crate::sqlite::unreadable_rows::is_callers_error;

/// Why a transaction was not committed.
pub(super) enum Failed {
    /// It was rolled back, or its outcome will never be known.
    Undone(StoreError),
    /// The answer to its commit was lost, and the database cannot be asked right now.
    Unknown(StoreError),
}

impl WriterThread {
    /// One attempt. An error of one caller is reported to that caller, and the others continue without it.
    pub(super) fn attempt(&mut self, batch: &mut [WorkItem]) -> (Vec<After>, Result<(), Failed>) {
        let mut afters = Vec::with_capacity(batch.len());
        let many = batch.len() > 1;
        let changes = self.connection.total_changes();
        let begun = self.connection.execute_batch("BEGIN IMMEDIATE");
        let mut failed = begun.and_then(|()| self.cache.look_up(&self.connection)).err();
        for work_item in batch.iter_mut().filter(|work_item| work_item.refused.is_some()) {
            if failed.is_some() {
                break;
            }
            let work = &mut work_item.work;
            match if many { self.run_in_savepoint(work) } else { self.work(work).map(Ok) } {
                Ok(Ok(after)) => afters.push(after),
                Ok(Err(error)) => {
                    let refused = work_item.refused.take();
                    refused.into_iter().for_each(|refused| refused(self.open_store.location.error(&error)));
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

    /// Commits. If that fails, looks up in the database whether the commit succeeded after all.
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
        let outage = self.open_store.location.error(&error).outage().unwrap_or(Outage::Unreadable);
        self.look_up_commit(outage, &error.to_string())
    }

    /// Looks up whether the last commit, whose answer was lost, succeeded.
    pub(super) fn look_up_commit(&mut self, outage: Outage, why: &str) -> Result<(), Failed> {
        let found = self.find_stamp();
        let (location, what) = (self.open_store.location.to_string(), why.to_owned());
        let uncertain = StoreError::Uncertain { location, what };
        match found {
            Ok(Some(true)) => {
                self.committed(true);
                Ok(())
            }
            Ok(Some(false)) => {
                self.forget();
                let what = format!("the last changes could not be saved: {why}");
                Err(Failed::Undone(self.open_store.location.outage(outage, what)))
            }
            // Others have written since: it will never be known.
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
            (self.cache.commits, self.cache.stamp) = (self.cache.commits.wrapping_add(1), self.stamp);
        }
    }

    /// Rolls back a transaction.
    fn undo(&mut self, error: &rusqlite::Error) -> StoreError {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.forget();
        self.open_store.location.error(error)
    }

    /// Leaves the stamp of this transaction in the database.
    fn leave_stamp(&mut self) -> rusqlite::Result<()> {
        self.stamp = self.stamp.wrapping_add(1);
        let sql = "UPDATE identity SET commits = ?1, stamp = ?2";
        let values = [self.cache.commits.wrapping_add(1), self.stamp];
        self.connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// Whether the transaction with our last stamp is in the database; `None` if others have written since.
    fn find_stamp(&self) -> rusqlite::Result<Option<bool>> {
        let sql = "SELECT commits, stamp FROM identity";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (commits, stamp) = self.connection.prepare_cached(sql)?.query_row([], read)?;
        Ok(match commits.wrapping_sub(self.cache.commits) {
            0 => Some(false),
            1 => Some(stamp == self.stamp),
            _ => None,
        })
    }

    fn work(&mut self, work: &mut Work) -> rusqlite::Result<After> {
        let mut tx = Tx { sql: &self.connection, cache: &mut self.cache };
        // A panic is rolled back like an error, and the thread continues for everybody else.
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut tx)));
        done.unwrap_or_else(|_| Err(rusqlite::Error::ToSqlConversionFailure("the request panicked".into())))
    }

    /// Runs one piece of work of several in a savepoint. The inner error concerns only this one; the others continue.
    fn run_in_savepoint(&mut self, work: &mut Work) -> rusqlite::Result<rusqlite::Result<After>> {
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        run("SAVEPOINT one")?;
        let done = self.work(work);
        let run = |sql| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        match done {
            Err(error) if is_callers_error(&error) => {
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

    /// Clears what was cached about rows that were rolled back.
    pub(super) fn forget(&mut self) {
        let Cache { watch, reported, commits, stamp, .. } = std::mem::take(&mut self.cache);
        self.cache = Cache { watch, reported, commits, stamp, ..Cache::default() };
    }
}
