//! Kill -9 at any moment.

use std::time::Duration;

use crate::comity::{World, list};
use crate::log::{Hit, TOLERANCE, assert_spaced, counts, now_us, to_text};
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
        // The first runs read the list; once it is complete, the job's name is enough.
        let run = if nth < 3 { world.start(&first) } else { world.start(&["fetch", "--job", "one"]) };
        std::thread::sleep(Duration::from_millis(random.u64(10..350)));
        assert!(run.kill().is_some(), "it ended before all kills were made");
        kills.push(Kill::look(&world, &site));
    }
    let last = world.start(&["--json", "fetch", "--job", "one"]).wait().expect(0);
    assert_eq!(last.json()["fetched"], PAGES, "{}", last.stdout);
    let log = site.log();
    assert_spaced(&log, 30);
    assert_deadlines_kept(&log, &kills);
    for nth in 0..PAGES {
        let path = format!("/p{nth}");
        assert!(log.iter().any(|hit| hit.path == path && hit.status == 200), "{path} was lost");
    }
    for kill in &kills {
        for (path, times) in &kill.there {
            let asked = counts(&log)[path.as_str()];
            assert_eq!(asked, *times, "{path} was fetched again although it was done:\n{}", to_text(&log));
        }
    }
    assert_index_is_whole(&world);
}

/// The state after a kill.
struct Kill {
    /// No request of the killed process starts after this.
    at: i64,
    /// The pages that count as fetched, and how often each was requested until then.
    there: Vec<(String, usize)>,
    /// The deadline that the server stated, as saved in the store.
    until: i64,
}

impl Kill {
    fn look(world: &World, site: &Site) -> Self {
        let (at, log) = (now_us(), site.log());
        let Some((_folder, left)) = world.store_copy() else {
            return Self { at, there: Vec::new(), until: 0 };
        };
        let until = "SELECT coalesce(max(server_until_us), 0) FROM domains";
        // It may have been killed before it wrote anything.
        let until = left.query_row(until, [], |row| row.get(0)).unwrap_or(0);
        let mut there = Vec::new();
        if let Ok(mut done) = left.prepare("SELECT url FROM tasks WHERE state = 'done'") {
            for url in done.query_map([], |row| row.get::<_, String>(0)).unwrap() {
                let path = url.unwrap().replace(&site.url(), "");
                there.push((path.clone(), counts(&log)[path.as_str()]));
            }
        }
        Self { at, there, until }
    }
}

/// Asserts that deadlines of the server are kept, also across a kill if they were saved before it.
fn assert_deadlines_kept(log: &[Hit], kills: &[Kill]) {
    for (nth, hit) in log.iter().enumerate().filter(|(_, hit)| hit.status == 429) {
        let Some(next) = log.get(nth + 1) else { continue };
        if kills.iter().any(|kill| (hit.start..=next.start).contains(&kill.at)) {
            continue;
        }
        let waited = next.start - hit.answered;
        assert!(waited >= 1_000_000 - TOLERANCE, "{waited} µs after a 429:\n{}", to_text(log));
    }
    for kill in kills {
        let next = log.iter().find(|hit| hit.start > kill.at).unwrap();
        assert!(next.start >= kill.until - TOLERANCE, "before {}:\n{}", kill.until, to_text(log));
    }
    assert!(kills.iter().any(|kill| kill.until > kill.at), "no kill came within a deadline");
}

/// Asserts that every page has one row, and every file is complete. After several kills, a page used to have a row per
/// kill.
fn assert_index_is_whole(world: &World) {
    let text = std::fs::read_to_string(world.path("pages/index.jsonl")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    // A line that was truncated by a kill is on its own, and is ignored.
    let rows = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    for line in rows.filter(|row| row["state"] == "done") {
        let body = std::fs::read(world.path("pages").join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!(body.len() as u64, line["bytes"].as_u64().unwrap(), "{line}");
        let url = line["url"].as_str().unwrap();
        assert!(seen.insert(url.to_owned()), "{url} has more than one row:\n{text}");
    }
    assert_eq!(seen.len(), PAGES);
}

const PAGES: usize = 200;
const KILLS: usize = 20;
