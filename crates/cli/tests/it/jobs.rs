//! Jobs: resuming, ending, cancelling, retrying.

use std::process::Command;

use serde_json::Value;

use crate::comity::{World, list};
use crate::log::{assert_each_once, assert_spaced, counts, now_us, to_text, wait_until};
use crate::nginx::Nginx;
use crate::service::{Service, ask, post};
use crate::site::{Answer, Held, Site};

/// B49, B74
#[test]
fn a_job_that_is_done_stays_done() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let url = format!("{}/a", nginx.url());
    let first = ["fetch", &url, "--job", "one", "--robots", "ignore", "--format", "none"];
    world.run(&first).expect(0);
    world.run(&["fetch", "--job", "one"]).expect(0).shows("already done");
    assert_eq!(world.run(&["--json", "fetch", "--job", "one"]).expect(0).json()["fetched"], 1);
    assert_eq!(nginx.log().len(), 1);
}

/// It used to list the failures of the run before as if they had just happened.
#[test]
fn a_finished_job_says_so_and_what_to_do() {
    let (world, nginx) =
        (World::new(), Nginx::start("location /gone { return 404; } location /broken { return 500; }"));
    let at = |path: &str| format!("{}/{path}", nginx.url());
    let fetch = |job: &str, paths: &[&str]| {
        let urls: Vec<String> = paths.iter().map(|path| at(path)).collect();
        let mut args =
            vec!["fetch", "--job", job, "--delay", "5ms", "--robots", "ignore", "--format", "none"];
        args.extend(["--max-retries", "0"]);
        args.extend(urls.iter().map(String::as_str));
        world.run(&args)
    };
    let first = fetch("one", &["a", "broken"]).expect(1);
    first.says("To see what failed: comity jobs show one; to retry them: comity jobs retry one\n");
    let asked = nginx.log().len();
    let again = world.run(&["fetch", "--job", "one"]).expect(1);
    again.shows("job one is already done: 1 of 2 fetched, 1 failed; nothing was sent\n");
    again.says("to retry them: comity jobs retry one\n");
    again.says("To fetch what has changed: comity fetch --job one --refresh; to add URLs: comity fetch --job one --input");
    let quiet = world.run(&["fetch", "--job", "one", "--quiet"]).expect(1);
    assert_eq!(quiet.stderr, "job one is already done: 1 of 2 fetched, 1 failed; nothing was sent\n");
    let object = world.run(&["--json", "fetch", "--job", "one"]).expect(1).json();
    assert!(object["message"].as_str().unwrap().contains("already done"), "{object}");
    assert_eq!(nginx.log().len(), asked);
    world.run(&["jobs", "retry", "one"]).expect(0);

    // The hint leads to something that works.
    let gone = fetch("two", &["a", "gone"]).expect(1);
    let hint = "to retry them anyway: comity jobs retry two --status 404,410\n";
    gone.says(hint);
    world.run(&["fetch", "--job", "two"]).expect(1).says(hint);
    world.run(&["jobs", "retry", "two"]).expect(0).shows("nothing to retry");
    world.run(&["jobs", "retry", "two", "--status", "404,410"]).expect(0).shows("two: stopped");
    let fine = fetch("three", &["a"]).expect(0);
    assert!(!fine.stderr.contains("retry"), "{}", fine.stderr);
}

/// People read thousands more easily in groups; programs don't.
#[test]
fn large_numbers_have_separators_for_people_only() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let url = format!("{}/a", nginx.url());
    world.run(&["fetch", &url, "--job", "one", "--robots", "ignore", "--format", "none"]).expect(0);
    let counts = "UPDATE jobs SET tasks = 1234567, done = 1222222, failed = 12345, pruned_us = 1";
    world.sql().execute(counts, []).unwrap();
    world.sql().execute("UPDATE tasks SET bytes = 1234567", []).unwrap();
    for command in [&["jobs", "list"][..], &["jobs", "show", "one"]] {
        world.run(command).expect(0).shows("1,222,222 of 1,234,567 fetched, 12,345 failed");
        let json = world.run(&[&["--json"], command].concat()).expect(0).stdout;
        assert!(json.contains("\"tasks\":1234567"), "{json}");
    }
    let exported = world.run(&["jobs", "export", "one", "--format", "csv"]).expect(0);
    exported.says("1,234,566 URLs were pruned");
    assert!(exported.stdout.contains(",1234567,"), "{}", exported.stdout);
}

/// `--status all` used to leave them out, and there was no other way to reach them.
#[test]
fn what_robots_txt_forbade_is_retried_on_request() {
    let world = World::new();
    let nginx = Nginx::start(r"location = /robots.txt { return 200 'User-agent: *\nDisallow: /private\n'; }");
    let at = |path: &str| format!("{}/{path}", nginx.url());
    let (open, private) = (at("open"), at("private"));
    let args = ["fetch", &open, &private, "--job", "one", "--delay", "5ms", "--format", "none"];
    world.run(&args).expect(0);
    let nothing = world.run(&["jobs", "retry", "one"]).expect(0);
    nothing.shows("nothing failed, and skipped URLs (1) stay skipped; retry what robots.txt forbade with --status robots");
    let retried = world.run(&["jobs", "retry", "one", "--status", "robots"]).expect(0);
    retried.shows("1 of 2 fetched, 1 waiting");
    retried.shows("add --robots ignore");
    world.run(&["fetch", "--job", "one"]).expect(0);
    assert_eq!(counts(&nginx.log()).get("/private"), None, "it is still forbidden");
    world.run(&["jobs", "retry", "one", "--status", "all"]).expect(0).shows("1 waiting");
    let done = world.run(&["--json", "fetch", "--job", "one", "--robots", "ignore"]).expect(0);
    assert_eq!((&done.json()["fetched"], &done.json()["skipped"]), (&2.into(), &0.into()));
}

#[test]
fn jobs_are_listed_and_shown() {
    let world = World::new();
    let nginx = Nginx::start("location /gone { return 410; }");
    let urls = [format!("{}/a", nginx.url()), format!("{}/gone", nginx.url())];
    let args = [
        "fetch", &urls[0], &urls[1], "--job", "one", "--delay", "20ms", "--robots", "ignore", "--out",
        "pages",
    ];
    world.run(&args).expect(1);
    world.run(&["jobs", "list"]).expect(0).shows("1 of 2 fetched, 1 failed");
    let listed = world.run(&["--json", "jobs", "list"]).expect(0).json();
    assert_eq!(listed["jobs"][0]["job"], "one");
    assert_eq!(listed["jobs"][0]["state"], "done");
    let shown = world.run(&["--json", "jobs", "show", "one"]).expect(0).json();
    assert_eq!(shown["options"]["delay"], "20ms");
    assert_eq!(shown["options"]["out"], world.path("pages").to_str().unwrap());
    assert_eq!(shown["troubles"][0]["url"], urls[1]);
    assert_eq!(shown["troubles"][0]["status"], 410);
    for command in ["show", "cancel", "retry"] {
        world.run(&["jobs", command, "nobody"]).expect(2).says("nobody");
    }
    world.run(&["jobs", "cancel", "one"]).expect(2).says("already done");
}

/// B49: cancelled by another command, reopened, and resumed. What was answered before the cancel took effect used to be
/// fetched again.
#[test]
fn a_job_is_cancelled_and_reopened() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 40));
    let input = input.to_str().unwrap();
    let fetch = world.start(&[
        "--json", "fetch", "--input", input, "--job", "one", "--delay", "250ms", "--robots", "ignore",
        "--format", "none",
    ]);
    nginx.wait_for(3);
    let cancelled = world.run(&["--json", "jobs", "cancel", "one"]).expect(0).json();
    assert_eq!(cancelled["state"], "cancelled");
    let cancelled_at = now_us();
    let done = fetch.wait().expect(1);
    assert_eq!(done.json()["state"], "cancelled", "{}", done.stdout);
    let log = nginx.log();
    let last = log.last().unwrap().start;
    assert!(last < cancelled_at + 1_500_000, "continued for {} µs:\n{}", last - cancelled_at, to_text(&log));
    let shown = world.run(&["--json", "jobs", "show", "one"]).expect(0).json();
    assert_eq!(shown["waiting"], 0, "{shown}");
    assert_eq!(shown["fetched"].as_u64().unwrap() + shown["skipped"].as_u64().unwrap(), 40, "{shown}");
    world.run(&["fetch", "--job", "one"]).expect(1).shows("already cancelled");

    let reopened = world.run(&["--json", "jobs", "retry", "one"]).expect(0).json();
    assert_eq!(reopened["skipped"], 0, "{reopened}");
    let done = world.run(&["--json", "fetch", "--job", "one", "--delay", "20ms"]).expect(0);
    assert_eq!(done.json()["fetched"], 40);
    let log = nginx.log();
    assert_eq!(counts(&log).len(), 40, "{}", to_text(&log));
    // Pages that were answered before the process noticed were saved.
    assert_each_once(&log, "p", 40);
}

/// Only what failed is retried.
#[test]
fn retry_fetches_what_failed() {
    let world = World::new();
    let site = Site::start(|asked| match (asked.path, asked.before < 4) {
        ("/p1" | "/p3", true) => Answer::status(404),
        _ => Answer::page(asked.path),
    });
    let input = world.write("list", &list(&site.url(), "p", 4));
    let input = input.to_str().unwrap();
    let args = [
        "fetch", "--input", input, "--job", "one", "--delay", "20ms", "--robots", "ignore", "--format",
        "none",
    ];
    world.run(&args).expect(1);
    world.run(&["jobs", "retry", "one", "--status", "404"]).expect(0);
    let done = world.run(&["--json", "fetch", "--job", "one"]).expect(0);
    assert_eq!((done.json()["fetched"].as_u64(), done.json()["failed"].as_u64()), (Some(4), Some(0)));
    let log = site.log();
    let paths: Vec<(&str, usize)> = counts(&log).into_iter().collect();
    assert_eq!(paths, [("/p0", 1), ("/p1", 2), ("/p2", 1), ("/p3", 2)]);
}

/// B24: the standard defines no status above 599, but servers send them. Only some commands used to accept them.
#[test]
fn a_status_of_600_to_999_is_a_server_error_everywhere() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before {
        0 => Answer::status(600),
        1 => Answer::status(999),
        _ => Answer::page(asked.path),
    });
    let url = site.url() + "/page";
    let args = ["--json", "fetch", &url, "--job", "one", "--delay", "10ms", "--robots", "ignore", "--format"];
    let failed = world.run(&[&args[..], &["none", "--max-retries", "0"]].concat()).expect(1).json();
    assert_eq!(failed["failed"], 1, "{failed}");
    let row = || world.run(&["jobs", "export", "one"]).expect(0).json();
    assert_eq!((&row()["status"], &row()["outcome"]), (&600.into(), &"server_error".into()), "{}", row());
    for (retried, code, status) in [("600", 1, 999), ("9xx", 0, 200)] {
        world.run(&["jobs", "retry", "one", "--status", "5xx"]).expect(0).shows("nothing to retry");
        world.run(&["jobs", "retry", "one", "--status", retried]).expect(0).shows("1 waiting");
        world.run(&["fetch", "--job", "one"]).expect(code);
        assert_eq!(row()["status"], status, "{}", row());
    }
    let recorded = |status: &str| world.run(&["--json", "record", "example.org", status]);
    for status in ["600", "999"] {
        assert_eq!(recorded(status).expect(0).json()["outcome"], "server_error", "{status}");
    }
    for status in ["99", "1000"] {
        recorded(status).expect(2).says("expected an HTTP status from 100 to 999");
    }
}

/// B49: the command and the service retry the same: what failed in a job that ended or is stopped, but not in one that
/// somebody works on.
#[test]
fn the_service_retries_what_the_command_retries() {
    let held = Held::default();
    let until = held.clone();
    let site = Site::start(move |asked| match asked.path {
        "/broken" => Answer::status(500),
        "/gone" => Answer::status(404),
        "/slow" => Answer::page(asked.path).held(&until),
        path => Answer::page(path),
    });
    let world = World::new();
    world.write("comity.toml", "[default]\nbackoff = \"none\"\n[serve]\n");
    let service = Service::start(&world);
    let urls = ["broken", "gone", "slow"].map(|path| format!("{}/{path}", site.url()));
    for (nth, by_service) in [false, true].into_iter().enumerate() {
        let job = ["one", "two"][nth];
        let retry = |code: i32, status: u16| match by_service {
            false => world.run(&["--json", "jobs", "retry", job]).expect(code).json(),
            true => post(service.address, &format!("/v1/jobs/{job}/retry"), &Value::Null).expect(status),
        };
        let fetch = world.start(&[
            "fetch",
            &urls[0],
            &urls[1],
            &urls[2],
            "--job",
            job,
            "--delay",
            "20ms",
            "--robots",
            "ignore",
            "--format",
            "none",
            "--max-retries",
            "0",
        ]);
        let shown = || ask(service.address, "GET", &format!("/v1/jobs/{job}"), "", "").unwrap().json();
        wait_until("two of them failed", || shown()["failed"] == 2);
        let running = retry(2, 409);
        assert!(running.to_string().contains("it has not ended"), "{running}");
        fetch.kill();
        assert_eq!(shown()["state"], "stopped");
        let counts = |job: &Value| (job["failed"].clone(), job["waiting"].clone(), job["state"].clone());
        let retried = retry(0, 200);
        assert_eq!(counts(&retried), (1.into(), 2.into(), "stopped".into()), "all but the 404: {retried}");
        let again = retry(0, 200);
        assert_eq!(counts(&again), (1.into(), 2.into(), "stopped".into()), "nothing to retry: {again}");
        world.run(&["jobs", "cancel", job]).expect(0);
        assert_eq!(counts(&retry(0, 200)), (1.into(), 2.into(), "stopped".into()));
    }
    held.release();
}

/// A job resumes with the options it had, from another folder too.
#[test]
fn a_job_keeps_its_options() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 12));
    let input = input.to_str().unwrap();
    let fetch = world.start(&[
        "fetch", "--input", input, "--job", "one", "--delay", "150ms", "--robots", "ignore", "--out", "pages",
    ]);
    nginx.wait_for(3);
    fetch.signal("INT");
    fetch.wait().expect(130);
    let elsewhere = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", world.store().display());
    let mut again: Command = world.command(&["fetch", "--job", "one", "--store", &store]);
    again.current_dir(elsewhere.path());
    world.begin(again).wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "p", 12);
    assert_spaced(&log, 150);
    assert_eq!(world.index("pages").len(), 12);
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

/// B47
#[test]
fn consecutive_failures_end_the_job() {
    for by_variable in [false, true] {
        let world = World::new();
        let site = Site::start(|_| Answer::status(500).header("Retry-After", "0.05"));
        let input = world.write("list", &list(&site.url(), "p", 12));
        let input = input.to_str().unwrap();
        let threshold = if by_variable { "" } else { "failure_threshold = 3\n" };
        world.write(
            "comity.toml",
            &format!("[job]\nmax_retries = 0\n{threshold}[default]\nbackoff = \"none\"\n"),
        );
        let mut command = world.command(&[
            "--json", "fetch", "--input", input, "--job", "one", "--delay", "100ms", "--robots", "ignore",
            "--format", "none",
        ]);
        if by_variable {
            command.env("BBB_JOB_FAILURE_THRESHOLD", "3");
        }
        let done = world.begin(command).wait().expect(1);
        let object = done.json();
        assert_eq!(object["state"], "failed", "{object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains('3') && message.contains("500"), "{message}");
        assert_eq!(object["waiting"], 0, "{object}");
        assert!(site.log().len() <= 4, "{}", log_of(&site));
        world.run(&["fetch", "--job", "one"]).expect(1).shows("already failed");
        let more = format!("{}/more", site.url());
        let refused = world.run(&["fetch", "--job", "one", &more]).expect(2);
        refused.says("the job is failed and takes no more URLs");
        refused.says("comity jobs retry one");
    }
}

fn log_of(site: &Site) -> String {
    to_text(&site.log())
}
