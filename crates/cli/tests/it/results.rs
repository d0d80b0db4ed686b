//! A command fails if its output can't be written: full disks, closed pipes, truncated files.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::comity::World;
use crate::follow::{configure, rss};
use crate::log::wait_until;
use crate::service::{Service, post};
use crate::site::{Answer, Site};

/// On a full disk, `sources export` used to exit with 0 after a quarter of its output. Every command, with and without
/// `--json`, must fail and say so.
#[test]
fn every_command_fails_on_a_full_disk() {
    let stage = Stage::new();
    let all = stage.commands();
    let mut tried: BTreeSet<String> = LONG.iter().map(|args| name(args)).collect();
    // It needs a server, so it is tested with one: see `store_copy`.
    tried.insert("store copy".to_owned());
    // Its standard output is that of the program it runs.
    tried.insert("exec".to_owned());
    for args in &all {
        let mut printed = 0;
        for json in [false, true] {
            let args: Vec<&str> =
                json.then_some("--json").into_iter().chain(args.iter().map(|arg| &**arg)).collect();
            let usual = stage.run(&args, Stdio::piped());
            if usual.stdout.is_empty() || usual.code == 2 {
                continue;
            }
            printed += 1;
            let full = stage.run(&args, full().into());
            let expected = if usual.code == 0 { 1 } else { usual.code };
            assert_eq!(full.code, expected, "{args:?}: {}", full.stderr);
            assert_eq!(full.stderr.matches(FULL).count(), 1, "{args:?}: {}", full.stderr);
        }
        assert!(printed > 0, "{args:?} prints nothing");
        tried.extend(Some(name(args)).filter(|name| !name.starts_with('-')));
    }
    assert_eq!(tried, stage.leaves(), "not all commands are tested here");
}

/// Commands that run until they are stopped report it at once, and exit as failed.
#[test]
fn long_running_commands_report_a_full_disk_at_once() {
    let stage = Stage::new();
    for args in LONG {
        let (world, mut command) = stage.command(args);
        // A source that is due, so that the run has something to print.
        world.run(&["sources", "add", &format!("{}/feed?new", stage.site.url()), "--kind", "feed"]).expect(0);
        let said = world.path("said");
        let mut child = command.stdout(full()).stderr(File::create(&said).unwrap()).spawn().unwrap();
        let text = || std::fs::read_to_string(&said).unwrap();
        wait_until("it reports the full disk", || {
            text().contains(FULL) || child.try_wait().unwrap().is_some()
        });
        let signalled = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
        assert!(signalled.success(), "{args:?} ended by itself: {}", text());
        let status = child.wait().unwrap();
        assert!(!status.success(), "{args:?}: {status}: {}", text());
        assert_eq!(text().matches(FULL).count(), 1, "{args:?}: {}", text());
        assert!(!text().contains("panicked"), "{}", text());
    }
}

/// `comity items list | head`: a closed pipe is not a failure.
#[test]
fn a_closed_pipe_is_not_a_failure() {
    let stage = Stage::new();
    for args in stage.commands() {
        let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
        let usual = stage.run(&args, Stdio::piped());
        let left = stage.run(&args, closed_pipe().into());
        // A fetch whose rows nobody reads stops, as with Ctrl-C.
        let expected = if args.ends_with(&["--out", "-"]) && args[0] == "fetch" { 130 } else { usual.code };
        assert_eq!(left.code, expected, "{args:?}: {}", left.stderr);
        assert!(!left.stderr.to_lowercase().contains("broken pipe"), "{args:?}: {}", left.stderr);
    }
}

/// If stdout is closed from the start, commands still work, and none of our files becomes file descriptor 1.
#[test]
fn commands_work_without_stdout() {
    let stage = Stage::new();
    let (world, _) = stage.command(&[]);
    let line = format!("exec {} jobs list >&-", env!("CARGO_BIN_EXE_comity"));
    let done = Command::new("sh").args(["-c", &line]).current_dir(world.path(".")).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    world.run(&["jobs", "list"]).expect(0).shows("news");
}

/// The exit code is right even if the error message can't be written.
#[test]
fn a_full_stderr_changes_no_exit_code() {
    let world = World::new();
    for (args, code) in [
        (&["check", "not a host"][..], 2),
        (&["jobs", "show", "none"], 2),
        (&["--nonsense"], 2),
        (&["profiles"], 0),
    ] {
        for stderr in [Stdio::from(full()), Stdio::from(closed_pipe())] {
            let done = world.command(args).stdout(Stdio::null()).stderr(stderr).status().unwrap();
            assert_eq!(done.code(), Some(code), "{args:?}");
        }
    }
}

/// A file that can't be written is a failure, and no partial file is left behind.
#[test]
fn an_unwritable_output_file_is_a_failure() {
    let stage = Stage::new();
    let api = format!("{}/api.php", stage.site.url());
    // A limit on the file size stands in for a full disk.
    let limited = |kilobytes: u32, args: &[&str]| {
        let (world, _) = stage.command(&[]);
        let line =
            format!("ulimit -f {kilobytes}; trap '' XFSZ; exec {} \"$@\"", env!("CARGO_BIN_EXE_comity"));
        let mut command = Command::new("bash");
        let done =
            command.args(["-c", &line, "comity"]).args(args).current_dir(world.path(".")).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("File too large"), "{said}");
        let files = std::fs::read_dir(world.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
        assert!(!left.iter().any(|name| name.contains("dump") || name.ends_with(".1")), "{left:?}");
        said
    };
    assert!(limited(1, &["man", "."]).contains("./comity"));
    // Compressed in the store, the page is much smaller than that.
    let said = limited(1_024, &["wiki", "export", &api, "--out", "dump.xml"]);
    assert!(said.contains("--out = \"dump.xml\": "), "{said}");
}

/// A file for which every write fails because the disk is full.
pub(crate) fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The write end of a pipe whose reader is closed.
fn closed_pipe() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// A store with some of everything, copied for each command.
struct Stage {
    template: World,
    site: Site,
}

impl Stage {
    fn new() -> Self {
        let site = Site::start(|asked| match asked.path {
            "/feed" => Answer { body: rss(&[("One", "/one"), ("Two", "/two")]), ..Answer::status(200) }
                .header("Content-Type", "application/rss+xml"),
            path if path.starts_with("/api.php") => wiki(path),
            "/gone" => Answer::status(404),
            path => Answer::page(path),
        });
        let template = World::new();
        // The answer of a check must not depend on how long the test took to get there.
        configure(&template, &[("domains.\"unpaced.example\".enabled", "false")]);
        let url = |path: &str| format!("{}{path}", site.url());
        template.run(&["fetch", "--job", "news", &url("/a"), &url("/b")]).expect(0);
        template.run(&["fetch", "--job", "stale", &url("/gone")]).expect(1);
        template.run(&["sources", "add", &url("/feed"), "--kind", "feed"]).expect(0);
        template.run(&["run", "--source", "1"]).expect(0);
        template.run(&["wiki", "archive", &url("/api.php")]).expect(0);
        let service = Service::start(&template);
        post(service.address, "/v1/jobs", &json!({ "name": "open", "urls": [url("/later")] })).expect(201);
        service.stop().expect(0);
        template.write("list.txt", &format!("{}\n", url("/other-feed")));
        Self { template, site }
    }

    /// The command in a folder with a copy of the store.
    fn command(&self, args: &[&str]) -> (World, Command) {
        let world = World::new();
        for name in ["comity.toml", "comity.db", "list.txt"] {
            std::fs::copy(self.template.path(name), world.path(name)).unwrap();
        }
        let command = world.command(args);
        (world, command)
    }

    fn run(&self, args: &[&str], stdout: Stdio) -> Ran {
        let (_world, mut command) = self.command(args);
        let done = command.stdout(stdout).output().unwrap();
        let [stdout, stderr] =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        Ran { code: done.status.code().unwrap(), stdout, stderr }
    }

    /// All commands, with arguments that make them print something.
    fn commands(&self) -> Vec<Vec<String>> {
        let (site, api) = (self.site.url(), format!("{}/api.php", self.site.url()));
        let (page, feed) = (format!("{site}/c"), format!("{site}/third-feed"));
        let domain = self.site.authority();
        let typed: &[&[&str]] = &[
            &["fetch", &page, "--format", "none"],
            &["run", "--force"],
            &["scrape", "1"],
            &["sources", "add", &feed, "--kind", "feed"],
            &["sources", "list"],
            &["sources", "show", "1"],
            &["sources", "set", "1", "--name", "Renamed"],
            &["sources", "remove", "1"],
            &["sources", "import", "list.txt"],
            &["sources", "export"],
            &["sources", "cadence", "set", "8h", "1"],
            &["sources", "cadence", "clear", "1"],
            &["items", "list"],
            &["items", "show", "1"],
            &["items", "export"],
            &["items", "export", "--format", "csv", "--text"],
            &["prune", "--keep", "30d"],
            &["backup", "copy.db", "--force"],
            &["wiki", "archive", &api],
            &["wiki", "export", &api, "--out", "-"],
            &["wiki", "status", &api],
            &["top", "--once"],
            &["jobs", "list"],
            &["jobs", "show", "news"],
            &["jobs", "cancel", "open"],
            &["jobs", "retry", "stale", "--status", "404"],
            &["jobs", "export", "news"],
            &["jobs", "export", "news", "--format", "csv"],
            &["jobs", "remove", "open"],
            &["fetch", &page, "--out", "-"],
            &["domains", "list"],
            &["domains", "show", &domain],
            &["domains", "set", &domain, "--delay", "5s"],
            &["domains", "release", &domain],
            &["domains", "reset", &domain],
            &["check", "unpaced.example"],
            &["record", "other.example", "429"],
            &["explain", "other.example"],
            &["config", "check"],
            &["config", "init", "--force"],
            &["config", "reference"],
            &["profiles"],
            &["profiles", "crawler"],
            &["completions", "bash"],
            &["man", "man"],
            &["proxy", "ca"],
            &["serve", "--make-token", "use"],
            &["--help"],
            &["fetch", "--help"],
            &["--version"],
        ];
        typed.iter().map(|args| args.iter().map(|arg| (*arg).to_owned()).collect()).collect()
    }

    /// The names of all commands, from the manual pages.
    fn leaves(&self) -> BTreeSet<String> {
        let (world, _) = self.command(&[]);
        let listed = world.run(&["--json", "man", "man"]).expect(0).json();
        let pages = listed["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap());
        let names: BTreeSet<String> = pages
            .map(|page| page.trim_end_matches(".1").replacen("comity", "", 1).replace('-', " "))
            .collect();
        let is_parent = |name: &String| names.iter().any(|other| other.starts_with(&format!("{name} ")));
        names.iter().filter(|name| !is_parent(name)).map(|name| name.trim().to_owned()).collect()
    }
}

/// The name of the command: its first words.
fn name(args: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = args.iter().map(AsRef::as_ref).filter(|arg| *arg != "--json").collect();
    let of_two = ["sources", "items", "wiki", "jobs", "domains", "config", "proxy"];
    let count = match words[..] {
        ["sources", "cadence", ..] => 3,
        [first, ..] if of_two.contains(&first) => 2,
        _ => 1,
    };
    words.into_iter().take(count).collect::<Vec<_>>().join(" ")
}

/// A wiki with one long page.
fn wiki(path: &str) -> Answer {
    let content = "test ".repeat(500_000);
    let revision = json!({
        "revid": 11, "parentid": 0, "user": "Somebody", "userid": 7, "timestamp": "2026-01-01T00:00:00Z",
        "size": content.len(), "comment": "", "tags": [],
        "slots": { "main": { "contentmodel": "wikitext", "contentformat": "text/x-wiki", "content": content } },
    });
    let page = json!({ "pageid": 1, "ns": 0, "title": "A", "contentmodel": "wikitext", "lastrevid": 11 });
    let body = if path.contains("siteinfo") {
        json!({ "curtimestamp": "2026-11-16T14:00:00Z", "query": {
            "general": { "sitename": "Scripted", "generator": "MediaWiki 1.43", "case": "first-letter", "lang": "en" },
            "namespaces": { "0": { "id": 0, "name": "", "content": true, "case": "first-letter" } },
            "statistics": { "pages": 1, "edits": 1 }, "recentchanges": [],
        } })
    } else if path.contains("allpages") {
        json!({ "query": { "pages": [page] } })
    } else {
        json!({ "query": { "allrevisions": [{ "pageid": 1, "ns": 0, "title": "A", "revisions": [revision] }] } })
    };
    Answer { body: body.to_string(), ..Answer::status(200) }
}

/// Commands that run until they are stopped.
const LONG: &[&[&str]] = &[
    &["--json", "serve", "--listen", "127.0.0.1:0"],
    &["playground", "--listen", "127.0.0.1:0"],
    &["demo"],
    &["--json", "run", "--watch"],
];
pub(crate) const FULL: &str = "could not write to standard output: No space left on device";
