//! `run --exec`: a command for each new item.

use serde_json::Value;

use crate::comity::World;
use crate::follow::{add, count, numbered, run, world};
use crate::log::wait_until;
use crate::site::{Answer, Site};

fn site(pages: usize) -> Site {
    Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("a", pages), ..Answer::default() },
        "/a1" => Answer::status(404),
        path => Answer::page(path),
    })
}

fn lines(world: &World, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(world.path(name)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_command_runs_once_per_new_item_after_its_scrape() {
    let (world, site) = (world(&[]), site(3));
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &["--exec", "cat >> seen"], 1);
    assert_eq!((&ran["hooks"]["run"], &ran["hooks"]["failed"]), (&3.into(), &0.into()), "{ran}");
    let mut rows = lines(&world, "seen");
    rows.sort_by_key(|row| row["id"].as_i64());
    let rows: Vec<_> =
        rows.iter().map(|row| (row["state"].as_str().unwrap(), row["file"].is_string())).collect();
    assert_eq!(
        rows,
        [("done", true), ("failed", false), ("done", true)],
        "failed items get their command too"
    );
    // Known items get no command.
    run(&world, &["--exec", "cat >> seen"], 0);
    assert_eq!(lines(&world, "seen").len(), 3);
}

#[test]
fn without_scraping_the_command_runs_at_once() {
    let (world, site) = (world(&[]), site(2));
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--exec", "cat >> seen"], 0);
    assert_eq!(lines(&world, "seen").iter().filter(|row| row["state"] == "none").count(), 2);
}

/// The command never changes: what a feed contains is only data on its stdin.
#[test]
fn item_data_never_becomes_part_of_the_command() {
    let world = world(&[]);
    let item =
        "<item><title>$(touch evil)`touch evil`;touch evil</title><link>/x';touch evil;'</link></item>";
    let site = Site::start(move |_| Answer {
        status: 200,
        body: format!("<rss><channel>{item}</channel></rss>"),
        ..Answer::default()
    });
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--exec", "cat > seen"], 0);
    assert_eq!(lines(&world, "seen").len(), 1);
    assert!(!world.path("evil").exists());
}

/// It is logged, and the run fetches its pages anyway.
#[test]
fn a_failing_or_hanging_command_is_reported_and_killed() {
    let (world, site) = (world(&[]), site(1));
    add(&world, &(site.url() + "/feed"), &[]);
    let failing = "printf 'b\\033[31mad\\n' >&2; (sleep 1000 & echo $! > child); exit 7";
    let done = world.run(&["--json", "run", "--exec", failing]).expect(1);
    assert_eq!(done.json()["hooks"]["failed"], 1);
    assert_eq!(done.json()["tasks"]["fetched"], 1);
    done.says("exit code 7");
    assert!(!done.stderr.contains('\u{1b}'), "{}", done.stderr);
    let child = std::fs::read_to_string(world.path("child")).unwrap();
    let gone = || !std::path::Path::new(&format!("/proc/{}/cmdline", child.trim())).exists();
    wait_until("its background process is gone", gone);
    assert_eq!(count(&world, "SELECT count(*) FROM hooks"), 0, "it ran");

    let other = world_with_one(&site);
    let done = other.run(&["run", "--exec", "trap '' TERM; sleep 1000", "--exec-timeout", "100ms"]).expect(1);
    done.says("killed after 100 ms");
}

/// A failed command doesn't run again, so this line is all that a cron mail can contain.
#[test]
fn quiet_reports_each_failed_command() {
    let site = site(2);
    for (command, timeout, why) in [
        ("exit 3", "1h", "exit code 3"),
        ("no-such-command", "1h", "exit code 127"),
        ("sleep 1000", "100ms", "killed after 100 ms"),
    ] {
        let world = world_with_one(&site);
        let exec = ["run", "--quiet", "--no-scrape", "--exec", command, "--exec-timeout", timeout];
        let done = world.run(&exec).expect(1);
        let failed: Vec<&str> =
            done.stderr.lines().filter(|line| line.contains("--exec command failed")).collect();
        assert_eq!(failed.len(), 2, "{}", done.stderr);
        let is_told = |line: &&str| ["item=", command, why].iter().all(|part| line.contains(part));
        assert!(failed.iter().all(is_told), "{}", done.stderr);
    }
}

fn world_with_one(site: &Site) -> World {
    let world = world(&[]);
    add(&world, &(site.url() + "/feed"), &[]);
    world
}

/// At least once: a command that had not finished before a kill -9 runs again.
#[test]
fn the_command_runs_again_after_a_kill() {
    let site = site(1);
    let world = world_with_one(&site);
    // The command of the killed process ends with the test, too.
    let command = "cat >> seen; until test -e go; do sleep 0.05; done";
    let running = world.start(&["run", "--exec", command]);
    wait_until("the command runs", || lines(&world, "seen").len() == 1);
    running.kill().expect("it waits for the command");
    world.write("go", "");
    run(&world, &["--exec", command], 0);
    assert_eq!(lines(&world, "seen").len(), 2);
    run(&world, &["--exec", command], 0);
    assert_eq!(lines(&world, "seen").len(), 2, "it is done now");
}

#[test]
fn ctrl_c_ends_commands_and_leaves_them_for_the_next_run() {
    let site = site(1);
    let world = world_with_one(&site);
    let running = world.start(&["run", "--exec", "cat >> seen; echo $$ > pid; exec sleep 1000"]);
    wait_until("the command runs", || world.path("pid").exists());
    running.signal("INT");
    assert_eq!(running.wait().code, Some(130));
    let pid = std::fs::read_to_string(world.path("pid")).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}/cmdline", pid.trim())).exists(), "it was ended");
    assert_eq!(count(&world, "SELECT count(*) FROM hooks"), 1);
    run(&world, &["--exec", "cat >> seen"], 0);
    assert_eq!(lines(&world, "seen").len(), 2);
}

#[test]
fn exec_jobs_limits_concurrent_commands() {
    let site = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("a", 12), ..Answer::default() },
        path => Answer::page(path),
    });
    let world = world_with_one(&site);
    let command = "mkdir -p at; touch at/$$; ls at | wc -l >> most; sleep 0.1; rm at/$$";
    run(&world, &["--no-scrape", "--exec", command, "--exec-jobs", "2"], 0);
    let most = std::fs::read_to_string(world.path("most")).unwrap();
    let most: Vec<u32> = most.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!((most.len(), most.iter().max()), (12, Some(&2)));
    world.run(&["run", "--exec-jobs", "2"]).expect(2);
    world.run(&["run", "--exec", " "]).expect(2).says("expected a command");
    world.run(&["run", "--exec", "true", "--exec-timeout", "0"]).expect(2).says("--exec-timeout");
}
