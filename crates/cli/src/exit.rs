//! Exit codes, which scripts rely on: 0 done, 1 finished with failures, 2 usage or configuration, 3 store
//! unavailable, 130 interrupted. And how to end at once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use comity::gate::GateError;
use comity::store::StoreError;
use comity_server::ServeError;

/// Done.
pub(crate) const DONE: u8 = 0;
/// Finished with failures, or "wait" as the answer of `check`.
pub(crate) const FAILURES: u8 = 1;
/// What was typed or configured cannot be used.
pub(crate) const USAGE: u8 = 2;
/// The store does not work.
pub(crate) const STORE: u8 = 3;
/// Interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// What was typed cannot be used.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error that says what was typed wrongly.
pub(crate) fn usage(what: impl Into<String>) -> anyhow::Error {
    Usage(what.into()).into()
}

/// Tells an error, and which code it ends with.
pub(crate) fn failed(error: &anyhow::Error, json: bool) -> u8 {
    let code = code_of(error);
    crate::output::error(error, json, code);
    code
}

/// A folder that is to go with this process, however it ends, short of a kill.
static CLEARED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// This folder goes with this process.
pub(crate) fn clears(folder: &Path) {
    *CLEARED.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.to_owned());
}

/// What goes with this process goes.
pub(crate) fn clear() {
    if let Some(folder) = CLEARED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Ends at once: whoever asks for it a second time does not want to wait.
pub(crate) fn at_once() -> ! {
    clear();
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
        Some(_) => STORE,
        None if error.is::<crate::commands::Unreachable>() => STORE,
        None if let Some(error) = error.downcast_ref::<ServeError>() => match error {
            ServeError::Store(StoreError::Unsupported { .. }) => USAGE,
            ServeError::Store(_) | ServeError::Away => STORE,
            ServeError::Tokens(_)
            | ServeError::Open(_)
            | ServeError::Listen { .. }
            | ServeError::Opens
            | ServeError::OtherStore => USAGE,
        },
        None if matches!(error.downcast_ref::<GateError>(), Some(GateError::Store(_))) => STORE,
        None => FAILURES,
    }
}
