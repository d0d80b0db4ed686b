//! Where URLs come from.

use std::fs::File;

use crate::comity::World;
use crate::log::counts;
use crate::nginx::Nginx;

const QUICK: [&str; 6] = ["--delay", "10ms", "--robots", "ignore", "--format", "none"];

#[test]
fn arguments_a_file_and_stdin() {
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
fn lines_that_are_no_urls_are_told_and_passed_over() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let at = |path: &str| format!("{}/{path}", nginx.url());
    let text = format!("{}\nnot a url\nftp://example.org/x\nhttp://\n{}\n", at("a"), at("b"));
    let file = world.write("list", &text);
    let done = world.run(&[&["--json", "fetch", "--input", file.to_str().unwrap()][..], &QUICK].concat());
    assert_eq!(done.json()["fetched"], 2);
    for line in ["line 2: \"not a url\"", "line 3: ", "line 4: ", "3 lines"] {
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

#[test]
fn nothing_to_fetch_is_a_mistake() {
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
    // None of this left a job behind that somebody could go on with.
    let jobs = world.run(&["--json", "jobs", "list"]).expect(0).json();
    let names: Vec<&str> =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap()).collect();
    assert!(!names.contains(&"nobody"), "{names:?}");
}
