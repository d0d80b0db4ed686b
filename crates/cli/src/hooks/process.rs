//! One command that runs: in a process group of its own, with one line on its standard input, for a limited time. What it
//! prints is kept in part. Nothing of an item is ever part of the command.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use comity::clock::Clock;
use comity::core::time::Span;
use rustix::process::{Pid, Signal, kill_process_group};

/// A command to be run.
pub(super) struct Command {
    pub(super) text: String,
    pub(super) limit: Duration,
    /// Set by whoever does not want to wait for it.
    pub(super) stop: Arc<AtomicBool>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// With exit code 0.
    Well,
    /// Otherwise.
    Failed(String),
    /// Because it was stopped.
    Stopped,
}

impl Command {
    /// Runs it to its end; how it ended, and the beginning of what it printed.
    pub(super) fn run(self, line: String) -> (Ended, String) {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(&self.text).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match shell.spawn() {
            Ok(child) => child,
            Err(error) => return (Ended::Failed(format!("sh could not be started: {error}")), String::new()),
        };
        if let Some(mut stdin) = child.stdin.take() {
            // Whoever does not read it all closes it: that is its own business.
            std::thread::spawn(move || drop(stdin.write_all(line.as_bytes())));
        }
        let out = child.stdout.take().map(listen);
        let err = child.stderr.take().map(listen);
        let ended = self.wait(&mut child);
        // Whatever it left running goes with it, and lets go of what it prints to.
        signal(&child, Signal::KILL);
        let said: Vec<String> =
            [out, err].into_iter().flatten().filter_map(|said| said.recv_timeout(LAST_WORDS).ok()).collect();
        (ended, said.concat().trim_end().to_owned())
    }

    fn wait(&self, child: &mut Child) -> Ended {
        let clock = Clock::new();
        let (began, limit) = (clock.now(), Span::from(self.limit));
        let mut asked_at = None;
        loop {
            match child.try_wait() {
                Ok(Some(_)) if asked_at.is_some() && self.stop.load(Ordering::Relaxed) => {
                    return Ended::Stopped;
                }
                Ok(Some(_)) if asked_at.is_some() => {
                    return Ended::Failed(format!("it was killed after {limit} (--exec-timeout)"));
                }
                Ok(Some(status)) if status.success() => return Ended::Well,
                Ok(Some(status)) => {
                    return Ended::Failed(match (status.code(), status.signal()) {
                        (Some(code), _) => format!("exit code {code}"),
                        (None, signal) => format!("killed by signal {}", signal.unwrap_or_default()),
                    });
                }
                Ok(None) => {}
                Err(error) => return Ended::Failed(error.to_string()),
            }
            let now = clock.now();
            let over = self.stop.load(Ordering::Relaxed) || now.since(began) >= limit;
            match asked_at {
                None if over => {
                    signal(child, Signal::TERM);
                    asked_at = Some(now);
                }
                Some(asked_at) if now.since(asked_at) >= GRACE => signal(child, Signal::KILL),
                _ => {}
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Sends a signal to a command and whatever it started.
fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may be gone.
        let _ = kill_process_group(group, signal);
    }
}

/// Reads all of what is printed, and keeps its beginning.
fn listen(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read) = from.read(&mut buffer) {
            if read == 0 {
                break;
            }
            let room = SAID_MAX.saturating_sub(kept.len()).min(read);
            kept.extend_from_slice(&buffer[..room]);
        }
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receiver
}

/// As much as is kept of what a command prints, on either of its two ways.
const SAID_MAX: usize = 2_000;
const LOOK: Duration = Duration::from_millis(10);
/// One that is asked to end has this long.
const GRACE: Span = Span::from_secs(2);
/// What it printed is waited for so long after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);
