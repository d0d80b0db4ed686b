//! A store that can't be used: the error names its path, the exit code is 3, nothing panics and nothing is lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::comity::{Done, World, list};
use crate::log::{counts, to_text, wait_until};
use crate::nginx::Nginx;

#[track_caller]
fn assert_reported(done: Done, path: &Path, what: &str) {
    let done = done.expect(3);
    let error = done.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(error.contains(&path.display().to_string()), "the path is missing: {error}");
    assert!(done.stderr.contains(what), "not on stderr: {what}\n{}", done.stderr);
    assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
}

/// A store whose only job waits for a paused domain.
fn world_with_a_job(tasks: usize) -> (World, Nginx) {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.run(&["domains", "set", &nginx.url(), "--pause", "forever"]).expect(0);
    let input = world.write("list", &list(&nginx.url(), "p", tasks));
    let fetch =
        world.start(&["fetch", "--input", input.to_str().unwrap(), "--job", "one", "--robots", "ignore"]);
    let filled = || {
        let job = "SELECT count(*) FROM jobs WHERE name = 'one' AND tasks = ?1 AND unread = 0";
        world.sql().query_row(job, [tasks as i64], |row| row.get::<_, i64>(0)).is_ok_and(|count| count == 1)
    };
    wait_until("the list is read", filled);
    fetch.signal("INT");
    fetch.wait().expect(130);
    assert_eq!(nginx.log().len(), 0);
    (world, nginx)
}

#[test]
fn a_store_locked_by_another_program() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.run(&["record", "example.org", "success"]).expect(0);
    let input = world.write("list", &list(&nginx.url(), "p", 60));
    let mut running = world.command(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "running",
        "--delay",
        "300ms",
        "--robots",
        "ignore",
        "--format",
        "none",
    ]);
    running.env("COMITY_UPKEEP_PATIENCE", "4s");
    let running = world.begin(running);
    nginx.wait_for(3);
    let lock = world.sql();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let sent = nginx.log().len();
    let mut starting = world.command(&["fetch", &nginx.url(), "--format", "none", "--robots", "ignore"]);
    starting.env("COMITY_UPKEEP_PATIENCE", "4s");
    let starting = world.begin(starting);
    assert_reported(starting.wait(), &PathBuf::from("comity.db"), "locked by another program");
    assert_reported(running.wait(), &PathBuf::from("comity.db"), "locked by another program");
    lock.execute_batch("ROLLBACK").unwrap();
    drop(lock);
    // Without the store, no process may continue for long.
    let more = nginx.log().len() - sent;
    assert!(more <= 40, "{more} requests without a store");
    world.run(&["fetch", "--job", "running", "--delay", "20ms"]).expect(0);
    let log = nginx.log();
    let counts = counts(&log);
    assert_eq!(counts.len(), 60, "{}", to_text(&log));
}

/// B74
#[test]
fn a_disk_that_is_full_at_the_start() {
    let (world, mount) = (World::new(), Mount::tmpfs("1m"));
    mount.fill();
    let store = mount.path.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    let mut fetch = world.command(&["fetch", "http://127.0.0.1:9/", "--store", &url, "--format", "none"]);
    fetch.env("COMITY_UPKEEP_PATIENCE", "1s");
    assert_reported(world.begin(fetch).wait(), &store, "full");
    mount.free();
    world.run(&["jobs", "list", "--store", &url]).expect(0).shows("No jobs yet");
}

/// B83. A little room is left, but not enough for the index of the log: SQLite calls that an I/O error.
#[test]
fn a_disk_that_is_almost_full() {
    let (world, mount) = (World::new(), Mount::tmpfs("1m"));
    let store = mount.path.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    world.run(&["record", "example.org", "success", "--store", &url]).expect(0);
    for left in [4, 8, 16] {
        mount.fill_but(left);
        let mut fetch = world.command(&["fetch", "http://127.0.0.1:9/", "--store", &url, "--format", "none"]);
        fetch.env("COMITY_UPKEEP_PATIENCE", "1s");
        assert_reported(
            world.begin(fetch).wait(),
            &store,
            "the disk is full; free some space and run the same command again",
        );
        let waiting = world.start(&["record", "example.org", "success", "--store", &url]);
        wait_until("it reports what it waits for", || {
            waiting.said().contains("the disk is full; waiting up to")
        });
        mount.free();
        waiting.wait().expect(0);
    }
}

/// B74
#[test]
fn a_disk_that_fills_up_during_a_fetch() {
    let (world, mount, nginx) = (World::new(), Mount::tmpfs("24m"), Nginx::start(""));
    let store = mount.path.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    let input = world.write("list", &list(&nginx.url(), "p", 150));
    let mut fetch = world.command(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--store",
        &url,
        "--delay",
        "20ms",
        "--robots",
        "ignore",
        "--out",
        "pages",
    ]);
    fetch.env("COMITY_UPKEEP_PATIENCE", "0s");
    let fetch = world.begin(fetch);
    nginx.wait_for(20);
    mount.fill();
    assert_reported(fetch.wait(), &store, "the disk is full");
    let before = nginx.log().len();
    assert!(before < 150, "it ended before the disk was full");
    mount.free();
    let done = world.run(&["--json", "fetch", "--job", "one", "--store", &url]).expect(0);
    assert_eq!(done.json()["fetched"], 150);
    let log = nginx.log();
    assert_eq!(counts(&log).len(), 150, "{}", to_text(&log));
    assert!(log.len() <= 152, "fetched again:\n{}", to_text(&log));
}

/// B83: work continues when there is room again.
#[test]
fn a_disk_that_is_full_for_a_while() {
    let (world, mount, nginx) = (World::new(), Mount::tmpfs("24m"), Nginx::start(""));
    let store = mount.path.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    let input = world.write("list", &list(&nginx.url(), "p", 150));
    let input = input.to_str().unwrap();
    let fetch = world.start(&[
        "fetch", "--input", input, "--store", &url, "--delay", "20ms", "--robots", "ignore", "--out", "pages",
    ]);
    nginx.wait_for(20);
    mount.fill();
    wait_until("it reports what it waits for", || {
        fetch.said().contains("the disk is full; waiting up to 10 min")
    });
    assert!(nginx.log().len() < 150, "it ended before the disk was full");
    mount.free();
    fetch.wait().expect(0);
    let log = nginx.log();
    assert_eq!(counts(&log).len(), 150, "{}", to_text(&log));
    assert!(log.len() <= 152, "fetched again:\n{}", to_text(&log));
}

/// B74: there is no room for the pages, but for the store.
#[test]
fn a_disk_without_room_for_pages() {
    let (world, mount, nginx) = (World::new(), Mount::tmpfs("512k"), Nginx::start(""));
    let out = mount.path.join("pages");
    let input = world.write("list", &list(&nginx.url(), "p", 60));
    let fetch = world.start(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--delay",
        "20ms",
        "--robots",
        "ignore",
        "--out",
        out.to_str().unwrap(),
    ]);
    nginx.wait_for(10);
    mount.fill();
    let done = fetch.wait().expect(1);
    let error = done.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(error.contains(out.to_str().unwrap()) && error.contains("No space left"), "{}", done.stderr);
    done.shows("job one: stopped, ");
    done.says("To resume: comity fetch --job one");
    mount.free();
    let done = world.run(&["--json", "fetch", "--job", "one"]).expect(0);
    assert_eq!(done.json()["fetched"], 60);
    let mut urls = std::collections::BTreeSet::new();
    for line in std::fs::read_to_string(out.join("index.jsonl")).unwrap().lines() {
        // A truncated line is on its own.
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let body = std::fs::read(out.join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!(body.len() as u64, line["bytes"].as_u64().unwrap(), "{line}");
        urls.insert(line["url"].as_str().unwrap().to_owned());
    }
    assert_eq!(urls.len(), 60, "pages that are not in the index");
    let left: Vec<PathBuf> =
        files(&out).into_iter().filter(|path| path.extension() == Some("part".as_ref())).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_folder_that_is_not_writable() {
    let world = World::new();
    world.write("file", "not a folder");
    let below = world.path("file").join("comity.db");
    let url = format!("sqlite:{}", below.display());
    assert_reported(
        world.run(&["fetch", "http://127.0.0.1:9/", "--store", &url]),
        &below,
        "file is not a folder",
    );
    let missing = world.path("missing").join("comity.db");
    let url = format!("sqlite:{}", missing.display());
    let record = ["record", "example.org", "success", "--store", &url];
    assert_reported(world.run(&record), &missing, "missing does not exist; create it first");
    assert_reported(world.run(&["jobs", "list", "--store", &url]), &missing, "there is no store here");

    let mount = Mount::tmpfs("1m");
    let store = mount.path.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    world.run(&["record", "example.org", "success", "--store", &url]).expect(0);
    mount.remount("ro");
    let done = world.run(&["--json", "fetch", "http://127.0.0.1:9/", "--store", &url, "--format", "none"]);
    assert_eq!(done.json()["code"], 3);
    assert_reported(done, &store, "writable");
    mount.remount("rw");
}

/// A missing folder and one without permission have the same exit code, but not the same message.
#[test]
fn a_folder_without_permission() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let folder = world.path("private");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o000)).unwrap();
    let store = folder.join("comity.db");
    let url = format!("sqlite:{}", store.display());
    for args in
        [&["record", "example.org", "success", "--store", &url][..], &["jobs", "list", "--store", &url]]
    {
        let mut command = world.command(args);
        crate::contrib::as_nobody(&mut command, &world.path(""), &[]);
        let expected = format!("no permission to look into the folder {}", folder.display());
        assert_reported(world.begin(command).wait(), &store, &expected);
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = world.command(&["record", "example.org", "success", "--store", &url]);
    crate::contrib::as_nobody(&mut command, &world.path(""), &[]);
    if std::fs::metadata(world.path("")).unwrap().permissions().mode() & 0o777 == 0o755 {
        let expected = format!("it can't be created in the folder {}", folder.display());
        assert_reported(world.begin(command).wait(), &store, &expected);
    }
}

#[test]
fn a_damaged_store() {
    let (world, nginx) = world_with_a_job(3_000);
    world.sql().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut bytes = std::fs::read(world.store()).unwrap();
    assert!(bytes.len() > 100_000, "{} bytes", bytes.len());
    let mut random = fastrand::Rng::with_seed(3);
    bytes[4_096..].iter_mut().for_each(|byte| *byte = random.u8(..));
    std::fs::write(world.store(), &bytes).unwrap();
    let done = world.run(&["fetch", "--job", "one"]);
    assert_reported(done, &PathBuf::from("comity.db"), "corrupt");
    assert_eq!(nginx.log().len(), 0);
}

#[test]
fn a_store_damaged_in_the_middle() {
    let (world, nginx) = world_with_a_job(3_000);
    world.sql().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut bytes = std::fs::read(world.store()).unwrap();
    let (from, to) = (bytes.len() / 3 / 4_096 * 4_096, bytes.len() * 2 / 3);
    bytes[from..to].fill(0xa5);
    std::fs::write(world.store(), &bytes).unwrap();
    // The first command that finds the damage reports it, and none makes up an answer.
    let resumed = world.run(&["domains", "set", &nginx.url(), "--resume"]);
    let done = match resumed.code {
        Some(0) => world.run(&["fetch", "--job", "one", "--delay", "0s"]),
        _ => resumed,
    };
    assert_reported(done, &PathBuf::from("comity.db"), "corrupt");
}

#[test]
fn a_file_that_is_not_a_database() {
    let world = World::new();
    let text = "This is a letter to a friend.\n".repeat(1_000);
    world.write("comity.db", &text);
    let done = world.run(&["fetch", "http://127.0.0.1:9/", "--format", "none"]);
    assert_reported(done, &PathBuf::from("comity.db"), "is not a database");
    assert_eq!(std::fs::read_to_string(world.store()).unwrap(), text);
}

#[test]
fn the_database_of_another_program() {
    let world = World::new();
    world
        .sql()
        .execute_batch("CREATE TABLE friends (name TEXT); INSERT INTO friends VALUES ('Ada')")
        .unwrap();
    let before = std::fs::read(world.store()).unwrap();
    let done = world.run(&["fetch", "http://127.0.0.1:9/", "--format", "none"]);
    assert_reported(done, &PathBuf::from("comity.db"), "another program");
    assert!(std::fs::read(world.store()).unwrap() == before, "it was changed");
}

#[test]
fn a_store_written_by_a_newer_version() {
    let world = World::new();
    world.run(&["record", "example.org", "success"]).expect(0);
    world.sql().pragma_update(None, "user_version", 999).unwrap();
    let done = world.run(&["--json", "jobs", "list"]);
    assert_eq!(done.json()["code"], 3);
    assert_reported(done, &PathBuf::from("comity.db"), "newer version");
}

#[test]
fn a_store_deleted_while_in_use() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 1_000));
    let mut fetch = world.command(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--delay",
        "200ms",
        "--robots",
        "ignore",
        "--format",
        "none",
    ]);
    fetch.env("COMITY_UPKEEP_PATIENCE", "3s");
    let fetch = world.begin(fetch);
    nginx.wait_for(3);
    for name in ["comity.db", "comity.db-wal", "comity.db-shm"] {
        std::fs::remove_file(world.path(name)).unwrap();
    }
    let done = fetch.wait();
    assert!(nginx.log().len() < 500, "{} pages before it noticed", nginx.log().len());
    assert_reported(done, &PathBuf::from("comity.db"), "deleted");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => files.extend(self::files(&path)),
            path => files.push(path),
        }
    }
    files
}

/// A small disk.
struct Mount {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mount {
    fn tmpfs(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let mount = Self { path, _folder: folder };
        mount.call("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "comity-test"]);
        mount
    }

    fn call(&self, program: &str, args: &[&str]) {
        let done = Command::new(program).args(args).arg(&self.path).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{program} {args:?}: {said}; these tests need to mount a small disk (root)"
        );
    }

    fn remount(&self, how: &str) {
        self.call("mount", &["-o", &format!("remount,{how}")]);
    }

    /// Fills the disk completely.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.path.join("ballast")).unwrap();
        while file.write_all(&[7; 1_024]).is_ok() {}
        std::thread::sleep(Duration::from_millis(1));
    }

    /// Fills the disk except for `left` KiB.
    fn fill_but(&self, left: u64) {
        self.fill();
        let ballast = std::fs::File::options().write(true).open(self.path.join("ballast")).unwrap();
        ballast.set_len(ballast.metadata().unwrap().len() - left * 1_024).unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.path.join("ballast")).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
