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
    again.says("to retry them: comity jobs retry news");
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

/// A new user did not find the pages, and wondered why there were fewer than URLs in the list.
#[test]
fn the_first_summary_says_where_the_pages_are_and_counts_duplicates() {
    let (world, site) = (World::new(), site());
    let input = world.write("list", &format!("{0}/a\n{0}/b\n{0}/a#x\n{0}/a\n", site.url()));
    let first = world.run(&fetch(&["--input", input.to_str().unwrap(), "--out", "kept/pages"])).expect(0);
    first.shows("job news: done, 2 of 2 fetched, 2 duplicates in the list in ");
    first.says("Pages are in kept/pages/, one row per URL in kept/pages/index.jsonl\n");
    let warc = ["fetch", &(site.url() + "/a"), "--format", "warc", "--robots", "ignore"];
    world.run(&warc).expect(0).says("Pages are in comity-pages/, as WARC files\n");
    let none = world.run(&fetch(&[&(site.url() + "/c"), "--format", "none"])).expect(0);
    assert!(!none.stderr.contains("Pages are in"), "{}", none.stderr);
}

/// It used to end with exit code 0 and without a word.
#[test]
fn a_job_that_only_skipped_urls_says_why() {
    let world = World::new();
    let site = Site::start(|asked| match asked.path {
        "/robots.txt" => {
            Answer { status: 200, body: "User-agent: *\nDisallow: /\n".to_owned(), ..Answer::default() }
        }
        path => Answer::page(path),
    });
    let urls = ["a", "b"].map(|path| format!("{}/{path}", site.url()));
    let args = ["fetch", &urls[0], &urls[1], "--delay", "1ms", "--format", "none", "--job"];
    let done = world.run(&[&args[..], &["my list"]].concat()).expect(0);
    done.shows("0 of 2 fetched, 2 skipped in ");
    done.shows(" (2 forbidden by robots.txt; see comity jobs show 'my list')\n");
    let quiet = world.run(&[&args[..], &["quiet", "--quiet"]].concat()).expect(0);
    assert_eq!(
        quiet.stderr,
        "job quiet: nothing was fetched (2 forbidden by robots.txt; see comity jobs show quiet)\n"
    );
}

/// They used to name a job that doesn't exist.
#[test]
fn names_are_quoted_in_commands_to_copy() {
    let (world, site) = (World::new(), site());
    let url = site.url() + "/500";
    let args = ["fetch", &url, "--job", "my list", "--format", "none"];
    let failed = world.run(&[&args[..], &QUICK].concat()).expect(1);
    failed.says("comity jobs show 'my list'; to retry them: comity jobs retry 'my list'\n");
    let retried = world.run(&["jobs", "retry", "my list"]).expect(0);
    retried.shows("1 URL will be retried; run: comity fetch --job 'my list'\n");
}
