//! Kill -9 at any moment.

use std::time::Duration;

use crate::comity::{World, list};
use crate::log::{Hit, TOLERANCE, assert_spaced, told};
use crate::site::{Answer, Site};

/// B37, B74, B77, E11
#[test]
fn twenty_kills_lose_nothing_and_send_nothing_early() {
    let world = World::new();
    let site = Site::start(|asked| match asked.before % 17 {
        16 => Answer::status(429).header("Retry-After", "1"),
        _ => Answer::page(asked.path),
    });
    let input = world.write("list", &list(&site.url(), "p", PAGES));
    let input = input.to_str().unwrap();
    let first = [
        "fetch",
        "--input",
        input,
        "--job",
        "one",
        "--delay",
        "30ms",
        "--robots",
        "ignore",
        "--learning",
        "off",
        "--out",
        "pages",
        "--max-retries",
        "9",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    let mut kills = Vec::new();
    for nth in 0..KILLS {
        // The list goes in with the first runs; once it is in, the name is enough.
        let run = if nth < 3 { world.start(&first) } else { world.start(&["fetch", "--job", "one"]) };
        std::thread::sleep(Duration::from_millis(random.u64(10..350)));
        kills.extend(run.kill());
    }
    assert_eq!(kills.len(), KILLS, "it ended before all kills were made");
    let last = world.start(&["--json", "fetch", "--job", "one"]).wait().expect(0);
    assert_eq!(last.json()["fetched"], PAGES, "{}", last.stdout);
    let log = site.log();
    assert_spaced(&log, 30);
    assert_deadlines_kept(&log, &kills);
    for nth in 0..PAGES {
        let path = format!("/p{nth}");
        let pages: Vec<&Hit> = log.iter().filter(|hit| hit.path == path && hit.status == 200).collect();
        assert!(!pages.is_empty(), "{path} was lost");
        for page in &pages[..pages.len() - 1] {
            let in_flight = |kill: &i64| page.start <= *kill && page.done > *kill - COMMITTED;
            assert!(
                kills.iter().any(in_flight),
                "{path} was fetched again although it was there; kills {kills:?}, {page:?}\n{}",
                told(&log)
            );
        }
    }
    assert_index_is_whole(&world);
}

/// Whatever the server asked for is kept, if the answer was complete 50 ms before a kill.
fn assert_deadlines_kept(log: &[Hit], kills: &[i64]) {
    for (nth, hit) in log.iter().enumerate().filter(|(_, hit)| hit.status == 429) {
        let killed = kills.iter().any(|kill| hit.start <= *kill && hit.done > *kill - COMMITTED);
        let Some(next) = log.get(nth + 1).filter(|_| !killed) else { continue };
        let waited = next.start - hit.answered;
        assert!(waited >= 1_000_000 - TOLERANCE, "{waited} µs after a 429:\n{}", told(log));
    }
}

/// Every page has a line, and every file is whole.
fn assert_index_is_whole(world: &World) {
    let text = std::fs::read_to_string(world.path("pages/index.jsonl")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    // A line that a kill cut short stands alone, and counts for nothing.
    for line in text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let body = std::fs::read(world.path("pages").join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!(body.len() as u64, line["bytes"].as_u64().unwrap(), "{line}");
        seen.insert(line["url"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), PAGES);
}

const PAGES: usize = 200;
const KILLS: usize = 20;
/// What was answered this long before a kill is in the store.
const COMMITTED: i64 = 50_000;
