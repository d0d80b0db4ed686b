//! B83: an outage while a database is in use is waited out, and work continues when the database is back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comity_conformance::Opened;
use comity_conformance::process::{Process, at, died_at, domain, nothing_learned};
use comity_core::decision::Outage;
use comity_core::time::Span;
use comity_store::domains::{ReleaseMode, Take};
use comity_store::{Store, StoreError};

use crate::file::TestFile;

/// Files of a database that were moved elsewhere.
struct Elsewhere(Vec<(PathBuf, PathBuf)>);

impl Elsewhere {
    fn move_away(file: &TestFile) -> Self {
        let names =
            ["", "-wal", "-shm"].map(|ending| (file.beside(ending), file.beside(&format!("{ending}.away"))));
        names.iter().for_each(|(here, there)| std::fs::rename(here, there).unwrap());
        Self(names.into())
    }

    fn move_back(self) {
        // The database goes last: from then on it is available.
        self.0.iter().rev().for_each(|(here, there)| std::fs::rename(there, here).unwrap());
    }

    /// Puts a copy of each file back.
    fn copy_back(self) {
        for (here, there) in self.0.iter().rev() {
            std::fs::copy(there, here.with_extension("part")).unwrap();
            std::fs::rename(here.with_extension("part"), here).unwrap();
        }
    }
}

/// Waits until the outage is noticed.
async fn noticed(store: &dyn Store) -> Outage {
    for _ in 0..12_000 {
        if let Some(away) = store.availability().outage() {
            return away;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody noticed");
}

#[tokio::test]
async fn a_database_that_is_moved_back_continues_as_it_was() {
    let file = TestFile::new();
    let one = file.process("one").await;
    one.store.set_patience(Span::from_mins(10));
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let turns = one.store.availability().turns();
    let elsewhere = Elsewhere::move_away(&file);
    let (store, holder) = (one.store.clone(), one.holder);
    let beating = tokio::spawn(async move { store.beat(holder, at(1)).await });
    assert_eq!(noticed(&*one.store).await, Outage::Gone);
    // Every other request waits too.
    let store = one.store.clone();
    let jobs =
        tokio::spawn(async move { store.open_job("late".to_owned(), serde_json::Value::Null, at(1)).await });
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!beating.is_finished() && !jobs.is_finished() && !file.path.exists());
    elsewhere.move_back();
    beating.await.unwrap().unwrap();
    assert!(jobs.await.unwrap().unwrap().1);
    assert_eq!((one.store.availability().outage(), one.store.availability().turns()), (None, turns + 2));
    assert!(one.save(nothing_learned(tenure)).await.is_empty(), "it is still held");
}

/// The copy contains everything this process wrote: nothing is lost.
#[tokio::test]
async fn a_complete_copy_continues_as_it_was() {
    let file = TestFile::new();
    let one = file.process("one").await;
    one.store.set_patience(Span::from_mins(10));
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let elsewhere = Elsewhere::move_away(&file);
    let (store, holder) = (one.store.clone(), one.holder);
    let beating = tokio::spawn(async move { store.beat(holder, at(1)).await });
    noticed(&*one.store).await;
    elsewhere.copy_back();
    beating.await.unwrap().unwrap();
    assert!(one.save(nothing_learned(tenure)).await.is_empty(), "it is still held");
    assert!(matches!(file.process("other").await.take("a.example", at(1)).await, Take::Held { .. }));
    assert_eq!(one.store.list_domains(String::new(), String::new(), 10).await.unwrap().len(), 1);
}

/// B77: if a copy lacks something, nobody continues as if nothing had happened.
#[tokio::test]
async fn with_an_older_copy_everything_held_is_lost() {
    let file = TestFile::new();
    let first = file.process("first").await;
    let tenure = first.taken("a.example", at(0)).await.tenure;
    first.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    let copy = file.beside(".copy");
    file.query(&format!("VACUUM INTO '{}'", copy.display()));
    drop(first);
    let late = file.process("late").await;
    late.store.set_patience(Span::from_mins(10));
    late.taken("a.example", at(1)).await;
    let elsewhere = Elsewhere::move_away(&file);
    let (store, holder) = (late.store.clone(), late.holder);
    let beating = tokio::spawn(async move { store.beat(holder, at(2)).await });
    noticed(&*late.store).await;
    std::fs::rename(&copy, &file.path).unwrap();
    assert!(matches!(beating.await.unwrap(), Err(StoreError::Lost)));
    let again = Process::with(Opened::without_pause(late.store.clone()), "again", at(3)).await;
    assert!(again.holder > late.holder, "an id that is not in the copy is not reused");
    assert_eq!(died_at(&again.taken("a.example", at(3)).await), at(3));
    let taken = late.store.take(late.holder, vec![domain("b.example")], at(3)).await;
    assert!(matches!(taken, Err(StoreError::Lost)), "{taken:?}");
    drop(elsewhere);
}

/// B9: a process had given up its lock for a copy it could not open, and continued as if it held its domains when the
/// old database was back. Others took them.
#[tokio::test]
async fn a_process_that_gave_up_its_lock_holds_nothing_when_the_old_database_is_back() {
    let file = TestFile::new();
    let other = file.process("other").await;
    let one = file.process("one").await;
    one.store.set_patience(Span::from_mins(10));
    one.taken("a.example", at(0)).await;
    let copy = file.beside(".copy");
    file.query(&format!("VACUUM INTO '{}'", copy.display()));
    let elsewhere = Elsewhere::move_away(&file);
    let (store, holder) = (one.store.clone(), one.holder);
    let beating = tokio::spawn(async move { store.beat(holder, at(1)).await });
    noticed(&*one.store).await;
    // The other process still has the old database open, so the copy is not opened next to it.
    std::fs::rename(&copy, &file.path).unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!beating.is_finished());
    std::fs::rename(&file.path, &copy).unwrap();
    elsewhere.move_back();
    let beaten = beating.await.unwrap();
    let taken = file.process("newcomer").await.take("a.example", at(2)).await;
    match (&beaten, &taken) {
        (Ok(()), Take::Held { .. }) | (Err(StoreError::Lost), Take::Taken(_)) => {}
        both => panic!("it belongs to either one or the newcomer: {both:?}"),
    }
    drop(other);
}

/// SQLite would apply the old log to the new database.
#[tokio::test]
async fn a_copy_next_to_the_old_log_is_not_used() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let copy = file.beside(".copy");
    file.query(&format!("VACUUM INTO '{}'", copy.display()));
    one.taken("a.example", at(0)).await;
    one.store.set_patience(Span::from_millis(300));
    std::fs::rename(&file.path, file.beside(".away")).unwrap();
    std::fs::rename(&copy, &file.path).unwrap();
    let error = one.beat(at(1)).await.unwrap_err().to_string();
    assert!(error.contains("comity.db-wal") && error.contains("delete that too"), "{error}");
    assert!(error.contains("gave up after waiting"), "{error}");
    one.store.set_patience(Span::from_mins(10));
    std::fs::rename(file.beside(".away"), &file.path).unwrap();
    one.beat(at(2)).await.unwrap();
}

/// After a wait was given up, later callers get an error soon. It works again when the database is back.
#[tokio::test]
async fn a_store_that_was_given_up_works_again_when_it_is_back() {
    let file = TestFile::new();
    let one = file.process("one").await;
    one.store.set_patience(Span::from_millis(500));
    let elsewhere = Elsewhere::move_away(&file);
    for _ in 0..3 {
        let error = one.beat(at(1)).await.unwrap_err();
        assert_eq!(error.outage(), Some(Outage::Gone), "{error}");
        assert!(error.to_string().starts_with(&file.path.display().to_string()), "{error}");
    }
    assert!(one.store.version().await.is_err());
    elsewhere.move_back();
    one.beat(at(2)).await.unwrap();
    one.store.version().await.unwrap();
    let _: Arc<dyn Store> = one.store;
}
