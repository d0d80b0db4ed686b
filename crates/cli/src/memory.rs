//! What to do if the address space of this process is limited (`ulimit -v`).
//!
//! Little of that space is memory: each thread has a stack that is mostly empty, and glibc reserves up to 64 MiB for each
//! thread that allocates. Under such a limit all of it counts, and once it is used up, Rust aborts the process. So there
//! are fewer threads then, and one heap for all of them.

use tokio::runtime::{Builder, Runtime};

/// Starts this program again with a single heap, if its address space is limited and that wasn't done yet. Must be called
/// before there are threads. Only returns if there is nothing to do, or if it can't be done.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_one_heap() {
    use std::os::unix::process::CommandExt;
    if !is_limited() || std::env::var_os(HEAPS).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    let mut command = std::process::Command::new(program);
    command.arg0(args.next().unwrap_or_default()).args(args).env(HEAPS, "1");
    // If this fails, it works as before.
    let _ = command.exec();
}

/// Other C libraries don't reserve space for each thread.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn use_one_heap() {}

/// The runtime, with as many threads as fit.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if is_limited() {
        builder.worker_threads(WORKERS).max_blocking_threads(BLOCKING_MAX);
    }
    builder.enable_all().build()
}

/// Whether the address space is limited to less than the threads of a large machine might need.
#[cfg(unix)]
fn is_limited() -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::As).current.is_some_and(|limit| limit < PLENTY)
}

#[cfg(not(unix))]
fn is_limited() -> bool {
    false
}

/// How many heaps glibc may create.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: &str = "MALLOC_ARENA_MAX";
/// With this much address space, nothing needs to be saved.
#[cfg(unix)]
const PLENTY: u64 = 8 << 30;
/// How many threads run the program if the address space is limited, each with a stack of 2 MiB.
const WORKERS: usize = 2;
/// How many more threads may wait for files, DNS and input.
const BLOCKING_MAX: usize = 16;
