//! Memory doesn't grow with the length of a list.

use std::fs::File;

use crate::comity::World;
use crate::log::{assert_each_once, to_text};
use crate::nginx::Nginx;

#[test]
fn a_list_of_two_hundred_thousand_lines_uses_little_memory() {
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
    let most_kb = running.peak_kb();
    let done = running.wait().expect(0);
    assert_eq!(done.json()["fetched"], 1_000);
    let log = nginx.log();
    assert_eq!(log.len(), 1_000, "{}", to_text(&log[..20]));
    assert_each_once(&log, "p", 1_000);
    assert!((1..150 * 1_024).contains(&most_kb), "{most_kb} kB");
}
