//! `comity store copy`: a store moves from SQLite to PostgreSQL and back. Which rows are copied is tested with the stores.

use crate::comity::{World, list};
use crate::log::{assert_spaced, counts, to_text, wait_until};
use crate::postgres_server::Server;
use crate::results::{FULL, full};
use crate::site::{Answer, Site};

fn args<'a>(input: &'a str, job: &'a str) -> Vec<&'a str> {
    let args = ["fetch", "--input", input, "--job", job, "--delay", "30ms", "--format", "none"];
    [&args[..], &["--robots", "ignore", "--learning", "off"]].concat()
}

/// The URLs that a store knows to be fetched.
fn fetched(sql: &rusqlite::Connection) -> Vec<String> {
    let mut select = sql.prepare("SELECT url FROM tasks WHERE state = 'done'").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Unfinished files of copies.
fn parts(world: &World) -> Vec<String> {
    let names = std::fs::read_dir(world.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.contains(".part")).collect()
}

/// B74, B77: nothing is lost, and only what was in flight at the kill is fetched twice.
#[test]
fn a_half_done_job_moves_to_postgresql_and_back_and_resumes_in_each_copy() {
    const PAGES: usize = 90;
    let (world, url) = (World::new(), Server::shared().fresh_url());
    let site = Site::start(|asked| Answer::page(asked.path));
    let input = world.write("list", &list(&site.url(), "p", PAGES));
    let running = world.start(&args(input.to_str().unwrap(), "one"));
    site.wait_for(20);
    running.kill().expect("it still fetched");
    let known = fetched(&world.sql());
    assert!(known.len() >= 10, "{}", known.len());
    let copied = world.run(&["--json", "store", "copy", "sqlite:comity.db", &url]).expect(0).json();
    assert_eq!((&copied["tables"]["jobs"], &copied["tables"]["tasks"]), (&1.into(), &PAGES.into()));
    assert_eq!(copied["from"], "comity.db");
    assert!(copied["rows"].as_u64() > Some(PAGES as u64), "{copied}");
    assert!(copied["to"].as_str().unwrap().starts_with("postgres://"), "{copied}");

    let first = site.log().len();
    let running = world.start(&["--store", &url, "fetch", "--job", "one"]);
    site.wait_for(first + 20);
    running.signal("INT");
    running.wait().expect(130);
    let back = world.run(&["store", "copy", &url, "sqlite:back.db"]).expect(0);
    back.shows("1 job");
    back.says("Pass the copy as --store");

    let mut unread = world.command(&["store", "copy", "sqlite:back.db", &Server::shared().fresh_url()]);
    let unread = unread.stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert_eq!(unread.status.code(), Some(1), "{said}");
    assert_eq!(said.matches(FULL).count(), 1, "{said}");

    let second = site.log().len();
    assert!(second < PAGES, "the job was done before it was copied back");
    let last = world.run(&["--store", "sqlite:back.db", "--json", "fetch", "--job", "one"]).expect(0).json();
    assert_eq!((&last["tasks"], &last["fetched"]), (&PAGES.into(), &PAGES.into()));
    let log = site.log();
    assert_spaced(&log, 30);
    let counts = counts(&log);
    assert_eq!(counts.len(), PAGES, "{}", to_text(&log));
    for url in known {
        let path = url.strip_prefix(&site.url()).unwrap();
        assert_eq!(counts[path], 1, "{path} was fetched before the first copy:\n{}", to_text(&log));
    }
    assert!(counts.values().all(|times| *times <= 2), "{}", to_text(&log));
}

#[test]
fn a_copy_needs_two_kinds_of_store_an_unused_source_and_an_empty_target() {
    let (world, url) = (World::new(), Server::shared().fresh_url());
    let copy = |from: &str, to: &str| world.run(&["store", "copy", from, to]);
    copy("sqlite:comity.db", &url).expect(3).says("comity.db: there is no store here; check the name");
    let site = Site::start(|asked| Answer::page(asked.path));
    let input = world.write("list", &list(&site.url(), "p", 400));
    let running = world.start(&args(input.to_str().unwrap(), "one"));
    site.wait_for(3);
    let in_use = copy("sqlite:comity.db", &url).expect(2);
    in_use.says("comity.db: in use by fetch one, pid ");
    in_use.says("stop every process that uses it, then copy it");
    running.signal("INT");
    running.wait().expect(130);
    copy("sqlite:comity.db", "sqlite:other.db").expect(2).says("copy it with: comity backup FILE");
    copy(&url, &url).expect(2).says("copy it with pg_dump");
    copy("comity.db", &url).expect(2).says("expected sqlite:PATH or postgres://");
    copy("sqlite:comity.db", "memory:").expect(2).says("expected sqlite:PATH or postgres://");
    let closed = "postgres://nobody:hush@127.0.0.1:1/none";
    let unreachable = copy("sqlite:comity.db", closed).expect(3);
    assert!(!unreachable.stderr.contains("hush"), "{}", unreachable.stderr);
    copy(&url, "sqlite:other.db").expect(3).says("there is no store here");
    assert!(!world.path("other.db").exists() && parts(&world).is_empty());
    copy("sqlite:comity.db", &url).expect(0).shows("400 URLs");
    let full = copy("sqlite:comity.db", &url).expect(2);
    full.says("is not empty (table job): a store is copied into an empty one only");
    let error = world.run(&["--json", "store", "copy", "sqlite:comity.db", &url]).expect(2).json();
    assert_eq!(error["code"], 2);
}

/// The tables appear with the commit, so neither Ctrl-C nor kill -9 leaves anything that opens as a store.
#[test]
fn an_interrupted_copy_leaves_nothing_that_opens_as_a_store() {
    let (world, server) = (World::new(), Server::shared());
    let site = Site::start(|asked| Answer::page(asked.path));
    let input = world.write("list", &list(&site.url(), "p", 1));
    world.run(&args(input.to_str().unwrap(), "one")).expect(0);
    let many =
        "INSERT INTO counts WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 600000)
        SELECT 'count ' || n, n FROM n";
    world.sql().execute_batch(many).unwrap();
    for (signal, expected) in [("INT", Some(130)), ("KILL", None)] {
        let url = server.fresh_url();
        let schema = url.split("schema=").nth(1).unwrap().split('&').next().unwrap().to_owned();
        let running = world.start(&["store", "copy", "sqlite:comity.db", &url]);
        wait_until("rows are written", || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO count (%unnest%'";
            server.run_sql(sql).trim() != "0"
        });
        running.signal(signal);
        let done = running.wait();
        assert_eq!(done.code, expected, "{}", done.stderr);
        if expected.is_some() {
            done.says("Interrupted; nothing was copied");
        }
        let sql = format!("SELECT to_regnamespace('{schema}') IS NULL");
        wait_until("the server has rolled it back", || server.run_sql(&sql).trim() == "t");
        world.run(&["--store", &url, "jobs", "list"]).expect(3).says("there is no store here");
    }
    let url = server.fresh_url();
    world.run(&["store", "copy", "sqlite:comity.db", &url]).expect(0);
    for signal in ["INT", "KILL"] {
        let running = world.start(&["store", "copy", &url, "sqlite:back.db"]);
        wait_until("rows are written", || {
            let size = |name: &String| std::fs::metadata(world.path(name)).map_or(0, |file| file.len());
            parts(&world).iter().map(size).sum::<u64>() > 200_000
        });
        running.signal(signal);
        running.wait();
        assert!(!world.path("back.db").exists(), "after {signal}");
        // A killed process cannot clean up.
        assert_eq!(parts(&world).is_empty(), signal == "INT", "{:?}", parts(&world));
    }
    world.run(&["--store", "sqlite:back.db", "jobs", "list"]).expect(3);
    world.run(&["store", "copy", &url, "sqlite:back.db"]).expect(0);
    let jobs = world.run(&["--store", "sqlite:back.db", "--json", "jobs", "list"]).expect(0).json();
    assert_eq!(jobs["jobs"][0]["fetched"], 1);
}
