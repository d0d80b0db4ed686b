//! `comity run` end to end: what is due, how it is fetched, what is scraped and saved.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::follow::{
    FEEDS, add, assert_clean, assert_counts, count, detail, items, micros, numbered, rfc3339, rss, run,
    shown, source, states, world,
};
use crate::log::{Hit, TOLERANCE, assert_each_once, assert_spaced, counts, now_us, to_text};
use crate::nginx::Nginx;

fn paths(log: &[Hit]) -> Vec<&str> {
    log.iter().map(|hit| hit.path.as_str()).collect()
}

/// All keys of the object, with the right numbers.
#[test]
fn the_json_summary_has_all_counts() {
    let locations = format!("{FEEDS} location = /broken {{ return 500; }} location = /a1 {{ return 404; }}");
    let (world, nginx) = (world(&[]), Nginx::start(&locations));
    let cut = numbered("b", 3);
    nginx.put("feeds/whole.rss", numbered("a", 3));
    nginx.put("feeds/cut.rss", &cut[..cut.find("/b2").unwrap()]);
    nginx.put("feeds/unscraped.rss", numbered("c", 2));
    nginx.put("feeds/later.rss", numbered("d", 1));
    let url = |path: &str| nginx.url() + path;
    let later = add(&world, &url("/feeds/later.rss"), &["--cadence", "8h"]).to_string();
    let broken = add(&world, &url("/broken"), &[]);
    run(&world, &["--source", &later, "--source", &broken.to_string()], 1);
    add(&world, &url("/feeds/whole.rss"), &[]);
    add(&world, &url("/feeds/cut.rss"), &[]);
    add(&world, &url("/feeds/unscraped.rss"), &["--no-scrape"]);
    add(&world, &url("/feeds/missing.rss"), &[]);
    let began = now_us();
    let ran = run(&world, &[], 1);
    assert!((began - 1..now_us()).contains(&micros(&ran["window_end"])), "{ran}");
    let sources = json!({ "due": 5, "fetched": 2, "partial": 1, "not_due": 1, "held": 1, "failed": 1 });
    assert_counts(&ran["sources"], sources);
    let items = json!({ "new": 7, "enqueued": 5, "already": 0, "deferred": 0, "refused": 2 });
    assert_counts(&ran["items"], items);
    assert_counts(&ran["tasks"], json!({ "fetched": 4, "failed": 1, "skipped": 0 }));
    assert_eq!(detail(&ran, broken)["outcome"], "held");
    assert_eq!(ran["details"].as_array().unwrap().len(), 3);
}

/// B60, B66: validators are sent back unchanged, 304 is ok, and only new items are scraped.
#[test]
fn the_second_run_is_conditional() {
    let odd = r#"location = /odd { set $tag '"ä€ß W/ x"'; add_header ETag $tag always;
        if ($http_if_none_match = $tag) { return 304; }
        return 200 '<rss><channel><item><link>/odd1</link></item></channel></rss>'; }"#;
    let (world, nginx) = (world(&[]), Nginx::start(&format!("{FEEDS}{odd}")));
    nginx.put("feeds/a.rss", rss(&[("a0", "/a0"), ("a1", "/a1")]));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    add(&world, &(nginx.url() + "/odd"), &[]);
    let first = run(&world, &[], 0);
    assert_eq!((&first["items"]["new"], &first["tasks"]["fetched"]), (&json!(3), &json!(3)));
    let before = nginx.asked();
    let cursor = source(&world, id)["cursor"].clone();
    let second = world.run(&["--json", "run"]).expect(0);
    assert_clean(&second);
    let second = second.json();
    assert_eq!((&second["sources"]["fetched"], &second["items"]["new"]), (&json!(2), &json!(0)));
    assert_counts(&second["tasks"], json!({ "fetched": 0, "failed": 0, "skipped": 0 }));
    let asked = nginx.asked().split_off(before.len());
    let statuses: Vec<_> = asked.iter().map(|asked| (&asked["path"], &asked["status"])).collect();
    assert_eq!(statuses, [(&json!("/feeds/a.rss"), &json!(304)), (&json!("/odd"), &json!(304))]);
    assert_eq!(asked[0]["if_none_match"], cursor["etag"]);
    assert_eq!(asked[0]["if_modified_since"], cursor["last_modified"]);
    assert_eq!(asked[1]["if_none_match"], "\"ä€ß W/ x\"");
    assert!(micros(&source(&world, id)["last_fetch_at"]) > micros(&first["window_end"]));

    // One new item, and one that changed.
    nginx.put("feeds/a.rss", rss(&[("a0", "/a0"), ("a1", "/a1?changed"), ("a2", "/a2")]));
    let third = run(&world, &["--source", &id.to_string()], 0);
    let (new, changed) = (&third["items"]["new"], &third["items"]["changed"]);
    assert_eq!((new, changed, &third["tasks"]["fetched"]), (&json!(1), &json!(1), &json!(1)), "{third}");
    let changed: Vec<bool> = items(&world).iter().map(|item| !item["changed_at"].is_null()).collect();
    assert_eq!(changed, [false, true, false, false]);
}

/// B59, B61: a source that is not due is not fetched and leaves no row; `--force` fetches it.
#[test]
fn a_source_that_is_not_due_is_not_fetched() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &["--cadence", "8h"]);
    run(&world, &[], 0);
    let before = (nginx.log().len(), source(&world, id)["cursor"].clone());
    let second = run(&world, &[], 0);
    assert_eq!(
        (&second["sources"]["due"], &second["sources"]["not_due"]),
        (&json!(0), &json!(1)),
        "{second}"
    );
    assert_eq!((nginx.log().len(), source(&world, id)["cursor"].clone()), before);
    assert_eq!(count(&world, "SELECT count(*) FROM fetch_runs"), 1);
    let forced = run(&world, &["--force"], 0);
    assert_eq!((&forced["sources"]["due"], &forced["sources"]["fetched"]), (&json!(1), &json!(1)));
    assert_eq!((nginx.log().len(), count(&world, "SELECT count(*) FROM fetch_runs")), (before.0 + 1, 2));
}

/// B60, B64
#[test]
fn window_end_decides_what_is_due() {
    let (world, nginx) = (world(&[("default.min_delay", "\"200ms\"")]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &["--cadence", "8h"]);
    let hour = 3_600_000_000;
    let ago = |hours: i64| rfc3339((now_us() / 1_000_000 - hours * 3_600) * 1_000_000);
    for wrong in [&rfc3339(now_us() + hour), "tomorrow", "2026-13-01T00:00:00Z", ""] {
        let done = world.run(&["run", "--window-end", wrong]).expect(2);
        done.says("--window-end");
        done.says(wrong);
    }
    assert_eq!(nginx.log().len(), 0);
    let day = ago(24);
    let ran = run(&world, &["--window-end", &day], 0);
    assert_eq!((&ran["window_end"], &ran["sources"]["fetched"]), (&json!(day), &json!(1)), "{ran}");
    assert_eq!(source(&world, id)["cursor"]["last_fetch_at"], day);
    // 20 hours ago it was not due, 16 hours ago it was, to the second.
    let not_due = |end: &str| {
        let ran = run(&world, &["--window-end", end], 0);
        assert_eq!(
            (&ran["sources"]["not_due"], &ran["sources"]["due"]),
            (&json!(1), &json!(0)),
            "{end}: {ran}"
        );
    };
    not_due(&ago(20));
    let due = rfc3339(micros(&json!(day)) + 8 * hour);
    not_due(&rfc3339(micros(&json!(day)) + 8 * hour - 1_000_000));
    assert_eq!(run(&world, &["--window-end", &due], 0)["sources"]["fetched"], 1);
    // An older window after a newer one changes nothing, even with --force.
    not_due(&day);
    assert_eq!(run(&world, &["--window-end", &day, "--force"], 0)["sources"]["fetched"], 1);
    assert_eq!(source(&world, id)["cursor"]["last_fetch_at"], due);
    run(&world, &[], 0);
    let log = nginx.log();
    assert_eq!(counts(&log)["/feeds/a.rss"], 4, "{}", to_text(&log));
    assert_spaced(&log, 200);
}

/// B64: after a clock error, the time in the future is reported and doesn't hold the source.
#[test]
fn a_last_fetch_in_the_future_is_reported_and_fetched() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &["--cadence", "8h"]);
    let future = rfc3339(now_us() + 86_400_000_000);
    let sql = "UPDATE sources SET cursor_json = json_object('last_fetch_at', ?1, 'mine', 7)";
    world.sql().execute(sql, [&future]).unwrap();
    let done = world.run(&["--json", "run"]).expect(0);
    assert_eq!(done.json()["sources"]["fetched"], 1);
    done.says(&format!("last_fetch_at is {future}, which is in the future"));
    let cursor = source(&world, id)["cursor"].clone();
    assert_eq!(cursor["mine"], 7, "other keys are kept: {cursor}");
}

#[test]
fn only_the_named_sources_are_fetched() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    let unknown = world.run(&["--json", "run", "--source", "7"]).expect(2);
    unknown.says("--source = 7: no such source; comity sources list shows all sources");
    world.run(&["run"]).expect(0).shows(
        "No sources to fetch; list them with comity sources list, add one with comity sources add URL",
    );
    for name in ["a", "b"] {
        nginx.put(&format!("feeds/{name}.rss"), numbered(name, 1));
        add(&world, &format!("{}/feeds/{name}.rss", nginx.url()), &[]);
    }
    let ran = run(&world, &["--source", "2"], 0);
    assert_eq!(ran["sources"]["due"], 1);
    assert_eq!(paths(&nginx.log()), ["/feeds/b.rss", "/b0"]);
    world.run(&["run", "--source", "1", "--source", "7"]).expect(2);
    assert_eq!(nginx.log().len(), 2);
}

/// The next run scrapes what is left, even if no source is due.
#[test]
fn unscraped_items_are_scraped_later() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    nginx.put("feeds/a.rss", numbered("a", 3));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &["--cadence", "8h"]);
    let first = run(&world, &["--no-scrape"], 0);
    assert_eq!((&first["items"]["new"], &first["items"]["enqueued"]), (&json!(3), &json!(0)), "{first}");
    assert_eq!((nginx.log().len(), states(&world)), (1, vec!["none".to_owned(); 3]));
    let second = run(&world, &[], 0);
    assert_eq!(
        (&second["sources"]["not_due"], &second["items"]["enqueued"]),
        (&json!(1), &json!(3)),
        "{second}"
    );
    assert_eq!(second["tasks"]["fetched"], 3);
    assert_eq!(states(&world), vec!["done"; 3]);
    let log = nginx.log();
    assert_eq!(log.len(), 4, "{}", to_text(&log));
    assert_each_once(&log, "a", 3);
}

#[test]
fn a_410_disables_the_source() {
    let (world, nginx) = (world(&[]), Nginx::start("location = /feed { return 410; }"));
    let id = add(&world, &(nginx.url() + "/feed"), &[]);
    let done = world.run(&["run"]).expect(1);
    done.shows("disabled: answered 410 (gone); to fetch it again: comity sources set 1 --enabled on");
    done.shows("1 source due: 0 fetched, 1 failed");
    let shown = source(&world, id);
    assert_eq!((&shown["enabled"], &shown["state"]), (&json!(false), &json!("off")), "{shown}");
    assert!(shown["reason"].as_str().unwrap().starts_with("answered 410 (gone)"), "{shown}");
    run(&world, &["--force"], 0);
    assert_eq!(nginx.log().len(), 1);
    world.run(&["sources", "set", "1", "--enabled", "on"]).expect(0).shows("cleared its failure (answered");
    let again = run(&world, &[], 1);
    assert_eq!((nginx.log().len(), &detail(&again, id)["again_at"]), (2, &Value::Null));
}

/// A permanent redirect is trusted when it is seen twice, a temporary one never.
#[test]
fn a_moved_source_is_followed() {
    let moves =
        "location = /old { return 301 /feeds/a.rss; } location = /now { return 302 /feeds/a.rss?now; }";
    let (world, nginx) = (world(&[]), Nginx::start(&format!("{FEEDS}{moves}")));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let id = add(&world, &(nginx.url() + "/old"), &[]);
    let other = add(&world, &(nginx.url() + "/now"), &["--no-scrape"]);
    let new = nginx.url() + "/feeds/a.rss";
    let said = format!("moved permanently to {new}");
    let first = world.run(&["run"]).expect(0);
    assert!(!first.stdout.contains("moved"), "{}", first.stdout);
    assert_eq!(source(&world, id)["url"], nginx.url() + "/old");
    world.run(&["run"]).expect(0).shows(&said);
    let moved = source(&world, id);
    assert_eq!((&moved["url"], &moved["listed_url"]), (&json!(new), &json!(nginx.url() + "/old")));
    let output = world.run(&["sources", "show", &id.to_string()]).expect(0);
    output.shows(&new);
    output.shows(&(nginx.url() + "/old"));
    assert_eq!(source(&world, other)["url"], nginx.url() + "/now");
    let before = nginx.log().len();
    let third = run(&world, &["--source", &id.to_string()], 0);
    assert_eq!((&third["sources"]["fetched"], &third["items"]["new"]), (&json!(1), &json!(0)));
    assert_eq!(paths(&nginx.log()[before..]), ["/feeds/a.rss"]);
    assert_eq!(count(&world, "SELECT count(*) FROM items WHERE source_id = 1"), 1);
}

/// B76: the host that the operator listed stays allowed when the feed moves on the same host.
#[test]
fn a_private_source_may_move_on_its_own_host() {
    let moves = "location = /old { return 301 /feeds/a.rss; }";
    let (world, nginx) = (world(&[("http.allow_private", "[]")]), Nginx::start(&format!("{FEEDS}{moves}")));
    nginx.put("feeds/a.rss", rss(&[]));
    add(&world, &(nginx.url() + "/old"), &[]);
    for _ in 0..3 {
        run(&world, &[], 0);
    }
    assert_eq!(paths(&nginx.log()), ["/old", "/feeds/a.rss", "/old", "/feeds/a.rss", "/feeds/a.rss"]);
}

/// B60, B61, B63: a failing source backs off, keeps its state, and recovers automatically.
#[test]
fn a_failing_source_backs_off() {
    let (world, nginx) = (world(&[]), Nginx::start(&format!("{FEEDS} location = /five {{ return 500; }}")));
    nginx.put("feeds/a.rss", numbered("a", 1));
    let id = add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    let five = add(&world, &(nginx.url() + "/five"), &[]);
    let nobody = add(&world, "http://127.0.0.1:9/feed", &[]);
    run(&world, &["--source", &id.to_string()], 0);
    let cursor = || -> String {
        world.sql().query_row("SELECT cursor_json FROM sources WHERE id = 1", [], |row| row.get(0)).unwrap()
    };
    let known = cursor();
    std::fs::remove_file(nginx.www().join("feeds/a.rss")).unwrap();
    let began = now_us();
    let ran = run(&world, &[], 1);
    assert_eq!((&ran["sources"]["failed"], &ran["sources"]["fetched"]), (&json!(3), &json!(0)), "{ran}");
    for (id, why) in [(id, "answered 404"), (five, "answered 500"), (nobody, "connection refused by ")] {
        let detail = detail(&ran, id);
        assert!(detail["why"].as_str().unwrap().contains(why), "{detail}");
        let wait = micros(&detail["again_at"]) - began;
        assert!((300_000_000..340_000_000).contains(&wait), "{detail}");
    }
    assert_eq!(cursor(), known);
    let before = nginx.log().len();
    for args in [&[][..], &["--force"]] {
        let held = run(&world, args, 0);
        assert_eq!((&held["sources"]["held"], &held["sources"]["failed"]), (&json!(3), &json!(0)), "{held}");
        assert_eq!(detail(&held, id)["why"], "failed once: answered 404");
        assert_eq!(detail(&held, id)["again_at"], detail(&ran, id)["again_at"]);
    }
    assert_eq!(nginx.log().len(), before, "nothing is sent");
    let rows =
        "SELECT count(*) FROM fetch_runs WHERE source_id = 1 AND status = 'held' AND cursor_in = cursor_out";
    assert_eq!(count(&world, rows), 1, "one row, however often it is held");
    // Ten minutes later it fails again, and after that it recovers.
    let later = || world.sql().execute("UPDATE sources SET retry_us = 1", []).unwrap();
    later();
    let began = now_us();
    let again = run(&world, &["--source", &id.to_string()], 1);
    assert!(micros(&detail(&again, id)["again_at"]) >= began + 600_000_000, "{again}");
    assert_eq!(source(&world, id)["state"], "failing");
    nginx.put("feeds/a.rss", numbered("a", 2));
    later();
    let back = run(&world, &["--source", &id.to_string()], 0);
    assert_eq!(back["items"]["new"], 1, "{back}");
    assert_eq!(source(&world, id)["failures"], 0);
}

/// B66: hints of a feed or its server delay the next fetch, with `--force` too.
#[test]
fn hints_of_a_feed_and_its_server_are_respected() {
    let locations = "location = /aged { add_header Cache-Control 'public, max-age=900';
            return 200 '<rss><channel><item><link>/x</link></item></channel></rss>'; }
        location = /ttl { return 200 '<rss><channel><ttl>30</ttl></channel></rss>'; }
        location = /busy { add_header Retry-After 7200 always; return 503; }";
    let (world, nginx, other) = (world(&[]), Nginx::start(locations), Nginx::start(locations));
    let aged = add(&world, &(nginx.url() + "/aged"), &["--no-scrape"]);
    let ttl = add(&world, &(nginx.url() + "/ttl"), &[]);
    let busy = add(&world, &(other.url() + "/busy"), &[]);
    let neighbour = add(&world, &(other.url() + "/ttl"), &[]);
    let began = now_us();
    let first = run(&world, &[], 1);
    assert_eq!(first["sources"]["fetched"], 2, "{first}");
    assert!(micros(&detail(&first, busy)["again_at"]) >= began + 7_200_000_000 - TOLERANCE, "{first}");
    // The server sends a Retry-After of two hours.
    assert_eq!(detail(&first, neighbour)["outcome"], "held");
    let second = run(&world, &["--force"], 0);
    assert_eq!(second["sources"]["held"], 4, "{second}");
    for (id, secs, why) in
        [(aged, 900, "its server's caching headers"), (ttl, 1_800, "the feed asks not to be fetched")]
    {
        let detail = detail(&second, id);
        let wait = micros(&detail["again_at"]) - began;
        assert!((secs * 1_000_000..secs * 1_000_000 + 60_000_000).contains(&wait), "{detail}");
        assert!(detail["why"].as_str().unwrap().starts_with(why), "{detail}");
    }
    assert_eq!((nginx.log().len(), other.log().len()), (2, 1));
}

/// The summary shows what was due, what was not due and when it will be, what is held and until when, and what failed
/// and when it will be retried.
#[test]
fn the_summary_reports_the_result_of_every_source() {
    let (world, nginx) = (world(&[]), Nginx::start(&format!("{FEEDS} location = /five {{ return 500; }}")));
    let cut = numbered("b", 2);
    nginx.put("feeds/a.rss", numbered("a", 2));
    nginx.put("feeds/b.rss", &cut[..cut.find("/b1").unwrap()]);
    nginx.put("feeds/c.rss", numbered("c", 1));
    let url = |path: &str| nginx.url() + path;
    let held = add(&world, &url("/five"), &["--name", "Five"]);
    let late = add(&world, &url("/feeds/c.rss"), &["--name", "Late", "--cadence", "8h"]);
    let before = world.run(&["run"]).expect(1);
    before.shows("2 sources due: 1 fetched, 1 failed");
    before.shows("  2 Late: 1 item, 1 new");
    add(&world, &url("/feeds/a.rss"), &["--name", "Whole"]);
    add(&world, &url("/feeds/b.rss"), &["--name", "Cut"]);
    let missing = add(&world, &url("/feeds/missing.rss"), &["--name", "Missing"]);
    let done = world.run(&["run"]).expect(1);
    done.shows("4 sources due: 1 fetched, 1 partial, 1 held, 1 failed\n");
    let until = shown(&source(&world, held)["retry_at"]);
    done.shows(&format!("  1 Five: held until {until}: failed once: answered 500\n"));
    done.shows("  3 Whole: 2 items, 2 new\n");
    done.shows("  4 Cut: 1 item, 1 new; partial: XML error at byte ");
    let again = shown(&source(&world, missing)["retry_at"]);
    done.shows(&format!("  5 Missing: failed: answered 404; will retry after {again}\n"));
    let due = shown(&source(&world, late)["next_due_at"]);
    done.shows(&format!("1 source not due, next at {due} (2 Late)\n"));
    done.shows("items: 3 new, 3 scraped\n");
    done.shows("done in ");
    let quiet = world.run(&["--quiet", "run", "--source", "2"]).expect(0);
    assert_eq!((&*quiet.stdout, &*quiet.stderr), ("", ""));
}

/// Pages are saved to the chosen folder, and their text can be shown.
#[test]
fn pages_are_saved_and_can_be_read() {
    let article = r#"location = /a0 { return 200 '<!doctype html><title>The harbour</title><nav>Menu</nav><article>
        <p>The harbour, which had been closed since the storm, opened again on Monday, and the first ships,
        laden with timber and with salt, came in before noon.</p><p>More was said, on Tuesday, by all of
        them, about the tide, the weather, and the price of salt, which is high.</p></article>'; }"#;
    let (world, nginx) = (world(&[]), Nginx::start(&format!("{FEEDS}{article}")));
    nginx.put("feeds/a.rss", numbered("a", 2));
    nginx.put("feeds/b.rss", numbered("b", 1));
    add(&world, &(nginx.url() + "/feeds/a.rss"), &[]);
    run(&world, &["--out", "kept"], 0);
    let index = world.index("kept");
    let urls: BTreeSet<&str> = index.iter().map(|line| line["url"].as_str().unwrap()).collect();
    assert_eq!(urls, BTreeSet::from([&*(nginx.url() + "/a0"), &*(nginx.url() + "/a1")]));
    for line in &index {
        let body = std::fs::read(world.path("kept").join(line["file"].as_str().unwrap())).unwrap();
        assert_eq!(
            (body.len() as u64, line["status"].as_u64()),
            (line["bytes"].as_u64().unwrap(), Some(200))
        );
    }
    let text = world.run(&["items", "show", "1", "--text"]).expect(0);
    text.shows("laden with timber and with salt");
    text.shows("the price of salt, which is high.");
    assert!(!text.stdout.contains("Menu") && !text.stdout.contains('<'), "{}", text.stdout);
    // With --format none, nothing is saved.
    add(&world, &(nginx.url() + "/feeds/b.rss"), &[]);
    assert_eq!(run(&world, &["--format", "none", "--source", "2"], 0)["tasks"]["fetched"], 1);
    world.run(&["items", "show", "3", "--text"]).expect(1).says("--format none");
    assert_eq!(world.index("kept").len(), 2);
    assert!(!world.path("comity-items").exists());
}

/// B62: an invalid cadence in the store is an error of that source, and never means "always due".
#[test]
fn an_invalid_cadence_fails_only_its_source() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    for name in ["a", "b", "c"] {
        nginx.put(&format!("feeds/{name}.rss"), numbered(name, 1));
        add(&world, &format!("{}/feeds/{name}.rss", nginx.url()), &[]);
    }
    let set = |id: i64, config: &str| {
        world.sql().execute("UPDATE sources SET config_json = ?2 WHERE id = ?1", (id, config)).unwrap();
    };
    set(1, r#"{"cadence":{"mode":"interval","every_minutes":-5}}"#);
    set(3, "{nonsense");
    let ran = run(&world, &["--force"], 1);
    assert_eq!((&ran["sources"]["failed"], &ran["sources"]["fetched"]), (&json!(2), &json!(1)), "{ran}");
    let why = detail(&ran, 1)["why"].as_str().unwrap();
    assert!(why.starts_with("config_json: cadence.every_minutes = -5: expected "), "{why}");
    assert!(detail(&ran, 3)["why"].as_str().unwrap().starts_with("config_json is not valid JSON"), "{ran}");
    assert_eq!(paths(&nginx.log()), ["/feeds/b.rss", "/b0"]);
    // Once it is fixed, the source is fetched again.
    world.run(&["sources", "cadence", "set", "8h", "1"]).expect(0);
    assert_eq!(run(&world, &["--source", "1"], 0)["sources"]["fetched"], 1);
}

/// B4, B44, B66: sources and items of one host share its pace.
#[test]
fn sources_on_one_host_share_its_pace() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    for name in ["a", "b", "c"] {
        nginx.put(&format!("feeds/{name}.rss"), numbered(name, 2));
        add(&world, &format!("{}/feeds/{name}.rss", nginx.url()), &[]);
    }
    run(&world, &["--delay", "250ms"], 0);
    let log = nginx.log();
    assert_eq!(log.len(), 9, "{}", to_text(&log));
    assert_spaced(&log, 250);
}

/// B50–B53: the interval of a source applies between its pages, and delays no other source.
#[test]
fn the_interval_of_a_source_is_respected() {
    let (world, nginx) = (world(&[]), Nginx::start(FEEDS));
    for name in ["slow", "quick"] {
        nginx.put(&format!("feeds/{name}.rss"), numbered(name, 3));
    }
    add(&world, &(nginx.url() + "/feeds/slow.rss"), &["--min-interval", "1.5"]);
    add(&world, &(nginx.url() + "/feeds/quick.rss"), &[]);
    let ran = run(&world, &[], 0);
    let counted = |key: &str| ran["items"][key].as_u64().unwrap();
    assert_eq!(counted("enqueued") + counted("deferred"), 6, "{ran}");
    let log = nginx.log();
    let of = |prefix: &str| -> Vec<Hit> {
        log.iter().filter(|hit| hit.path.starts_with(prefix)).cloned().collect()
    };
    assert_spaced(&of("/slow"), 1_500);
    assert_each_once(&log, "slow", 3);
    assert_each_once(&log, "quick", 3);
    let first_slow = of("/slow")[0].start;
    assert!(of("/quick").iter().all(|hit| hit.start < first_slow + 1_500_000), "{}", to_text(&log));
}

/// Other kinds of sources: a page is its own item, sitemaps and lists contain theirs.
#[test]
fn pages_sitemaps_and_lists_are_followed_too() {
    let locations = "location = /map.xml { default_type text/xml; return 200
            '<sitemapindex><sitemap><loc>http://$http_host/part.xml</loc></sitemap></sitemapindex>'; }
        location = /part.xml { default_type text/xml; return 200
            '<urlset><url><loc>http://$http_host/m0</loc></url><url><loc>http://$http_host/m1</loc></url></urlset>'; }
        location = /list { default_type text/plain; return 200 '# two\nhttp://$http_host/l0\nhttp://$http_host/l1\n'; }
        location = /page { return 200 '<!doctype html><title>A page</title><p>Text'; }";
    let (world, nginx) = (world(&[]), Nginx::start(locations));
    for (path, kind) in [("/map.xml", "sitemap"), ("/list", "urls"), ("/page", "page")] {
        world.run(&["sources", "add", &(nginx.url() + path), "--kind", kind]).expect(0);
    }
    let ran = world.run(&["--json", "run"]).expect(0);
    assert_clean(&ran);
    let ran = ran.json();
    assert_eq!((&ran["items"]["new"], &ran["tasks"]["fetched"]), (&json!(5), &json!(5)), "{ran}");
    let log = nginx.log();
    assert_each_once(&log, "m", 2);
    assert_each_once(&log, "l", 2);
}

/// A store that can't be written to is a store error.
#[test]
fn an_unusable_store_is_reported() {
    let world = world(&[]);
    let done = world.run(&["--store", "sqlite:/no/such/folder/comity.db", "run"]).expect(3);
    done.says("/no/such/folder");
}
