//! The lock files that show which processes are alive, and what people and programs do to them.

use std::fs;
use std::path::PathBuf;

use comity_conformance::process::{Process, at, died_at, ms};
use comity_store::LEASE;
use comity_store::domains::{LastHolderBuf, ReleaseMode, Take};

use crate::file::TestFile;

/// What is done to the lock files, and to that of one holder in particular.
type Harm = (&'static str, fn(&Files, i64));

/// What may happen to the lock file of a live process.
const HARM: [Harm; 6] = [
    ("the folder is deleted", |files, _| fs::remove_dir_all(&files.folder).unwrap()),
    ("its file is deleted", |files, holder| fs::remove_file(files.of(holder)).unwrap()),
    ("another file is in its place", |files, holder| {
        fs::remove_file(files.of(holder)).unwrap();
        fs::write(files.of(holder), "").unwrap();
    }),
    ("a copy is in its place", |files, holder| {
        let copy = files.folder.join("copy");
        fs::copy(files.of(holder), &copy).unwrap();
        fs::rename(copy, files.of(holder)).unwrap();
    }),
    ("the folder is a file", |files, _| {
        fs::remove_dir_all(&files.folder).unwrap();
        fs::write(&files.folder, "").unwrap();
    }),
    ("the folder was moved away", |files, _| {
        fs::rename(&files.folder, files.folder.with_extension("elsewhere")).unwrap();
    }),
];

/// B9: its domains used to be taken at once, and then two processes sent requests.
#[tokio::test]
async fn damaged_lock_files_do_not_make_live_processes_dead() {
    for (harm, happens) in HARM {
        let file = TestFile::new();
        let files = Files::of_store(&file);
        let (holder, other) = (file.process("holder").await, file.process("other").await);
        holder.taken("a.example", at(0)).await;
        happens(&files, holder.holder.0);
        let held = Take::Held { by: "holder".to_owned() };
        assert_eq!(other.take("a.example", at(1)).await, held, "{harm}");
        // Both send heartbeats: live processes are known to be alive for as long as they do.
        for secs in (2..40).step_by(2) {
            other.beat(at(secs)).await.unwrap();
            assert_eq!(other.take("a.example", at(secs)).await, held, "{harm}, after {secs} s");
            holder.beat(at(secs)).await.unwrap();
        }
    }
}

/// B74: a recreated file is as good as the first one.
#[tokio::test]
async fn a_process_whose_lock_file_was_deleted_creates_another_with_its_next_heartbeat() {
    for (harm, happens) in HARM.into_iter().filter(|(harm, _)| *harm != "the folder is a file") {
        let file = TestFile::new();
        let (files, other) = (Files::of_store(&file), file.process("other").await);
        let holder = file.process("holder").await;
        holder.taken("a.example", at(0)).await;
        happens(&files, holder.holder.0);
        holder.beat(at(1)).await.unwrap();
        other.beat(at(1)).await.unwrap();
        drop(holder);
        assert_eq!(
            died_at(&other.taken("a.example", at(2)).await),
            at(2),
            "{harm}: its death is noticed at once"
        );
    }
}

/// B74: until then, its lease decides.
#[tokio::test]
async fn the_death_of_a_process_without_its_lock_file_is_noticed_by_its_lease() {
    let file = TestFile::new();
    let (holder, other) = (file.process("holder").await, file.process("other").await);
    holder.taken("a.example", at(0)).await;
    fs::remove_dir_all(Files::of_store(&file).folder).unwrap();
    drop(holder);
    assert!(matches!(other.take("a.example", at(1)).await, Take::Held { .. }));
    assert!(matches!(other.take("a.example", at(1) + LEASE - ms(1)).await, Take::Held { .. }));
    assert_eq!(died_at(&other.taken("a.example", at(1) + LEASE).await), at(1) + LEASE);
}

/// B9: a process that starts while the folder is missing creates it again; the others are still not considered dead.
#[tokio::test]
async fn a_process_that_starts_without_the_folder_declares_nobody_dead() {
    let file = TestFile::new();
    let holder = file.process("holder").await;
    holder.taken("a.example", at(0)).await;
    fs::remove_dir_all(Files::of_store(&file).folder).unwrap();
    let late = file.process("late").await;
    late.beat(at(1)).await.unwrap();
    assert!(matches!(late.take("a.example", at(1)).await, Take::Held { .. }));
    holder.beat(at(2)).await.unwrap();
    drop(late);
    let heir = file.process("heir").await;
    drop(holder);
    assert!(matches!(heir.taken("a.example", at(3)).await.last_holder, LastHolderBuf::Died { .. }));
}

/// A file that somebody else has locked, or that was left over, does not keep a process from starting.
#[tokio::test]
async fn a_strangers_lock_stops_nobody() {
    let file = TestFile::new();
    let files = Files::of_store(&file);
    drop(file.open());
    fs::create_dir(&files.folder).unwrap();
    let strangers: Vec<fs::File> = (1..20)
        .map(|nth| {
            let stranger = fs::File::create(files.of(nth)).unwrap();
            stranger.lock().unwrap();
            stranger
        })
        .collect();
    // The log is missing while somebody seems to use the database: that is what a lock means.
    let log = format!("{}-wal", file.path.display());
    assert!(!PathBuf::from(&log).exists());
    assert!(file.refusal().contains("-wal was deleted"), "{log}");
    let keeps = rusqlite::Connection::open(&file.path).unwrap();
    keeps.query_row("SELECT count(*) FROM holders", [], |_| Ok(())).unwrap();
    let one = file.process("one").await;
    one.taken("a.example", at(0)).await;
    let other = file.process("other").await;
    assert!(matches!(other.take("a.example", at(1)).await, Take::Held { .. }));
    drop((one, strangers));
    assert!(matches!(other.taken("a.example", at(1)).await.last_holder, LastHolderBuf::Died { .. }));
}

/// Processes that stop leave nothing behind, and an empty folder is removed.
#[tokio::test]
async fn a_process_that_stops_removes_its_lock_file() {
    let file = TestFile::new();
    let files = Files::of_store(&file);
    let (one, other) = (file.process("one").await, file.process("other").await);
    let tenure = one.taken("a.example", at(0)).await.tenure;
    one.release(tenure, b"pace", ReleaseMode::Stop, at(1)).await;
    stop(&one).await;
    assert!(!files.of(one.holder.0).exists() && files.of(other.holder.0).exists());
    stop(&other).await;
    assert!(!files.folder.exists());
}

/// B83: a stop that could not be recorded is noticed at once, as a death.
#[tokio::test]
async fn a_stop_that_cannot_be_recorded_is_noticed_at_once() {
    let file = TestFile::new();
    let (one, other) = (file.process("one").await, file.process("other").await);
    one.taken("a.example", at(0)).await;
    let lock = file.lock();
    one.store.deregister(one.holder, at(1)).await.unwrap_err();
    drop(lock);
    assert!(matches!(other.taken("a.example", at(2)).await.last_holder, LastHolderBuf::Died { .. }));
}

async fn stop(process: &Process) {
    process.store.deregister(process.holder, at(2)).await.unwrap();
}

/// The lock files of a store.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn of_store(file: &TestFile) -> Self {
        Self { folder: format!("{}-holders", file.path.display()).into() }
    }

    fn of(&self, holder: i64) -> PathBuf {
        self.folder.join(holder.to_string())
    }
}
