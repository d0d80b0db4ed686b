//! A database that is locked, full, gone or unreadable: everybody who asked waits until it is back, or for as long as
//! patience lasts. One whose files were moved goes on when they are moved back; one that was put back, or that its disk
//! gave up, is opened again. It is never made, and another one in its place is waited out.

use std::path::Path;

use comity_core::decision::Away;
use comity_core::time::Span;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::transaction::Failed;
use super::{After, Memory, Piece, Run, Tx};
use crate::domains::HolderId;
use crate::sqlite::files::{self, Opened, Replaced};
use crate::sqlite::holders::Watch;
use crate::sqlite::identity;
use crate::sqlite::opening::{Link, connect, real};
use crate::sqlite::patience::{A_TRY, FIRST_TRY, Wait};
use crate::sqlite::place::Place;
use crate::{Identity, StoreError};

impl Run {
    /// Does what was asked for in one transaction, and tells whoever asked. Waits for a database that is away; `is_away`
    /// says that this is known already.
    pub(super) fn commit(&mut self, mut batch: Vec<Piece>, is_away: bool) -> Result<(), StoreError> {
        let mut look = is_away || !self.is_open || batch.iter().any(|piece| piece.in_place);
        let (in_use, availability) = (self.in_use.clone(), self.availability.clone());
        let mut wait = Wait::new(&in_use.place, &availability, self.gave_up.unwrap_or_default());
        let mut unsure: Option<(Vec<After>, String)> = None;
        let (afters, result) = loop {
            let (afters, failed) = match self.try_once(&mut batch, &mut unsure, look) {
                (afters, Ok(())) => break (afters, Ok(())),
                (afters, Err(failed)) => (afters, failed),
            };
            look = true;
            let (error, away) = match failed {
                // Once the database can be asked, it tells.
                Failed::Unknown(error) => {
                    unsure = Some((afters, error.what()));
                    (error, Some(Away::Unreadable))
                }
                Failed::Undone(error) => {
                    let away = error.away();
                    (error, away)
                }
            };
            if away == Some(Away::Unreadable) {
                self.is_open = false;
            }
            // What never worked is not away but wrong, unless it is locked or there is no room.
            let away = away.filter(|away| self.has_worked || matches!(away, Away::Locked | Away::Full));
            let Some(away) = away else { break (Vec::new(), Err(error)) };
            if !wait.has_begun() {
                let _ = self.connection.busy_timeout(A_TRY);
            }
            // Whoever comes after one that waited in vain does not wait as long again.
            let patience = if self.gave_up.is_some() { Span::ZERO } else { self.patience.get() };
            if let Err(error) = wait.failed(away, error, patience) {
                self.gave_up = Some(wait.waited());
                let place = in_use.place.to_string();
                break (
                    Vec::new(),
                    Err(match unsure {
                        Some(_) => StoreError::Uncertain { place, what: error.what() },
                        None => error,
                    }),
                );
            }
        };
        if wait.has_begun() {
            // Nobody could renew its time meanwhile: whoever did not is not taken for dead.
            self.memory.watch = Watch::default();
            let _ = self.connection.busy_timeout(FIRST_TRY);
        }
        if result.is_ok() {
            self.gave_up = None;
            wait.ends();
        }
        if let Err(error) = &result {
            let afters = unsure.into_iter().flat_map(|(afters, _)| afters);
            afters.for_each(|after| after(Err(error.clone())));
            let refusals = batch.into_iter().filter_map(|piece| piece.refused);
            refusals.for_each(|refused| refused(error.clone()));
        }
        afters.into_iter().for_each(|after| after(result.clone()));
        result
    }

    /// One try; of a commit whose answer was lost, whether it was done comes first.
    fn try_once(
        &mut self,
        batch: &mut [Piece],
        unsure: &mut Option<(Vec<After>, String)>,
        look: bool,
    ) -> (Vec<After>, Result<(), Failed>) {
        if look && let Err(error) = self.present() {
            let (afters, failed) = match unsure.take() {
                Some((afters, _)) => (afters, Failed::Unknown(error)),
                None => (Vec::new(), Failed::Undone(error)),
            };
            return (afters, Err(failed));
        }
        match unsure.take() {
            None => self.attempt(batch),
            Some((afters, why)) => match self.look_up_commit(Away::Unreadable, &why) {
                Err(Failed::Undone(error)) if error.away().is_some() => self.attempt(batch),
                looked_up => (afters, looked_up),
            },
        }
    }

    /// Makes sure that the database is open and that its files are the ones that were opened. Opens it again where others
    /// are in their place.
    pub(super) fn present(&mut self) -> Result<(), StoreError> {
        let in_use = self.in_use.clone();
        match in_use.replaced() {
            None if self.is_open => self.disown_lost(),
            // It may be moved back as it is.
            Some((Replaced { is_log: false, is_missing: true, .. }, error)) => Err(error),
            replaced => {
                let is_replaced = replaced.is_some();
                self.reopen(replaced.map(|(replaced, _)| replaced)).map_err(|error| match error.away() {
                    Some(Away::Locked | Away::Full) => error,
                    // Whatever is there now, the right one may be put back.
                    _ if is_replaced => in_use.place.away(Away::Gone, error.what()),
                    _ => in_use.place.away(Away::Unreadable, error.what()),
                })
            }
        }
    }

    /// What lost its proof on the way to another database that was not opened after all holds nothing any more, also in
    /// this one: others take it for dead.
    fn disown_lost(&mut self) -> Result<(), StoreError> {
        if !self.lost.is_empty() {
            let place = &self.in_use.place;
            disown(&mut self.connection, &self.lost).map_err(|error| place.error(&error))?;
            self.lost.clear();
            self.forget();
        }
        Ok(())
    }

    fn reopen(&mut self, replaced: Option<Replaced>) -> Result<(), StoreError> {
        let in_use = self.in_use.clone();
        let Some(path) = &in_use.path else {
            self.is_open = true;
            return Ok(());
        };
        // From here on nobody goes by what was there before, also when nobody has to wait.
        self.availability.leaves(if replaced.is_some() { Away::Gone } else { Away::Unreadable });
        let place = &in_use.place;
        let is_moved = replaced.is_some_and(|replaced| !replaced.is_log);
        if is_moved && let Some(log) = in_use.opened().as_ref().and_then(Opened::log_left) {
            // SQLite would take what is in there for changes to the database that is there now.
            return Err(place.unavailable(format!(
                "was replaced, but {} of the database before it is still there: delete that too, or put that database back",
                log.display()
            )));
        }
        // Connections of one process to the same file share what SQLite knows of its log: all of them are closed first.
        if !is_moved {
            self.is_open = false;
            self.connection = Connection::open_in_memory().map_err(|error| place.error(&error))?;
            in_use.close_reading();
        }
        let mut known = in_use.identity();
        if is_moved && lacks_log(path) {
            // Which one it is comes first: of another one nothing is lost. A copy without its log may lack something, and
            // whoever waits for us to let go of the one before would wait for ever.
            look_at(path, place, &known)?;
            known.doubtful = true;
        }
        if known.doubtful {
            // Whoever makes a new log must be alone; others do not take us for somebody who uses the old one.
            self.lost.extend(in_use.proofs().drain().map(|(holder, _)| holder));
        }
        let mut link = connect(path, place, Some(&known))?;
        // Not every file system knows when a file was made.
        let is_younger = in_use.opened().as_ref().is_some_and(|opened| opened.birth != link.opened.birth);
        let is_another = is_moved || is_younger;
        let lacks_something = is_another && !self.is_whole(&link.connection).unwrap_or(false);
        if known.doubtful || !self.lost.is_empty() || lacks_something {
            self.lost.extend(in_use.proofs().drain().map(|(holder, _)| holder));
            disown(&mut link.connection, &self.lost).map_err(|error| place.error(&error))?;
            self.lost.clear();
        }
        let Link { connection, opened, .. } = link;
        connection.busy_timeout(A_TRY).map_err(|error| place.error(&error))?;
        in_use.close_reading();
        in_use.reopened(opened);
        self.connection = connection;
        self.is_open = true;
        self.forget();
        Ok(())
    }

    /// Whether everything is in a copy that this process ever saw of the database, and nothing else.
    fn is_whole(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT commits = ?1 AND stamp = ?2 FROM identity";
        connection.query_row(sql, [self.memory.commits, self.memory.stamp], |row| row.get(0))
    }
}

/// Whether a database has no log, or its log no index: nobody uses it as it is.
fn lacks_log(path: &Path) -> bool {
    let real = real(path);
    ["-wal", "-shm"].iter().any(|ending| !files::beside(&real, ending).exists())
}

/// Refuses what is another store.
fn look_at(path: &Path, place: &Place, known: &Identity) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| place.error(&error))?;
    identity::compare(&connection, place, known)
}

/// Something of what was written is lost: the holders of this process hold nothing any more, and become others.
fn disown(connection: &mut Connection, holders: &[HolderId]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let tx = Tx { sql: &transaction, memory: &mut Memory::default() };
    for holder in holders {
        tx.give_up_holder(*holder)?;
    }
    transaction.commit()
}
