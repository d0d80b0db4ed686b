//! A store that was in use is never recreated, and a different one in its place is noticed.

use std::path::Path;

use comity_conformance::Opened;
use comity_conformance::process::{Process, at, died_at, nothing_learned};
use comity_core::pace::SavedLimits;
use comity_core::time::Span;
use comity_store::domains::{LastHolderBuf, ReleaseMode, Released, Saved, Take};
use comity_store::sqlite::Sqlite;
use comity_store::{Identity, Store, StoreError};

use crate::backend::opened;
use crate::file::TestFile;

/// B83: an empty store knows no deadlines.
#[tokio::test]
async fn a_deleted_store_is_never_recreated() {
    let file = TestFile::new();
    let known = used(&file).await;
    for gone in [Gone::Deleted, Gone::FolderDeleted] {
        gone.happen(&file.path);
        let refusal = Sqlite::reopen(&file.path, &known).unwrap_err().to_string();
        assert!(refusal.starts_with(&file.path.display().to_string()), "{refusal}");
        assert!(refusal.contains("is gone; put it back"), "{refusal}");
        assert!(!file.path.exists(), "it was recreated");
    }
}

/// B83
#[tokio::test]
async fn a_different_store_in_its_place_is_refused_and_left_alone() {
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
        assert!(refused.to_string().contains("put the right one back, or restart"), "{refused}");
        assert!(std::fs::read(&file.path).unwrap() == before, "{other} was changed");
    }
    std::fs::rename(file.path.with_extension("elsewhere"), &file.path).unwrap();
    Sqlite::reopen(&file.path, &known).unwrap();
}

#[tokio::test]
async fn a_file_that_is_not_a_store_is_refused() {
    let file = TestFile::new();
    let known = used(&file).await;
    file.query("DROP TABLE identity");
    let refused = Sqlite::reopen(&file.path, &known).unwrap_err();
    assert!(matches!(refused, StoreError::Another { .. }), "{refused}");
    std::fs::write(&file.path, "a shopping list, longer than any header\n".repeat(100)).unwrap();
    let refused = Sqlite::reopen(&file.path, &known).unwrap_err().to_string();
    assert!(refused.contains("is not a database"), "{refused}");
    assert!(comity_store::reopen("memory:", &known).is_err(), "an in-memory store is gone");
}

/// A store without an identity is damaged, not new.
#[test]
fn an_identity_that_cannot_be_read_is_an_error() {
    for damage in
        ["DELETE FROM identity", "INSERT INTO identity (id) SELECT id FROM identity", "DROP TABLE identity"]
    {
        let file = TestFile::new();
        drop(file.open());
        file.query(damage);
        let refusal = file.refusal();
        assert!(refusal.contains("identity"), "{damage}: {refusal}");
        assert_eq!(file.refusal(), refusal, "{damage}: opening does not fix it");
    }
}

/// B82, B77: damaged bytes used to make the whole store unusable. Its state counts as lost, because nobody knows what else is
/// damaged; and it is another store for whoever uses it already.
#[tokio::test]
async fn a_damaged_identity_is_renewed_and_every_site_waits_once() {
    let file = TestFile::new();
    let known = used(&file).await;
    file.query("UPDATE identity SET id = x'00ff'");
    assert!(Sqlite::reopen(&file.path, &known).is_err());
    let two = file.process("two").await;
    assert!(!two.store.identity().is_same(&known));
    assert_eq!(died_at(&two.taken("a.example", at(9)).await), at(9));
    assert!(two.store.identity().is_same(&file.open().identity()), "once");
}

#[test]
fn each_store_keeps_its_own_identity() {
    let (one, other) = (TestFile::new(), TestFile::new());
    let identity = one.open().identity();
    assert!(identity.is_same(&one.open().identity()));
    assert!(!identity.is_same(&other.open().identity()));
    let memories = [Sqlite::in_memory(), Sqlite::in_memory()].map(|store| store.unwrap().identity());
    assert!(!memories[0].is_same(&memories[1]));
}

/// B77: the copy does not know what was sent after it was made.
#[tokio::test]
async fn a_restored_copy_counts_as_lost_state() {
    let file = TestFile::new();
    let one = file.process("one").await;
    for name in ["released.example", "stopped.example"] {
        let tenure = one.taken(name, at(0)).await.tenure;
        let mode = if name == "released.example" { ReleaseMode::HandOver } else { ReleaseMode::Stop };
        one.release(tenure, b"pace", mode, at(1)).await;
    }
    one.taken("held.example", at(0)).await;
    let copy = file.path.with_extension("copy");
    file.query(&format!("VACUUM INTO '{}'", copy.display()));
    one.taken("later.example", at(2)).await;
    let known = one.store.identity();
    let url = format!("sqlite:{}", file.path.display());
    drop(one);
    std::fs::rename(&copy, &file.path).unwrap();

    // Both a process that had it open before and a new one accept it; the second sees what the first recorded.
    let store = comity_store::reopen(&url, &known).unwrap();
    let one = Process::with(Opened::without_pause(store), "one", at(100)).await;
    let other =
        Process::with(Opened::without_pause(comity_store::open(&url).unwrap()), "other", at(100)).await;
    let since = died_at(&one.taken("released.example", at(100)).await);
    assert_eq!(since, at(100));
    assert_eq!(died_at(&other.taken("stopped.example", at(160)).await), since, "it was restored only once");
    assert_eq!(died_at(&other.taken("later.example", at(160)).await), since, "it is not in the copy at all");
    // Holders in the copy may be alive: their leases decide.
    for secs in [160, 165, 170] {
        one.beat(at(secs)).await.unwrap();
        other.beat(at(secs)).await.unwrap();
    }
    let now = at(170);
    assert_eq!(died_at(&one.taken("held.example", now).await), since);
    // A domain that was taken and released since then counts as usual.
    let tenure = one.taken("new.example", now).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::HandOver, now).await;
    assert_eq!(
        other.taken("new.example", now).await.last_holder,
        LastHolderBuf::HandedOver(b"pace".to_vec())
    );
    assert_eq!(other.taken("much.later.example", at(100_000)).await.last_holder, LastHolderBuf::None);
    drop((one, other));
    let again = file.process("again").await;
    assert_eq!(file.query_one("SELECT restored_us / 1000000 - 1800000000 FROM identity"), "100");
    drop(again);
}

/// A file that was moved away and back has lost nothing.
#[tokio::test]
async fn a_store_that_was_moved_away_and_back_continues_as_it_was() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    let kept = SavedLimits { server: Some((at(3_600), at(0))), ..SavedLimits::default() };
    let saved = Saved { kept, ..nothing_learned(tenure) };
    let released = Released { saved, pace: b"pace".to_vec(), mode: ReleaseMode::HandOver };
    one.store.release(one.holder, vec![released], at(1)).await.unwrap();
    let elsewhere = file.path.with_extension("elsewhere");
    std::fs::rename(&file.path, &elsewhere).unwrap();
    one.store.set_patience(Span::ZERO);
    one.beat(at(2)).await.unwrap_err();
    let known = one.store.identity();
    std::fs::rename(&elsewhere, &file.path).unwrap();
    let other = Process::with(opened(Sqlite::reopen(&file.path, &known).unwrap()), "other", at(3)).await;
    let taken = other.taken("a.example", at(3)).await;
    assert_eq!((taken.last_holder, taken.kept), (LastHolderBuf::HandedOver(b"pace".to_vec()), kept));
}

/// B9: a process that creates a new log does not see what the others write to theirs.
#[tokio::test]
async fn every_process_notices_a_log_deleted_while_in_use() {
    for ending in ["-wal", "-shm"] {
        let file = TestFile::new();
        let (one, two) = (file.process("one").await, file.process("two").await);
        let tenure = one.taken("a.example", at(0)).await.tenure;
        one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
        one.taken("b.example", at(0)).await;
        std::fs::remove_file(format!("{}{ending}", file.path.display())).unwrap();
        let refusal = file.refusal();
        assert!(
            refusal.contains(ending) && refusal.contains("deleted while other processes use it"),
            "{refusal}"
        );
        // Each waits until the other has closed the old one, and both lose what they held.
        for beaten in <[_; 2]>::from(tokio::join!(one.beat(at(1)), two.beat(at(1)))) {
            assert!(matches!(beaten, Err(StoreError::Lost)), "{ending}: {beaten:?}");
        }
        let other = Process::with(Opened::without_pause(one.store.clone()), "other", at(2)).await;
        assert_eq!(died_at(&other.taken("a.example", at(2)).await), at(2), "writes in it may be lost");
        let again = Process::with(Opened::without_pause(two.store.clone()), "again", at(2)).await;
        assert!(matches!(again.take("a.example", at(2)).await, Take::Held { .. }), "{ending}");
    }
}

/// Starting over requires a decision by somebody.
#[tokio::test]
async fn a_database_deleted_while_in_use_is_not_recreated_by_another_process() {
    let file = TestFile::new();
    let one = file.process("one").await;
    std::fs::remove_file(&file.path).unwrap();
    let refusal = file.refusal();
    assert!(refusal.contains("is gone, but its log"), "{refusal}");
    for ending in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{ending}", file.path.display())).unwrap();
    }
    assert_eq!(file.refusal(), "is gone, but processes use it: put it back, or stop them to start over");
    assert!(!file.path.exists());
    drop(one);
    file.process("anew").await;
}

/// SQLite deletes the log of an empty database, and with it everything that was written.
#[tokio::test]
async fn an_empty_file_in_place_of_a_database_does_not_lose_its_log() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
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
    assert_eq!(
        other.taken("a.example", at(1)).await.last_holder,
        LastHolderBuf::HandedOver(b"pace".to_vec())
    );
}

/// B9: a process that opens it under another name has another log, and would send requests as well.
#[cfg(unix)]
#[test]
fn a_database_with_two_hard_links_is_refused() {
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
fn for_a_dangling_link_the_target_is_created() {
    let file = TestFile::new();
    let there = file.path.with_file_name("there.db");
    std::os::unix::fs::symlink("there.db", &file.path).unwrap();
    let known = file.open().identity();
    assert!(there.is_file() && file.path.is_symlink());
    std::fs::remove_file(&there).unwrap();
    Sqlite::reopen(&file.path, &known).unwrap_err();
    assert!(!there.exists());
}

/// What happens to a file.
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

/// A store that was used, and its identity.
async fn used(file: &TestFile) -> Identity {
    let one = file.process("one").await;
    let tenure = one.taken("a.example", at(0)).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::HandOver, at(0)).await;
    one.store.identity()
}
