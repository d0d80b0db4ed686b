//! B83: while the store is unavailable, everything that works on it pauses. Nothing is sent, one line says what it
//! waits for, and work continues when the store is back. `upkeep.patience` limits the wait.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;

use crate::comity::{Done, Running, World, list};
use crate::follow;
use crate::log::{Hit, assert_spaced, counts, now_us, to_text, wait_until};
use crate::nginx::Nginx;
use crate::service::{Service, post};
use crate::wiki::{PACE, in_front_of, many};
use crate::wiki_archived::same;

/// A store in its own folder, which can be taken away.
struct Volume<'a>(&'a World);

/// Why a store is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// Another program is in the middle of a transaction.
    Locked,
    /// Its volume is not mounted.
    Moved,
    /// It was deleted, and is restored from a copy.
    Deleted,
}

impl Absence {
    fn notice(self) -> &'static str {
        match self {
            Self::Locked => "locked by another program (",
            Self::Moved | Self::Deleted => "comity.db was deleted, moved or replaced while it was in use",
        }
    }
}

impl<'a> Volume<'a> {
    fn new(world: &'a World) -> Self {
        std::fs::create_dir(world.path("volume")).unwrap();
        Self(world)
    }

    fn command(&self, patience: &str, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env("COMITY_STORE", "sqlite:volume/comity.db").env("COMITY_UPKEEP_PATIENCE", patience);
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        self.0.begin(self.command("10m", args))
    }

    fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    fn path(&self) -> PathBuf {
        self.0.path("volume")
    }

    fn lock(&self) -> Connection {
        let lock = Connection::open(self.path().join("comity.db")).unwrap();
        lock.busy_timeout(Duration::from_secs(60)).unwrap();
        lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
        lock
    }

    /// Takes the store away, and returns what brings it back.
    fn take(&self, absence: Absence) -> Box<dyn FnOnce()> {
        let (volume, elsewhere) = (self.path(), self.0.path("elsewhere"));
        match absence {
            Absence::Locked => {
                let lock = self.lock();
                Box::new(move || lock.execute_batch("ROLLBACK").unwrap())
            }
            Absence::Moved => {
                std::fs::rename(&volume, &elsewhere).unwrap();
                Box::new(move || std::fs::rename(&elsewhere, &volume).unwrap())
            }
            Absence::Deleted => {
                std::fs::rename(&volume, &elsewhere).unwrap();
                Box::new(move || {
                    std::fs::create_dir(&volume).unwrap();
                    // The database comes last: it makes the store available.
                    for name in ["comity.db-wal", "comity.db-shm", "comity.db"] {
                        std::fs::copy(elsewhere.join(name), volume.join(name)).unwrap();
                    }
                    std::fs::remove_dir_all(&elsewhere).unwrap();
                })
            }
        }
    }

    /// Takes the store away from `running`, and asserts that it reports this, sends nothing and keeps running.
    fn pause(&self, running: &mut Running, absence: Absence, log: &dyn Fn() -> Vec<Hit>) {
        let bring_back = self.take(absence);
        wait_until("it reports what it waits for", || {
            assert!(!running.is_over(), "{absence:?}: {}", running.said());
            running.said().contains(absence.notice())
        });
        let sent = log();
        // Long enough that a process that did not notice would send something.
        std::thread::sleep(Duration::from_secs(9));
        let after = log();
        assert_eq!(
            after.len(),
            sent.len(),
            "{absence:?}: sent meanwhile:\n{}\n{}",
            to_text(&after),
            running.said()
        );
        assert!(!running.is_over(), "{absence:?}: {}", running.said());
        bring_back();
        wait_until("it continues", || running.said().contains("available again after"));
    }
}

/// One line when the wait starts, and one when it ends.
#[track_caller]
fn assert_reported_once(said: &str, absence: Absence) {
    let notices = said.matches("; waiting up to 10 min for it; no requests are sent meanwhile").count();
    let ends = said.matches("; work continues").count();
    assert_eq!((notices, ends), (1, 1), "{absence:?}: {said}");
}

/// Asserts that it gave up after a short patience, and named the store and the time.
#[track_caller]
fn assert_gave_up(done: Done, what: &str) {
    let done = done.expect(3);
    let error = done.stderr.lines().rfind(|line| line.starts_with("error: ")).unwrap_or_default();
    for part in ["volume/comity.db: ", what, "; gave up after waiting "] {
        assert!(error.contains(part), "{part:?} is missing:\n{}", done.stderr);
    }
}

#[test]
fn a_fetch_pauses_and_continues() {
    for absence in [Absence::Locked, Absence::Moved, Absence::Deleted] {
        let (world, nginx) = (World::new(), Nginx::start(""));
        let volume = Volume::new(&world);
        let input = world.write("list", &list(&nginx.url(), "p", 60));
        let mut fetch = volume.start(&[
            "fetch",
            "--input",
            input.to_str().unwrap(),
            "--delay",
            "100ms",
            "--robots",
            "ignore",
            "--format",
            "none",
        ]);
        nginx.wait_for(5);
        volume.pause(&mut fetch, absence, &|| nginx.log());
        let done = fetch.wait().expect(0);
        assert_reported_once(&done.stderr, absence);
        let log = nginx.log();
        assert_spaced(&log, 100);
        assert_eq!(counts(&log).len(), 60, "{absence:?}: {}", to_text(&log));
        // A copy may lack what was in flight when the store went away, so that is fetched again.
        let most = if absence == Absence::Deleted { 62 } else { 60 };
        assert!(log.len() <= most, "{absence:?}: fetched again:\n{}", to_text(&log));
    }
}

/// B74: a kill costs the results that are not committed, so there are never many, however fast the site and slow the store.
#[test]
fn few_results_are_uncommitted_when_the_store_is_slow() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.write(
        "comity.toml",
        "[default]\nmin_delay = \"0s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\n",
    );
    let volume = Volume::new(&world);
    let input = world.write("list", &list(&nginx.url(), "p", 20_000));
    let input = input.to_str().unwrap();
    let fetch =
        volume.start(&["fetch", "--job", "x", "--input", input, "--robots", "ignore", "--format", "none"]);
    nginx.wait_for(1_000);
    let lock = volume.lock();
    wait_until("it notices", || fetch.said().contains(Absence::Locked.notice()));
    // Whatever was sent is answered and logged by now.
    let mut sent = 0;
    wait_until("nothing is sent any more", || {
        std::thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut sent, nginx.log().len());
        before == sent
    });
    let done: i64 =
        lock.query_row("SELECT count(*) FROM tasks WHERE state = 'done'", [], |row| row.get(0)).unwrap();
    assert!(sent as i64 - done <= 1_024, "{sent} were sent, {done} committed");
    fetch.kill();
    lock.execute_batch("ROLLBACK").unwrap();
    volume.run(&["fetch", "--job", "x", "--input", input]).expect(0);
    let log = nginx.log();
    assert_eq!(counts(&log).len(), 20_000);
    assert!(log.len() <= 21_024, "{} requests", log.len());
}

#[test]
fn watched_sources_pause_and_continue() {
    for absence in [Absence::Locked, Absence::Moved] {
        let (world, nginx) = (follow::world(&[]), Nginx::start(follow::FEEDS));
        let volume = Volume::new(&world);
        nginx.put("feeds/a.rss", follow::numbered("a", 2));
        volume.run(&["sources", "add", &(nginx.url() + "/feeds/a.rss"), "--kind", "feed"]).expect(0);
        volume.run(&["sources", "cadence", "set", "2s", "1"]).expect(0);
        let mut watch = volume.start(&["run", "--watch"]);
        let asked = |path: &str| nginx.log().iter().filter(|hit| hit.path == path).count();
        wait_until("the first item is scraped", || asked("/a1") == 1);
        volume.pause(&mut watch, absence, &|| nginx.log());
        nginx.put("feeds/a.rss", follow::numbered("a", 4));
        wait_until("the new item is scraped", || asked("/a3") == 1);
        watch.signal("TERM");
        let done = watch.wait().expect(130);
        assert_reported_once(&done.stderr, absence);
        let log = nginx.log();
        for item in ["/a0", "/a1", "/a2", "/a3"] {
            assert_eq!(asked(item), 1, "{absence:?}: {}", to_text(&log));
        }
    }
}

/// B69: nothing that was archived is requested again.
#[test]
fn a_wiki_archive_pauses_and_continues() {
    let wiki = many(600);
    for absence in [Absence::Locked, Absence::Moved, Absence::Deleted] {
        let (world, front) = (World::new(), in_front_of(&wiki, ""));
        let volume = Volume::new(&world);
        world.write("comity.toml", &PACE.replace("100ms", "400ms"));
        let mut archive = volume.start(&["wiki", "archive", &format!("{}/api.php", front.url())]);
        front.wait_for(4);
        volume.pause(&mut archive, absence, &|| front.log());
        let done = archive.wait().expect(0);
        assert_reported_once(&done.stderr, absence);
        let log = front.log();
        assert_spaced(&log, 400);
        let asked: BTreeSet<String> = front.asked().iter().map(|asked| asked["query"].to_string()).collect();
        assert_eq!(asked.len(), log.len(), "{absence:?}: requested twice:\n{asked:#?}");
        // A database is its file and its log: what was committed last may still be in the log.
        for suffix in ["", "-wal"] {
            let moved = world.store().with_file_name(format!("comity.db{suffix}"));
            let file = volume.path().join(format!("comity.db{suffix}"));
            assert!(std::fs::rename(file, moved).is_ok() || suffix == "-wal");
        }
        same(&world, &wiki, &[0]);
    }
}

#[test]
fn a_service_grants_nothing_while_the_store_is_unavailable() {
    for absence in [Absence::Locked, Absence::Moved, Absence::Deleted] {
        let world = World::new();
        let volume = Volume::new(&world);
        world.write(
            "comity.toml",
            "[default]\nmin_delay = \"60s\"\nin_flight = \"unlimited\"\nlearning = \"off\"\n",
        );
        let serve = volume.start(&["--json", "serve", "--listen", "127.0.0.1:0"]);
        let mut service = Service::begin(&world, serve);
        let permit = service.post("/v1/check", &json!({ "domain": "a.example" }))["permit"].clone();
        let deadline = json!({ "domain": "said.example", "status": 429, "retry_after": 600 });
        service.post("/v1/record", &deadline);
        let address = service.address;
        let bring_back = volume.take(absence);
        wait_until("it reports what it waits for", || service.running.said().contains(absence.notice()));
        for domain in ["a.example", "said.example", "new.example"] {
            let refused = post(address, "/v1/check", &json!({ "domain": domain }));
            assert!(refused.head.to_lowercase().contains("retry-after"), "{refused:?}");
            let refused = refused.expect(503);
            let why = refused["detail"].as_str().unwrap();
            assert!(why.starts_with("waiting for the store: ") && !why.contains("volume"), "{why}");
        }
        assert!(!service.running.is_over(), "{}", service.running.said());
        bring_back();
        wait_until("it works again", || {
            crate::service::ask(address, "GET", "/readyz", "", "").is_ok_and(|answer| answer.status == 200)
        });
        for (domain, limit) in [("a.example", "min_delay"), ("said.example", "retry_after")] {
            let reply = service.post("/v1/check", &json!({ "domain": domain }));
            assert_eq!(
                (&reply["proceed"], &reply["limit"]),
                (&json!(false), &json!(limit)),
                "{absence:?}: {reply}"
            );
        }
        let recorded = service.post("/v1/record", &json!({ "permit": permit, "status": 200 }));
        assert_ne!(recorded["standing"], "repeated", "{recorded}");
        let done = service.stop().expect(0);
        assert_reported_once(&done.stderr, absence);
    }
}

/// Every kind of work ends if the store doesn't come back.
#[test]
fn work_ends_if_the_store_does_not_come_back() {
    let wiki = many(600);
    for absence in [Absence::Locked, Absence::Moved] {
        let (world, nginx, front) = (follow::world(&[]), Nginx::start(follow::FEEDS), in_front_of(&wiki, ""));
        let volume = Volume::new(&world);
        nginx.put("feeds/a.rss", follow::numbered("a", 2));
        volume.run(&["sources", "add", &(nginx.url() + "/feeds/a.rss"), "--kind", "feed"]).expect(0);
        let input = world.write("list", &list(&nginx.url(), "p", 500));
        let begin = |args: &[&str]| world.begin(volume.command("4s", args));
        let fetch = begin(&[
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
        nginx.wait_for(2);
        let watch = begin(&["run", "--watch"]);
        let archive = begin(&["wiki", "archive", &format!("{}/api.php", front.url())]);
        let service = Service::begin(&world, begin(&["--json", "serve", "--listen", "127.0.0.1:0"]));
        wait_until("the item is scraped", || nginx.log().iter().any(|hit| hit.path == "/a1"));
        front.wait_for(2);
        let _gone = volume.take(absence);
        let what = absence.notice();
        assert_gave_up(fetch.wait(), what);
        assert_gave_up(watch.wait(), what);
        assert_gave_up(archive.wait(), what);
        assert_gave_up(service.running.wait(), what);
    }
}

/// Whatever is in its place, the process waits for its own store, and creates none.
#[test]
fn another_store_in_its_place_is_not_used() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let volume = Volume::new(&world);
    let input = world.write("list", &list(&nginx.url(), "p", 30));
    let mut fetch = volume.start(&[
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
    nginx.wait_for(3);
    let bring_back = volume.take(Absence::Moved);
    wait_until("it notices", || fetch.said().contains(Absence::Moved.notice()));
    assert!(!volume.path().exists(), "it was created");
    let sent = nginx.log().len();
    std::fs::create_dir(volume.path()).unwrap();
    volume.run(&["record", "other.example", "success"]).expect(0);
    let other = std::fs::read(volume.path().join("comity.db")).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(nginx.log().len(), sent, "{}", to_text(&nginx.log()));
    assert!(!fetch.is_over(), "{}", fetch.said());
    assert!(std::fs::read(volume.path().join("comity.db")).unwrap() == other, "it was changed");
    std::fs::remove_dir_all(volume.path()).unwrap();
    bring_back();
    fetch.wait().expect(0);
    assert_eq!((counts(&nginx.log()).len(), nginx.log().len()), (30, 30), "{}", to_text(&nginx.log()));
}

/// Long work that starts while the store is locked waits for it; a short command gives up soon and names the process
/// that holds the lock.
#[test]
fn long_work_waits_for_a_locked_store_and_short_commands_give_up() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let volume = Volume::new(&world);
    volume.run(&["record", "other.example", "success"]).expect(0);
    // Others can't even read it.
    let lock = Connection::open(volume.path().join("comity.db")).unwrap();
    lock.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE other (id)").unwrap();
    let url = nginx.url();
    let mut fetch = volume.start(&["fetch", &url, "--robots", "ignore", "--format", "none"]);
    let serve = volume.start(&["--json", "serve", "--listen", "127.0.0.1:0"]);
    let began = now_us();
    let who = format!("pid {})", std::process::id());
    for args in [&["jobs", "list"][..], &["check", &url], &["domains", "list"]] {
        let short = volume.run(args).expect(3);
        short.says("locked by another program (");
        short.says(&who);
        assert!(short.took_us >= 9_000_000, "{args:?}: after {} µs", short.took_us);
    }
    assert!(now_us() - began > 27_000_000 && !fetch.is_over(), "{}", fetch.said());
    assert_eq!(nginx.log().len(), 0);
    lock.execute_batch("ROLLBACK").unwrap();
    drop(lock);
    assert_reported_once(&fetch.wait().expect(0).stderr, Absence::Locked);
    Service::begin(&world, serve).stop().expect(0);
    assert_eq!(nginx.log().len(), 1);
}

/// Ctrl-C works while the store is unavailable.
#[test]
fn ctrl_c_ends_the_wait() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let volume = Volume::new(&world);
    let input = world.write("list", &list(&nginx.url(), "p", 100));
    let fetch = volume.start(&[
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
    nginx.wait_for(2);
    let _gone = volume.take(Absence::Moved);
    wait_until("it notices", || fetch.said().contains(Absence::Moved.notice()));
    fetch.signal("INT");
    let done = fetch.wait().expect(130);
    for part in [Absence::Moved.notice(), "; gave up after waiting ", "To resume: comity fetch"] {
        done.says(part);
    }
}
