//! The one-page examples of the documentation, run unchanged against a site that answers 429.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::comity::{Running, World};
use crate::log::{assert_spaced, wait_until};
use crate::site::{Answer, Site};

#[test]
fn curl() {
    is_polite("sh", "polite.sh");
}

#[test]
fn php() {
    is_polite("php", "polite.php");
}

#[test]
fn ruby() {
    is_polite("ruby", "polite.rb");
}

#[test]
fn javascript() {
    is_polite("node", "polite.mjs");
}

/// Runs two of them at once on one site: all pages are fetched, no request is early, and none comes within the
/// Retry-After.
fn is_polite(interpreter: &str, example: &str) {
    let world = World::new();
    world.write("comity.toml", "[default]\nmin_delay = \"150ms\"\nlearning = \"off\"\n");
    let site = Site::start(|asked| match asked.before {
        1 => Answer::status(429).header("Retry-After", "1"),
        _ => Answer::page(asked.path),
    });
    let (serving, server) = serve(&world);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(example);
    let run = |prefix: &str| {
        let folder = world.path(prefix);
        std::fs::create_dir(&folder).unwrap();
        let urls = (0..3).map(|nth| format!("{}/{prefix}{nth}", site.url()));
        Command::new(interpreter)
            .arg(&script)
            .args(urls)
            .current_dir(folder)
            .env("COMITY_SERVER", &server)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{interpreter}: {error}; ./test installs what is missing"))
    };
    let running = ["a", "b"].map(run);
    let mut output = String::new();
    for running in running {
        let done = running.wait_with_output().unwrap();
        assert!(done.status.success(), "{example}: {}", done.status);
        output += &String::from_utf8_lossy(&done.stdout);
    }
    let said = |status: &str| output.lines().filter(|line| line.starts_with(status)).count();
    assert_eq!((said("200 "), said("429 ")), (5, 1), "{output}");
    let log = site.log();
    assert_eq!(log.len(), 6);
    assert_spaced(&log, 150);
    let refused = log.iter().position(|hit| hit.status == 429).unwrap();
    let next = log.get(refused + 1).unwrap();
    assert!(next.start - log[refused].answered >= 990_000, "after {} us", next.start - log[refused].answered);
    serving.signal("TERM");
    assert_eq!(serving.wait().code, Some(0));
}

/// A paused domain is not polled over and over.
#[test]
fn the_examples_stop_at_a_paused_site() {
    let world = World::new();
    let site = Site::start(|asked| Answer::page(asked.path));
    world.run(&["domains", "set", &site.authority(), "--pause", "forever"]).expect(0);
    let (serving, server) = serve(&world);
    for (interpreter, example) in
        [("sh", "polite.sh"), ("php", "polite.php"), ("ruby", "polite.rb"), ("node", "polite.mjs")]
    {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(example);
        let mut command = Command::new(interpreter);
        command.arg(&script).arg(site.url()).env("COMITY_SERVER", &server).stdout(Stdio::null());
        let ended = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains("paused"), "{example}: {said}");
    }
    assert!(site.log().is_empty());
    serving.signal("TERM");
    assert_eq!(serving.wait().code, Some(0));
}

/// A service in `world`, and its URL.
fn serve(world: &World) -> (Running, String) {
    let mut running = world.start(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    wait_until("it is listening", || running.shown().contains('\n') || running.is_over());
    let object: Value =
        serde_json::from_str(running.shown().trim()).unwrap_or_else(|_| panic!("{}", running.said()));
    (running, object["listening"].as_str().unwrap().to_owned())
}
