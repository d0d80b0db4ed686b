//! The files of a store: volumes that are unmounted, files that are deleted, and permissions.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::comity::{World, list};
use crate::follow::{self, FEEDS, numbered};
use crate::log::{assert_each_once, assert_spaced, now_us, to_text, wait_until};
use crate::nginx::Nginx;
use crate::service::{Service, ask, post};

/// B37, B83. The service used to create an empty database after a second, and granted the domain.
#[test]
fn a_volume_that_goes_away_under_a_service_is_not_replaced_by_an_empty_store() {
    let world = World::new();
    std::fs::create_dir(world.path("volume")).unwrap();
    let serve = ["--json", "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:volume/comity.db"];
    let service = Service::begin(&world, world.start(&serve));
    let asked = json!({ "domain": "said.example", "outcome": "rate_limited", "retry_after": 3_600 });
    service.post("/v1/record", &asked);
    let check = || post(service.address, "/v1/check", &json!({ "domain": "said.example" }));
    assert_eq!(check().expect(200)["proceed"], false);

    std::fs::rename(world.path("volume"), world.path("elsewhere")).unwrap();
    std::fs::create_dir(world.path("volume")).unwrap();
    wait_until("it notices", || check().status == 503);
    // It checks for its store every second.
    let until = now_us() + 4_000_000;
    while now_us() < until {
        assert_eq!(check().status, 503, "{}", service.running.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(std::fs::read_dir(world.path("volume")).unwrap().count(), 0, "something was created there");
    // In the meantime, another command creates a store there.
    world.run(&["record", "other.example", "success", "--store", "sqlite:volume/comity.db"]).expect(0);
    wait_until("it reports the other store", || {
        service.running.said().contains("not the store that was in use before")
    });
    assert_eq!(check().status, 503);
    assert_eq!(ask(service.address, "GET", "/healthz", "", "").unwrap().status, 200, "it lives");

    std::fs::remove_dir_all(world.path("volume")).unwrap();
    std::fs::rename(world.path("elsewhere"), world.path("volume")).unwrap();
    // It grants nothing until it has renewed its lease in the store.
    wait_until("it is back", || {
        let answer = check();
        answer.status == 200 && {
            let decision = answer.expect(200);
            assert_eq!(decision["proceed"], false, "{decision}");
            decision["limit"] == "retry_after"
        }
    });
    let said = service.stop().expect(0).stderr;
    let lines = said.lines().filter(|line| line.contains("; waiting up to ")).count();
    assert!(lines <= 4, "one line per reason:\n{said}");
}

/// B83
#[test]
fn run_watch_waits_for_its_store() {
    let (world, nginx) = (follow::world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("p", 3));
    follow::add(&world, &format!("{}/feeds/a.rss", nginx.url()), &[]);
    let run = world.start(&["run", "--watch"]);
    nginx.wait_for(3);
    std::fs::create_dir(world.path("elsewhere")).unwrap();
    let files = ["comity.db", "comity.db-wal", "comity.db-shm"];
    for name in files {
        std::fs::rename(world.path(name), world.path("elsewhere").join(name)).unwrap();
    }
    wait_until("it waits for its store", || run.said().contains("while it was in use; put it back"));
    assert!(!world.store().exists(), "it was created again");
    run.signal("INT");
    run.wait().expect(130);
}

/// B9, B74. Others used to take a living process for dead, and both sent.
#[test]
fn a_deleted_holders_folder_causes_no_early_request() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 60));
    let first = world.start(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--delay",
        "200ms",
        "--robots",
        "ignore",
        "--out",
        "pages",
    ]);
    nginx.wait_for(3);
    let second = world.start(&["fetch", "--job", "one"]);
    let folder = world.path("comity.db-holders");
    let mut deleted = 0;
    while nginx.log().len() < 55 {
        // Again and again, whenever it was recreated.
        deleted += u32::from(std::fs::remove_dir_all(&folder).is_ok());
        std::thread::sleep(Duration::from_millis(100));
    }
    let (first, second) = (first.wait().expect(0), second.wait().expect(0));
    assert!(deleted >= 2, "{deleted}");
    let log = nginx.log();
    assert_spaced(&log, 200);
    assert_each_once(&log, "p", 60);
    assert_eq!(log.len(), 60, "{}\n{}\n{}", to_text(&log), first.stderr, second.stderr);
}

/// B75: whatever the umask, and from the first moment on.
#[test]
fn the_files_of_a_store_are_private() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let comity = env!("CARGO_BIN_EXE_comity");
    let input = world.write("list", &list(&nginx.url(), "p", 20));
    let script = format!(
        "umask 000; exec {comity} fetch --input {} --delay 100ms --robots ignore --format none",
        input.display()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).current_dir(world.path("")).stdin(std::process::Stdio::null());
    let mut fetch = world.begin(command);
    let mut seen = std::collections::BTreeSet::new();
    while !fetch.is_over() {
        for path in files(&world.store()) {
            // It may be deleted at any moment.
            let Ok(file) = std::fs::metadata(&path) else { continue };
            assert_eq!(file.mode() & 0o077, 0, "{} is {:o}", path.display(), file.mode());
            seen.insert(path.file_name().unwrap().to_owned());
        }
    }
    fetch.wait().expect(0);
    assert_eq!(seen.len(), 5, "{seen:?}");
}

/// The database with its -wal and -shm files, and the folder of holders with its content.
fn files(database: &Path) -> Vec<PathBuf> {
    let beside = |ending: &str| PathBuf::from(format!("{}{ending}", database.display()));
    let folder = beside("-holders");
    let inside = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect::<Vec<_>>();
    [database.to_owned(), beside("-wal"), beside("-shm"), folder].into_iter().chain(inside).collect()
}

/// B75
#[test]
fn files_with_secrets_that_others_can_read_get_a_warning() {
    let world = World::new();
    let set = |name: &str, mode: u32| {
        std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    world.write("tokens", "use:correct-horse-battery\n");
    world.write("comity.toml", "[serve]\ntokens_file = \"tokens\"\n");
    for (mode, warned) in [(0o644, true), (0o640, false), (0o600, false)] {
        set("tokens", mode);
        let said = Service::start(&world).stop().expect(0).stderr;
        assert_eq!(said.contains("chmod o-rwx tokens"), warned, "{mode:o}: {said}");
    }
    world.write("comity.toml", "store = \"postgres://user:secret@127.0.0.1:1/db\"\n");
    for (mode, warned) in [(0o644, true), (0o600, false)] {
        set("comity.toml", mode);
        let said = world.run(&["config", "check"]).stderr;
        assert_eq!(said.contains("chmod o-rwx comity.toml"), warned, "{mode:o}: {said}");
        assert!(!said.contains("secret@"), "{said}");
    }
    world.write("comity.toml", "store = \"sqlite:comity.db\"\n");
    set("comity.toml", 0o644);
    let done = world.run(&["jobs", "list"]).expect(0);
    assert!(!done.stderr.contains("chmod"), "{}", done.stderr);
    // A store of an older version is made private, and that is reported once.
    set("comity.db", 0o644);
    world.run(&["jobs", "list"]).expect(0);
    assert_eq!(std::fs::metadata(world.store()).unwrap().mode() & 0o777, 0o600);
}
