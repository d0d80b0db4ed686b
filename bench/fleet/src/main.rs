//! W10: one process of a fleet, for what has to be measured without a client and a server in the way.
//!
//! - `bench-fleet judge LOG`: receives a datagram for each request that a contestant would send now, and writes when the kernel received
//!   it: `arrived site process`, in UTC microseconds. The first line on standard output is the port; it ends when its standard input does.
//! - `bench-fleet decide STORE JUDGE PROCESS SITES STEP PROCESSES SECONDS DELAY_MS`: waits for permits of random sites and sends a datagram for
//!   each. With STEP 1 all processes use all sites; else each uses every STEP-th, as with a queue that they share.
//! - `bench-fleet fill STORE TASKS SITES`, `bench-fleet work STORE PROCESS SECONDS`: adds tasks to a job; claims and settles them.
//!
//! Results are one JSON object on standard output. The peers are in `bench/workloads/peers`.

mod decide;
mod judge;
mod work;

use std::process::ExitCode;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["judge", log] => judge::run(log),
        ["decide", store, port, ref rest @ ..] if rest.len() == 6 => decide::run(store, port, rest),
        ["fill", store, tasks, sites] => work::fill(store, tasks, sites),
        ["work", store, process, seconds] => work::work(store, process, seconds),
        _ => Err("usage: bench-fleet judge|decide|fill|work …; see its source".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The benchmark's clock.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// The name of a site, and the multiple of the shortest delay that it has: sites are mixed.
fn site(nth: u32) -> (String, u32) {
    let kind = nth % KINDS;
    (format!("s{nth}.k{kind}.test"), kind + 1)
}

const KINDS: u32 = 3;
