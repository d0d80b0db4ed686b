//! Sources that moved permanently or temporarily, or are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use comity::pipeline::SourceOutcome;
use comity::store::sources::SourceChange;
use comity::store::tasks::Lead;

use super::feeds;
use crate::client::QUICK;
use crate::station::{Station, memory, noon, only, rss, still};
use crate::support::{Asked, Site, reply};

/// A feed at `/feed` that redirects with `status` to `to`.
async fn moving(status: u16, to: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Site {
    feeds(move |asked| (asked.path == "/feed").then(|| reply(status).header("location", &to(asked)))).await
}

fn moved_to(outcome: &SourceOutcome) -> Option<&str> {
    let SourceOutcome::Fetched { moved_to, .. } = outcome else { panic!("{outcome:?}") };
    moved_to.as_deref()
}

/// B66, B76: a permanent redirect counts when it is seen again, and its target was not listed by the operator.
#[tokio::test]
async fn a_source_moves_when_a_permanent_redirect_is_seen_twice() {
    for status in [301, 308] {
        let site = moving(status, |asked| asked.url_on(2, "/new")).await;
        let station = Station::at(&still(""), &memory(), noon()).await;
        let source = station.follow(&site.url("/feed")).await;
        assert_eq!(moved_to(only(&station.run().await)), None, "not at once");
        let target = site.url_on(2, "/new");
        let row = station.source(source).await;
        assert_eq!((row.url, row.lead), (site.url("/feed"), Lead::Listed));
        assert_eq!(station.cursor(source).await["moved_to"], target);
        assert_eq!(moved_to(only(&station.run().await)), Some(target.as_str()));
        let row = station.source(source).await;
        assert_eq!(
            (row.url.as_str(), row.lead, row.listed_url),
            (target.as_str(), Lead::Remote, site.url("/feed"))
        );
        assert_eq!(station.run().await.fetched, 1);
        assert_eq!(site.paths(), ["/feed", "/new", "/feed", "/new", "/new"]);
        assert_eq!(station.items(source).await.len(), 2, "its items are the same");
    }
}

/// B66
#[tokio::test]
async fn a_temporary_redirect_does_not_move_a_source() {
    for status in [302, 303, 307] {
        let site = moving(status, |_| "/new".to_owned()).await;
        let station = Station::at(&still(""), &memory(), noon()).await;
        let source = station.follow(&site.url("/feed")).await;
        for _ in 0..3 {
            assert_eq!(moved_to(only(&station.run().await)), None, "{status}");
        }
        assert_eq!(station.source(source).await.url, site.url("/feed"));
        assert!(!station.cursor(source).await.contains_key("moved_to"));
    }
}

/// B66: only the permanent redirects at the start of a chain count.
#[tokio::test]
async fn a_source_moves_up_to_the_first_temporary_redirect() {
    let site = feeds(|asked| {
        Some(match asked.path.as_str() {
            "/feed" => reply(301).header("location", "/a"),
            "/a" => reply(302).header("location", "/b"),
            "/b" => reply(301).header("location", "/c"),
            _ => return None,
        })
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    station.follow(&site.url("/feed")).await;
    station.run().await;
    assert_eq!(moved_to(only(&station.run().await)), Some(site.url("/a").as_str()));
}

/// B66: a different target starts over.
#[tokio::test]
async fn a_redirect_to_changing_targets_is_ignored() {
    let times = Arc::new(AtomicUsize::new(0));
    let count = times.clone();
    let site =
        moving(308, move |_| ["/a", "/b", "/a", "/a"][count.fetch_add(1, Relaxed).min(3)].to_owned()).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    for _ in 0..3 {
        assert_eq!(moved_to(only(&station.run().await)), None);
    }
    assert_eq!(moved_to(only(&station.run().await)), Some(site.url("/a").as_str()));
    assert_eq!(station.source(source).await.url, site.url("/a"));
}

/// B66: a redirect that disappears in between was a mistake.
#[tokio::test]
async fn a_redirect_that_was_removed_is_ignored() {
    let site = feeds(|asked| {
        let moves = asked.path == "/feed" && asked.before != 1;
        moves.then(|| reply(301).header("location", "/new"))
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    for _ in 0..3 {
        assert_eq!(moved_to(only(&station.run().await)), None);
    }
    assert_eq!(station.source(source).await.url, site.url("/feed"));
}

/// A source does not move to the URL of another source.
#[tokio::test]
async fn two_sources_are_not_merged() {
    let site = moving(301, |_| "/taken".to_owned()).await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    station.follow(&site.url("/taken")).await;
    for _ in 0..3 {
        assert_eq!(station.run().await.fetched, 2);
    }
    assert_eq!(station.source(source).await.url, site.url("/feed"));
}

/// B76: the new URL of a source is trusted no more than the redirect to it.
#[tokio::test]
async fn a_source_that_moved_to_a_private_address_is_refused() {
    let site = moving(301, |asked| asked.url_on(2, "/new")).await;
    let store = memory();
    let free = Station::at(&still(""), &store, noon()).await;
    let source = free.follow(&site.url("/feed")).await;
    free.run().await;
    free.run().await;
    assert_eq!(free.source(source).await.url, site.url_on(2, "/new"));
    free.close().await;
    let guarded = Station::at(&QUICK.replace("10ms", "0s"), &store, noon()).await;
    let before = site.asked().len();
    let report = guarded.run().await;
    let SourceOutcome::Failed { error, .. } = only(&report) else { panic!("{report:?}") };
    assert!(error.contains("127.0.0.2"), "{error}");
    assert_eq!(site.asked().len(), before, "nothing was sent");
    let listed =
        SourceChange { url: Some(site.url_on(2, "/new")), enabled: Some(true), ..SourceChange::default() };
    guarded.change(source, listed).await;
    assert_eq!(guarded.run().await.fetched, 1, "it is allowed if the operator lists it");
}

/// B76: it failed because the operator had not listed it; when that changes, the backoff is reset.
#[tokio::test]
async fn a_source_is_fetched_at_once_after_its_url_was_listed() {
    let site = moving(301, |asked| asked.url_on(2, "/new")).await;
    let store = memory();
    let free = Station::at(&still(""), &store, noon()).await;
    let source = free.follow(&site.url("/feed")).await;
    free.run().await;
    free.run().await;
    free.close().await;
    let guarded = Station::at(&QUICK.replace("10ms", "0s"), &store, noon()).await;
    assert_eq!(guarded.run().await.failed, 1);
    guarded
        .change(source, SourceChange { url: Some(site.url_on(2, "/new")), ..SourceChange::default() })
        .await;
    assert_eq!(guarded.source(source).await.lead, Lead::Listed);
    let report = guarded.run().await;
    assert_eq!((report.fetched, report.held), (1, 0), "{:?}", report.sources);
}

/// B76: the redirect is refused, so the source does not move.
#[tokio::test]
async fn a_redirect_to_a_private_address_does_not_move_a_source() {
    let site = moving(301, |asked| asked.url_on(2, "/new")).await;
    let store = memory();
    let station = Station::at(&QUICK.replace("10ms", "0s"), &store, noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    let report = station.run().await;
    assert!(matches!(only(&report), SourceOutcome::Failed { .. }), "{report:?}");
    assert_eq!(site.paths(), ["/feed"]);
    assert_eq!(
        (station.source(source).await.url, station.cursor(source).await.len()),
        (site.url("/feed"), 0)
    );
}

/// B76: if a source moves within the host that the operator listed, it still counts as listed.
#[tokio::test]
async fn a_source_that_moved_within_its_listed_host_stays_reachable() {
    let site = moving(301, |_| "/new/".to_owned()).await;
    let station = Station::at(&QUICK.replace("10ms", "0s"), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    station.run().await;
    assert_eq!(moved_to(only(&station.run().await)), Some(site.url("/new/").as_str()));
    let report = station.run().await;
    assert_eq!((report.fetched, report.failed), (1, 0), "{:?}", report.sources);
    assert_eq!(station.source(source).await.lead, Lead::Listed);
}

/// After a 410 the source is disabled, and the message says how to enable it again.
#[tokio::test]
async fn a_source_that_is_gone_is_disabled() {
    let site = Site::start(|asked: &Asked| match asked.before {
        0 => reply(410),
        _ => reply(200).body(rss("", &["/1"])),
    })
    .await;
    let station = Station::at(&still(""), &memory(), noon()).await;
    let source = station.follow(&site.url("/feed")).await;
    let report = station.run().await;
    let SourceOutcome::Failed { error, retry_at: None } = only(&report) else { panic!("{report:?}") };
    assert!(error.contains("410") && error.contains("comity sources set 1 --enabled on"), "{error}");
    let row = station.source(source).await;
    assert_eq!((row.enabled, row.error.as_ref()), (false, Some(error)));
    assert_eq!(station.fetches(source).await[0].status, "error");
    let report = station.run().await;
    assert_eq!((report.due, report.sources.len(), site.asked().len()), (0, 0, 1), "it is not fetched again");
    station.change(source, SourceChange { enabled: Some(true), ..SourceChange::default() }).await;
    assert_eq!(station.run().await.fetched, 1);
}
