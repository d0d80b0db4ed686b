//! Writes to stdout, and keeps track of whether that works.
//!
//! Commands print results without checking for errors. The first failed write is reported here; nothing is printed
//! after it, and the command exits as failed, whatever else it achieved. A closed pipe, as with `head`, is not a
//! failure: the command exits with its own code.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{error_lines, screen, write_stderr};
use crate::exit;

/// Why nothing more is printed on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// The reader closed the pipe.
    Closed,
    /// A write failed.
    Failed,
}

/// Why stdout can't be written to, if it can't.
static BROKEN: Mutex<Option<Broken>> = Mutex::new(None);
/// Whether anything was printed at all.
static PRINTED: AtomicBool = AtomicBool::new(false);
/// Whether rows are printed while the work continues.
static ROWS: AtomicBool = AtomicBool::new(false);

fn broken() -> Option<Broken> {
    *BROKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether stdout can't be written to any more, so that there is no point in producing more output.
pub(crate) fn is_stdout_broken() -> bool {
    broken().is_some()
}

/// Whether the reader closed the pipe.
pub(crate) fn is_stdout_closed() -> bool {
    broken() == Some(Broken::Closed)
}

/// Notes that rows are printed while the work continues.
pub(crate) fn begin_rows() {
    ROWS.store(true, Ordering::Relaxed);
}

/// Whether rows go into a pipe. Its reader, such as `jq`, usually prints to the terminal, where a live view would
/// overwrite it.
pub(crate) fn is_piping_rows() -> bool {
    let is_pipe = || {
        let file = File::from(stdout().as_fd().try_clone_to_owned()?);
        Ok::<_, io::Error>(file.metadata()?.file_type().is_fifo())
    };
    ROWS.load(Ordering::Relaxed) && is_pipe().unwrap_or(false)
}

/// Writes to stdout, which may be the terminal that the live view is on.
pub(super) fn show(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) {
    if is_stdout_broken() {
        return;
    }
    let written = {
        let mut screen = screen();
        let mut stdout = stdout().lock();
        if let Some(screen) = screen.as_mut().filter(|_| stdout.is_terminal()) {
            screen.erase();
        }
        // Flush now: an error at the end of the process would go unnoticed.
        write(&mut stdout).and_then(|()| stdout.flush())
    };
    PRINTED.store(true, Ordering::Relaxed);
    check(written);
}

/// Writes text that may be long to stdout. Unless it is a terminal, logging doesn't have to wait for a slow reader.
pub(super) fn stream(text: &str) {
    if stdout().is_terminal() {
        return show(|stdout| stdout.write_all(text.as_bytes()));
    }
    if !is_stdout_broken() {
        // `Results` reports errors.
        let _ = Results.write_all(text.as_bytes()).and_then(|()| Results.flush());
    }
}

/// Stdout as a writer, for output that is streamed, such as a dump.
#[derive(Debug)]
pub(crate) struct Results;

impl Write for Results {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        PRINTED.store(true, Ordering::Relaxed);
        checked(stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        checked(stdout().flush())
    }
}

/// Flushes stdout, and returns the exit code: `code`, or a failure if its output could not be written.
pub(crate) fn finish(code: u8) -> u8 {
    if PRINTED.load(Ordering::Relaxed) && !is_stdout_broken() {
        check(stdout().flush().and_then(|()| sync()));
    }
    match broken() {
        Some(Broken::Failed) if code == exit::DONE => exit::FAILURES,
        _ => code,
    }
}

/// Syncs stdout if it is a file: some file systems report a full disk only then.
fn sync() -> io::Result<()> {
    let file = File::from(stdout().as_fd().try_clone_to_owned()?);
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    match file.sync_data() {
        // Files that can't be synced don't delay errors either.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

fn checked<T>(written: io::Result<T>) -> io::Result<T> {
    if let Err(error) = &written
        && error.kind() != ErrorKind::Interrupted
    {
        mark_broken(error);
    }
    written
}

fn check(written: io::Result<()>) {
    if let Err(error) = written {
        mark_broken(&error);
    }
}

/// Stops all printing to stdout; the first failure is reported.
fn mark_broken(error: &io::Error) {
    let why = if error.kind() == ErrorKind::BrokenPipe { Broken::Closed } else { Broken::Failed };
    let is_first = {
        let mut broken = BROKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = broken.is_none();
        broken.get_or_insert(why);
        is_first
    };
    if is_first && why == Broken::Failed {
        write_stderr(&error_lines(&format!("could not write to standard output: {error}")));
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the only module that writes to stdout")]
fn stdout() -> io::Stdout {
    io::stdout()
}
