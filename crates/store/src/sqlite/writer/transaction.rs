//! One attempt to run a batch in one transaction: whose error it is, and whether the commit succeeded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use comity_core::decision::Outage;

use super::{After, Cache, Tx, WorkItem, WriterThread};
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
        let mut changes = self.connection.total_changes();
        let ran = match self.run_all(batch, WorkItem::run) {
            // Somebody's error. Again, each in a savepoint; those are too slow to be used if there are no errors, because
            // SQLite then keeps a copy of every page that is changed.
            Err(error) if batch.len() > 1 && is_callers_error(&error) => {
                self.undo(&error);
                changes = self.connection.total_changes();
                self.run_all(batch, WorkItem::run_in_savepoint)
            }
            ran => ran,
        };
        match ran {
            Ok(afters) => (afters, self.finish(changes)),
            Err(error) => (Vec::new(), Err(Failed::Undone(self.undo(&error)))),
        }
    }

    /// Begins a transaction and does all the work in it.
    fn run_all(
        &mut self,
        batch: &mut [WorkItem],
        run: fn(&mut WorkItem, &mut Self) -> rusqlite::Result<Option<After>>,
    ) -> rusqlite::Result<Vec<After>> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        self.cache.look_up(&self.connection)?;
        let waiting = batch.iter_mut().filter(|work_item| work_item.refused.is_some());
        let done = waiting.map(|work_item| run(work_item, self));
        done.filter_map(Result::transpose).collect()
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
        for (liveness, holder) in std::mem::take(&mut self.cache.ended) {
            liveness.forget(holder);
            self.cache.watch.forget(holder);
        }
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

    /// Clears what was cached about rows that were rolled back.
    pub(super) fn forget(&mut self) {
        let Cache { watch, reported, commits, stamp, .. } = std::mem::take(&mut self.cache);
        self.cache = Cache { watch, reported, commits, stamp, ..Cache::default() };
    }
}

impl WorkItem {
    /// Does the work. An error undoes the whole transaction.
    fn run(&mut self, thread: &mut WriterThread) -> rusqlite::Result<Option<After>> {
        let mut tx = Tx { sql: &thread.connection, cache: &mut thread.cache };
        let work = &mut self.work;
        // A panic is rolled back like an error, and the thread continues for everybody else.
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut tx)));
        done.unwrap_or_else(|_| Err(rusqlite::Error::ToSqlConversionFailure("the request panicked".into())))
            .map(Some)
    }

    /// Does the work in a savepoint. An error that concerns only this caller is reported, and the others continue.
    fn run_in_savepoint(&mut self, thread: &mut WriterThread) -> rusqlite::Result<Option<After>> {
        let run = |thread: &WriterThread, sql| thread.connection.prepare_cached(sql)?.execute([]).map(drop);
        run(thread, "SAVEPOINT one")?;
        let ended = thread.cache.ended.clone();
        match self.run(thread) {
            Err(error) if is_callers_error(&error) => {
                run(thread, "ROLLBACK TO one")?;
                run(thread, "RELEASE one")?;
                thread.forget();
                thread.cache.ended = ended;
                let refused = self.refused.take();
                refused.into_iter().for_each(|refused| refused(thread.open_store.location.error(&error)));
                Ok(None)
            }
            done => {
                let after = done?;
                run(thread, "RELEASE one")?;
                Ok(after)
            }
        }
    }
}
