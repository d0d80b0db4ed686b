//! What the writer does while a database is locked, full, gone or unreadable: it retries until the database is back or
//! patience runs out, and all callers wait. Files that were moved away and back simply continue. A database that was
//! put back, or whose disk failed, is reopened. It is never created, and while a different store is in its place, the
//! writer keeps waiting.

use std::path::Path;

use comity_core::decision::Outage;
use comity_core::time::Span;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::transaction::Failed;
use super::{After, Cache, Tx, WorkItem, WriterThread};
use crate::domains::HolderId;
use crate::sqlite::files::{self, Opened, Replaced};
use crate::sqlite::holders::LeaseWatch;
use crate::sqlite::identity;
use crate::sqlite::location::Location;
use crate::sqlite::opening::{Connected, connect, real};
use crate::sqlite::waiting::{FIRST_LOCK_TIMEOUT, LOCK_TIMEOUT, Wait};
use crate::{Identity, StoreError};

impl WriterThread {
    /// Runs a batch in one transaction and answers the callers, waiting while the database is unavailable.
    /// `is_unavailable` means that this is known already.
    pub(super) fn commit(
        &mut self,
        mut batch: Vec<WorkItem>,
        is_unavailable: bool,
    ) -> Result<(), StoreError> {
        let mut check =
            is_unavailable || !self.is_open || batch.iter().any(|work_item| work_item.check_files);
        let (open_store, availability) = (self.open_store.clone(), self.availability.clone());
        let mut wait = Wait::new(&open_store.location, &availability, self.gave_up.unwrap_or_default());
        let mut unsure: Option<(Vec<After>, String)> = None;
        let (afters, result) = loop {
            let (afters, failed) = match self.try_once(&mut batch, &mut unsure, check) {
                (afters, Ok(())) => break (afters, Ok(())),
                (afters, Err(failed)) => (afters, failed),
            };
            check = true;
            let (error, outage) = match failed {
                // Once the database answers again, it can be looked up.
                Failed::Unknown(error) => {
                    unsure = Some((afters, error.what()));
                    (error, Some(Outage::Unreadable))
                }
                Failed::Undone(error) => {
                    let outage = error.outage();
                    (error, outage)
                }
            };
            if outage == Some(Outage::Unreadable) {
                self.is_open = false;
            }
            // Before the first success, only a lock or a full disk counts as an outage; anything else is an error.
            let outage =
                outage.filter(|outage| self.has_worked || matches!(outage, Outage::Locked | Outage::Full));
            let Some(outage) = outage else { break (Vec::new(), Err(error)) };
            if !wait.has_begun() {
                let _ = self.connection.busy_timeout(LOCK_TIMEOUT);
            }
            // Once a wait was given up, later callers do not wait as long again.
            let patience = if self.gave_up.is_some() { Span::ZERO } else { self.patience.get() };
            if let Err(error) = wait.failed(outage, error, patience) {
                self.gave_up = Some(wait.waited());
                let location = open_store.location.to_string();
                break (
                    Vec::new(),
                    Err(match unsure {
                        Some(_) => StoreError::Uncertain { location, what: error.what() },
                        None => error,
                    }),
                );
            }
        };
        if wait.has_begun() {
            // Nobody could renew its lease meanwhile, so nobody is declared dead for it.
            self.cache.watch = LeaseWatch::default();
            let _ = self.connection.busy_timeout(FIRST_LOCK_TIMEOUT);
        }
        if result.is_ok() {
            self.gave_up = None;
            wait.finish();
        }
        if let Err(error) = &result {
            let afters = unsure.into_iter().flat_map(|(afters, _)| afters);
            afters.for_each(|after| after(Err(error.clone())));
            let refusals = batch.into_iter().filter_map(|work_item| work_item.refused);
            refusals.for_each(|refused| refused(error.clone()));
        }
        afters.into_iter().for_each(|after| after(result.clone()));
        result
    }

    /// One attempt. If the answer to a commit was lost, first looks up whether it succeeded.
    fn try_once(
        &mut self,
        batch: &mut [WorkItem],
        unsure: &mut Option<(Vec<After>, String)>,
        check: bool,
    ) -> (Vec<After>, Result<(), Failed>) {
        if check && let Err(error) = self.ensure_open() {
            let (afters, failed) = match unsure.take() {
                Some((afters, _)) => (afters, Failed::Unknown(error)),
                None => (Vec::new(), Failed::Undone(error)),
            };
            return (afters, Err(failed));
        }
        match unsure.take() {
            None => self.attempt(batch),
            Some((afters, why)) => match self.look_up_commit(Outage::Unreadable, &why) {
                Err(Failed::Undone(error)) if error.outage().is_some() => self.attempt(batch),
                looked_up => (afters, looked_up),
            },
        }
    }

    /// Makes sure that the database is open and that its files are still the ones that were opened. Reopens it if they
    /// were replaced.
    pub(super) fn ensure_open(&mut self) -> Result<(), StoreError> {
        let open_store = self.open_store.clone();
        match open_store.replaced() {
            None if self.is_open => self.drop_lost_holders(),
            // It may be moved back unchanged.
            Some((Replaced { is_log: false, is_missing: true, .. }, error)) => Err(error),
            replaced => {
                let is_replaced = replaced.is_some();
                self.reopen(replaced.map(|(replaced, _)| replaced)).map_err(|error| match error.outage() {
                    Some(Outage::Locked | Outage::Full) => error,
                    // Whatever is there now, the right one may be put back.
                    _ if is_replaced => open_store.location.outage(Outage::Gone, error.what()),
                    _ => open_store.location.outage(Outage::Unreadable, error.what()),
                })
            }
        }
    }

    /// Declares holders dead that gave up their proof for another database which could not be opened after all: other
    /// processes treat them as dead in this one too.
    fn drop_lost_holders(&mut self) -> Result<(), StoreError> {
        if !self.lost.is_empty() {
            let location = &self.open_store.location;
            drop_holders(&mut self.connection, &self.lost).map_err(|error| location.error(&error))?;
            self.lost.clear();
            self.forget();
        }
        Ok(())
    }

    fn reopen(&mut self, replaced: Option<Replaced>) -> Result<(), StoreError> {
        let open_store = self.open_store.clone();
        let Some(path) = &open_store.path else {
            self.is_open = true;
            return Ok(());
        };
        // From here on nobody may rely on the earlier state, even if nobody has to wait.
        self.availability.set_unavailable(if replaced.is_some() { Outage::Gone } else { Outage::Unreadable });
        let location = &open_store.location;
        let is_moved = replaced.is_some_and(|replaced| !replaced.is_log);
        if is_moved && let Some(log) = open_store.opened().as_ref().and_then(Opened::log_left) {
            // SQLite would apply the old log to the database that is there now.
            return Err(location.unavailable(format!(
                "was replaced, but {} of the old database is still there: delete that too, or put the old database back",
                log.display()
            )));
        }
        // All connections of a process to a file share SQLite's state of its log, so all of them are closed first.
        if !is_moved {
            self.is_open = false;
            self.connection = Connection::open_in_memory().map_err(|error| location.error(&error))?;
            open_store.close_reading();
        }
        let mut known = open_store.identity();
        if is_moved && lacks_log(path) {
            // Check first which store it is: if it is a different one, nothing is lost. A copy without its log may lack
            // writes, and waiting for other processes to release the old database could take forever.
            refuse_other_store(path, location, &known)?;
            known.doubtful = true;
        }
        if known.doubtful {
            // Creating a new log requires being alone: give up our proofs, so that others do not think we still use the
            // old log.
            self.lost.extend(open_store.proofs().drain().map(|(holder, _)| holder));
        }
        let mut link = connect(path, location, Some(&known))?;
        // Not every file system records creation times.
        let is_younger = open_store.opened().as_ref().is_some_and(|opened| opened.birth != link.opened.birth);
        let is_another = is_moved || is_younger;
        let lacks_something = is_another && !self.is_whole(&link.connection).unwrap_or(false);
        if known.doubtful || !self.lost.is_empty() || lacks_something {
            self.lost.extend(open_store.proofs().drain().map(|(holder, _)| holder));
            drop_holders(&mut link.connection, &self.lost).map_err(|error| location.error(&error))?;
            self.lost.clear();
        }
        let Connected { connection, opened, .. } = link;
        connection.busy_timeout(LOCK_TIMEOUT).map_err(|error| location.error(&error))?;
        open_store.close_reading();
        open_store.reopened(opened);
        self.connection = connection;
        self.is_open = true;
        self.forget();
        Ok(())
    }

    /// Whether a copy contains exactly what this process last saw of the database.
    fn is_whole(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT commits = ?1 AND stamp = ?2 FROM identity";
        connection.query_row(sql, [self.cache.commits, self.cache.stamp], |row| row.get(0))
    }
}

/// Whether a database has no log, or no index for it: then nobody has it open.
fn lacks_log(path: &Path) -> bool {
    let real = real(path);
    ["-wal", "-shm"].iter().any(|ending| !files::beside(&real, ending).exists())
}

/// Refuses any other store.
fn refuse_other_store(path: &Path, location: &Location, known: &Identity) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| location.error(&error))?;
    identity::compare(&connection, location, known)
}

/// Declares this process's holders dead because writes were lost. They register as new holders.
fn drop_holders(connection: &mut Connection, holders: &[HolderId]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tx = Tx { sql: &transaction, cache: &mut Cache::default() };
    for holder in holders {
        tx.drop_holder(*holder)?;
    }
    transaction.commit()
}
