//! `--exec`: a command for each new item.

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
fn each_new_item_has_its_command_once_it_was_scraped() {
    let (world, site) = (world(&[]), site(3));
    add(&world, &(site.url() + "/feed"), &[]);
    let ran = run(&world, &["--exec", "cat >> seen"], 1);
    assert_eq!((&ran["hooks"]["run"], &ran["hooks"]["failed"]), (&3.into(), &0.into()), "{ran}");
    let mut rows = lines(&world, "seen");
    rows.sort_by_key(|row| row["id"].as_i64());
    let told: Vec<_> =
        rows.iter().map(|row| (row["state"].as_str().unwrap(), row["file"].is_string())).collect();
    assert_eq!(told, [("done", true), ("failed", false), ("done", true)], "what failed is told too");
    // Items that are known have none.
    run(&world, &["--exec", "cat >> seen"], 0);
    assert_eq!(lines(&world, "seen").len(), 3);
}

#[test]
fn where_nothing_is_scraped_it_runs_at_once() {
    let (world, site) = (world(&[]), site(2));
    add(&world, &(site.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--exec", "cat >> seen"], 0);
    assert_eq!(lines(&world, "seen").iter().filter(|row| row["state"] == "none").count(), 2);
}

/// A command is what was typed: what a stranger wrote is data.
#[test]
fn nothing_of_an_item_is_part_of_the_command() {
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

/// It is reported, and the run's pages are fetched all the same.
#[test]
fn a_command_that_fails_or_hangs_is_reported_and_ended() {
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
    wait_until("what it left running is gone", gone);
    assert_eq!(count(&world, "SELECT count(*) FROM hooks"), 0, "it ran");

    let other = world_with_one(&site);
    let done = other.run(&["run", "--exec", "trap '' TERM; sleep 1000", "--exec-timeout", "100ms"]).expect(1);
    done.says("killed after 100ms");
}

fn world_with_one(site: &Site) -> World {
    let world = world(&[]);
    add(&world, &(site.url() + "/feed"), &[]);
    world
}

/// At least once: a command that did not come to its end before a kill -9 runs again.
#[test]
fn after_a_kill_it_runs_again() {
    let site = site(1);
    let world = world_with_one(&site);
    let command = "cat >> seen; test -e go || sleep 1000";
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
fn no_more_run_at_once_than_was_said() {
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
