//! What `fetch` reports when it works on a job that exists already: what this run did, and the totals of the job.

use serde_json::{Value, json};

use crate::comity::{World, list};
use crate::log::wait_until;
use crate::site::{Answer, Site};

const QUICK: [&str; 6] = ["--delay", "1ms", "--robots", "ignore", "--max-retries", "0"];

/// A site that answers with the status in the path.
fn site() -> Site {
    Site::start(|asked| match asked.path.rsplit('/').next().unwrap_or_default().parse() {
        Ok(status) => Answer::status(status),
        Err(_) => Answer::page(asked.path),
    })
}

fn fetch<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["fetch", "--job", "news"][..], args, &QUICK].concat()
}

/// It used to print the old totals and failures as if they had just happened, and to exit with 1 each time.
#[test]
fn a_list_that_is_passed_again_to_a_job_that_is_done_repeats_nothing() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &format!("{0}/a\n{0}/500\n", site.url()));
    let args = fetch(&["--input", input.to_str().unwrap(), "--format", "none"]);
    let first = world.run(&args).expect(1);
    first.shows("job news: done, 1 of 2 fetched, 1 failed in ");
    let again = world.run(&args).expect(0);
    again.shows("job news: done; this run: 0 fetched, no new URLs (2 were in the job already) in ");
    again.shows("; in total: 1 of 2 fetched, 1 failed\n");
    again.says("to retry it: comity jobs retry news");
    let quiet = world.run(&[&args[..], &["--quiet"]].concat()).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let object = world.run(&[&["--json"], &args[..]].concat()).expect(0).json();
    let this_run = json!({
        "added": 0, "known": 2, "fetched": 0, "failed": 0, "skipped": 0, "rate_limited": 0, "retries": 0,
    });
    assert_eq!(object["this_run"], this_run);
    let of_job = |object: &Value| {
        ["state", "tasks", "fetched", "failed", "skipped", "rate_limited", "retries"]
            .map(|key| object[key].clone())
    };
    assert_eq!(of_job(&object), [json!("done"), 2.into(), 1.into(), 1.into(), 0.into(), 0.into(), 0.into()]);
    assert_eq!(site.log().len(), 2);

    // Without URLs there is no run to report on: the result is that of the job.
    let ended = world.run(&["--json", "fetch", "--job", "news"]).expect(1).json();
    assert_eq!((&ended["this_run"]["known"], &ended["failed"]), (&0.into(), &1.into()));
}

/// Its failures used to be listed together with those of earlier runs.
#[test]
fn urls_that_are_added_to_a_job_that_is_done_are_what_the_run_is_about() {
    let (world, site) = (World::new(), site());
    let urls = ["a", "500", "b", "404", "c"].map(|path| format!("{}/{path}", site.url()));
    world.run(&fetch(&[&urls[0], &urls[1], "--format", "none"])).expect(1);
    let fine = world.run(&[&fetch(&[&urls[2]])[..], &["--quiet"]].concat()).expect(0);
    assert_eq!(fine.stderr, "");
    let worse = world.run(&[&fetch(&[&urls[3]])[..], &["--quiet"]].concat()).expect(1);
    assert_eq!(worse.stderr, format!("failed: {}: status 404\n", urls[3]));
    let plain = world.run(&fetch(&[&urls[4], &urls[1]])).expect(0);
    plain.shows("job news: done; this run: 1 fetched in ");
    plain.shows("; in total: 3 of 5 fetched, 2 failed\n");
    let object = world.run(&[&["--json"], &fetch(&[&urls[4]])[..]].concat()).expect(0).json();
    assert_eq!((&object["this_run"]["fetched"], &object["fetched"]), (&0.into(), &3.into()));
}

/// A run that resumes a job says what it did, but its exit code and failures are those of the job: nobody may have seen
/// those of the run before it.
#[test]
fn a_run_that_resumes_a_job_reports_on_all_of_it() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &format!("{0}/404\n{1}", site.url(), list(&site.url(), "p", 9)));
    let input = input.to_str().unwrap();
    let run = world.start(&[
        "fetch",
        "--job",
        "news",
        "--input",
        input,
        "--format",
        "none",
        "--delay",
        "1s",
        "--robots",
        "ignore",
        "--max-retries",
        "0",
    ]);
    site.wait_for(2);
    let show = || world.run(&["--json", "jobs", "show", "news"]).expect(0).json();
    wait_until("the 404 is saved", || show()["failed"] == 1);
    run.kill().unwrap();
    let before = show();
    let left = before["waiting"].as_u64().unwrap();
    assert_eq!((&before["failed"], left > 0), (&1.into(), true), "{before}");
    let args = ["fetch", "--job", "news", "--input", input, "--delay", "1ms", "--quiet"];
    let done = world.run(&[&["--json"], &args[..]].concat()).expect(1);
    let object = done.json();
    assert_eq!(
        (&object["state"], &object["fetched"], &object["failed"]),
        (&"done".into(), &9.into(), &1.into())
    );
    assert_eq!(
        (&object["this_run"]["fetched"], &object["this_run"]["failed"]),
        (&left.into(), &0.into()),
        "{object}"
    );
    done.says(&format!("failed: {}/404: status 404", site.url()));
}
