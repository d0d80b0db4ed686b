//! `comity jobs`: export, show, retry, remove and list; stopped jobs, and jobs that get more URLs.

use serde_json::Value;

use crate::comity::{World, list};
use crate::site::{Answer, Site};

/// A site that answers with the status in the path.
fn site() -> Site {
    Site::start(|asked| {
        match asked.path.rsplit('/').next().unwrap_or_default().split('-').next().unwrap_or_default().parse()
        {
            Ok(status) => Answer::status(status),
            Err(_) => Answer::page(asked.path),
        }
    })
}

fn fetch(world: &World, site: &Site, job: &str, paths: &[&str]) {
    let urls: Vec<String> = paths.iter().map(|path| format!("{}/{path}", site.url())).collect();
    let mut args = vec![
        "fetch",
        "--job",
        job,
        "--out",
        "pages",
        "--delay",
        "1ms",
        "--robots",
        "ignore",
        "--max-retries",
        "0",
    ];
    args.extend(urls.iter().map(String::as_str));
    world.run(&args);
}

#[test]
fn results_are_exported_as_json_lines_and_csv() {
    let (world, site) = (World::new(), site());
    fetch(&world, &site, "news", &["a", "404-x", "500-y"]);
    let rows = world.run(&["jobs", "export", "news"]).expect(0).objects();
    let states: Vec<&str> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "failed", "failed"], "in the order they were added");
    let failed = world.run(&["jobs", "export", "news", "--state", "failed"]).expect(0).objects();
    assert_eq!(failed, rows[1..]);
    let csv = world.run(&["jobs", "export", "news", "--format", "csv"]).expect(0).stdout;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        lines[0],
        "url,final_url,state,status,outcome,error,attempts,started_at,fetched_at,elapsed_ms,content_type,bytes,sha256,file,changed"
    );
    assert_eq!((lines.len(), lines[1].split(',').count()), (4, 15), "{csv}");
    assert!(
        lines[2].starts_with(&format!("{0}/404-x,{0}/404-x,failed,404,answered,status 404,1,", site.url())),
        "{csv}"
    );
}

/// However large a job is, its rows are read page by page.
#[test]
fn a_large_job_is_exported_without_loading_it() {
    let (world, site) = (World::new(), site());
    fetch(&world, &site, "news", &["a"]);
    let sql = world.sql();
    sql.execute_batch(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {LARGE})
        INSERT INTO tasks (job_id, lane_id, url, url_key, lead, state, ready_us, status, error, settled_us)
        SELECT 1, 1, 'http://a.example/a/rather/long/path/to/a/page/of/a/large/site/' || i, i, 'listed', 'failed', 0, 500,
            'status 500', 1 FROM n;
        UPDATE jobs SET tasks = tasks + {LARGE}, failed = {LARGE};"
    ))
    .unwrap();
    drop(sql);
    let mut export = world.start(&["jobs", "export", "news"]);
    let peak = export.peak_kb();
    let count = export.wait().expect(0).stdout.lines().count();
    assert_eq!(count, LARGE + 1);
    assert!(peak < 100_000, "{peak} kB");
    let shown = world.run(&["jobs", "show", "news"]).expect(0);
    shown.shows("and 199,990 more");
    let failed = world.run(&["jobs", "show", "news", "--failed"]).expect(0).stdout;
    assert_eq!(failed.lines().count(), LARGE);
    world.run(&["jobs", "show", "news", "--failed", "--limit", "3"]).expect(0).shows("and 199,997 more");
    let object = world.run(&["--json", "jobs", "show", "news", "--failed"]).expect(0).json();
    let listed = object["troubles"].as_array().unwrap().len();
    assert_eq!(listed as u64 + object["more_troubles"].as_u64().unwrap(), LARGE as u64);
    world.run(&["jobs", "remove", "news"]).expect(0).shows("Removed job news");
    let left: i64 = world.sql().query_row("SELECT count(*) FROM tasks", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    assert_eq!(world.run(&["--json", "jobs", "list"]).expect(0).json()["jobs"], Value::Array(Vec::new()));
}

/// B49
#[test]
fn retry_filters_by_status_and_pattern() {
    let (world, site) = (World::new(), site());
    fetch(&world, &site, "news", &["a", "404-x", "410-x", "500-x", "500-y", "503-x"]);
    let waiting = |args: &[&str]| {
        let done = world.run(&[&["--json", "jobs", "retry", "news"], args].concat()).expect(0).json();
        world.run(&["fetch", "--job", "news"]).expect(1);
        done["waiting"].as_u64()
    };
    assert_eq!(waiting(&[]), Some(3), "neither 404 nor 410");
    assert_eq!(waiting(&["--status", "404,503"]), Some(2));
    assert_eq!(waiting(&["--status", "5xx", "--match", "*-y"]), Some(1));
    assert_eq!(waiting(&["--match", "*-x"]), Some(4), "a pattern includes 404s");
    assert_eq!(waiting(&["--status", "server_error"]), Some(2));
    assert_eq!(waiting(&["--status", "all"]), Some(5));
    world
        .run(&["jobs", "retry", "news", "--status", "timeout"])
        .expect(0)
        .shows("no failed or skipped URL matches");
    world.run(&["jobs", "retry", "news", "--status", "sometimes"]).expect(2).says("expected a status");
    assert_eq!(world.run(&["--json", "jobs", "show", "news"]).expect(0).json()["state"], "done");
}

/// B49. A job with nothing to retry used to be reopened, and was then shown as stopped.
#[test]
fn a_retry_with_nothing_to_retry_changes_nothing() {
    let (world, site) = (World::new(), site());
    fetch(&world, &site, "stale", &["a", "404-x", "410-x"]);
    fetch(&world, &site, "fine", &["a"]);
    for (job, expected) in [
        (
            "stale",
            "nothing to retry: every failure (2) was answered 404 or 410; retry those with --status 404,410",
        ),
        ("fine", "nothing to retry, nothing failed"),
    ] {
        world.run(&["jobs", "retry", job]).expect(0).shows(&format!("job {job}: {expected}"));
        let object = world.run(&["--json", "jobs", "retry", job]).expect(0).json();
        assert!(object["message"].as_str().unwrap().contains(expected), "{object}");
        assert_eq!(world.run(&["--json", "jobs", "show", job]).expect(0).json()["state"], "done");
    }
}

/// B49: adding URLs reopens a job that is done, but not one that failed or was cancelled.
#[test]
fn a_job_that_is_done_takes_more_urls() {
    let (world, site) = (World::new(), site());
    fetch(&world, &site, "news", &["a", "500-x"]);
    let more = format!("{}/b", site.url());
    let done = world.run(&["--json", "fetch", "--job", "news", &more]).expect(0).json();
    assert_eq!(
        (&done["state"], &done["tasks"], &done["fetched"], &done["failed"]),
        (&"done".into(), &3.into(), &2.into(), &1.into())
    );
    assert_eq!(site.log().len(), 3, "what failed is not retried");
    let again = world.run(&["--json", "fetch", "--job", "news", &more]).expect(0).json();
    assert_eq!((&again["state"], &again["tasks"]), (&"done".into(), &3.into()));
    let input = world.write("list", &list(&site.url(), "p", 40));
    let run = world.start(&[
        "fetch",
        "--job",
        "other",
        "--input",
        input.to_str().unwrap(),
        "--delay",
        "300ms",
        "--robots",
        "ignore",
        "--out",
        "-",
    ]);
    site.wait_for(5);
    world.run(&["jobs", "remove", "other"]).expect(2).says("job other is running");
    world.run(&["jobs", "cancel", "other"]).expect(0);
    run.wait().expect(1);
    world.run(&["fetch", "--job", "other", &more]).expect(2).says("takes no more URLs");
    world.run(&["fetch", "--job", "other", "--refresh"]).expect(2).says("jobs retry other");
    world.run(&["jobs", "remove", "other"]).expect(0);
    world.run(&["jobs", "show", "other"]).expect(2).says("no such job");
}

/// A job that no process works on is shown as stopped everywhere.
#[test]
fn a_job_nobody_works_on_is_stopped() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &list(&site.url(), "p", 40));
    let run = world.start(&[
        "--json",
        "fetch",
        "--job",
        "one",
        "--input",
        input.to_str().unwrap(),
        "--delay",
        "300ms",
        "--robots",
        "ignore",
        "--format",
        "none",
    ]);
    let state = || {
        world.run(&["--json", "jobs", "show", "one"]).expect(0).json()["state"].as_str().unwrap().to_owned()
    };
    site.wait_for(2);
    assert_eq!(state(), "running");
    run.kill().unwrap();
    assert_eq!(state(), "stopped", "its process is dead");
    world.run(&["jobs", "list"]).expect(0).shows("stopped");
    let run = world.start(&["--json", "fetch", "--job", "one"]);
    site.wait_for(4);
    assert_eq!(state(), "running");
    run.signal("INT");
    assert_eq!(run.wait().expect(130).json()["state"], "stopped");
    assert_eq!(world.run(&["--json", "top", "--once"]).expect(0).json()["left"][0]["state"], "stopped");
}

#[test]
fn jobs_are_listed_in_pages() {
    let (world, site) = (World::new(), site());
    for job in ["one", "two", "three"] {
        fetch(&world, &site, job, &["a"]);
    }
    let page = world.run(&["--json", "jobs", "list", "--limit", "2"]).expect(0).json();
    assert_eq!(
        (&page["jobs"][0]["job"], &page["jobs"][1]["job"], &page["more"]),
        (&"three".into(), &"two".into(), &true.into())
    );
    let rest = world.run(&["--json", "jobs", "list", "--limit", "2", "--after", "two"]).expect(0).json();
    assert_eq!(
        (&rest["jobs"][0]["job"], &rest["more"], &rest["next"]),
        (&"one".into(), &false.into(), &Value::Null)
    );
    world.run(&["jobs", "list", "--limit", "1"]).expect(0).says("--after three");
    world.run(&["jobs", "list", "--after", "none"]).expect(2).says("no such job");
}

const LARGE: usize = 200_000;
