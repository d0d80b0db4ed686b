//! What a run of a job reports about itself: after a refresh, a retry of a stopped job, and after a prune.

use crate::comity::{World, list};
use crate::log::now_us;
use crate::site::{Answer, Site};

const QUICK: [&str; 6] = ["--delay", "20ms", "--robots", "ignore", "--max-retries", "0"];

/// `/same` says 304, `/alike` has the same body each time, `/new` another one; `/gone` is gone, and `/dies` is gone
/// after the first time.
fn site() -> Site {
    Site::start(|asked| match asked.path {
        "/same" if asked.headers.to_lowercase().contains("if-none-match: ") => Answer::status(304),
        "/same" => Answer::page("same").header("ETag", "\"1\""),
        "/alike" => Answer::page("alike"),
        "/dies" if asked.before > 10 => Answer::status(404),
        path if path.starts_with("/gone") => Answer::status(404),
        path => Answer::page(&format!("{path} {}", asked.before)),
    })
}

/// The counts and failures used to be those of the job's life.
#[test]
fn a_refresh_reports_what_changed_and_what_failed_in_this_run() {
    let (world, site) = (World::new(), site());
    let urls = ["same", "alike", "new", "gone"].map(|path| format!("{}/{path}", site.url()));
    let mut args = vec!["fetch", "--job", "news", "--out", "pages"];
    args.extend(QUICK);
    args.extend(urls.iter().map(String::as_str));
    world.run(&args).expect(1);
    let object = world.run(&["--json", "fetch", "--job", "news", "--refresh"]).expect(0).json();
    assert_eq!(
        (&object["changed"], &object["unchanged"], &object["fetched"], &object["failed"]),
        (&1.into(), &2.into(), &3.into(), &1.into()),
        "{object}"
    );
    let quiet = world.run(&["fetch", "--job", "news", "--refresh", "--quiet"]).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.contains("failed:")), ("", false), "{}", quiet.stderr);
    let ended = world.run(&["fetch", "--job", "news", "--quiet"]).expect(1);
    assert_eq!(ended.stderr, "job news is already done: 3 of 4 fetched, 1 failed; nothing was sent\n");

    let dies = format!("{}/dies", site.url());
    world.run(&["fetch", "--job", "news", &dies]).expect(0);
    let quiet = world.run(&["fetch", "--job", "news", "--refresh", "--quiet"]).expect(1);
    let failed: Vec<&str> = quiet.stderr.lines().filter(|line| line.starts_with("failed:")).collect();
    assert_eq!(failed, [format!("failed: {dies}: status 404")], "only what this run asked for");
    let plain = world.run(&["fetch", "--job", "news", "--refresh"]).expect(1);
    plain.shows("; this run: 1 changed, 2 unchanged, 1 failed");
}

/// It used to be refused, so that two filters could not be combined.
#[test]
fn the_failures_of_a_stopped_job_can_be_retried() {
    let (world, site) = (World::new(), site());
    let urls = ["a", "gone", "gone?2"].map(|path| format!("{}/{path}", site.url()));
    let input = world.write("list", &urls.join("\n"));
    let args = ["fetch", "--input", input.to_str().unwrap(), "--job", "one", "--format", "none"];
    world.run(&[&args[..], &QUICK].concat()).expect(1);
    world.run(&[&["fetch", "--job", "one"], &["http://127.0.0.1:9/"][..], &QUICK].concat()).expect(1);
    let retry = |args: &[&str]| {
        let done = world.run(&[&["--json", "jobs", "retry", "one"], args].concat()).expect(0).json();
        (done["state"].as_str().unwrap().to_owned(), done["waiting"].as_u64().unwrap())
    };
    assert_eq!(retry(&["--match", "*/gone"]), ("stopped".to_owned(), 1));
    assert_eq!(retry(&["--status", "network_error"]), ("stopped".to_owned(), 2), "both wait");
    assert_eq!(retry(&["--status", "network_error"]), ("stopped".to_owned(), 2), "nothing more");
    world.run(&["fetch", "--job", "one"]).expect(1);
    let asked = site.log().iter().filter(|hit| hit.path == "/gone").count();
    assert_eq!(asked, 2);
}

#[test]
fn the_failures_of_a_running_job_wait_for_its_end() {
    let world = World::new();
    let site =
        Site::start(|asked| if asked.path == "/p0" { Answer::status(404) } else { Answer::page(asked.path) });
    let input = world.write("list", &list(&site.url(), "p", 50));
    let fetch = world.start(&[
        "fetch",
        "--input",
        input.to_str().unwrap(),
        "--job",
        "one",
        "--format",
        "none",
        "--delay",
        "500ms",
        "--robots",
        "ignore",
    ]);
    site.wait_for(2);
    let running = world.run(&["jobs", "retry", "one", "--status", "404"]).expect(2);
    running.says("job one is running, it has not ended: nothing was changed");
    fetch.signal("INT");
    fetch.wait().expect(130);
    world.run(&["jobs", "retry", "one", "--status", "404"]).expect(0).shows("one: stopped");
}

/// `jobs show` used to point at an export that had nothing.
#[test]
fn a_pruned_job_says_that_its_urls_are_gone() {
    let (world, site) = (World::new(), site());
    for job in ["old", "young"] {
        let urls = ["a", "gone", "gone?2"].map(|path| format!("{}/{path}", site.url()));
        let mut args = vec!["fetch", "--job", job, "--format", "none"];
        args.extend(QUICK);
        args.extend(urls.iter().map(String::as_str));
        world.run(&args).expect(1);
    }
    let before = now_us() - 100 * 86_400_000_000;
    world.sql().execute("UPDATE jobs SET ended_us = ?1 WHERE name = 'old'", [before]).unwrap();
    world.run(&["prune", "--keep", "30d"]).expect(0);
    let shown = world.run(&["jobs", "show", "old"]).expect(0);
    shown.shows("3 URLs were pruned");
    assert!(!shown.stdout.contains("more"), "{}", shown.stdout);
    let object = world.run(&["--json", "jobs", "show", "old"]).expect(0).json();
    assert_eq!((&object["pruned"], &object["pruned_troubles"]), (&3.into(), &2.into()));
    world.run(&["jobs", "show", "old", "--failed"]).expect(0).shows("2 failed URLs were pruned");
    world.run(&["jobs", "retry", "old"]).expect(0).shows("2 failed or skipped URLs were pruned");
    let refresh = world.run(&["fetch", "--job", "old", "--refresh"]).expect(1);
    refresh.says("3 URLs were not refreshed, because they were pruned");
    let export = world.run(&["jobs", "export", "old"]).expect(0);
    assert_eq!(export.stdout, "");
    export.says("job old: 3 URLs were pruned");
    let kept = world.run(&["jobs", "export", "young"]).expect(0);
    assert_eq!((kept.objects().len(), kept.stderr.contains("pruned")), (3, false));
    assert_eq!(world.run(&["--json", "jobs", "show", "young"]).expect(0).json()["pruned_troubles"], 0);
}

/// `jobs show` used to say nothing, `jobs retry` that 0 URLs were pruned, and the counts doubled with the list.
#[test]
fn a_pruned_job_without_failures_says_so_too_and_counts_its_list_once() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &list(&site.url(), "p", 3));
    let input = input.to_str().unwrap();
    let args = [&["fetch", "--input", input, "--job", "old", "--format", "none"][..], &QUICK].concat();
    world.run(&args).expect(0);
    let before = now_us() - 100 * 86_400_000_000;
    world.sql().execute("UPDATE jobs SET ended_us = ?1", [before]).unwrap();
    world.run(&["prune", "--keep", "30d"]).expect(0);
    world.run(&["jobs", "show", "old"]).expect(0).shows("3 URLs were pruned");
    let retried = world.run(&["jobs", "retry", "old"]).expect(0);
    assert_eq!(retried.stdout, "job old: nothing to retry, nothing failed\n");
    world.run(&["fetch", "--job", "old"]).expect(0).says("3 URLs were pruned");
    let object = world.run(&[&["--json"], &args[..]].concat()).expect(0).json();
    assert_eq!((&object["tasks"], &object["fetched"]), (&3.into(), &3.into()), "{object}");
    assert_eq!((&object["this_run"]["added"], &object["this_run"]["fetched"]), (&3.into(), &3.into()));
    let shown = world.run(&["jobs", "show", "old"]).expect(0).stdout;
    assert!(shown.contains("3 of 3 fetched") && !shown.contains("pruned"), "{shown}");
}
