//! `comity scrape`: single items and in bulk.

use serde_json::{Value, json};

use crate::comity::World;
use crate::follow::{add, assert_counts, count, items, micros, numbered, run, states, world};
use crate::log::{Hit, assert_each_once, assert_spaced, counts, to_text, wait_until};
use crate::site::{Answer, Site};

/// A feed with `count` items that are known but not scraped.
fn seen(changes: &[(&str, &str)], count: usize, more: &[&str]) -> (World, Site) {
    let (world, feed) = (world(changes), numbered("p", count));
    let site = Site::start(move |asked| match asked.path {
        "/feed" => Answer { status: 200, body: feed.clone(), ..Answer::default() },
        path => Answer::page(path),
    });
    add(&world, &(site.url() + "/feed"), more);
    run(&world, &["--no-scrape"], 0);
    (world, site)
}

fn scrape(world: &World, args: &[&str], code: i32) -> Value {
    world.run(&[&["--json", "scrape"], args].concat()).expect(code).json()
}

fn pages(site: &Site) -> Vec<Hit> {
    site.log().into_iter().filter(|hit| hit.path.starts_with("/p")).collect()
}

#[test]
fn items_are_scraped_one_by_one() {
    let (world, site) = seen(&[], 4, &[]);
    let done = world.run(&["scrape", "2", "3", "--out", "kept"]).expect(0);
    done.shows("item 2: enqueued\nitem 3: enqueued\n2 enqueued, 0 already enqueued, 0 deferred, 0 refused\n");
    done.shows("2 scraped, 0 failed, 0 skipped\n");
    let mut paths: Vec<String> = pages(&site).into_iter().map(|hit| hit.path).collect();
    paths.sort();
    assert_eq!(paths, ["/p1", "/p2"]);
    assert_eq!(
        (states(&world), world.index("kept").len()),
        (["none", "done", "done", "none"].map(str::to_owned).to_vec(), 2)
    );
    // An item that is named is scraped again.
    let again = scrape(&world, &["2"], 0);
    assert_eq!((&again["items"]["enqueued"], &again["tasks"]["fetched"]), (&json!(1), &json!(1)), "{again}");
    let keys: Vec<&str> = again.as_object().unwrap().keys().map(String::as_str).collect();
    for key in ["items", "tasks", "left", "results"] {
        assert!(keys.contains(&key), "{keys:?}");
    }
}

/// What `run --no-scrape` finds is simply not scraped yet: by number, by source, all at once, or by the next run.
#[test]
fn items_left_by_a_run_without_scraping_can_be_scraped_later() {
    type Later<'a> = (&'a [&'a str], &'a [&'a str]);
    let later: [Later<'_>; 4] = [
        (&["scrape", "1"], &["done", "none", "none"]),
        (&["scrape", "--source", "1"], &["done", "done", "done"]),
        (&["scrape", "--all-unscraped"], &["done", "done", "done"]),
        (&["run", "--force"], &["done", "done", "done"]),
    ];
    for (command, expected) in later {
        let (world, _site) = seen(&[], 3, &[]);
        assert_eq!(states(&world), ["none", "none", "none"]);
        let listed = world.run(&["items", "list", "--state", "none", "--json"]).expect(0).json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 3);
        let done = world.run(command).expect(0);
        assert!(!done.stdout.contains("1 refused"), "{command:?}: {}", done.stdout);
        assert_eq!(states(&world), expected, "{command:?}");
    }
    let (world, _site) = seen(&[], 3, &[]);
    let ran = run(&world, &["--force", "--no-scrape"], 0);
    assert_counts(&ran["items"], json!({ "new": 0, "enqueued": 0, "refused": 0 }));
}

/// A source that was added with `--no-scrape` is not scraped by runs, but by hand.
#[test]
fn items_of_a_source_added_without_scraping_are_scraped_on_demand() {
    let (world, site) = (
        world(&[]),
        Site::start(|asked| match asked.path {
            "/feed" => Answer { status: 200, body: numbered("p", 4), ..Answer::default() },
            path => Answer::page(path),
        }),
    );
    add(&world, &(site.url() + "/feed"), &["--no-scrape"]);
    let ran = world.run(&["run"]).expect(0);
    ran.shows(
        "items: 4 new, 0 scraped, 4 left for comity scrape (their source isn't scraped automatically)\n",
    );
    assert!(!ran.stdout.contains("refused"), "{}", ran.stdout);
    assert_eq!((states(&world), pages(&site).len()), (vec!["none".to_owned(); 4], 0));
    world.run(&["scrape", "2"]).expect(0).shows("1 scraped, 0 failed, 0 skipped");
    world.run(&["run", "--force"]).expect(0).shows("items: 0 new, 0 scraped\n");
    assert_eq!(states(&world), ["none", "done", "none", "none"]);
    world.run(&["scrape", "--all-unscraped"]).expect(0).shows("3 enqueued");
    assert_eq!(states(&world), ["done"; 4]);
    // A source that must not be scraped says how to change that.
    world.run(&["sources", "set", "1", "--scrape", "off"]).expect(0);
    let refused = world.run(&["scrape", "1"]).expect(1);
    refused.shows("item 1: scraping is disabled for the source");
    refused.says("To enable it: comity sources set 1 --scrape on");
}

#[test]
fn scrape_requires_items_or_a_source() {
    let world = world(&[]);
    for args in
        [&["scrape"][..], &["scrape", "1", "--source", "1"], &["scrape", "--source", "1", "--all-unscraped"]]
    {
        world.run(args).expect(2);
    }
    world.run(&["scrape", "twelve"]).expect(2).says("twelve");
    world
        .run(&["scrape", "--source", "9"])
        .expect(2)
        .says("--source = 9: no such source; comity sources list");
    let nothing = world.run(&["scrape", "--all-unscraped"]).expect(0);
    nothing.shows("0 enqueued, 0 already enqueued, 0 deferred, 0 refused");
}

/// B52, B55, B72, B73: items that are too soon are deferred by one interval each, with the right numbers. Each
/// deferral is counted, and they are logged in one line per source.
#[test]
fn items_that_are_too_soon_are_deferred() {
    let (world, site) = seen(&[("scrape.min_interval", "60")], 3, &["--min-interval", "12"]);
    scrape(&world, &["1"], 0);
    // However slow the machine is, the next scrapes are enqueued within the interval.
    let last = count(&world, "SELECT max(started_us) FROM scrape_logs");
    let done = world.run(&["--json", "scrape", "2", "3"]).expect(0);
    let object = done.json();
    assert_eq!(
        object["items"],
        json!({ "enqueued": 0, "already": 0, "deferred": 2, "refused": 0 }),
        "{object}"
    );
    let results = object["results"].as_array().unwrap();
    let first = results[0]["wait_seconds"].as_u64().unwrap();
    assert!((1..=12).contains(&first), "{object}");
    for (nth, result) in results.iter().enumerate() {
        assert_eq!(result["result"], "deferred");
        assert_eq!(result["wait_seconds"], first + 12 * nth as u64, "{object}");
        assert_eq!(
            (&result["interval"], micros(&result["last_scrape_at"])),
            (&json!(12.0), last),
            "{object}"
        );
        let message = result["message"].as_str().unwrap();
        let said = format!("the interval is 12 s: deferred for {} s", first + 12 * nth as u64);
        assert!(message.starts_with("scraped ") && message.ends_with(&said), "{message}");
        assert_eq!(message.contains("another scrape is due in "), nth > 0, "{message}");
        // "scraped 310 ms ago" or "scraped 1.2 s ago": the wait is the interval minus that, in whole seconds.
        let mut words = message["scraped ".len()..].split(' ');
        let elapsed: f64 = words.next().unwrap().parse().unwrap();
        let millis = if words.next() == Some("ms") { elapsed } else { elapsed * 1_000.0 };
        assert_eq!((12.0 - millis / 1_000.0).ceil() as u64, first, "{message}");
    }
    assert_eq!(object["tasks"]["fetched"], 2);
    let logged: Vec<&str> = done.stderr.lines().filter(|line| line.contains(" INFO items queued")).collect();
    let [line] = &logged[..] else { panic!("{}", done.stderr) };
    assert!(line.contains(" source=1 items=2 apart=12s last_at="), "{line}");
    assert_eq!(count(&world, "SELECT value FROM counts WHERE name = 'deferred'"), 2);
    assert_spaced(&pages(&site), 12_000);
    assert_each_once(&site.log(), "p", 3);
}

/// B54: what is already waiting or running is not enqueued twice.
#[test]
fn waiting_items_are_not_enqueued_twice() {
    let (world, site) = seen(&[], 3, &["--min-interval", "1.5"]);
    scrape(&world, &["1"], 0);
    let first = world.start(&["--json", "scrape", "2", "3"]);
    wait_until("they are deferred", || {
        count(&world, "SELECT count(*) FROM items WHERE wake_us IS NOT NULL AND state = 'waiting'") == 2
    });
    let second = world.run(&["scrape", "2", "3", "--format", "none"]).expect(0);
    second
        .shows("item 3: already waiting or running\n0 enqueued, 2 already enqueued, 0 deferred, 0 refused\n");
    first.wait().expect(0);
    assert_eq!(count(&world, "SELECT count(*) FROM tasks"), 3);
    assert_each_once(&site.log(), "p", 3);
    assert_spaced(&pages(&site), 1_500);
}

/// B56: a refused item has a reason, in a fixed order, and makes the command fail.
#[test]
fn refused_items_have_a_reason() {
    let (world, site) = seen(&[("scrape.max_in_flight_per_source", "2")], 5, &[]);
    let missing = world.run(&["scrape", "99"]).expect(1);
    missing
        .shows("item 99: the item does not exist\n0 enqueued, 0 already enqueued, 0 deferred, 1 refused\n");
    let full = world.run(&["scrape", "1", "2", "3", "4"]).expect(1);
    full.shows("item 2: enqueued\nitem 3: 2 items of the source are waiting or running, and at most 2 may\n");
    full.shows("2 enqueued, 0 already enqueued, 0 deferred, 2 refused\n2 scraped, 0 failed, 0 skipped\n");
    world.run(&["sources", "set", "1", "--auto-scrape", "off"]).expect(0);
    let by_hand = scrape(&world, &["3"], 0);
    assert_eq!(by_hand["tasks"]["fetched"], 1, "on demand it is scraped: {by_hand}");
    assert_eq!(run(&world, &[], 0)["tasks"]["fetched"], 0);
    world.run(&["sources", "set", "1", "--scrape", "off"]).expect(0);
    let disabled = scrape(&world, &["4", "99"], 1);
    assert_eq!(disabled["items"]["refused"], 2);
    assert_eq!(disabled["results"][0]["message"], "scraping is disabled for the source");
    assert_eq!(
        disabled["results"][1],
        json!({ "item": 99, "result": "refused", "message": "the item does not exist" })
    );
    assert_eq!(pages(&site).len(), 3);
}

/// B57: bulk scrapes work in batches, and report that more are left.
#[test]
fn bulk_scrapes_work_in_batches() {
    let (world, site) = seen(&[("scrape.max_bulk_batch_size", "3")], 5, &[]);
    let first = world.run(&["scrape", "--all-unscraped"]).expect(0);
    first.shows("3 enqueued, 0 already enqueued, 0 deferred, 0 refused\n");
    first.shows(
        "More items are left; run it again for the next batch (its size is scrape.max_bulk_batch_size)\n",
    );
    assert_eq!(states(&world), ["done", "done", "done", "none", "none"]);
    let second = scrape(&world, &["--all-unscraped"], 0);
    assert_eq!((&second["items"]["enqueued"], &second["left"]), (&json!(2), &json!(false)), "{second}");
    let third = world.run(&["scrape", "--all-unscraped"]).expect(0);
    third.shows("0 enqueued, 0 already enqueued, 0 deferred, 0 refused\n0 scraped");
    assert!(!third.stdout.contains("More items are left"), "{}", third.stdout);
    assert_each_once(&site.log(), "p", 5);
}

/// B57: bulk scrapes stop at the limit of a source, and report that more are left.
#[test]
fn bulk_scrapes_stop_at_the_limit_of_a_source() {
    let (world, site) = seen(&[("scrape.max_in_flight_per_source", "2")], 5, &[]);
    let first = scrape(&world, &["--source", "1"], 0);
    assert_eq!((&first["items"]["enqueued"], &first["left"]), (&json!(2), &json!(true)), "{first}");
    assert_eq!(
        (&first["items"]["refused"], pages(&site).len()),
        (&json!(1), 2),
        "it stops at the limit: {first}"
    );
    for _ in 0..2 {
        scrape(&world, &["--source", "1"], 0);
    }
    assert_eq!(states(&world), vec!["done"; 5]);
    assert_each_once(&site.log(), "p", 5);
}

/// B57: also if the source at its limit is not the last one.
#[test]
fn items_left_by_a_full_source_are_reported() {
    let (world, _site) = seen(&[("scrape.max_in_flight_per_source", "2")], 3, &[]);
    let other = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("q", 1), ..Answer::default() },
        path => Answer::page(path),
    });
    add(&world, &(other.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--source", "2"], 0);
    let bulk = scrape(&world, &["--all-unscraped"], 0);
    assert_eq!((&bulk["items"]["enqueued"], &bulk["items"]["refused"]), (&json!(3), &json!(1)), "{bulk}");
    assert_eq!(states(&world), ["done", "done", "none", "done"]);
    assert_eq!(bulk["left"], true, "item 3 is left: {bulk}");
}

/// Only one source, including its failed items.
#[test]
fn scraping_a_source_includes_its_failed_items() {
    let (world, site) = seen(&[], 2, &[]);
    let feed = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("q", 2), ..Answer::default() },
        "/q0" if asked.before < 4 => Answer::status(404),
        path => Answer::page(path),
    });
    add(&world, &(feed.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--source", "2"], 0);
    let first = world.run(&["scrape", "--source", "2"]).expect(1);
    first.shows("2 enqueued, 0 already enqueued, 0 deferred, 0 refused\n1 scraped, 1 failed, 0 skipped\n");
    assert_eq!(pages(&site).len(), 0, "{}", to_text(&site.log()));
    assert_eq!(states(&world), ["none", "none", "failed", "done"]);
    assert_eq!(scrape(&world, &["--source", "2"], 1)["tasks"]["failed"], 1);
    let third = scrape(&world, &["--all-unscraped"], 0);
    assert_eq!((&third["items"]["enqueued"], &third["tasks"]["fetched"]), (&json!(3), &json!(3)), "{third}");
    assert_eq!(states(&world), vec!["done"; 4]);
}

/// B57: "run it again for the next batch" is true for failed items too: none is left out forever.
#[test]
fn failed_items_take_turns() {
    let (world, site) = seen(&[("scrape.max_bulk_batch_size", "3")], 5, &[]);
    let missing = Site::start(|asked| match asked.path {
        "/feed" => Answer { status: 200, body: numbered("m", 5), ..Answer::default() },
        _ => Answer::status(404),
    });
    add(&world, &(missing.url() + "/feed"), &[]);
    run(&world, &["--no-scrape", "--source", "2"], 0);
    for _ in 0..4 {
        scrape(&world, &["--source", "2"], 1);
    }
    let log = missing.log();
    assert!(counts(&log).iter().all(|(path, times)| *path == "/feed" || *times >= 2), "{}", to_text(&log));
    assert_eq!(pages(&site).len(), 0);
}

/// B58: if a source is disabled, or an item removed, after it was enqueued, nothing is scraped and nothing fails.
#[test]
fn sources_disabled_in_the_meantime_are_not_scraped() {
    let (world, site) = seen(&[], 3, &["--min-interval", "2"]);
    scrape(&world, &["1"], 0);
    let running = world.start(&["--json", "scrape", "2", "3"]);
    wait_until("they are deferred", || {
        count(&world, "SELECT count(*) FROM items WHERE wake_us IS NOT NULL AND state = 'waiting'") == 2
    });
    world.run(&["sources", "set", "1", "--enabled", "off"]).expect(0);
    let done = running.wait().expect(0).json();
    assert_counts(&done["tasks"], json!({ "fetched": 0, "failed": 0, "skipped": 2 }));
    let left: Vec<Value> =
        items(&world).into_iter().map(|item| json!([item["state"], item["deferred_until"]])).collect();
    assert_eq!(left, [json!(["done", null]), json!(["none", null]), json!(["none", null])]);
    assert_eq!((pages(&site).len(), count(&world, "SELECT count(*) FROM scrape_logs")), (1, 1));
    // Once it is enabled again, they are scraped.
    world.run(&["sources", "set", "1", "--enabled", "on"]).expect(0);
    assert_eq!(scrape(&world, &["2"], 0)["tasks"]["fetched"], 1);
}

/// It used to be "invalid digit found in string".
#[test]
fn a_source_that_is_not_a_number_is_unknown() {
    let world = World::new();
    for args in [
        &["run", "--source", "nosuch"][..],
        &["scrape", "--source", "nosuch"],
        &["sources", "show", "nosuch"],
    ] {
        let done = world.run(&[&["--json"], args].concat()).expect(2);
        let message = "= \"nosuch\": no such source; comity sources list shows their numbers";
        done.says(message);
        assert!(done.json()["error"].as_str().unwrap().ends_with(message), "{}", done.stdout);
    }
    let done = world.run(&["run", "--source", "7"]).expect(2);
    done.says("error: --source = 7: no such source; comity sources list shows all sources");
    world.run(&["sources", "add", "https://a.example/", "--kind", "page", "--cadence", "8"]).expect(2).says(
        "error: --cadence = \"8\": expected a duration above zero such as 8h, 90m or 2d (8 has no unit: 8m are minutes",
    );
}
