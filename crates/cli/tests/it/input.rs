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

/// B71. It used to fetch what came before the first invalid line, and leave a stopped job.
#[test]
fn strict_rejects_a_file_before_anything_is_sent() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |text: &str| {
        let file = world.write("list", text);
        let file = file.to_str().unwrap().to_owned();
        world.run(&[&["fetch", "--strict", "--job", "one", "--input", &file][..], &QUICK].concat())
    };
    let done = fetch(&format!("{0}/a\nnot a url\n{0}/b\nneither\n", nginx.url())).expect(2);
    for text in
        ["line 2: \"not a url\"", "line 4: ", "list: 2 invalid lines, so nothing was fetched (--strict)"]
    {
        done.says(text);
    }
    assert_eq!(
        (nginx.log().len(), world.store().exists()),
        (0, false),
        "nothing was sent, and no job was created"
    );
    let many = fetch(&"no\n".repeat(30)).expect(2);
    let reported = many.stderr.lines().filter(|line| line.starts_with("line "));
    assert_eq!(reported.count(), 20, "{}", many.stderr);
    many.says("More lines are invalid");
    fetch(&format!("{0}/a\n{0}/b\n", nginx.url())).expect(0);
    assert_eq!(counts(&nginx.log()).len(), 2);
}

/// A stream can't be checked before its URLs are sent: what came before an invalid line is fetched, and the job stays
/// open for the rest.
#[test]
fn strict_stops_reading_a_stream_at_the_first_bad_line() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |text: &str, more: &[&str]| {
        world.write("stdin", text);
        let args =
            [&["--json", "fetch", "--strict", "--job", "one", "--input", "-"][..], &QUICK, more].concat();
        let mut piped = world.command(&args);
        piped.stdin(File::open(world.path("stdin")).unwrap());
        world.begin(piped).wait()
    };
    let first = fetch(&format!("# a list\nnot a url\n{0}/a\n", nginx.url()), &[]).expect(2);
    first.says("line 2: \"not a url\"");
    first.says("standard input: 1 invalid line, so nothing was fetched (--strict)");
    assert_eq!(first.json()["code"], 2);
    assert_eq!(nginx.log().len(), 0);

    let extra = format!("{}/extra", nginx.url());
    let broken = fetch(&format!("{0}/a\nnot a url\n{0}/b\n", nginx.url()), &[&extra]).expect(1);
    broken.says("line 2: \"not a url\"");
    broken.says("Stopped reading at an invalid line (--strict)");
    broken.says("The list was not read to the end");
    assert_eq!((&broken.json()["state"], &broken.json()["fetched"]), (&"stopped".into(), &2.into()));
    world.run(&["jobs", "show", "one"]).expect(0).shows("its list was not read to the end; pass it again");
    let whole = fetch(&format!("{0}/a\n{0}/b\n", nginx.url()), &[]).expect(0);
    assert_eq!((&whole.json()["state"], &whole.json()["fetched"]), (&"done".into(), &3.into()));
    assert!(counts(&nginx.log()).values().all(|count| *count == 1));
}

/// Windows programs save UTF-16, and exports are often compressed.
#[test]
fn lists_in_utf16_and_gzip_are_read() {
    use std::io::Write;
    let (world, nginx) = (World::new(), Nginx::start(""));
    let text = |name: &str| format!("# größe\r\n{0}/{name}1\r\n{0}/{name}2\r\n", nginx.url());
    let utf16: Vec<u8> = format!("\u{feff}{}", text("u")).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text("z").as_bytes()).unwrap();
    for (name, bytes) in [("utf16.txt", utf16), ("list.gz", gzip.finish().unwrap())] {
        std::fs::write(world.path(name), &bytes).unwrap();
        world.run(&[&["fetch", "--input", name, "--job", name, "--strict"][..], &QUICK].concat()).expect(0);
        let mut piped = world.command(&[&["fetch", "--input", "-", "--job", "piped"][..], &QUICK].concat());
        piped.stdin(File::open(world.path(name)).unwrap());
        world.begin(piped).wait().expect(0);
    }
    let log = nginx.log();
    assert_eq!(counts(&log), [("/u1", 2), ("/u2", 2), ("/z1", 2), ("/z2", 2)].into());
    std::fs::write(world.path("broken.gz"), [0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap();
    world.run(&["fetch", "--input", "broken.gz"]).expect(2).says("--input broken.gz: ");
}

/// The same hint as for an argument.
#[test]
fn a_line_without_a_scheme_gets_a_hint() {
    let world = World::new();
    world.write("list", "example.org/a\nlocalhost:8080\n");
    let done = world.run(&["fetch", "--input", "list"]).expect(2);
    done.says("line 1: \"example.org/a\" is not an http or https URL with a host; did you mean https://example.org/a ?");
    done.says("did you mean http://localhost:8080 ?");
}

/// An empty list used to leave a job behind that was done, with 0 of 0 pages.
#[test]
fn a_list_without_urls_is_an_error_and_creates_no_job() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    for text in ["", "\n\n", "# nothing\n  \n"] {
        let file = world.write("empty.txt", text);
        let done = world.run(&["--json", "fetch", "--input", "empty.txt", "--job", "one"]).expect(2);
        done.says("--input empty.txt: there are no URLs in it; expected one URL per line");
        assert_eq!(done.json()["code"], 2);
        assert!(!world.store().exists(), "no store was created");
        let mut piped = world.command(&["fetch", "--input", "-", "--job", "one"]);
        piped.stdin(File::open(file).unwrap());
        world.begin(piped).wait().expect(2).says("standard input: there are no URLs in it");
        let jobs = world.run(&["--json", "jobs", "list"]).expect(0).json();
        assert_eq!(jobs["jobs"].as_array().unwrap().len(), 0, "{jobs}");
        std::fs::remove_file(world.store()).unwrap();
    }
    let url = format!("{}/a", nginx.url());
    let more = world.run(&[&["fetch", &url, "--input", "empty.txt", "--job", "one"][..], &QUICK].concat());
    more.expect(0).says("--input empty.txt has no URLs");

    // A job that exists is resumed.
    let mut piped = world.command(&["fetch", "--input", "-", "--job", "one"]);
    piped.stdin(File::open(world.path("empty.txt")).unwrap());
    let done = world.begin(piped).wait().expect(0);
    done.says("No URLs were found in standard input");
    done.shows("job one: done; this run: 0 fetched in ");
    world.run(&["fetch", "--input", "empty.txt", "--job", "one"]).expect(2).says("no URLs in it");
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
    bad.says("list: there are no URLs in it, only 2 invalid lines; expected one URL per line");
    assert!(!world.store().exists());
}

/// The arguments are not lines of the list.
#[test]
fn line_numbers_are_those_of_the_file() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    world.write("list", &format!("{0}/a\nnot a url\n", nginx.url()));
    let (one, two) = (format!("{}/1", nginx.url()), format!("{}/2", nginx.url()));
    let done = world.run(&[&["fetch", &one, &two, "--input", "list"][..], &QUICK].concat()).expect(0);
    done.says("line 2: \"not a url\"");
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
        (&["fetch", "--format", "paper", "--json"], "--format = \"paper\": expected one of"),
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

/// They used to be skipped as lines of a list, with exit code 0.
#[test]
fn an_argument_that_cannot_be_fetched_is_rejected_before_anything_is_sent() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let good = format!("{}/a", nginx.url());
    for bad in ["http://a..b/", "http://h:0/x", "http://*/", "http://%zz/", "http://x y/"] {
        for args in [["fetch", bad, &good], ["fetch", &good, bad]] {
            let done = world.run(&[&args[..], &QUICK].concat()).expect(2);
            assert!(done.stderr.starts_with("error: ") && !done.stderr.contains("line 0"), "{}", done.stderr);
        }
    }
    assert_eq!((nginx.log().len(), world.store().exists()), (0, false));
}
