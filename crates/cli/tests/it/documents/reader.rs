//! Follows a page from top to bottom, in a temporary folder: runs its code blocks, writes its files, and compares
//! output.
//!
//! Servers (`comity serve`) run until the page ends, `^C` interrupts the line before it, and commands that build or
//! install are skipped. Delays are shortened unless a block is marked otherwise. The only other difference from the
//! page is the port of the service, because several pages run at the same time.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::internet::Internet;
use super::page::{Block, Page, root};
use super::script::script;
use super::sites::Sites;
use super::{shape, units};
use crate::comity::World;
use crate::log::{now_us, wait_until};
use crate::mediawiki::MediaWiki;

/// Follows a page.
pub(crate) struct Reader {
    page: Page,
    world: World,
    internet: Internet,
    port: u16,
    /// A wiki for this page, while it runs.
    _wiki: Option<MediaWiki>,
    steps: usize,
}

/// The output of a block.
pub(crate) struct Shown {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: i32,
}

impl Reader {
    pub(crate) fn new(page: Page) -> Self {
        let world = World::new();
        let wants_wiki =
            page.blocks.iter().any(|block| block.text.contains("comity wiki archive https://wiki.example"));
        let wiki = wants_wiki.then(MediaWiki::start);
        if let Some(wiki) = &wiki {
            wiki.edit("First page", "Some text");
            let (_, password) = wiki.bot_password();
            world.write("bot-password", &password);
        }
        let internet = Internet::start(Sites::with_wiki(wiki.as_ref()), &world.path("roots.pem"));
        world.write("urls.txt", &URLS.join("\n"));
        world.write("subscriptions.opml", OPML);
        let bin = world.path("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_comity"), bin.join("comity")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { page, world, internet, port, _wiki: wiki, steps: 0 }
    }

    /// Follows the page to its end, and returns how long that took.
    pub(crate) fn follow(mut self) -> Duration {
        let began = now_us();
        for block in self.page.blocks.clone() {
            if !block.mark.starts_with("not run: ") {
                self.read(&block);
            }
        }
        Duration::from_micros((now_us() - began) as u64)
    }

    fn read(&mut self, block: &Block) {
        let is_console = block.text.starts_with("$ ");
        match block.language.as_str() {
            "sh" => {
                let code = block.mark.strip_prefix("exits: ").map_or(0, |code| code.parse().unwrap());
                let shown = self.run(&block.text, block);
                assert_eq!(shown.code, code, "{}\n{}\n{}", self.at(block), shown.stdout, shown.stderr);
            }
            "console" | "text" if is_console => self.compare(block),
            "toml" => {
                self.world.write(block.mark.strip_prefix("file: ").unwrap_or("comity.toml"), &block.text);
                let shown = self.run("comity config check", block);
                assert_eq!(shown.code, 0, "{}\n{}", self.at(block), shown.stderr);
            }
            "sql" => {
                let sql = self.world.sql();
                for statement in block.text.split_inclusive(";\n") {
                    let prepared =
                        sql.prepare(statement).and_then(|mut one| one.query([])?.next().map(|_| ()));
                    prepared.unwrap_or_else(|error| panic!("{}: {statement}: {error}", self.at(block)));
                }
            }
            "json" => {
                let read = serde_json::from_str::<serde_json::Value>(&block.text);
                read.unwrap_or_else(|error| panic!("{}: {error}", self.at(block)));
            }
            "python" => {
                self.world.write("block.py", &block.text);
                let shown = self.run("python3 -c \"import ast; ast.parse(open('block.py').read())\"", block);
                assert_eq!(shown.code, 0, "{}\n{}", self.at(block), shown.stderr);
            }
            "cron" => {
                for line in block.text.lines() {
                    let typed = units::cron(line).unwrap_or_else(|| panic!("{}: {line}", self.at(block)));
                    let shown = self.run(&typed, block);
                    assert_eq!(shown.code, 0, "{}: {typed}\n{}", self.at(block), shown.stderr);
                }
            }
            "ini" => {
                let name = block
                    .mark
                    .strip_prefix("file: ")
                    .unwrap_or_else(|| panic!("{}: of which name?", self.at(block)));
                let path = self.world.write(name, &units::here(&block.text, &self.world.path("")));
                if let Err(wrong) = units::verify(&path) {
                    panic!("{}\n{wrong}", self.at(block));
                }
            }
            "xml" | "csv" => {
                let name = block
                    .mark
                    .strip_prefix("file: ")
                    .unwrap_or_else(|| panic!("{}: of which name?", self.at(block)));
                self.world.write(name, &block.text);
            }
            // Diagrams, and blocks that other tests run.
            "text" | "rust" | "rust,no_run" | "yaml" | "console" => {}
            other => panic!("{}: nobody knows what to do with {other:?}", self.at(block)),
        }
    }

    /// Asserts that each `$ command` prints what is below it.
    fn compare(&mut self, block: &Block) {
        for part in block.text.split("$ ").filter(|part| !part.is_empty()) {
            let (typed, expected) = part.split_once('\n').unwrap_or((part, ""));
            let shown = self.run(typed, block);
            let all = format!("{}{}", shown.stdout, shown.stderr);
            if let Err(wrong) = shape::same(expected, &all) {
                panic!("{}: {typed} (exit code {})\n{wrong}", self.at(block), shown.code);
            }
        }
    }

    /// Runs shell code to its end.
    fn run(&mut self, text: &str, block: &Block) -> Shown {
        self.steps += 1;
        let script = self.world.write(&format!("step-{}.sh", self.steps), &script(text, self.port));
        let out = self.world.path(&format!("step-{}.out", self.steps));
        let err = self.world.path(&format!("step-{}.err", self.steps));
        let file = |path: &PathBuf| std::fs::File::create(path).unwrap();
        let mut bash = Command::new("bash");
        bash.arg(script).current_dir(self.world.path("")).env_clear().process_group(0).stdin(Stdio::null());
        bash.stdout(file(&out)).stderr(file(&err)).envs(self.environment(block));
        let mut child = bash.spawn().unwrap();
        let group = format!("-{}", child.id());
        let began = now_us();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if now_us() - began < PATIENCE_US => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
                    let _ = child.wait();
                    panic!("{}: does not end\n{}", self.at(block), read(&out) + &read(&err));
                }
            }
        };
        Shown { stdout: read(&out), stderr: read(&err), code: status.code().unwrap_or(-1) }
    }

    fn environment(&self, block: &Block) -> Vec<(String, String)> {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let roots = self.world.path("roots.pem").display().to_string();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin", self.world.path("bin").display());
        let python = root().join("clients/python/src").canonicalize().unwrap().display().to_string();
        let mut all = vec![
            set("PATH", &path),
            set("HOME", &self.world.path("").display().to_string()),
            set("PYTHONPATH", &python),
            set("LC_ALL", "C.UTF-8"),
            set("http_proxy", &self.internet.proxy()),
            set("https_proxy", &self.internet.proxy()),
            set("no_proxy", "localhost,127.0.0.1"),
            set("SSL_CERT_FILE", &roots),
            set("CURL_CA_BUNDLE", &roots),
            set("COMITY_SERVE_LISTEN", &format!("127.0.0.1:{}", self.port)),
        ];
        if block.mark != "runs: at the real pace" {
            all.extend(QUICK.map(|(name, value)| set(name, value)));
        }
        all
    }

    fn at(&self, block: &Block) -> String {
        format!("{}:{}", self.page.name, block.line)
    }
}

/// Stops servers with SIGTERM.
impl Drop for Reader {
    fn drop(&mut self) {
        let pids = std::fs::read_to_string(self.world.path(".stays")).unwrap_or_default();
        for pid in pids.lines() {
            let signal =
                |name: &str| Command::new("kill").args(["-s", name, pid]).stderr(Stdio::null()).status();
            let _ = signal("TERM");
            if std::thread::panicking() {
                let _ = signal("KILL");
            } else {
                wait_until("the server ends", || !signal("0").is_ok_and(|status| status.success()));
            }
        }
    }
}

fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}

/// Short delays, so that all pages run in seconds.
const QUICK: [(&str, &str); 6] = [
    ("COMITY_DEFAULT_MIN_DELAY", "20ms"),
    ("COMITY_DEFAULT_LEARN_BASE", "20ms"),
    ("COMITY_DEFAULT_BACKOFF_BASE", "200ms"),
    ("COMITY_DEFAULT_BACKOFF_MAX", "400ms"),
    ("COMITY_SCRAPE_MIN_INTERVAL", "0.02"),
    ("COMITY_HTTP_FIRST_BYTE_TIMEOUT", "5s"),
];
/// A list of URLs that exists for every page.
const URLS: [&str; 6] = [
    "https://example.org/a",
    "https://example.org/b",
    "https://example.net/a",
    "https://example.net/b",
    "https://busy.example/a",
    "https://busy.example/b",
];
/// The export of a feed reader.
pub(crate) const OPML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<opml version="2.0">
  <head><title>Subscriptions</title></head>
  <body>
    <outline text="News">
      <outline type="rss" text="Example" xmlUrl="https://example.org/feed.xml" htmlUrl="https://example.org/"/>
      <outline type="rss" text="Other" xmlUrl="https://example.net/feed.xml"/>
    </outline>
  </body>
</opml>
"#;
const PATIENCE_US: i64 = 300_000_000;
