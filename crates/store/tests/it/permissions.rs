//! The files of a store are private: they contain secrets, and whoever can lock them can stop everybody.
#![cfg(unix)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use comity_conformance::process::at;
use comity_store::Store;
use comity_store::domains::{DomainStore, HolderId};

use crate::file::TestFile;

/// B75: in a separate process, because a umask applies to the whole process.
#[test]
fn a_store_is_private_from_the_moment_it_exists() {
    for umask in ["000", "022", "077", "277"] {
        let file = TestFile::new();
        let me = std::env::current_exe().unwrap();
        let script = format!("umask {umask}; exec {} --exact permissions::child --ignored", me.display());
        let done =
            Command::new("sh").args(["-c", &script]).env("COMITY_TEST_STORE", &file.path).output().unwrap();
        assert!(done.status.success(), "umask {umask}: {}", String::from_utf8_lossy(&done.stdout));
    }
}

/// A journal used to be left next to a device, and the device was closed to other users.
#[tokio::test]
async fn what_is_not_a_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (null, pipe, socket) =
        (folder.path().join("null"), folder.path().join("pipe"), folder.path().join("socket"));
    std::os::unix::fs::symlink("/dev/null", &null).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [Path::new("/dev/null"), Path::new("/dev/full"), &null, &pipe, &socket] {
        let mode = || std::fs::metadata(path).unwrap().mode();
        let before = mode();
        let error = comity_store::open(&format!("sqlite:{}", path.display())).err().unwrap().to_string();
        let expected = "could not be opened: it is a device, a pipe or a socket; name a file";
        assert_eq!(error, format!("{}: {expected}", path.display()));
        assert_eq!(mode(), before);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "nothing is left behind");
    assert!(["/dev/null-journal", "/dev/null-holders"].iter().all(|left| !Path::new(left).exists()));
}

/// Runs in the process with another umask.
#[ignore = "started by a_store_is_private_from_the_moment_it_exists"]
#[tokio::test]
async fn child() {
    let path = PathBuf::from(std::env::var_os("COMITY_TEST_STORE").unwrap());
    let store = comity_store::open(&format!("sqlite:{}", path.display())).unwrap();
    store.register("one".to_owned(), at(0)).await.unwrap();
    assert_private(&path);
}

#[tokio::test]
async fn a_store_of_an_older_version_is_made_private() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let files = files(&file.path);
    assert_eq!(files.len(), 5, "{files:?}");
    for path in &files {
        set_mode(path, if path.is_dir() { 0o755 } else { 0o644 });
    }
    let other = file.open();
    assert_private(&file.path);
    let notes = other.notes();
    assert!(
        matches!(&notes[..], [note] if note.contains("mode 0644") && note.contains("0600 now")),
        "{notes:?}"
    );
    assert!(file.open().notes().is_empty(), "noted once");
    drop(one);
}

/// A group with write access was let in on purpose, and has access to files that are created later too.
#[tokio::test]
async fn a_store_that_a_group_shares_stays_shared() {
    let file = TestFile::new();
    drop(file.open());
    set_mode(&file.path, 0o664);
    let one = file.process("one").await;
    for path in files(&file.path) {
        assert_eq!(mode(&path), if path.is_dir() { 0o770 } else { 0o660 }, "{}", path.display());
    }
    drop(one);
    assert!(file.open().notes().is_empty());
}

/// Permissions of files that are not ours are not changed.
#[test]
fn a_file_that_is_not_a_store_keeps_its_permissions() {
    let file = TestFile::new();
    file.query("CREATE TABLE recipes (name TEXT)");
    set_mode(&file.path, 0o644);
    file.refusal();
    assert_eq!(mode(&file.path), 0o644);
}

/// A link that somebody else puts next to a store does not lead us to their files.
#[tokio::test]
async fn a_link_in_place_of_the_lock_file_folder_is_refused() {
    let file = TestFile::new();
    drop(file.open());
    let theirs = file.beside(".theirs");
    std::fs::create_dir(&theirs).unwrap();
    let inside = theirs.join("1");
    std::fs::write(&inside, "mine").unwrap();
    set_mode(&theirs, 0o755);
    set_mode(&inside, 0o644);
    std::os::unix::fs::symlink(&theirs, file.beside("-holders")).unwrap();
    let store = file.open();
    let error = store.register("one".to_owned(), at(0)).await.unwrap_err().to_string();
    assert!(error.contains("-holders is in the way"), "{error}");
    store.deregister(HolderId(1), at(0)).await.ok();
    assert_eq!((mode(&theirs), mode(&inside)), (0o755, 0o644));
    assert_eq!(std::fs::read(&inside).unwrap(), b"mine");
}

/// The same is true of links inside the folder.
#[tokio::test]
async fn links_among_the_lock_files_are_left_alone() {
    let file = TestFile::new();
    let one = file.process("one").await;
    let theirs = file.beside(".theirs");
    std::fs::write(&theirs, "mine").unwrap();
    set_mode(&theirs, 0o644);
    let folder = file.beside("-holders");
    std::os::unix::fs::symlink(&theirs, folder.join("77")).unwrap();
    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    set_mode(&folder.join("notes.txt"), 0o644);
    file.open();
    assert_eq!((mode(&theirs), mode(&folder.join("notes.txt"))), (0o644, 0o644));
    drop(one);
}

/// The database, its log and the log's index, the folder of lock files, and the files in it.
fn files(database: &Path) -> Vec<PathBuf> {
    let folder = PathBuf::from(format!("{}-holders", database.display()));
    let beside = ["-wal", "-shm"].map(|ending| format!("{}{ending}", database.display()).into());
    let inside = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    [database.to_owned(), folder.clone()].into_iter().chain(beside).chain(inside).collect()
}

fn assert_private(database: &Path) {
    for path in files(database) {
        assert_eq!(mode(&path), if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}
