//! A wall clock that is set while a fetch runs.

use std::path::PathBuf;
use std::process::Command;

use crate::comity::{World, list};
use crate::log::{assert_each_once, assert_spaced, now_us, told};
use crate::nginx::Nginx;

/// B7
#[test]
fn steps_of_the_wall_clock_are_not_seen() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let fetch = |job: &str, count: usize| {
        let input = world.write(job, &list(&nginx.url(), job, count));
        let input = input.to_str().unwrap().to_owned();
        let args = [
            "fetch", "--input", &input, "--job", job, "--delay", "150ms", "--robots", "ignore", "--format",
            "none",
        ];
        world.begin(under_fake_time(world.command(&args), &world.path("clock")))
    };
    set(&world, "+0");
    let running = fetch("a", 40);
    nginx.wait_for(8);
    set(&world, "-3600");
    assert!(world_clock(&world) < now_us() / 1_000_000 - 3_000, "the clock was not set");
    nginx.wait_for(16);
    set(&world, "+3600");
    running.wait().expect(0);
    let log = nginx.log();
    assert_each_once(&log, "a", 40);
    assert_spaced(&log, 150);
    let gap = log.windows(2).map(|pair| pair[1].start - pair[0].start).max().unwrap();
    assert!(gap < 60_000_000, "a step made somebody wait:\n{}", told(&log));

    // A process that begins with a clock that is behind waits no longer than the spacing: nobody here waits for an hour.
    set(&world, "-3600");
    fetch("b", 5).wait().expect(0);
    assert_spaced(&nginx.log(), 150);
}

fn set(world: &World, offset: &str) {
    // Written beside its place: half a file is no time.
    world.write("clock.new", &format!("{offset}\n"));
    std::fs::rename(world.path("clock.new"), world.path("clock")).unwrap();
}

/// What the time is under the fake clock.
fn world_clock(world: &World) -> i64 {
    let mut date = Command::new("date");
    date.arg("+%s").env_clear().env("PATH", "/usr/bin:/bin");
    let read = under_fake_time(date, &world.path("clock")).output().unwrap();
    String::from_utf8_lossy(&read.stdout).trim().parse().unwrap()
}

fn under_fake_time(mut command: Command, clock: &std::path::Path) -> Command {
    command
        .env("LD_PRELOAD", library())
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_NO_CACHE", "1");
    command
}

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("libfaketime is missing: install Debian's package faketime (apt-get install -y faketime)")
}
