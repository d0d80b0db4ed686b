//! `comity prune` and `comity backup`.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::comity::{World, list};
use crate::follow::{add, assert_counts, count, items, numbered, run, world};
use crate::log::{assert_spaced, counts, now_us, to_text, wait_until};
use crate::site::{Answer, Site};

const DAY: i64 = 86_400_000_000;

fn fetch(world: &World, site: &Site, job: &str, pages: usize) {
    let input = world.write("list", &list(&site.url(), job, pages));
    let args =
        ["fetch", "--input", input.to_str().unwrap(), "--job", job, "--delay", "1ms", "--format", "none"];
    world.run(&[&args[..], &["--robots", "ignore", "--learning", "off"]].concat()).expect(0);
}

#[test]
fn prune_deletes_old_rows_and_prints_counts() {
    let site = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("a", 2), ..Answer::default() },
        path => Answer::page(path),
    });
    let world = world(&[]);
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &[], 0);
    run(&world, &[], 0);
    for job in ["old", "young"] {
        fetch(&world, &site, job, 5);
    }
    let sql = world.sql();
    let old = now_us() - 40 * DAY;
    sql.execute("UPDATE jobs SET ended_us = ?1 WHERE name = 'old'", [old]).unwrap();
    sql.execute("UPDATE scrape_logs SET started_us = ?1 + id, ended_us = ?1 + id", [old]).unwrap();
    sql.execute("UPDATE fetch_runs SET started_us = ?1 + id", [old]).unwrap();
    drop(sql);
    world.run(&["prune"]).expect(2).says("pass --keep 30d, or set upkeep.keep");
    world.run(&["prune", "--keep", "soon"]).expect(2).says("--keep = \"soon\": expected a duration");
    let expected = json!({ "jobs": 1, "tasks": 5, "attempts": 5, "scrape_logs": 1, "fetch_runs": 1 });
    let planned = world.run(&["--json", "prune", "--keep", "30d", "--dry-run"]).expect(0).json();
    assert_counts(&planned, expected.clone());
    assert_eq!(count(&world, "SELECT count(*) FROM tasks WHERE item_id IS NULL"), 10, "nothing was deleted");
    let done = world.run(&["prune", "--keep", "30d"]).expect(0);
    done.shows("5 URLs of 1 ended job");
    assert_eq!(count(&world, "SELECT count(*) FROM tasks WHERE item_id IS NULL"), 5);
    assert_eq!(items(&world).len(), 2);
    let listed = world.run(&["jobs", "list"]).expect(0);
    listed.shows("5 of 5 fetched");
    let again = world.run(&["--json", "prune", "--keep", "30d"]).expect(0).json();
    assert_counts(&again, json!({ "jobs": 0, "tasks": 0, "attempts": 0, "scrape_logs": 0, "fetch_runs": 0 }));
}

/// Nothing is left of the newest job either, not even its last page and its site.
#[test]
fn prune_deletes_every_task_of_the_newest_job() {
    let site = Site::start(|asked| Answer::page(asked.path));
    let world = World::new();
    fetch(&world, &site, "only", 3);
    let sql = world.sql();
    let old = now_us() - 40 * DAY;
    sql.execute("UPDATE jobs SET ended_us = ?1", [old]).unwrap();
    sql.execute("UPDATE domains SET released_us = ?1, left_as = 'new', pace = NULL", [old]).unwrap();
    drop(sql);
    // The age may come from the configuration.
    world.write("comity.toml", "[upkeep]\nkeep = \"50d\"\n");
    let kept = world.run(&["--json", "prune"]).expect(0).json();
    assert_counts(&kept, json!({ "keep": "50d", "jobs": 0, "tasks": 0, "attempts": 0 }));
    world.write("comity.toml", "[upkeep]\nkeep = \"30d\"\n");
    let pruned = world.run(&["--json", "prune"]).expect(0).json();
    assert_counts(&pruned, json!({ "keep": "30d", "jobs": 1, "tasks": 3, "attempts": 3, "domains": 1 }));
    for table in ["tasks", "lanes", "domains"] {
        assert_eq!(count(&world, &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    fetch(&world, &site, "next", 2);
    assert_eq!(count(&world, "SELECT min(id) FROM tasks"), 4, "ids are not used again");
    assert_eq!(world.run(&["--json", "jobs", "show", "only"]).expect(0).json()["fetched"], 3);
}

#[test]
fn a_backup_is_private_complete_and_overwrites_nothing() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    fetch(&world, &site, "one", 3);
    let copied = world.run(&["--json", "backup", "copy.db"]).expect(0).json();
    let copy = world.path("copy.db");
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(copied["bytes"], std::fs::metadata(&copy).unwrap().len());
    world.run(&["backup", "copy.db"]).expect(2).says("already exists");
    world.run(&["backup", "copy.db", "--force"]).expect(0);
    world.run(&["backup", "comity.db", "--force"]).expect(2).says("is the store itself");
    world.run(&["backup", "comity.db-wal", "--force"]).expect(2).says("is the store itself");
    world.run(&["backup", "nowhere/copy.db"]).expect(2);
    world.run(&["--store", "memory:", "backup", "other.db"]).expect(2).says("nothing to back up");
    let names = std::fs::read_dir(world.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.contains(".part") || name == "other.db"), "{names:?}");
    // The copy is a store like any other.
    let jobs = world.run(&["--store", "sqlite:copy.db", "--json", "jobs", "list"]).expect(0).json();
    assert_eq!(jobs["jobs"][0]["fetched"], 3);
    let lost = rusqlite::Connection::open(&copy).unwrap();
    let lost: i64 =
        lost.query_row("SELECT count(*) FROM domains WHERE left_as = 'lost'", [], |row| row.get(0)).unwrap();
    assert_eq!(lost, 1, "the copy is marked: something may be missing");
}

/// B74, B77: a backup made under load is restored after a kill. What it contains is not fetched again, the rest is, and
/// nothing is early.
#[test]
fn a_backup_made_during_a_fetch_can_be_resumed_after_a_kill() {
    const PAGES: usize = 120;
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    let input = world.write("list", &list(&site.url(), "p", PAGES));
    let args =
        ["fetch", "--input", input.to_str().unwrap(), "--job", "one", "--delay", "30ms", "--format", "none"];
    let running = world.start(&[&args[..], &["--robots", "ignore", "--learning", "off"]].concat());
    site.wait_for(20);
    let before = site.log().len();
    world.run(&["backup", "copy.db"]).expect(0);
    let at_copy = site.log().len();
    // The fetch continues meanwhile.
    wait_until("it continues after the backup", || site.log().len() > at_copy + 20);
    running.kill().expect("it still fetched");
    let at_kill = site.log().len();
    assert!(before < at_kill);
    for name in ["comity.db", "comity.db-wal", "comity.db-shm"] {
        let _ = std::fs::remove_file(world.path(name));
    }
    std::fs::copy(world.path("copy.db"), world.store()).unwrap();
    let copy = rusqlite::Connection::open(world.path("copy.db")).unwrap();
    let mut known = copy.prepare("SELECT url FROM tasks WHERE state = 'done'").unwrap();
    let known: Vec<String> = known
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(|url: rusqlite::Result<String>| url.unwrap())
        .collect();
    assert!(known.len() >= 10, "{}", known.len());
    let last = world.run(&["--json", "fetch", "--job", "one"]).expect(0).json();
    assert_eq!(last["fetched"], PAGES);
    let log = site.log();
    assert_spaced(&log, 30);
    let counts = counts(&log);
    assert_eq!(counts.len(), PAGES, "{}", to_text(&log));
    for url in known {
        let path = url.strip_prefix(&site.url()).unwrap();
        assert_eq!(counts[path], 1, "{path} was in the copy:\n{}", to_text(&log));
    }
    assert!(counts.values().all(|times| *times <= 2));
}
