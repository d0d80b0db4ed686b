//! A temporary folder per test, and `comity` processes in it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::log::{now_us, wait_until};

/// A temporary folder with a store.
pub(crate) struct World {
    folder: TempDir,
    started: AtomicU32,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), started: AtomicU32::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("comity.db")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// The command with `args`, in this folder and with an empty environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(args).current_dir(self.folder.path()).env_clear().stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.begin(self.command(args))
    }

    pub(crate) fn begin(&self, mut command: Command) -> Running {
        let nth = self.started.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (self.path(&format!("stdout-{nth}")), self.path(&format!("stderr-{nth}")));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let started_us = now_us();
        Running { child: command.spawn().unwrap(), out, err, started_us }
    }

    /// The command with `args` under a limit of `ulimit`, such as `-n 100`.
    pub(crate) fn limited(&self, limit: &str, args: &[&str]) -> Command {
        let plain = self.command(args);
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.current_dir(self.folder.path()).env_clear().stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    pub(crate) fn sql(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.store()).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection
    }

    /// A copy of the store as a killed process left it: opening the store itself would recover it.
    pub(crate) fn store_copy(&self) -> Option<(TempDir, rusqlite::Connection)> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["comity.db", "comity.db-wal"].into_iter().filter(|name| self.path(name).exists()) {
            std::fs::copy(self.path(name), folder.path().join(name)).unwrap();
        }
        let copy = folder.path().join("comity.db");
        let connection = copy.exists().then(|| rusqlite::Connection::open(copy).unwrap())?;
        Some((folder, connection))
    }

    /// The rows of `index.jsonl` in `folder` that have a file.
    pub(crate) fn index(&self, folder: &str) -> Vec<Value> {
        self.rows(folder).into_iter().filter(|row| row["file"].is_string()).collect()
    }

    /// All rows of `index.jsonl` in `folder`.
    pub(crate) fn rows(&self, folder: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(folder).join("index.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A running process; it is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    pub(crate) started_us: i64,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes to its stdin, which stays open.
    pub(crate) fn feed(&mut self, text: &str) {
        use std::io::Write;
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Whether all of its threads are stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let stat =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let is_stopped =
            |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
        tasks.map(Result::unwrap).all(|task| is_stopped(stat(task)))
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// What it printed on stderr so far.
    pub(crate) fn said(&self) -> String {
        read(&self.err)
    }

    /// What it printed on stdout so far.
    pub(crate) fn shown(&self) -> String {
        read(&self.out)
    }

    /// Waits for its end, and returns its peak memory in kB.
    pub(crate) fn peak_kb(&mut self) -> u64 {
        let status = format!("/proc/{}/status", self.id());
        let mut most = 0;
        while !self.is_over() {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            most = most.max(kb.unwrap_or(0));
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -s {name}");
    }

    /// Kills it with SIGKILL, and returns when; none if it had already ended.
    pub(crate) fn kill(mut self) -> Option<i64> {
        let at = now_us();
        let ended = self.is_over();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (!ended).then_some(at)
    }

    pub(crate) fn wait(mut self) -> Done {
        let out = self.err.clone();
        wait_until(&format!("the process ended; its stderr is in {}", out.display()), || self.is_over());
        let status = self.child.wait().unwrap();
        let done = Done {
            code: status.code(),
            stdout: read(&self.out),
            stderr: read(&self.err),
            took_us: now_us() - self.started_us,
        };
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Most of the time it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took_us: i64,
}

impl Done {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}stderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The JSON objects on stdout, one per line.
    #[track_caller]
    pub(crate) fn objects(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The JSON object on the last line of stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let last = self.stdout.lines().last();
        let parsed = last.and_then(|line| serde_json::from_str(line).ok());
        parsed.unwrap_or_else(|| panic!("no JSON:\n{}\n{}", self.stdout, self.stderr))
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        assert!(self.stderr.contains(text), "not on stderr: {text:?}\n{}", self.stderr);
    }

    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        assert!(self.stdout.contains(text), "not on stdout: {text:?}\n{}\n{}", self.stdout, self.stderr);
    }
}

/// A list of URLs `BASE/PREFIX0` …, one per line.
pub(crate) fn list(base: &str, prefix: &str, count: usize) -> String {
    (0..count).map(|nth| format!("{base}/{prefix}{nth}\n")).collect()
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}
