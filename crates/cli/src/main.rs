//! The command `comity`: what was typed, what it means, run.
//!
//! - `args`: what can be typed
//! - `setup`: what it means: configuration, store, gate
//! - `commands`: one file a command
//! - `hooks`: commands that run for new items
//! - `live`: what long work looks like while it runs
//! - `output`: the terminal; nobody else writes to it
//! - `playground`: sites on loopback to try it on
//! - `signals`: Ctrl-C and its like
//! - `exit`: exit codes

// `output` writes results and remarks, and checks that they got where they belong; these macros would panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod exit;
mod hooks;
mod live;
mod output;
mod playground;
mod setup;
mod signals;

fn main() -> std::process::ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(said) => {
            output::parsed(&said);
            if said.use_stderr() && args::wants_json() {
                output::object(&args::mistake(&said));
            }
            let code = u8::try_from(said.exit_code()).unwrap_or(exit::USAGE);
            return output::finish(code).into();
        }
    };
    let json = args.global.json;
    // Each site has a connection of its own: the usual soft limit of 1,024 open files is soon reached.
    comity::descriptors::raise_limit();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error.into(), json).into(),
    };
    let code = match runtime.block_on(commands::run(args)) {
        Ok(code) => code,
        Err(error) => exit::failed(&error, json),
    };
    // What still runs (a name being looked up, a list being read) has nothing to say any more.
    runtime.shutdown_background();
    output::finish(code).into()
}
