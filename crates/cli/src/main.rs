//! The command `comity`: what was typed, what it means, run.
//!
//! - `args`: what can be typed
//! - `setup`: what it means: configuration, store, gate
//! - `commands`: one file a command
//! - `live`: what long work looks like while it runs
//! - `output`: the terminal; nobody else writes to it
//! - `playground`: sites on loopback to try it on
//! - `signals`: Ctrl-C and its like
//! - `exit`: exit codes

mod args;
mod commands;
mod exit;
mod live;
mod output;
mod playground;
mod setup;
mod signals;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let args = args::Args::parse();
    let json = args.global.json;
    // Each site has a connection of its own: the usual soft limit of 1,024 open files is soon reached.
    comity::descriptors::raise_limit();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error.into(), json),
    };
    let code = match runtime.block_on(commands::run(args)) {
        Ok(code) => code,
        Err(error) => exit::failed(&error, json),
    };
    // What still runs (a name being looked up, a list being read) has nothing to say any more.
    runtime.shutdown_background();
    code
}
