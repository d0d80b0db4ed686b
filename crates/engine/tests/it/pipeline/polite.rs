//! Conditional requests, and what delays the next fetch: caching headers, hints of the feed, and a held domain.

use std::io::Write;

use comity::pipeline::SourceOutcome;
use comity::store::sources::SourceId;
use comity_core::time::{Span, Timestamp};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::{feeds, follow, was_read};
use crate::station::{Station, cadence, memory, mins, noon, of, only, quick, rss, still};
use crate::support::{Asked, Site, ms, reply};

/// B66: validators are sent back byte for byte, and only to the URL they came from.
#[tokio::test]
async fn validators_are_sent_back_byte_for_byte_to_their_url() {
    const ETAG: &[u8] = b"W/\"caf\xe9 \xff\"  x";
    let site = Site::start(|asked: &Asked| match (asked.path.as_str(), asked.before) {
        ("/feed", _) => reply(302).header("location", "/real").header("etag", "\"of the redirect\""),
        (_, 0) => {
            let feed = reply(200).body(rss("", &["/1", "/2"]));
            feed.raw_header("etag", ETAG).header("last-modified", "yesterday, roughly")
        }
        _ => reply(304).body(""),
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    station.run().await;
    let report = station.run().await;
    let nothing = SourceOutcome::Fetched { found: 0, new: 0, changed: 0, problem: None, moved_to: None };
    assert_eq!((only(&report), report.fetched), (&nothing, 1), "304 is ok");
    let asked = site.asked();
    let conditions = |asked: &Asked| {
        let header = |name| asked.header(name).map(str::to_owned);
        (header("if-none-match"), header("if-modified-since"))
    };
    let etag: String = ETAG.iter().map(|byte| char::from(*byte)).collect();
    let expected = [
        ("/feed", (None, None)),
        ("/real", (None, None)),
        ("/feed", (None, None)),
        ("/real", (Some(etag), Some("yesterday, roughly".to_owned()))),
    ];
    for (asked, (path, expected)) in asked.iter().zip(expected) {
        assert_eq!((asked.path.as_str(), conditions(asked)), (path, expected));
    }
    assert_eq!(station.items(source).await.len(), 2, "the items stay");
    let rows = station.fetches(source).await;
    assert_eq!((rows[0].status.as_str(), rows[0].http_status), ("ok", Some(304)));
    station.run().await;
    assert_eq!(
        site.asked_for("/real")[2].header("if-modified-since"),
        Some("yesterday, roughly"),
        "a 304 keeps them"
    );
}

/// B66: a response without validators removes the old ones.
#[tokio::test]
async fn validators_are_those_of_the_last_response() {
    let site = feeds(|asked| {
        let feed = reply(200).body(rss("", &["/1"]));
        Some(if asked.before == 0 { feed.header("etag", "\"a\"") } else { feed })
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    station.follow(&site.url("/feed")).await;
    for _ in 0..3 {
        station.run().await;
    }
    let asked: Vec<_> =
        site.asked().into_iter().map(|asked| asked.header("if-none-match").map(str::to_owned)).collect();
    assert_eq!(asked, [None, Some("\"a\"".to_owned()), None]);
}

/// B66
#[tokio::test]
async fn feeds_may_be_compressed() {
    let site = feeds(|asked| {
        let accepts = asked.header("accept-encoding").is_some_and(|coding| coding.contains("gzip"));
        assert!(
            accepts && asked.header("accept").is_some_and(|accept| accept.contains("application/rss+xml"))
        );
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(rss("", &["/1", "/2"]).as_bytes()).unwrap();
        Some(reply(200).header("content-encoding", "gzip").body(packed.finish().unwrap()))
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    station.follow(&site.url("/feed")).await;
    assert_eq!(station.run().await.new, 2);
}

/// B61, B66: the next request is sent exactly when caching headers and the hints of the feed allow it.
#[tokio::test]
async fn a_feed_is_not_fetched_before_its_headers_and_hints_allow() {
    let at = |text: &str| Timestamp::parse(text).unwrap();
    let expires = "Sun, 15 Nov 2026 12:30:00 GMT";
    let sy =
        "<sy:updatePeriod xmlns:sy='http://purl.org/rss/1.0/modules/syndication/'>hourly</sy:updatePeriod>";
    for (header, words, until, who) in [
        (Some(("cache-control", "max-age=600")), "", noon() + mins(10), "server"),
        (Some(("expires", expires)), "", noon() + mins(30), "server"),
        (None, "<ttl>45</ttl>", noon() + mins(45), "feed"),
        (None, sy, noon() + mins(60), "feed"),
        (None, "<skipHours><hour>12</hour><hour>13</hour></skipHours>", at("2026-11-15T14:00:00Z"), "feed"),
        (None, "<skipDays><day>Sunday</day></skipDays>", at("2026-11-16T00:00:00Z"), "feed"),
        (Some(("cache-control", "max-age=600")), "<ttl>45</ttl>", noon() + mins(45), "feed"),
        (Some(("cache-control", "max-age=6000")), "<ttl>45</ttl>", noon() + mins(100), "server"),
    ] {
        let words = words.to_owned();
        let site = feeds(move |_| {
            let feed = reply(200).body(rss(&words, &["/1"]));
            Some(header.iter().fold(feed, |feed, (name, value)| feed.header(name, value)))
        })
        .await;
        let store = memory();
        let station = Station::at(&still(""), &store, noon()).await;
        let source = station.follow(&site.url("/feed")).await;
        assert_eq!(station.run().await.fetched, 1);
        assert_eq!(station.cursor(source).await["not_before"], json!(until.to_string()));
        station.close().await;
        let early = Station::at(&still(""), &store, until - ms(1)).await;
        let SourceOutcome::Held { until: held, why } = only(&early.run().await).clone() else {
            panic!("{header:?}")
        };
        assert_eq!((held, why.contains(who), site.asked().len()), (until, true, 1), "{why}");
        early.close().await;
        let then = Station::at(&still(""), &store, until).await;
        assert_eq!(then.run().await.fetched, 1, "{header:?}");
        assert_eq!(site.asked().len(), 2);
    }
}

/// B66: a feed is never fetched earlier than its cadence.
#[tokio::test]
async fn headers_and_hints_never_lead_to_an_earlier_fetch() {
    let site =
        feeds(|_| Some(reply(200).body(rss("<ttl>1</ttl>", &[])).header("cache-control", "max-age=1"))).await;
    let store = memory();
    let station = Station::at(&still(""), &store, noon()).await;
    follow(&station, &site.url("/feed"), cadence(60)).await;
    station.run().await;
    station.close().await;
    let later = Station::at(&still(""), &store, noon() + mins(59)).await;
    assert_eq!(*only(&later.run().await), SourceOutcome::NotDue { due_at: noon() + mins(60) });
    assert_eq!(site.asked().len(), 1);
}

/// B66: a 304 has no hints, so those of the last feed apply.
#[tokio::test]
async fn the_hints_of_a_feed_still_apply_after_a_304() {
    let site = feeds(|asked| {
        Some(match asked.before {
            0 => reply(200).body(rss("<ttl>30</ttl>", &["/1"])).header("etag", "\"a\""),
            _ => reply(304).body(""),
        })
    })
    .await;
    let store = memory();
    let first = Station::at(&still(""), &store, noon()).await;
    let source = first.follow(&site.url("/feed")).await;
    first.run().await;
    first.close().await;
    let second = Station::at(&still(""), &store, noon() + mins(30)).await;
    assert_eq!(second.run().await.fetched, 1);
    assert_eq!(second.cursor(source).await["not_before"], json!((noon() + mins(60)).to_string()));
}

/// B63, B66: a Retry-After longer than the backoff applies, and a shorter one does not shorten it.
#[tokio::test]
async fn a_failed_source_waits_for_the_longer_of_backoff_and_retry_after() {
    for (seconds, least, most) in [("3600", mins(60), mins(60)), ("1", mins(5), ms(330_000))] {
        let site = feeds(move |_| Some(reply(503).header("retry-after", seconds))).await;
        let station = Station::at(&still(""), &memory(), noon()).await;
        station.follow(&site.url("/feed")).await;
        let SourceOutcome::Failed { retry_at: Some(retry_at), .. } = only(&station.run().await).clone()
        else {
            panic!()
        };
        assert!((least..=most).contains(&retry_at.since(noon())), "{seconds}: {retry_at}");
    }
}

/// B61: a run does not wait for a domain with a long Retry-After.
#[tokio::test]
async fn a_source_on_a_held_domain_is_held() {
    let site = feeds(|asked| (asked.path == "/full").then(|| reply(429).header("retry-after", "100"))).await;
    let station = Station::start(&quick("")).await;
    let full = station.follow(&site.url("/full")).await;
    let other = station.follow(&site.url("/other")).await;
    let elsewhere = station.follow(&site.url_on(2, "/elsewhere")).await;
    let began = station.now();
    let report = station.run().await;
    assert!(station.now().since(began) < Span::from_secs(60), "the run does not wait for it");
    assert_eq!((report.failed, report.held, report.fetched), (1, 1, 1), "{:?}", report.sources);
    assert!(
        matches!(of(&report, full), SourceOutcome::Failed { .. })
            && matches!(of(&report, elsewhere), SourceOutcome::Fetched { .. })
    );
    let SourceOutcome::Held { until, why } = of(&report, other) else { panic!("{report:?}") };
    let wait = until.since(began);
    assert!((Span::from_secs(100)..Span::from_secs(160)).contains(&wait), "{wait}: {why}");
    assert_eq!(site.asked_for("/other").len(), 0, "nothing was sent");
    let rows = station.fetches(other).await;
    assert_eq!((rows[0].status.as_str(), rows[0].error.as_ref()), ("held", Some(why)));
    assert_eq!(station.source(other).await.failures, 0, "it did not fail");
}

/// B10, B66: sources of one host are fetched one after the other, and those of different hosts in parallel.
#[tokio::test]
async fn sources_of_one_host_are_fetched_one_after_the_other() {
    let site = feeds(|_| Some(reply(200).body(rss("", &[])).after(100))).await;
    let station = Station::start(&quick("").replace("10ms", "200ms")).await;
    for nth in 0..4 {
        station.follow(&site.url(&format!("/{nth}"))).await;
    }
    for host in 2..=4 {
        station.follow(&site.url_on(host, "/feed")).await;
    }
    assert_eq!(station.run().await.fetched, 7);
    assert_eq!(site.most_in_flight(1), 1);
    assert!(site.gaps(1).iter().all(|gap| *gap >= ms(190)), "{:?}", site.gaps(1));
    let asked = site.asked();
    let others: Vec<_> = asked.iter().filter(|asked| asked.host != "127.0.0.1").collect();
    let last_of_first = asked.iter().rfind(|asked| asked.host == "127.0.0.1").unwrap().at;
    assert!(
        others.iter().all(|other| other.at < last_of_first),
        "the other hosts did not wait for the first"
    );
    assert!(site.most_at_once() >= 3, "{}", site.most_at_once());
}

/// B60, B66: validators in the cursor are sent, no matter who wrote them.
#[tokio::test]
async fn validators_come_from_the_cursor() {
    let site = feeds(|_| Some(reply(304).body(""))).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    let cursor = json!({ "etag": "\"\u{e9}\"", "validators_of": site.url("/feed") });
    was_read(&station, source, noon() - mins(60), cursor).await;
    station.run().await;
    assert_eq!(site.asked()[0].header("if-none-match"), Some("\"\u{e9}\""));
    let other = station.follow(&site.url("/other")).await;
    assert_eq!(other, SourceId(2));
    let cursor = json!({ "etag": "\"x\"", "validators_of": site.url("/feed") });
    was_read(&station, other, noon() - mins(60), cursor).await;
    station.run().await;
    assert_eq!(site.asked_for("/other")[0].header("if-none-match"), None, "it came from another URL");
}
