//! Exit codes, which scripts rely on: 0 done, 1 finished with failures, 2 usage or configuration error, 3 store
//! unavailable, 130 interrupted. Also quitting immediately, and cleaning up before that.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use comity::gate::GateError;
use comity::store::StoreError;
use comity_server::ServeError;

/// Done.
pub(crate) const DONE: u8 = 0;
/// Finished with failures, or `check` answered "wait".
pub(crate) const FAILURES: u8 = 1;
/// Usage or configuration error.
pub(crate) const USAGE: u8 = 2;
/// The store is unavailable.
pub(crate) const STORE: u8 = 3;
/// Interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// A usage error: an argument can't be used.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A usage error with this message.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Prints an error, and returns the exit code for it.
pub(crate) fn failed(error: &anyhow::Error, json: bool) -> u8 {
    let code = code_of(error);
    crate::output::error(error, json, code);
    code
}

/// A temporary folder to delete when this process ends, however it ends, short of a kill.
static TEMP_FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Has this folder deleted when the process ends.
pub(crate) fn remove_on_exit(folder: &Path) {
    *TEMP_FOLDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
}

/// Deletes the folder that was given to [`remove_on_exit`], if any.
pub(crate) fn remove_temp_folder() {
    if let Some(folder) = TEMP_FOLDER.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Whether a file is deleted when this process ends.
pub(crate) fn is_temporary(file: &Path) -> bool {
    let folder = TEMP_FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    folder.as_ref().is_some_and(|folder| file.starts_with(folder))
}

/// Quits immediately, as after a second Ctrl-C.
pub(crate) fn quit_now() -> ! {
    remove_temp_folder();
    std::process::exit(INTERRUPTED.into())
}

fn code_of(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>()
        || error.is::<comity::config::ConfigError>()
        || error.is::<comity::client::SetupError>()
    {
        return USAGE;
    }
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::Unsupported { .. }) => USAGE,
        Some(StoreError::Output { .. }) => FAILURES,
        Some(_) => STORE,
        None if error.is::<crate::commands::Unreachable>() => STORE,
        None if let Some(error) = error.downcast_ref::<ServeError>() => match error {
            ServeError::Store(StoreError::Unsupported { .. }) => USAGE,
            ServeError::Store(_) | ServeError::StoreUnavailable => STORE,
            ServeError::Tokens(_)
            | ServeError::NoTokens(_)
            | ServeError::Listen { .. }
            | ServeError::TokensRemoved
            | ServeError::StoreChanged => USAGE,
        },
        None if matches!(error.downcast_ref::<GateError>(), Some(GateError::Store(_))) => STORE,
        None => FAILURES,
    }
}
