//! Runs one command: in its own process group, with one line on stdin, with a timeout. The start of its output is kept
//! for the log. Nothing of an item ever becomes part of the command line.

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

/// A command to run with `sh -c`.
pub(super) struct Command {
    pub(super) text: String,
    pub(super) timeout: Duration,
    /// Set to end the command early.
    pub(super) stop: Arc<AtomicBool>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// Exit code 0.
    Succeeded,
    /// Any other end, and why.
    Failed(String),
    /// Ended because `stop` was set.
    Stopped,
}

impl Command {
    /// Runs the command to its end. Returns how it ended, and the start of its output.
    pub(super) fn run(self, line: String) -> (Ended, String) {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(&self.text).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match shell.spawn() {
            Ok(child) => child,
            Err(error) => return (Ended::Failed(format!("could not start sh: {error}")), String::new()),
        };
        if let Some(mut stdin) = child.stdin.take() {
            // A command that doesn't read all of its stdin closes it; that is not an error.
            std::thread::spawn(move || drop(stdin.write_all(line.as_bytes())));
        }
        let out = child.stdout.take().map(read_output);
        let err = child.stderr.take().map(read_output);
        let ended = self.wait(&mut child);
        // Kill what it left running in the background, which would keep the pipes open.
        signal(&child, Signal::KILL);
        let output: Vec<String> = [out, err]
            .into_iter()
            .flatten()
            .filter_map(|text| text.recv_timeout(OUTPUT_TIMEOUT).ok())
            .collect();
        (ended, output.concat().trim_end().to_owned())
    }

    fn wait(&self, child: &mut Child) -> Ended {
        let clock = Clock::new();
        let (began, timeout) = (clock.now(), Span::from(self.timeout));
        let mut term_sent_at = None;
        loop {
            match child.try_wait() {
                Ok(Some(_)) if term_sent_at.is_some() && self.stop.load(Ordering::Relaxed) => {
                    return Ended::Stopped;
                }
                Ok(Some(_)) if term_sent_at.is_some() => {
                    return Ended::Failed(format!("killed after {} (--exec-timeout)", timeout.prose()));
                }
                Ok(Some(status)) if status.success() => return Ended::Succeeded,
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
            let is_over = self.stop.load(Ordering::Relaxed) || now.since(began) >= timeout;
            match term_sent_at {
                None if is_over => {
                    signal(child, Signal::TERM);
                    term_sent_at = Some(now);
                }
                Some(term_sent_at) if now.since(term_sent_at) >= GRACE => signal(child, Signal::KILL),
                _ => {}
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Sends a signal to a command and all processes it started.
fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The process group may no longer exist.
        let _ = kill_process_group(group, signal);
    }
}

/// Reads all of a command's output, and keeps the start of it.
fn read_output(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read) = from.read(&mut buffer) {
            if read == 0 {
                break;
            }
            let room = OUTPUT_MAX.saturating_sub(kept.len()).min(read);
            kept.extend_from_slice(&buffer[..room]);
        }
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receiver
}

/// How much is kept of stdout, and of stderr, in bytes.
const OUTPUT_MAX: usize = 2_000;
/// How often the process is checked.
const POLL: Duration = Duration::from_millis(10);
/// How long a command has to end after SIGTERM before it gets SIGKILL.
const GRACE: Span = Span::from_secs(2);
/// How long to wait for the rest of the output after the command has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
