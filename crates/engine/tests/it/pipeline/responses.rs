//! What sources send: invalid feeds, other documents, sitemaps, lists and pages.

use std::io::Write;

use comity::jobs::StopReason;
use comity::pipeline::{RunOptions, Scraping, SourceOutcome};
use comity::store::items::ItemState;
use comity::store::sources::Kind;
use comity::store::tasks::Lead;
use comity_core::interval::SourceInterval;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::feeds;
use crate::station::{Station, memory, noon, only, quick, rss, still};
use crate::support::{Asked, Site, reply};

async fn failure(site: &Site, kind: Kind) -> String {
    let station = Station::at(&still(""), &memory(), noon()).await;
    station.follow_as(&site.url("/feed"), kind, SourceInterval::Default, json!({})).await;
    let report = station.run().await;
    let SourceOutcome::Failed { error, retry_at: Some(_) } = only(&report) else { panic!("{report:?}") };
    error.clone()
}

/// B60, B66: the entries before the error are used, and the next request is unconditional.
#[tokio::test]
async fn a_truncated_feed_is_read_in_part_and_fetched_again_completely() {
    let site = feeds(|asked| {
        let whole = rss("", &["/1", "/2", "/3"]);
        let end = if asked.before == 1 { whole.len() - 60 } else { whole.len() };
        Some(reply(200).header("etag", &format!("\"{}\"", asked.before)).body(&whole.as_bytes()[..end]))
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    station.run().await;
    let report = station.run().await;
    assert_eq!((report.partial, report.fetched), (1, 0), "{:?}", report.sources);
    let SourceOutcome::Fetched { found: 2, problem: Some(_), .. } = only(&report) else {
        panic!("{report:?}")
    };
    let cursor = station.cursor(source).await;
    assert!(["etag", "validators_of"].iter().all(|key| !cursor.contains_key(*key)), "{cursor:?}");
    assert_eq!(station.items(source).await.len(), 3, "the items found before are not lost");
    station.run().await;
    let conditions: Vec<_> =
        site.asked().iter().map(|asked| asked.header("if-none-match").map(str::to_owned)).collect();
    assert_eq!(conditions, [None, Some("\"0\"".to_owned()), None]);
}

/// If the connection breaks, it is unknown how much is missing.
#[tokio::test]
async fn a_response_whose_connection_breaks_is_a_failure() {
    let site = feeds(|_| Some(reply(200).body(rss("", &["/1", "/2"])).cut())).await;
    failure(&site, Kind::Feed).await;
}

/// The error says what was found instead of a feed, and what to do.
#[tokio::test]
async fn a_page_instead_of_a_feed_fails_with_a_hint() {
    let page = "<!doctype html><html><head><title>Login</title></head><body>Please</body></html>";
    let site = feeds(move |_| Some(reply(200).header("content-type", "text/html").body(page))).await;
    let error = failure(&site, Kind::Feed).await;
    assert!(error.contains("HTML page titled \"Login\"") && error.contains("comity sources add"), "{error}");
    let empty = feeds(|_| Some(reply(200).body(""))).await;
    assert_eq!(failure(&empty, Kind::Feed).await, "empty response: expected a feed");
}

/// No more than the limit is read, compressed or not.
#[tokio::test]
async fn a_feed_that_is_too_large_fails() {
    let large = vec![b' '; (16 << 20) + 1];
    let site = feeds(move |_| Some(reply(200).body(large.clone()))).await;
    let error = failure(&site, Kind::Feed).await;
    assert!(error.contains("16777216"), "{error}");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let chunk = vec![b' '; 1 << 20];
    (0..200).for_each(|_| packed.write_all(&chunk).unwrap());
    let packed = packed.finish().unwrap();
    assert!(packed.len() < 2 << 20);
    for coding in ["content-encoding", "x-none"] {
        let packed = packed.clone();
        let site = feeds(move |_| Some(reply(200).header(coding, "gzip").body(packed.clone()))).await;
        let error = failure(&site, Kind::Feed).await;
        assert!(error.contains("bytes"), "{coding}: {error}");
    }
}

/// B63: a sitemap index is read with its sitemaps; if one fails, the source counts as read in part.
#[tokio::test]
async fn a_sitemap_index_is_read_with_its_sitemaps() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/sitemap.xml" => {
            let one = |path| format!("<sitemap><loc>{}</loc></sitemap>", asked.url_on(1, path));
            reply(200).body(format!("<sitemapindex>{}{}</sitemapindex>", one("/a.xml"), one("/b.xml")))
        }
        "/a.xml" => {
            let one = |path| format!("<url><loc>{}</loc></url>", asked.url_on(1, path));
            reply(200).body(format!("<urlset>{}{}</urlset>", one("/1"), one("/2")))
        }
        _ if asked.before == 0 => reply(404),
        _ => reply(200).body(format!("<urlset><url><loc>{}</loc></url></urlset>", asked.url_on(1, "/3"))),
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source =
        station.follow_as(&site.url("/sitemap.xml"), Kind::Sitemap, SourceInterval::Default, json!({})).await;
    let report = station.run().await;
    let SourceOutcome::Fetched { found: 2, new: 2, problem: Some(problem), .. } = only(&report) else {
        panic!("{report:?}")
    };
    assert!(problem.contains("/b.xml") && problem.contains("answered 404"), "{problem}");
    assert_eq!(report.partial, 1);
    assert_eq!(station.fetches(source).await[0].status, "partial");
    assert_eq!(station.source(source).await.failures, 0);
    let report = station.run().await;
    assert!(
        matches!(only(&report), SourceOutcome::Fetched { found: 3, new: 1, problem: None, .. }),
        "{report:?}"
    );
    assert_eq!(site.paths(), ["/sitemap.xml", "/a.xml", "/b.xml", "/sitemap.xml", "/a.xml", "/b.xml"]);
}

/// B66, B76. Regression: an unchanged index hid changes of its sitemaps, and sitemaps on the host listed by the
/// operator were not trusted.
#[tokio::test]
async fn the_sitemaps_of_an_unchanged_index_are_read_again() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/index.xml" if asked.header("if-none-match").is_some() => reply(304).body(""),
        "/index.xml" => {
            let child = format!("<sitemap><loc>{}</loc></sitemap>", asked.url_on(1, "/child.xml"));
            let index = format!("<sitemapindex>{child}</sitemapindex>");
            reply(200).header("etag", "\"same\"").header("last-modified", "yesterday").body(index)
        }
        _ => {
            let page = |nth| format!("<url><loc>{}</loc></url>", asked.url_on(1, &format!("/{nth}")));
            let pages: String = (0..=asked.before).map(page).collect();
            reply(200).header("etag", "\"child\"").body(format!("<urlset>{pages}</urlset>"))
        }
    })
    .await;
    // Private addresses are only allowed if the operator listed them.
    let station = Station::at(&crate::client::QUICK.replace("10ms", "0s"), &memory(), noon()).await;
    let source =
        station.follow_as(&site.url("/index.xml"), Kind::Sitemap, SourceInterval::Default, json!({})).await;
    for (found, nth) in [(1, "the first"), (2, "the second")] {
        let report = station.run().await;
        let expected = SourceOutcome::Fetched { found, new: 1, changed: 0, problem: None, moved_to: None };
        assert_eq!(*only(&report), expected, "{nth} run");
    }
    assert_eq!(site.paths(), ["/index.xml", "/child.xml", "/index.xml", "/child.xml"]);
    let conditions = ["if-none-match", "if-modified-since"];
    for asked in site.asked() {
        assert!(conditions.iter().all(|name| asked.header(name).is_none()), "{}", asked.head);
    }
    let items = station.items(source).await;
    assert!(items.iter().all(|item| item.lead == Lead::Listed), "{items:?}");
}

/// B76: a sitemap on a private address is not fetched if it was found in a sitemap index.
#[tokio::test]
async fn a_sitemap_on_a_private_address_is_not_fetched() {
    let site = Site::start(|asked: &Asked| {
        let one = |host| format!("<sitemap><loc>{}</loc></sitemap>", asked.url_on(host, "/inside.xml"));
        reply(200).body(format!("<sitemapindex>{}</sitemapindex>", one(2)))
    })
    .await;
    let station = Station::at(&crate::client::QUICK.replace("10ms", "0s"), &memory(), noon()).await;
    station.follow_as(&site.url("/sitemap.xml"), Kind::Sitemap, SourceInterval::Default, json!({})).await;
    assert_eq!(station.run().await.partial, 1);
    assert_eq!(site.paths(), ["/sitemap.xml"]);
}

/// A list with one URL per line.
#[tokio::test]
async fn a_list_of_urls_is_read() {
    let site = feeds(|asked| {
        Some(reply(200).body(format!("# mine\n{}\n\n{}\n", asked.url_on(1, "/1"), asked.url_on(1, "/2"))))
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow_as(&site.url("/list"), Kind::Urls, SourceInterval::Default, json!({})).await;
    assert_eq!(station.run().await.new, 2);
    let urls: Vec<String> = station.items(source).await.into_iter().map(|item| item.url).collect();
    assert_eq!(urls, [site.url("/1"), site.url("/2")]);
}

/// A changed entry keeps its id.
#[tokio::test]
async fn a_changed_entry_is_detected() {
    let site = feeds(|asked| {
        let item = |guid, title| format!("<item><guid isPermaLink='false'>{guid}</guid><title>{title}</title><link>/{guid}</link></item>");
        let title = if asked.before == 0 { "old" } else { "new" };
        Some(reply(200).body(rss(&format!("{}{}", item("a", title), item("b", "same")), &[])))
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    station.run().await;
    let before = station.items(source).await;
    let report = station.run().await;
    assert_eq!((report.new, report.changed), (0, 1));
    let after = station.items(source).await;
    assert_eq!(
        (after[0].id, after[0].title.as_deref(), after[0].changed_at),
        (before[0].id, Some("new"), Some(noon()))
    );
    assert_eq!(after[1], before[1]);
}

/// A page is its own item, and is scraped again when it has changed.
#[tokio::test]
async fn a_changed_page_is_scraped_again() {
    // Run, scrape, run, scrape, run: it changes between the second and the third pair.
    let site = feeds(|asked| {
        let news = if asked.before < 3 { "old" } else { "new" };
        Some(
            reply(200)
                .header("content-type", "text/html")
                .body(format!("<title>T</title><p>{news} {}", "words ".repeat(60))),
        )
    })
    .await;
    let toml = quick("[scrape]\nmin_interval = 0\n");
    let mut station = Station::start(&toml).await;
    let source = station.follow_as(&site.url("/page"), Kind::Page, SourceInterval::Default, json!({})).await;
    for (new, changed, scrapes) in [(1, 0, 1), (0, 0, 1), (0, 1, 2)] {
        let report = station.run_as(&RunOptions { scraping: Scraping::On, ..station.run_options() }).await;
        assert_eq!((report.new, report.changed, report.items.enqueued), (new, changed, new + changed));
        assert_eq!(station.scrape().await, StopReason::Idle);
        let items = station.items(source).await;
        assert_eq!(
            (items.len(), items[0].state, items[0].url.clone()),
            (1, ItemState::Done, site.url("/page"))
        );
        assert_eq!(station.scrapes(items[0].id).await.len(), scrapes);
        station = station.again(&toml).await;
    }
}
