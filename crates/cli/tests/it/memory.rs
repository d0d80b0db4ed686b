//! A long list does not fill the memory.

use std::fs::File;
use std::time::Duration;

use crate::comity::World;
use crate::log::{assert_each_once, told};
use crate::nginx::Nginx;

#[test]
fn two_hundred_thousand_lines_fit_into_little_memory() {
    let (world, nginx) = (World::new(), Nginx::start(""));
    let url = nginx.url();
    let text: String = (0..200_000).map(|nth| format!("{url}/p{}\n", nth % 1_000)).collect();
    world.write("stdin", &text);
    let args = [
        "--json",
        "fetch",
        "--input",
        "-",
        "--delay",
        "0s",
        "--learning",
        "off",
        "--robots",
        "ignore",
        "--format",
        "none",
    ];
    let mut command = world.command(&args);
    command.stdin(File::open(world.path("stdin")).unwrap());
    let mut running = world.begin(command);
    let status = format!("/proc/{}/status", running.id());
    let mut most_kb = 0;
    while !running.is_over() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most_kb = most_kb.max(kb.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = running.wait().expect(0);
    assert_eq!(done.json()["fetched"], 1_000);
    let log = nginx.log();
    assert_eq!(log.len(), 1_000, "{}", told(&log[..20]));
    assert_each_once(&log, "p", 1_000);
    assert!((1..150 * 1_024).contains(&most_kb), "{most_kb} kB");
}
