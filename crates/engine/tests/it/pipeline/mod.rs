//! Runs: which sources are fetched, and what is stored.
//!
//! - this file: what is due, cursors, and sources that fail
//! - `polite`: conditional requests, and what delays the next fetch
//! - `moves`: sources that moved or are gone
//! - `responses`: what sources send, from invalid feeds to sitemaps and pages
//! - `continuous`: one run after the other
//! - `concurrent`: runs at the same time, and runs that are stopped

mod concurrent;
mod continuous;
mod moves;
mod polite;
mod responses;

use comity::pipeline::{Cadences, RunOptions, Scraping, SourceOutcome};
use comity::store::sources::{FetchEnd, FetchResult, ItemChanges, Kind, SourceChange, SourceId};
use comity_core::cadence::RunWindow;
use comity_core::interval::SourceInterval;
use comity_core::time::Timestamp;
use serde_json::{Value, json};

use crate::station::{Station, cadence, memory, mins, noon, of, only, quick, rss, still};
use crate::support::{Asked, Reply, Site, ms, reply};

/// A site that sends a feed of two pages for every request, unless `answer` returns something else.
async fn feeds(answer: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> Site {
    Site::start(move |asked: &Asked| answer(asked).unwrap_or_else(|| reply(200).body(rss("", &["/1", "/2"]))))
        .await
}

async fn follow(station: &Station, url: &str, config: Value) -> SourceId {
    station.follow_as(url, Kind::Feed, SourceInterval::Default, config).await
}

/// Marks a source as read in a window with this end.
async fn was_read(station: &Station, source: SourceId, end: Timestamp, cursor: Value) {
    let Value::Object(cursor) = cursor else { panic!("{cursor} is not an object") };
    let tenure = station.claimed(source).await;
    let end = FetchEnd {
        tenure,
        window: RunWindow::ending(end, end).unwrap(),
        started_at: end,
        ended_at: end,
        result: FetchResult::Read { whole: true, cursor, moved_to: None },
        http_status: Some(200),
        found: 0,
        changes: ItemChanges::default(),
        error: None,
    };
    station.store.end_fetch(end).await.unwrap();
    station.store.leave_source(tenure).await.unwrap();
}

async fn last_fetch_at(station: &Station, source: SourceId) -> Option<Timestamp> {
    let cursor = station.cursor(source).await;
    cursor.get("last_fetch_at").map(|at| Timestamp::parse(at.as_str().unwrap()).unwrap())
}

/// B59, B61, B62, B63: all possible outcomes of a source, in one run.
#[tokio::test]
async fn a_run_distinguishes_due_not_due_held_and_invalid_sources() {
    let site = feeds(|asked| (asked.path == "/fails").then(|| reply(404))).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let never = follow(&station, &site.url("/never"), cadence(60)).await;
    let always = follow(&station, &site.url("/always"), json!({})).await;
    let just = follow(&station, &site.url("/just"), cadence(60)).await;
    let early = follow(&station, &site.url("/early"), cadence(60)).await;
    let held = follow(&station, &site.url("/held"), cadence(60)).await;
    let fails = follow(&station, &site.url("/fails"), json!({})).await;
    let invalid = follow(
        &station,
        &site.url("/invalid"),
        json!({ "cadence": { "mode": "interval", "every_minutes": 0 } }),
    )
    .await;
    let off = follow(&station, &site.url("/off"), json!({})).await;
    station.change(off, SourceChange { enabled: Some(false), ..SourceChange::default() }).await;
    was_read(&station, always, noon() - ms(1), json!({})).await;
    was_read(&station, just, noon() - mins(60), json!({})).await;
    was_read(&station, early, noon() - mins(60) + ms(1), json!({})).await;
    let until = noon() + ms(1);
    let cursor = json!({ "not_before": until.to_string(), "not_before_why": "it says so" });
    was_read(&station, held, noon() - mins(60), cursor).await;
    let before = station.source(held).await.cursor_json;
    let report = station.run().await;
    let counts = (report.due, report.fetched, report.partial, report.not_due, report.held, report.failed);
    assert_eq!(counts, (6, 3, 0, 1, 1, 2), "{:?}", report.sources);
    assert_eq!((report.new, report.window_end), (6, noon()));
    let sources: Vec<SourceId> = report.sources.iter().map(|note| note.source).collect();
    assert_eq!(sources, [never, always, just, early, held, fails, invalid], "sorted by id");
    let mut asked = site.paths();
    asked.sort();
    assert_eq!(asked, ["/always", "/fails", "/just", "/never"], "no other source is fetched");
    assert_eq!(*of(&report, early), SourceOutcome::NotDue { due_at: noon() + ms(1) });
    assert_eq!(station.fetches(early).await.len(), 1, "a source that isn't due gets no row");
    assert_eq!(*of(&report, held), SourceOutcome::Held { until, why: "it says so".to_owned() });
    let rows = station.fetches(held).await;
    assert_eq!(
        (rows.len(), rows[0].status.as_str(), rows[0].error.as_deref()),
        (2, "held", Some("it says so"))
    );
    assert_eq!((&rows[0].cursor_in, &rows[0].cursor_out), (&before, &before));
    let SourceOutcome::Failed { error, retry_at: Some(_) } = of(&report, invalid) else {
        panic!("{report:?}")
    };
    assert!(error.contains("cadence.every_minutes = 0"), "{error}");
    assert_eq!(station.fetches(invalid).await[0].status, "error");
    assert_eq!(station.fetches(off).await, []);
}

/// B60: after ok and partial, the cursor is the end of the window, and never moves back. An error changes nothing, and
/// other fields stay.
#[tokio::test]
async fn the_cursor_moves_only_if_something_was_read() {
    let site = feeds(|asked| match asked.path.as_str() {
        "/partial" => Some(reply(200).body(rss("<item><title>nowhere</title></item>", &["/1"]))),
        "/error" => Some(reply(500)),
        "/html" => Some(reply(200).body("<!doctype html><html><title>Login</title></html>")),
        _ => None,
    })
    .await;
    let (last, end) = (noon() - mins(90), noon() - mins(30));
    for (path, status, moves) in [
        ("/ok", "ok", true),
        ("/partial", "partial", true),
        ("/error", "error", false),
        ("/html", "error", false),
    ] {
        let station = Station::at(&still(""), &memory(), noon()).await;
        let source = follow(&station, &site.url(path), json!({})).await;
        was_read(&station, source, last, json!({ "mine": [1, null] })).await;
        let before = station.source(source).await.cursor_json;
        station.run_as(&station.run_options_until(end)).await;
        let row = &station.fetches(source).await[0];
        assert_eq!((row.status.as_str(), row.window_end), (status, end), "{path}");
        assert_eq!(row.cursor_in, before, "{path}");
        assert_eq!(row.cursor_out, station.source(source).await.cursor_json, "{path}");
        if moves {
            assert_eq!(last_fetch_at(&station, source).await, Some(end), "{path}");
            assert_eq!(station.cursor(source).await["mine"], json!([1, null]), "{path}");
        } else {
            assert_eq!(station.source(source).await.cursor_json, before, "{path}");
        }
    }
}

/// B60, B64: a run with a window in the past does not move the cursor back.
#[tokio::test]
async fn a_backfill_does_not_move_the_cursor_back() {
    let site = feeds(|_| None).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = follow(&station, &site.url("/feed"), json!({})).await;
    station.run().await;
    let report = station.run_as(&station.run_options_until(noon() - mins(600))).await;
    assert_eq!(report.fetched, 1);
    assert_eq!(last_fetch_at(&station, source).await, Some(noon()));
    let paced = follow(&station, &site.url("/paced"), cadence(60)).await;
    was_read(&station, paced, noon() - mins(10), json!({})).await;
    let report = station.run_as(&station.run_options_until(noon() - mins(600))).await;
    assert_eq!(
        *of(&report, paced),
        SourceOutcome::NotDue { due_at: noon() + mins(50) },
        "it was fetched after that window"
    );
}

/// B64: a last fetch in the future is a mistake, and not waited for.
#[tokio::test]
async fn a_source_with_a_last_fetch_in_the_future_is_due() {
    let site = feeds(|_| None).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = follow(&station, &site.url("/feed"), cadence(60)).await;
    was_read(&station, source, noon() + mins(600), json!({})).await;
    assert_eq!(station.run().await.fetched, 1);
    assert_eq!(last_fetch_at(&station, source).await, Some(noon()), "and the time is corrected");
}

/// B61: `--force` ignores cadences; sources held back by a server or a failure stay held.
#[tokio::test]
async fn force_ignores_cadences_only() {
    let site = feeds(|asked| (asked.path == "/fails").then(|| reply(404))).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let paced = follow(&station, &site.url("/paced"), cadence(60)).await;
    let fails = follow(&station, &site.url("/fails"), json!({})).await;
    let held = follow(&station, &site.url("/held"), json!({})).await;
    let until = (noon() + mins(5)).to_string();
    was_read(&station, held, noon() - mins(60), json!({ "not_before": until })).await;
    station.run().await;
    let asked = site.asked().len();
    let forced = RunOptions { cadences: Cadences::Ignored, ..station.run_options() };
    let report = station.run_as(&forced).await;
    assert_eq!((report.fetched, report.held, report.not_due), (1, 2, 0));
    assert!(matches!(of(&report, paced), SourceOutcome::Fetched { new: 0, .. }));
    let SourceOutcome::Held { why, .. } = of(&report, fails) else { panic!("{report:?}") };
    assert_eq!(why, "failed once: answered 404");
    assert_eq!(site.asked().len(), asked + 1);
}

/// B63: a failing source backs off, longer each time, and recovers automatically.
#[tokio::test]
async fn a_failing_source_backs_off_and_recovers() {
    let site = feeds(|asked| (asked.path == "/feed" && asked.before < 2).then(|| reply(500))).await;
    let store = memory();
    let mut now = noon();
    for (failures, least, most) in [(1_u32, mins(5), ms(330_000)), (2, mins(10), mins(11))] {
        let station = Station::at(&still(""), &store, now).await;
        if failures == 1 {
            follow(&station, &site.url("/feed"), json!({})).await;
            follow(&station, &site.url_on(2, "/fine"), json!({})).await;
        }
        let report = station.run().await;
        assert_eq!((report.failed, report.fetched), (1, 1), "the other one is read anyway");
        let SourceOutcome::Failed { error, retry_at: Some(retry_at) } = of(&report, SourceId(1)) else {
            panic!("{report:?}")
        };
        assert_eq!(error, "answered 500");
        let source = station.source(SourceId(1)).await;
        assert_eq!(
            (source.failures, source.retry_at, source.error.as_deref()),
            (failures, Some(*retry_at), Some("answered 500"))
        );
        let wait = retry_at.since(now);
        assert!((least..=most).contains(&wait), "{failures}: {wait}");
        station.close().await;
        let asked = site.asked_for("/feed").len();
        let early = Station::at(&still(""), &store, *retry_at - ms(1)).await;
        let report = early.run().await;
        assert_eq!((report.held, report.failed), (1, 0));
        assert_eq!(site.asked_for("/feed").len(), asked, "too early: nothing is sent");
        early.close().await;
        now = *retry_at;
    }
    let station = Station::at(&still(""), &store, now).await;
    let report = station.run().await;
    assert_eq!((report.fetched, report.held), (2, 0));
    let source = station.source(SourceId(1)).await;
    assert_eq!((source.failures, source.retry_at, source.error), (0, None, None));
    let statuses: Vec<String> =
        station.fetches(SourceId(1)).await.into_iter().rev().map(|row| row.status).collect();
    assert_eq!(statuses, ["error", "held", "error", "held", "ok"]);
}

/// B63: whatever is wrong with one source, the others are fetched.
#[tokio::test]
async fn a_failing_source_does_not_affect_the_others() {
    let site = feeds(|asked| match asked.path.as_str() {
        "/500" => Some(reply(500)),
        "/html" => Some(reply(200).body("<html>")),
        "/loop" => Some(reply(302).header("location", "/loop")),
        "/cut" => Some(reply(200).body(rss("", &["/1"])).cut()),
        _ => None,
    })
    .await;
    let station = Station::start(&quick("")).await;
    for url in [
        "http://127.0.0.1:9/closed".to_owned(),
        "http://nowhere.invalid/".to_owned(),
        "http://".to_owned(),
        site.url_on(1, "/500"),
        site.url_on(2, "/html"),
        site.url_on(3, "/loop"),
        site.url_on(4, "/cut"),
        site.url_on(5, "/fine"),
        site.url_on(6, "/fine"),
    ] {
        follow(&station, &url, json!({})).await;
    }
    let report = station.run().await;
    assert_eq!((report.due, report.failed, report.fetched), (9, 7, 2), "{:?}", report.sources);
    for note in &report.sources[..7] {
        let fetch = &station.fetches(note.source).await[0];
        assert_eq!((fetch.status.as_str(), fetch.found), ("error", 0), "{}", note.name);
        assert!(fetch.error.is_some());
    }
    assert_eq!(site.asked_for("/500").len(), 1, "one attempt: it is retried in a later run");
}

/// B56, B61: items are enqueued, unless their source is not scraped automatically.
#[tokio::test]
async fn a_run_enqueues_the_items_it_found() {
    let site = feeds(|_| None).await;
    let station = Station::start(&still("[scrape]\nmin_interval = 0\n")).await;
    let wanted = station.follow(&site.url_on(1, "/feed")).await;
    let unwanted = station.follow(&site.url_on(2, "/feed")).await;
    station.change(unwanted, SourceChange { auto_scrape: Some(false), ..SourceChange::default() }).await;
    let options = RunOptions { scraping: Scraping::On, ..station.run_options() };
    let report = station.run_as(&options).await;
    assert_eq!((report.new, report.items.enqueued, report.items.refused), (4, 2, 2));
    assert_eq!(station.states(wanted).await, "waiting waiting");
    assert_eq!(station.states(unwanted).await, "none none");
    let report = station.run_as(&RunOptions { scraping: Scraping::On, ..station.run_options() }).await;
    assert_eq!((report.new, report.items.enqueued, report.items.already), (0, 0, 0));
    station.scrape().await;
    assert_eq!(station.states(wanted).await, "done done");
    assert_eq!(site.asked().len(), 6, "two runs of two sources, and two pages");
}

/// B57: items found by a run without scraping are enqueued by the next run that scrapes.
#[tokio::test]
async fn items_of_an_earlier_run_are_enqueued_later() {
    let site = feeds(|_| None).await;
    let station = Station::at(&still("[scrape]\nmin_interval = 0\n"), &memory(), noon()).await;
    let source = follow(&station, &site.url("/feed"), cadence(60)).await;
    assert_eq!(station.run().await.items, comity::pipeline::EnqueueCounts::default());
    assert_eq!(station.states(source).await, "none none");
    let report = station.run_as(&RunOptions { scraping: Scraping::On, ..station.run_options() }).await;
    assert_eq!((report.not_due, report.items.enqueued), (1, 2));
}

/// Only the selected sources are fetched.
#[tokio::test]
async fn a_run_of_selected_sources_skips_the_others() {
    let site = feeds(|_| None).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let one = station.follow(&site.url("/one")).await;
    station.follow(&site.url("/two")).await;
    let report = station.run_as(&RunOptions { sources: Some(vec![one]), ..station.run_options() }).await;
    assert!(matches!(only(&report), SourceOutcome::Fetched { found: 2, new: 2, .. }));
    assert_eq!(site.paths(), ["/one"]);
}
