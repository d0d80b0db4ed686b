//! Recognizes that this process or machine ran out of something. That is our own problem and says nothing about a site.

use std::io;

/// Whether the error means that this process or machine ran out of descriptors, or of memory for one.
pub(crate) fn ran_out(error: &io::Error) -> bool {
    let by_number = error.raw_os_error().is_some_and(|number| cfg!(unix) && NUMBERS.contains(&number));
    by_number || error.kind() == io::ErrorKind::OutOfMemory
}

/// ENFILE, EMFILE and ENOBUFS. The first two are the same on all Unix systems.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NUMBERS: [i32; 3] = [23, 24, 105];
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NUMBERS: [i32; 3] = [23, 24, 55];
