//! Where URLs come from: arguments, files, stdin.

use std::fs::File;

use crate::comity::World;
use crate::log::counts;
use crate::nginx::Nginx;

const QUICK: [&str; 6] = ["--delay", "10ms", "--robots", "ignore", "--format", "none"];

#[test]
fn urls_come_from_arguments_a_file_and_stdin() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let at = |path: &str| format!("{}/{path}", nginx.url());
    let comments = format!("# a comment\n\n  {}  \r\n\n{}", at("f1"), at("f2"));
    let file = world.write("list", &comments);
    world.run(&[&["fetch", &at("a1"), "--input", file.to_str().unwrap()][..], &QUICK].concat()).expect(0);

    world.write("stdin", &format!("{}\n", at("s1")));
    let mut piped = world.command(&[&["fetch", &at("a2"), "--input", "-"][..], &QUICK].concat());
    piped.stdin(File::open(world.path("stdin")).unwrap());
    world.begin(piped).wait().expect(0);
    let log = nginx.log();
    let paths: Vec<(&str, usize)> = counts(&log).into_iter().collect();
    assert_eq!(paths, [("/a1", 1), ("/a2", 1), ("/f1", 1), ("/f2", 1), ("/s1", 1)]);
}

/// B71
#[test]
fn invalid_lines_are_reported_and_skipped() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let at = |path: &str| format!("{}/{path}", nginx.url());
    let text = format!("{}\nnot a url\nftp://example.org/x\nhttp://\n{}\n", at("a"), at("b"));
    let file = world.write("list", &text);
    let done = world.run(&[&["--json", "fetch", "--input", file.to_str().unwrap()][..], &QUICK].concat());
    assert_eq!(done.json()["fetched"], 2);
    for line in ["line 2: \"not a url\"", "line 3: ", "line 4: ", "Skipped 3 invalid lines"] {
        done.says(line);
    }
    done.expect(0);
}

/// B71
#[test]
fn strict_stops_at_the_first_bad_line() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let text = format!("{0}/a\nnot a url\n{0}/b\nneither\n", nginx.url());
    let file = world.write("list", &text);
    let done = world
        .run(&[&["fetch", "--strict", "--input", file.to_str().unwrap()][..], &QUICK].concat())
        .expect(2);
    done.says("line 2");
    assert!(!done.stderr.contains("line 4"), "{}", done.stderr);
    assert!(nginx.log().iter().all(|hit| hit.path != "/b"));
}

/// A list that was not read to the end keeps its job open, so that the rest isn't lost.
#[test]
fn a_fixed_list_resumes_the_job() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |text: &str| {
        let file = world.write("list", text);
        let file = file.to_str().unwrap().to_owned();
        world.run(&[&["--json", "fetch", "--strict", "--job", "one", "--input", &file][..], &QUICK].concat())
    };
    let broken = fetch(&format!("{0}/a\nnot a url\n{0}/b\n", nginx.url())).expect(2);
    assert_eq!(broken.json()["state"], "stopped");
    broken.says("The list was not read to the end");
    let whole = fetch(&format!("{0}/a\n{0}/b\n", nginx.url())).expect(0);
    assert_eq!((&whole.json()["state"], &whole.json()["fetched"]), (&"done".into(), &2.into()));
    assert!(counts(&nginx.log()).values().all(|count| *count == 1));
}

/// B74: interrupted while the list is still being read from an open pipe.
#[test]
fn an_interrupted_list_leaves_the_job_open() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let mut piped = world.command(&[&["fetch", "--job", "one", "--input", "-"][..], &QUICK].concat());
    piped.stdin(std::process::Stdio::piped());
    let mut fetch = world.begin(piped);
    fetch.feed(&format!("{0}/a\n{0}/b\n", nginx.url()));
    // URLs are fetched before the list has ended.
    nginx.wait_for(2);
    fetch.signal("INT");
    fetch.wait().expect(130).says("The list was not read to the end");
    world.run(&["fetch", "--job", "one"]).expect(2).says("--input FILE");
    let file = world.write("list", &format!("{0}/a\n{0}/b\n{0}/c\n", nginx.url()));
    world.run(&["fetch", "--job", "one", "--input", file.to_str().unwrap()]).expect(0);
    let log = nginx.log();
    assert_eq!(counts(&log), [("/a", 1), ("/b", 1), ("/c", 1)].into());
}

#[test]
fn a_list_without_valid_lines_is_a_usage_error() {
    let world = World::new();
    let list = world.write("list", "example\nfile:///etc/passwd\n");
    let bad = world.run(&["fetch", "--input", list.to_str().unwrap(), "--format", "none"]).expect(2);
    bad.says("line 2");
    bad.says("Skipped 2 invalid lines");
}

/// Invalid arguments are reported before anything starts, with what to type instead.
#[test]
fn invalid_urls_are_rejected_before_anything_starts() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let good = format!("{}/good", nginx.url());
    world.write("urls.txt", &format!("{good}\n"));
    let long = format!("{}/{}", nginx.url(), "x".repeat(100_000));
    let two = format!("{good}\n{good}2");
    for (typed, expected) in [
        (
            "urls.txt",
            "\"urls.txt\" is a file, not a URL; to fetch the URLs listed in it: comity fetch --input urls.txt",
        ),
        ("", "argument 2 is empty: expected a URL such as https://example.org/"),
        (two.as_str(), "argument 2 contains a line break"),
        (long.as_str(), "argument 2 is too long for a URL: 1000"),
        ("example.org/a", "did you mean https://example.org/a ?"),
    ] {
        let done = world.run(&["--json", "fetch", &good, typed]).expect(2);
        done.says(expected);
        assert!(done.stderr.len() < 400, "{}", done.stderr);
        assert_eq!(done.stdout.lines().count(), 1, "one object: {}", done.stdout);
        let object = done.json();
        assert_eq!(object["code"], 2);
        assert!(object["error"].as_str().unwrap().contains(expected), "{object}");
    }
    assert!(nginx.log().is_empty(), "nothing was fetched");
    assert!(!world.store().exists(), "no job was created");
}

/// B71: errors of the argument parser are JSON too.
#[test]
fn usage_errors_are_json_when_json_is_wanted() {
    let world = World::new();
    for (args, error) in [
        (&["--json", "fetch", "--output", "x"][..], "unexpected argument '--output' found"),
        (&["fetch", "--format", "paper", "--json"], "invalid value 'paper'"),
        (&["--json", "check"], "required arguments were not provided"),
        (&["--json", "fetsh"], "unrecognized subcommand 'fetsh'"),
        (&["--json"], "a command is missing"),
    ] {
        let done = world.run(args).expect(2);
        assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
        let object = done.json();
        assert_eq!(object["code"], 2, "{object}");
        assert!(object["error"].as_str().unwrap().contains(error), "{args:?}: {object}");
        assert!(!done.stderr.is_empty(), "the message is on stderr too");
    }
    let done = world.run(&["fetch", "--output", "x"]).expect(2);
    assert_eq!(done.stdout, "");
    done.says("this command has --out");
    assert_eq!(world.run(&["fetch", "--", "--json"]).expect(2).stdout, "", "after -- it isn't a flag");
}

#[test]
fn nothing_to_fetch_is_a_usage_error() {
    let world = World::new();
    world.run(&["fetch"]).expect(2).says("no URLs");
    world.run(&["fetch", "--job", "nobody"]).expect(2).says("nobody");
    let missing = world.run(&["fetch", "--input", "missing.txt"]).expect(2);
    missing.says("missing.txt");
    let folder = world.run(&["fetch", "--input", "."]);
    assert_eq!(folder.code, Some(2), "{folder:?}");
    let odd = world.run(&["--json", "fetch", "--delay", "fast", "http://127.0.0.1:9/"]).expect(2);
    assert_eq!(odd.json()["code"], 2);
    odd.says("fast");
    // None of this created a job.
    let jobs = world.run(&["--json", "jobs", "list"]).expect(0).json();
    let names: Vec<&str> =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap()).collect();
    assert!(!names.contains(&"nobody"), "{names:?}");
}
