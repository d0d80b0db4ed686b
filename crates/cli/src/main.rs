//! The `comity` command: parses the command line, loads the configuration, runs the command.
//!
//! - `args`: commands, flags and their help
//! - `setup`: from flags to configuration, store and gate
//! - `commands`: one file per command
//! - `hooks`: commands that run for new items (`run --exec`)
//! - `keys`: keys typed on a terminal
//! - `live`: the live view and progress lines
//! - `memory`: fewer threads and one heap if the address space is limited
//! - `output`: stdout and stderr; no other module writes to them
//! - `playground`: test sites on loopback
//! - `signals`: Ctrl-C, SIGTERM and SIGHUP
//! - `exit`: exit codes

// All printing goes through `output`, which checks that writes succeed; these macros would panic instead.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod commands;
mod exit;
mod hooks;
mod keys;
mod live;
mod memory;
mod output;
mod playground;
mod setup;
mod signals;

fn main() -> std::process::ExitCode {
    memory::use_one_heap();
    if args::wants_json_log() {
        output::set_json_log();
    }
    let args = match args::parse() {
        Ok(args) => args,
        Err(error) => {
            match args::UsageError::of(&error) {
                Some(error) => output::error_message(&error.lines()),
                None => output::clap_message(&error),
            }
            if error.use_stderr() && args::wants_json() {
                output::object(&args::parse_error_json(&error));
            }
            let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
            return output::finish(code).into();
        }
    };
    let json = args.global.json;
    // Each site has its own connection, so the usual soft limit of 1,024 open files is soon reached.
    comity::descriptors::raise_limit();
    let runtime = match memory::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return exit::failed(&error.into(), json).into(),
    };
    let work = async {
        signals::survive_file_limit();
        commands::run(args).await
    };
    let code = match runtime.block_on(work) {
        Ok(code) => code,
        Err(error) => exit::failed(&error, json),
    };
    // Nobody needs what is still running, such as a DNS lookup or reading a list.
    runtime.shutdown_background();
    output::finish(code).into()
}
