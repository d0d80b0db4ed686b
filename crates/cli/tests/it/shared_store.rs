//! Several processes on one store.

use crate::comity::{World, list};
use crate::log::{TOLERANCE, assert_each_once, assert_spaced, to_text, wait_until};
use crate::nginx::Nginx;
use crate::site::{Answer, Site};

/// B9
#[test]
fn two_jobs_share_the_pace_of_a_host() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |job: &str, count: usize| {
        let input = world.write(job, &list(&nginx.url(), job, count));
        let input = input.to_str().unwrap().to_owned();
        world.start(&[
            "fetch", "--input", &input, "--job", job, "--delay", "200ms", "--robots", "ignore", "--format",
            "none",
        ])
    };
    let first = fetch("a", 60);
    nginx.wait_for(3);
    let second = fetch("b", 15);
    first.wait().expect(0);
    second.wait().expect(0);
    let log = nginx.log();
    assert_spaced(&log, 200);
    assert_each_once(&log, "a", 60);
    assert_each_once(&log, "b", 15);
    let first_b = log.iter().find(|hit| hit.path.starts_with("/b")).unwrap().start;
    let last_a = log.iter().rfind(|hit| hit.path.starts_with("/a")).unwrap().start;
    assert!(first_b < last_a, "the second job waited for the first one to end:\n{}", to_text(&log));
    let turns = log.windows(2).filter(|pair| pair[0].path[..2] != pair[1].path[..2]).count();
    assert!(turns >= 4, "they did not take turns:\n{}", to_text(&log));
}

/// B9, B74
#[test]
fn two_processes_on_one_job_fetch_every_page_once() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 60));
    let input = input.to_str().unwrap();
    let first = world.start(&[
        "fetch", "--input", input, "--job", "one", "--delay", "50ms", "--robots", "ignore", "--out", "pages",
    ]);
    nginx.wait_for(5);
    let second = world.start(&["fetch", "--job", "one"]);
    first.wait().expect(0);
    second.wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "p", 60);
    assert_spaced(&log, 50);
    assert_eq!(world.index("pages").len(), 60);
}

/// It used to show an estimate by its own rules, and no reason for being idle.
#[test]
fn a_process_that_joins_a_job_says_who_is_in_charge() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let input = world.write("list", &list(&site.url(), "p", 80));
    let args = ["fetch", "--job", "one", "--robots", "ignore", "--format", "none", "--input"];
    let first = world.start(&[&args[..], &[input.to_str().unwrap(), "--delay", "400ms"]].concat());
    site.wait_for(2);
    let second = world.start(&["fetch", "--job", "one", "--delay", "1ms"]);
    let host = site.url().replace("http://", "");
    let lines = || -> Vec<String> {
        let said = second.said();
        said.lines().filter(|line| line.contains("/80 pages")).map(str::to_owned).collect()
    };
    wait_until("a second line of progress", || lines().len() >= 2);
    let (lines, in_charge) = (lines(), format!("another process is in charge of {host}"));
    assert!(lines.iter().all(|line| line.contains(&in_charge)), "{lines:#?}");
    assert!(!lines[0].contains(" left"), "nobody has answered yet: {lines:#?}");
    // About 400 ms for each page that is left, and not the millisecond of this process.
    let left = lines[1].split_once("about ").and_then(|(_, left)| left.split_once("s left"));
    let left: u64 = left.map(|(left, _)| left.parse().unwrap()).unwrap_or_else(|| panic!("{lines:#?}"));
    let waiting =
        80 - lines[1].split_once("/80").unwrap().0.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(left + 2 >= waiting * 2 / 5, "{left} s for {waiting} pages: {lines:#?}");
    assert!(!first.said().contains("in charge"), "{}", first.said());
    for running in [second, first] {
        running.signal("INT");
        running.wait().expect(130);
    }
}

/// B9, B20, B22: a Retry-After that one process receives holds for the other too.
#[test]
fn a_429_to_one_process_stops_both() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before {
        8 => Answer::status(429).header("Retry-After", "3"),
        _ => Answer::page(asked.path),
    });
    let fetch = |job: &str| {
        let input = world.write(job, &list(&site.url(), job, 12));
        let input = input.to_str().unwrap().to_owned();
        world.start(&[
            "fetch",
            "--input",
            &input,
            "--job",
            job,
            "--delay",
            "100ms",
            "--robots",
            "ignore",
            "--learning",
            "off",
            "--format",
            "none",
        ])
    };
    let (first, second) = (fetch("a"), fetch("b"));
    first.wait().expect(0);
    second.wait().expect(0);
    let log = site.log();
    assert_spaced(&log, 100);
    assert_eq!(log.len(), 25, "{}", to_text(&log));
    let refused = log.iter().position(|hit| hit.status == 429).unwrap();
    let waited = log[refused + 1].start - log[refused].answered;
    assert!(waited >= 3_000_000 - TOLERANCE, "{waited} µs:\n{}", to_text(&log));
    assert!(waited < 60_000_000, "{waited} µs:\n{}", to_text(&log));
}

/// B9, B10: a command that needs a domain gets it from a running fetch.
#[test]
fn a_command_gets_a_domain_from_a_running_fetch() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.write("comity.toml", "[default]\nlearning = \"off\"\n");
    let input = world.write("list", &list(&nginx.url(), "p", 100));
    let input = input.to_str().unwrap();
    let mut fetch = world
        .start(&["fetch", "--input", input, "--delay", "200ms", "--robots", "ignore", "--format", "none"]);
    nginx.wait_for(3);
    world.run(&["--json", "explain", &nginx.url()]).expect(0);
    assert!(!fetch.is_over(), "it waited until the fetch had ended");
    world.run(&["record", &nginx.url(), "rate_limited", "--retry-after", "2"]).expect(0);
    fetch.wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "p", 100);
    assert_spaced(&log, 200);
    let pause = log.windows(2).map(|pair| pair[1].start - pair[0].start).max().unwrap();
    assert!(pause >= 1_800_000, "what another process recorded was ignored:\n{}", to_text(&log));
}

/// B3, B9, B25: while a check has an unrecorded slot, its outcome can still be recorded.
#[test]
fn a_check_during_a_fetch_can_be_recorded() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let input = world.write("list", &list(&nginx.url(), "p", 25));
    let input = input.to_str().unwrap();
    let fetch = world
        .start(&["fetch", "--input", input, "--delay", "200ms", "--robots", "ignore", "--format", "none"]);
    nginx.wait_for(3);
    wait_until("check proceeds", || world.run(&["check", &nginx.url()]).code == Some(0));
    // It used to wait for as long as a permit lives: ten minutes.
    world.run(&["record", &nginx.url(), "success"]).expect(0);
    fetch.wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "p", 25);
    assert_spaced(&log, 200);
}

/// B4, B9: commands use the crawl-delay that a fetch has found.
#[test]
fn commands_know_the_crawl_delay() {
    let robots = r"location = /robots.txt { return 200 'User-agent: *\nCrawl-delay: 2.5\n'; }";
    let (world, nginx) = (World::new(), Nginx::start(robots));
    world.run(&["fetch", &format!("{}/p0", nginx.url()), "--format", "none"]).expect(0);
    let explained = world.run(&["--json", "explain", &nginx.url()]).expect(0).json();
    let constraints = explained["constraints"].as_array().unwrap();
    let robots = constraints.iter().find(|constraint| constraint["origin"] == "robots");
    assert!(robots.is_some_and(|robots| robots["limit"] == "crawl_delay"), "{explained}");
    world.run(&["check", &nginx.url()]).expect(1).shows("robots.txt crawl-delay 2.5s");
}

/// It used to say that the job was stopped.
#[test]
fn a_process_that_leaves_a_job_says_that_it_is_still_running() {
    let (world, site) = (World::new(), Site::start(|asked| Answer::page(asked.path)));
    let input = world.write("list", &list(&site.url(), "p", 200));
    let args = ["fetch", "--job", "my list", "--robots", "ignore", "--format", "none", "--input"];
    let first = world.start(&[&args[..], &[input.to_str().unwrap(), "--delay", "300ms"]].concat());
    site.wait_for(2);
    let second = world.start(&["fetch", "--job", "my list"]);
    wait_until("it has joined", || second.said().contains("/200 pages"));
    second.signal("INT");
    let left = second.wait().expect(130);
    left.shows("job my list: still running; this run: ");
    left.says("This process left; job my list is still running (pid ");
    assert!(!left.stderr.contains("To resume"), "{}", left.stderr);
    first.signal("INT");
    let last = first.wait().expect(130);
    last.says("To resume: comity fetch --job 'my list'\n");
}

/// It used to name itself, as another process, while it was taking the sites.
#[test]
fn a_process_alone_says_nothing_about_others() {
    let world = World::new();
    let sites: Vec<Site> = (0..8).map(|_| Site::start(|asked| Answer::page(asked.path))).collect();
    let urls: String = sites.iter().map(|site| list(&site.url(), "p", 5)).collect();
    let input = world.write("list", &urls);
    let args = ["fetch", "--delay", "1s", "--robots", "ignore", "--format", "none", "--input"];
    let done = world.run(&[&args[..], &[input.to_str().unwrap()]].concat()).expect(0);
    done.says("/40 pages");
    assert!(!done.stderr.contains("in charge"), "{}", done.stderr);
}
