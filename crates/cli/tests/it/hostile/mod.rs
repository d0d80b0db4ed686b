//! Hostile sites: each has the expected outcome, memory and time stay bounded, and the rest of the job is unaffected.
//!
//! - here: one job over all hostile sites and some well-behaved ones, and the expected outcomes
//! - `servers`: the hosts; `http1`, `bombs`, `redirects`, `secure`, `http2`, `robots`: what they do
//! - `control_characters`: titles with control characters

mod bombs;
mod control_characters;
mod http1;
mod http2;
mod redirects;
mod robots;
mod secure;
mod servers;

use std::collections::BTreeMap;

use crate::comity::{Done, World};
use crate::log::{assert_each_once, assert_spaced, wait_until};
use crate::site::{Answer, Site};
use servers::{Host, Speech, Talk, Town, talk};

/// A host to start, and the expected outcome of its page.
struct Planned {
    name: String,
    speech: Speech,
    talk: Talk,
    outcome: Outcome,
}

/// The outcome of a task.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// Fetched, with this many bytes.
    Fetched(i64),
    /// Failed with an error that contains the first text; the second is the outcome of its last attempt, if there was
    /// one.
    Failed(&'static str, &'static str),
    /// Failed because the response was too large, or by a timeout if the machine was too busy to read that much.
    Noise,
}

fn fetched(bytes: i64) -> Outcome {
    Outcome::Fetched(bytes)
}

fn failed(error: &'static str, attempt: &'static str) -> Outcome {
    Outcome::Failed(error, attempt)
}

/// Short timeouts; all other limits are the defaults.
const CONFIG: &str = r#"
[default]
min_delay = "50ms"
learning = "off"
backoff_base = "100ms"
backoff_max = "200ms"
retry_after_max = "1s"

[job]
concurrency = 256
max_retries = 1
failure_threshold = 0

[http]
connect_timeout = "5s"
first_byte_timeout = "10s"
total_timeout = "12s"
"#;

/// A folder in which `comity` trusts the town's certificate authority.
fn world(town: &Town) -> World {
    let world = World::new();
    world.write("comity.toml", CONFIG);
    world.write("root.pem", town.root());
    world
}

/// Runs a job over these URLs to its end. Returns its result, and its peak memory in kB.
fn fetch(world: &World, urls: &str, args: &[&str]) -> (Done, u64) {
    let input = world.write("list", urls);
    let args = [
        &["--json", "fetch", "--input", input.to_str().unwrap(), "--out", "pages", "--job", "hostile"],
        args,
    ];
    let mut command = world.command(&args.concat());
    command.env("SSL_CERT_FILE", world.path("root.pem"));
    let mut running = world.begin(command);
    let peak = running.peak_kb();
    (running.wait(), peak)
}

/// The state, bytes, error and last outcome of each URL.
fn tasks(world: &World) -> BTreeMap<String, (String, Option<i64>, String, String)> {
    let sql = world.sql();
    let mut rows = sql
        .prepare("SELECT url, state, bytes, coalesce(error, ''), coalesce(last_outcome, '') FROM tasks")
        .unwrap();
    let rows =
        rows.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))));
    rows.unwrap().map(Result::unwrap).collect()
}

/// Compares the result of a URL with the expected outcome, and returns what is wrong.
fn judge(
    tasks: &BTreeMap<String, (String, Option<i64>, String, String)>,
    url: &str,
    name: &str,
    expected: &Outcome,
) -> Option<String> {
    let (state, bytes, error, attempt) = &tasks[url];
    let fine = match expected {
        Outcome::Fetched(size) => state == "done" && *bytes == Some(*size),
        Outcome::Failed(text, outcome) => state == "failed" && error.contains(text) && attempt == outcome,
        Outcome::Noise => {
            let ends = [
                ("the server sent 8 MiB that are not part of a response", "network_error"),
                ("timed out waiting for the response", "timeout"),
            ];
            state == "failed" && ends.iter().any(|(text, outcome)| error.contains(text) && attempt == outcome)
        }
    };
    (!fine)
        .then(|| format!("{name}: {state}, {bytes:?} bytes, {error:?}, {attempt:?}; expected {expected:?}\n"))
}

/// Asserts that the output contains no control characters except line breaks.
fn assert_no_control_characters(done: &Done) {
    let acted_on = |c: char| {
        let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() && c != '\n' || turns
    };
    for text in [&done.stdout, &done.stderr] {
        let line = text.lines().find(|line| line.contains(acted_on));
        assert!(line.is_none(), "{line:?}");
    }
}

/// Asserts that all connections are closed soon after the end.
fn assert_all_closed(hosts: &[(Planned, Host)]) {
    wait_until("all connections are closed", || hosts.iter().all(|(_, host)| host.open() == 0));
}

fn well_behaved() -> Vec<Site> {
    (0..3).map(|_| Site::start(|asked| Answer::page(asked.path))).collect()
}

fn pages(good: &[Site]) -> String {
    good.iter().map(|site| crate::comity::list(&site.url(), "p", GOOD_PAGES)).collect()
}

/// Asserts that every page of the well-behaved sites was fetched once, at their pace.
fn assert_unharmed(world: &World, good: &[Site]) {
    for site in good {
        let log: Vec<_> = site.log().into_iter().filter(|hit| hit.path != "/robots.txt").collect();
        assert_each_once(&log, "p", GOOD_PAGES);
        assert_spaced(&site.log(), 50);
    }
    let tasks = tasks(world);
    let done = |url: &&str| tasks[*url].0 == "done";
    assert_eq!(pages(good).lines().filter(done).count(), good.len() * GOOD_PAGES);
}

fn planned() -> Vec<Planned> {
    [http1::endless(), http1::broken(), http1::waits(), http1::words(), bombs::sites(), redirects::circles()]
        .into_iter()
        .flatten()
        .chain(secure::sites())
        .chain(http2::sites())
        .collect()
}

/// B10, B21, B27, B44, B46, B76: more than a hundred hostile sites and three well-behaved ones, in one job.
#[test]
fn every_hostile_site_has_its_expected_outcome() {
    let (town, good) = (Town::new(), well_behaved());
    let world = world(&town);
    let quiet = || talk(async |mut peer: servers::Peer| drop(peer.request().await));
    let (canary, canary6) =
        (town.host("0.0.0.0", Speech::Plain, quiet()), town.host("::1", Speech::Plain, quiet()));
    let sites = planned().into_iter().chain(redirects::inwards(&canary, &canary6));
    let hosts: Vec<(Planned, Host)> = sites
        .map(|planned| {
            let host = town.host("127.0.0.1", planned.speech, planned.talk.clone());
            (planned, host)
        })
        .collect();
    let mut urls = pages(&good);
    hosts.iter().for_each(|(_, host)| urls += &(host.url("/page") + "\n"));
    let (done, peak_kb) = fetch(&world, &urls, &["--robots", "ignore", "--log-level", "debug"]);
    let done = done.expect(1);
    let tasks = tasks(&world);
    let wrong: String = hosts
        .iter()
        .filter_map(|(planned, host)| judge(&tasks, &host.url("/page"), &planned.name, &planned.outcome))
        .collect();
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(done.json()["state"], "done", "{}", done.stdout);
    assert_unharmed(&world, &good);
    assert_eq!((canary.came(), canary6.came()), (0, 0), "{:?}", canary.paths());
    assert_all_closed(&hosts);
    assert_no_control_characters(&done);
    assert_no_control_characters(&world.run(&["jobs", "show", "hostile", "--limit", "1000"]).expect(0));
    let shown = world.run(&["--json", "jobs", "show", "hostile", "--limit", "1000"]).expect(0);
    let failed = hosts.iter().filter(|(planned, _)| !matches!(planned.outcome, Outcome::Fetched(_))).count();
    let troubles = shown.json()["troubles"].as_array().unwrap().clone();
    assert_eq!(troubles.iter().filter(|task| task["error"].is_string()).count(), failed);
    assert_no_control_characters(&shown);
    assert!(peak_kb < PEAK_KB, "{peak_kb} kB");
    // Two attempts at the slowest site, each up to its timeout, plus what 256 requests at once on a busy machine add.
    assert!(done.took_us < 300_000_000, "{} µs", done.took_us);
}

/// With robots.txt obeyed, a hostile robots.txt only keeps us from fetching that site.
#[test]
fn a_hostile_robots_txt_is_obeyed_as_far_as_it_was_read() {
    let (town, good) = (Town::new(), well_behaved());
    let world = world(&town);
    let hosts: Vec<(Planned, Host)> = robots::sites()
        .into_iter()
        .map(|planned| {
            let host = town.host("127.0.0.1", planned.speech, planned.talk.clone());
            (planned, host)
        })
        .collect();
    let mut urls = pages(&good);
    for (_, host) in &hosts {
        urls += &format!("{}\n{}\n", host.url("/page"), host.url("/private/page"));
    }
    let (done, peak_kb) = fetch(&world, &urls, &["--log-level", "trace", "--log-format", "json"]);
    let done = done.expect(1);
    let tasks = tasks(&world);
    let mut wrong = String::new();
    for (planned, host) in &hosts {
        wrong.extend(judge(&tasks, &host.url("/page"), &planned.name, &planned.outcome));
        let (state, _, error, _) = &tasks[&host.url("/private/page")];
        let forbidden = match planned.outcome {
            Outcome::Fetched(_) => state == "skipped" && error == "forbidden by robots.txt",
            Outcome::Failed(..) | Outcome::Noise => state == "failed",
        };
        if !forbidden || host.paths().iter().any(|path| path.starts_with("/private")) {
            wrong += &format!("{}: {state}, {error}\n", planned.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_unharmed(&world, &good);
    assert_all_closed(&hosts);
    assert_no_control_characters(&done);
    assert!(peak_kb < PEAK_KB, "{peak_kb} kB");
    let kept: i64 =
        world.sql().query_row("SELECT max(length(body)) FROM robots", [], |row| row.get(0)).unwrap();
    assert_eq!(
        kept,
        (500 << 10) + 1,
        "as much as RFC 9309 requires, and one byte to show that there is more"
    );
}

/// All sites again, with a robots.txt that is as hostile as the pages.
#[test]
fn a_site_with_a_hostile_robots_txt_is_not_fetched() {
    let (town, good) = (Town::new(), well_behaved());
    let world = world(&town);
    let hosts: Vec<(Planned, Host)> =
        [http1::endless(), http1::broken(), bombs::sites(), secure::sites(), http2::sites()]
            .into_iter()
            .flatten()
            .filter(|planned| matches!(planned.outcome, Outcome::Failed(..)))
            .map(|planned| {
                let host = town.host("127.0.0.1", planned.speech, planned.talk.clone());
                (planned, host)
            })
            .collect();
    let mut urls = pages(&good);
    hosts.iter().for_each(|(_, host)| urls += &(host.url("/page") + "\n"));
    let (done, peak_kb) = fetch(&world, &urls, &["--log-level", "debug", "--log-format", "json"]);
    let done = done.expect(1);
    let tasks = tasks(&world);
    for (planned, host) in &hosts {
        // A robots.txt may be longer than a page, and then it is the page that fails.
        let Outcome::Failed(_, outcome) = planned.outcome else { panic!("{}", planned.name) };
        let robots = failed("(while fetching robots.txt)", outcome);
        let wrong = judge(&tasks, &host.url("/page"), &planned.name, &robots);
        let wrong = wrong.and_then(|_| judge(&tasks, &host.url("/page"), &planned.name, &planned.outcome));
        assert_eq!(wrong, None);
    }
    assert_unharmed(&world, &good);
    assert_all_closed(&hosts);
    assert_no_control_characters(&done);
    assert!(peak_kb < PEAK_KB, "{peak_kb} kB");
}

/// Requests are limited by default, without any configuration.
#[test]
fn requests_are_limited_by_default() {
    let reference = World::new().run(&["config", "reference"]).expect(0).stdout;
    for line in [
        r#"connect_timeout = "10s""#,
        r#"first_byte_timeout = "30s""#,
        r#"total_timeout = "5m""#,
        r#"body_max = "64MiB""#,
        r#"header_max = "64KiB""#,
        "redirects_max = 10",
        "max_retries = 3",
    ] {
        assert!(reference.contains(line), "{line}:\n{reference}");
    }
}

const GOOD_PAGES: usize = 20;
/// The peak memory, with 256 requests at once, some of which decode with windows of megabytes.
const PEAK_KB: u64 = 128 << 10;
