//! Stdout: the one way to it, and whether everything got there.
//!
//! Commands print results as they come and do not look whether that worked. The first write that fails is remembered and
//! reported here; nothing is printed after it, and the command then ends as failed, whatever else it achieved. A reader
//! that closed the pipe, as `head` does, has seen enough: that is no failure, and the command ends with its own exit code.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{error_lines, say, screen};
use crate::exit;

/// Why nothing is printed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Nobody reads it.
    Closed,
    /// It could not be written.
    Failed,
}

/// How stdout was lost, if it was.
static LOST: Mutex<Option<Lost>> = Mutex::new(None);
/// Whether anything was printed at all.
static PRINTED: AtomicBool = AtomicBool::new(false);

fn lost() -> Option<Lost> {
    *LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether stdout takes nothing any more: what would only be printed need not be made.
pub(crate) fn is_lost() -> bool {
    lost().is_some()
}

/// Writes to stdout, which may be the terminal that the live view is on.
pub(super) fn show(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) {
    if is_lost() {
        return;
    }
    let written = {
        let mut screen = screen();
        let mut stdout = stdout().lock();
        if let Some(screen) = screen.as_mut().filter(|_| stdout.is_terminal()) {
            screen.erase();
        }
        // Flushed here and now: at the end of the process nobody would hear that it failed.
        write(&mut stdout).and_then(|()| stdout.flush())
    };
    PRINTED.store(true, Ordering::Relaxed);
    heed(written);
}

/// Writes to stdout what may be long. Unless that is a terminal, whoever logs meanwhile does not wait for its reader.
pub(super) fn stream(text: &str) {
    if stdout().is_terminal() {
        return show(|stdout| stdout.write_all(text.as_bytes()));
    }
    if !is_lost() {
        // What goes wrong is noted on the way.
        let _ = Results.write_all(text.as_bytes()).and_then(|()| Results.flush());
    }
}

/// A result that is written as it is made, such as a dump.
#[derive(Debug)]
pub(crate) struct Results;

impl Write for Results {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        PRINTED.store(true, Ordering::Relaxed);
        noted(stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(stdout().flush())
    }
}

/// The exit code of a command that ends with `code`, when everything it printed is where it belongs.
pub(crate) fn finish(code: u8) -> u8 {
    if PRINTED.load(Ordering::Relaxed) && !is_lost() {
        heed(stdout().flush().and_then(|()| settle()));
    }
    match lost() {
        Some(Lost::Failed) if code == exit::DONE => exit::FAILURES,
        _ => code,
    }
}

/// File systems may take more than they can keep, and only say so when the file is put on the disk.
fn settle() -> io::Result<()> {
    let file = File::from(stdout().as_fd().try_clone_to_owned()?);
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    match file.sync_data() {
        // Where that cannot be asked, nothing is put off either.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        settled => settled,
    }
}

fn noted<T>(written: io::Result<T>) -> io::Result<T> {
    if let Err(error) = &written
        && error.kind() != ErrorKind::Interrupted
    {
        lose(error);
    }
    written
}

fn heed(written: io::Result<()>) {
    if let Err(error) = written {
        lose(&error);
    }
}

/// Nothing is printed any more; the first time, that is reported.
fn lose(error: &io::Error) {
    let how = if error.kind() == ErrorKind::BrokenPipe { Lost::Closed } else { Lost::Failed };
    let is_first = {
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = lost.is_none();
        lost.get_or_insert(how);
        is_first
    };
    if is_first && how == Lost::Failed {
        say(&error_lines(&format!("could not write to standard output: {error}")));
    }
}

#[expect(clippy::disallowed_methods, reason = "nobody else writes there")]
fn stdout() -> io::Stdout {
    io::stdout()
}
