//! A store that was there is never made anew, and another one in its place is noticed.

use std::path::Path;

use comity_conformance::Opened;
use comity_conformance::process::{Process, at, died_at, nothing_learned};
use comity_core::pace::Kept;
use comity_core::time::Span;
use comity_store::domains::{LeftBehind, Parting, Released, Saved, Take};
use comity_store::sqlite::Sqlite;
use comity_store::{Identity, Store, StoreError};

use crate::backend::opened;
use crate::file::TestFile;

/// B83: an empty store knows no deadline.
#[tokio::test]
async fn a_deleted_store_is_never_recreated() {
    let file = TestFile::new();
    let known = used(&file).await;
    for gone in [Gone::Deleted, Gone::FolderDeleted] {
        gone.happen(&file.path);
        let refusal = Sqlite::reopen(&file.path, &known).unwrap_err().to_string();
        assert!(refusal.starts_with(&file.path.display().to_string()), "{refusal}");
        assert!(refusal.contains("is gone; put it back"), "{refusal}");
        assert!(!file.path.exists(), "it was made anew");
    }
}

/// B83
#[tokio::test]
async fn another_store_in_its_place_is_refused_and_left_alone() {
    let file = TestFile::new();
    let known = used(&file).await;
    std::fs::rename(&file.path, file.path.with_extension("elsewhere")).unwrap();
    for other in ["an empty file", "another store", "an older store"] {
        let _ = std::fs::remove_file(&file.path);
        match other {
            "an empty file" => std::fs::write(&file.path, "").unwrap(),
            "another store" => drop(file.open()),
            _ => file.query(include_str!("version_1.sql")),
        }
        let before = std::fs::read(&file.path).unwrap();
        let refused = Sqlite::reopen(&file.path, &known).unwrap_err();
        assert!(matches!(refused, StoreError::Another { .. }), "{other}: {refused}");
        assert!(refused.to_string().contains("put that one back, or restart"), "{refused}");
        assert!(std::fs::read(&file.path).unwrap() == before, "{other} was changed");
    }
    std::fs::rename(file.path.with_extension("elsewhere"), &file.path).unwrap();
    Sqlite::reopen(&file.path, &known).unwrap();
}

#[tokio::test]
async fn what_is_no_store_is_not_taken_for_one() {
    let file = TestFile::new();
    let known = used(&file).await;
    file.query("DROP TABLE identity");
    let refused = Sqlite::reopen(&file.path, &known).unwrap_err();
    assert!(matches!(refused, StoreError::Another { .. }), "{refused}");
    std::fs::write(&file.path, "a shopping list, longer than any header\n".repeat(100)).unwrap();
    let refused = Sqlite::reopen(&file.path, &known).unwrap_err().to_string();
    assert!(refused.contains("is not a database"), "{refused}");
    assert!(comity_store::reopen("memory:", &known).is_err(), "what was in memory is gone");
}

/// A store whose identity cannot be read is damaged, not new.
#[test]
fn an_identity_that_cannot_be_read_is_an_error() {
    for damage in [
        "DELETE FROM identity",
        "INSERT INTO identity (id) SELECT id FROM identity",
        "UPDATE identity SET id = x'00'",
        "DROP TABLE identity",
    ] {
        let file = TestFile::new();
        drop(file.open());
        file.query(damage);
        let refusal = file.refusal();
        assert!(refusal.contains("identity"), "{damage}: {refusal}");
        assert_eq!(file.refusal(), refusal, "{damage}: nothing mends it on the way");
    }
}

#[test]
fn each_store_has_an_identity_of_its_own_for_good() {
    let (one, other) = (TestFile::new(), TestFile::new());
    let identity = one.open().identity();
    assert!(identity.is_same(&one.open().identity()));
    assert!(!identity.is_same(&other.open().identity()));
    let memories = [Sqlite::in_memory(), Sqlite::in_memory()].map(|store| store.unwrap().identity());
    assert!(!memories[0].is_same(&memories[1]));
}

/// B77: what was sent after the copy was made is not in it.
#[tokio::test]
async fn a_copy_that_was_put_back_counts_as_state_that_was_lost() {
    let file = TestFile::new();
    let one = file.process("one").await;
    for name in ["released.example", "stopped.example"] {
        let hold = one.taken(name, at(0)).await.hold;
        let parting = if name == "released.example" { Parting::HandOver } else { Parting::Stop };
        one.release(hold, b"pace", parting, at(1)).await;
    }
    one.taken("held.example", at(0)).await;
    let copy = file.path.with_extension("copy");
    file.query(&format!("VACUUM INTO '{}'", copy.display()));
    one.taken("later.example", at(2)).await;
    let known = one.store.identity();
    let url = format!("sqlite:{}", file.path.display());
    drop(one);
    std::fs::rename(&copy, &file.path).unwrap();

    // Whoever had it open before takes it, and so does whoever comes new; the second look finds what the first noted.
    let store = comity_store::reopen(&url, &known).unwrap();
    let one = Process::with(Opened::without_pause(store), "one", at(100)).await;
    let other =
        Process::with(Opened::without_pause(comity_store::open(&url).unwrap()), "other", at(100)).await;
    let since = died_at(&one.taken("released.example", at(100)).await);
    assert_eq!(since, at(100));
    assert_eq!(
        died_at(&other.taken("stopped.example", at(160)).await),
        since,
        "it was not lost a second time"
    );
    assert_eq!(
        died_at(&other.taken("later.example", at(160)).await),
        since,
        "the copy does not know it at all"
    );
    // Whoever is in it may live: that is found out by the lease.
    for secs in [160, 165, 170] {
        one.beat(at(secs)).await.unwrap();
        other.beat(at(secs)).await.unwrap();
    }
    let now = at(170);
    assert_eq!(died_at(&one.taken("held.example", now).await), since);
    // What is known again is known.
    let hold = one.taken("new.example", now).await.hold;
    one.release(hold, b"pace", Parting::HandOver, now).await;
    assert_eq!(other.taken("new.example", now).await.left, LeftBehind::HandedOver(b"pace".to_vec()));
    assert_eq!(other.taken("much.later.example", at(100_000)).await.left, LeftBehind::New);
    drop((one, other));
    let again = file.process("again").await;
    assert_eq!(file.query_one("SELECT restored_us / 1000000 - 1800000000 FROM identity"), "100");
    drop(again);
}

/// A file that was moved away and comes back lost nothing.
#[tokio::test]
async fn a_store_that_was_away_for_a_while_goes_on_as_it_was() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let hold = one.taken("a.example", at(0)).await.hold;
    let kept = Kept { server: Some((at(3_600), at(0))), ..Kept::default() };
    let saved = Saved { kept, ..nothing_learned(hold) };
    let released = Released { saved, pace: b"pace".to_vec(), parting: Parting::HandOver };
    one.store.release(one.holder, vec![released], at(1)).await.unwrap();
    let elsewhere = file.path.with_extension("elsewhere");
    std::fs::rename(&file.path, &elsewhere).unwrap();
    one.store.set_patience(Span::ZERO);
    one.beat(at(2)).await.unwrap_err();
    let known = one.store.identity();
    std::fs::rename(&elsewhere, &file.path).unwrap();
    let other = Process::with(opened(Sqlite::reopen(&file.path, &known).unwrap()), "other", at(3)).await;
    let taken = other.taken("a.example", at(3)).await;
    assert_eq!((taken.left, taken.kept), (LeftBehind::HandedOver(b"pace".to_vec()), kept));
}

/// B9: a process that makes a new log does not see what the others write to theirs.
#[tokio::test]
async fn a_log_that_was_deleted_in_use_is_noticed_by_everybody() {
    for ending in ["-wal", "-shm"] {
        let file = TestFile::new();
        let (one, two) = (file.process("one").await, file.process("two").await);
        let hold = one.taken("a.example", at(0)).await.hold;
        one.release(hold, b"pace", Parting::HandOver, at(0)).await;
        one.taken("b.example", at(0)).await;
        std::fs::remove_file(format!("{}{ending}", file.path.display())).unwrap();
        let refusal = file.refusal();
        assert!(
            refusal.contains(ending) && refusal.contains("deleted while other processes use it"),
            "{refusal}"
        );
        // Each waits until the other has let go of the old one, and what they held is theirs no more.
        for beaten in <[_; 2]>::from(tokio::join!(one.beat(at(1)), two.beat(at(1)))) {
            assert!(matches!(beaten, Err(StoreError::Lost)), "{ending}: {beaten:?}");
        }
        let other = Process::with(Opened::without_pause(one.store.clone()), "other", at(2)).await;
        assert_eq!(died_at(&other.taken("a.example", at(2)).await), at(2), "what was in it may be lost");
        let again = Process::with(Opened::without_pause(two.store.clone()), "again", at(2)).await;
        assert!(matches!(again.take("a.example", at(2)).await, Take::Held { .. }), "{ending}");
    }
}

/// Whoever starts anew does so knowingly.
#[tokio::test]
async fn a_database_that_is_gone_while_it_is_in_use_is_not_made_anew_by_another() {
    let file = TestFile::new();
    let one = file.process("one").await;
    std::fs::remove_file(&file.path).unwrap();
    let refusal = file.refusal();
    assert!(refusal.contains("is gone, but its log"), "{refusal}");
    for ending in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{ending}", file.path.display())).unwrap();
    }
    assert_eq!(file.refusal(), "is gone, but processes use it: put it back, or end them to start anew");
    assert!(!file.path.exists());
    drop(one);
    file.process("anew").await;
}

/// SQLite deletes the log of a database that is empty, and with it all that was written.
#[tokio::test]
async fn an_empty_file_in_the_place_of_a_database_does_not_cost_its_log() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let hold = one.taken("a.example", at(0)).await.hold;
    one.release(hold, b"pace", Parting::HandOver, at(0)).await;
    let (log, away) = (file.beside("-wal"), file.beside(".away"));
    let written = std::fs::metadata(&log).unwrap().len();
    assert!(written > 0);
    std::fs::rename(&file.path, &away).unwrap();
    std::fs::write(&file.path, "").unwrap();
    let refusal = file.refusal();
    assert!(refusal.contains("is empty, but its log") && refusal.contains("-wal"), "{refusal}");
    Sqlite::reopen(&file.path, &one.store.identity()).unwrap_err();
    assert_eq!(std::fs::metadata(&log).unwrap().len(), written);
    std::fs::rename(&away, &file.path).unwrap();
    let other = file.process("other").await;
    assert_eq!(other.taken("a.example", at(1)).await.left, LeftBehind::HandedOver(b"pace".to_vec()));
}

/// B9: whoever opens it by another name has another log, and sends as well.
#[cfg(unix)]
#[test]
fn a_database_with_two_names_is_refused() {
    let file = TestFile::new();
    drop(file.open());
    let second = file.beside(".link");
    std::fs::hard_link(&file.path, &second).unwrap();
    let refusal = file.refusal();
    assert!(refusal.contains("has 2 names (hard links)"), "{refusal}");
    std::fs::remove_file(&second).unwrap();
    file.open();
}

/// A link to a volume that is not mounted is followed, not replaced.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_made_where_it_leads() {
    let file = TestFile::new();
    let there = file.path.with_file_name("there.db");
    std::os::unix::fs::symlink("there.db", &file.path).unwrap();
    let known = file.open().identity();
    assert!(there.is_file() && file.path.is_symlink());
    std::fs::remove_file(&there).unwrap();
    Sqlite::reopen(&file.path, &known).unwrap_err();
    assert!(!there.exists());
}

/// What becomes of a file.
enum Gone {
    Deleted,
    FolderDeleted,
}

impl Gone {
    fn happen(&self, path: &Path) {
        match self {
            Self::Deleted => std::fs::remove_file(path).unwrap(),
            Self::FolderDeleted => std::fs::remove_dir_all(path.parent().unwrap()).unwrap(),
        }
    }
}

/// A store that was used, and which it is.
async fn used(file: &TestFile) -> Identity {
    let one = file.process("one").await;
    let hold = one.taken("a.example", at(0)).await.hold;
    one.release(hold, b"pace", Parting::HandOver, at(0)).await;
    one.store.identity()
}
