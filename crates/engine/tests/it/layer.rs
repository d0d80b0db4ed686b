//! Clients made polite by a layer, judged by the sites' logs: tower, reqwest and our own client on one gate.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use comity::clock::Clock;
use comity::event::{Event, Events, Listener};
use comity::gate::Gate;
use comity::layer::{BoxError, InFlightBody, LayerError, PoliteLayer};
use comity_core::intent::Intent;
use comity_core::outcome::Outcome;
use comity_core::time::Timestamp;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use reqwest::redirect::Policy;
use reqwest_middleware::ClientWithMiddleware;
use tower::{Layer, Service, ServiceExt};

use crate::client::QUICK;
use crate::support::{Asked, ClosedPort, Site, a_moment, config, eventually, ms, reply, soon, waiting};

fn gate(toml: &str) -> Gate {
    Gate::new(config(toml).rules().clone(), Clock::new(), Events::new())
}

fn quick(delay: &str) -> Gate {
    gate(&QUICK.replace("10ms", delay))
}

fn hyper_client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn plain() -> reqwest::ClientBuilder {
    reqwest::Client::builder().redirect(Policy::none()).retry(reqwest::retry::never()).no_proxy()
}

fn polite_reqwest(layer: impl reqwest_middleware::Middleware) -> ClientWithMiddleware {
    reqwest_middleware::ClientBuilder::new(plain().build().unwrap()).with(layer).build()
}

fn get(url: &str) -> Request<Full<Bytes>> {
    Request::get(url).body(Full::default()).unwrap()
}

/// Sends one request through a tower client and reads its body.
async fn asked(layer: &PoliteLayer, url: &str) -> Result<u16, BoxError> {
    let (parts, body) = layer.layer(hyper_client()).oneshot(get(url)).await?.into_parts();
    body.collect().await?;
    Ok(parts.status.as_u16())
}

fn layer_error(error: &BoxError) -> &LayerError {
    error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

fn middleware_error(error: reqwest_middleware::Error) -> LayerError {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast().unwrap(),
        reqwest_middleware::Error::Reqwest(error) => panic!("{error}"),
    }
}

fn counted(gate: &Gate, outcome: Outcome) -> u64 {
    gate.events().counters().outcome(outcome)
}

/// Counts permits that were returned unused.
#[derive(Default)]
struct Unused(AtomicU64);

impl Listener for Unused {
    fn on_event(&self, event: &Event<'_>) {
        if matches!(event, Event::Abandoned { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[track_caller]
fn assert_gaps(site: &Site, nth: u8, millis: u64) {
    let gaps = site.gaps(nth);
    assert!(gaps.iter().all(|gap| *gap >= ms(millis)), "{gaps:?}");
}

/// Checks that no request arrived before its turn. A layer paces when its client gets a request. A client that is slow
/// to send one shortens the gap to the next, but never sends a request too early.
#[track_caller]
fn assert_paced(site: &Site, nth: u8, began: Timestamp, delay_ms: u64) {
    let host = format!("127.0.0.{nth}");
    let arrived = site.asked().into_iter().filter(|asked| asked.host == host);
    for (turn, asked) in (0..).zip(arrived) {
        // The kernel's clock and ours may drift apart a little.
        let waited = asked.at.since(began) + ms(1);
        assert!(waited >= ms(turn * delay_ms), "request {turn} to {host} arrived after {waited}");
    }
}

/// B9, B14: all clients of a process share one pace.
#[tokio::test]
async fn three_clients_on_one_gate_keep_one_pace() {
    let site = Site::start(|_| reply(200)).await;
    let gate = quick("60ms");
    let began = gate.clock().now();
    let layer = PoliteLayer::new(gate.clone());
    let own = comity::client::Client::with(&config(QUICK), gate.clone()).unwrap();
    let reqwest = polite_reqwest(layer.clone());
    let mut all = tokio::task::JoinSet::new();
    for nth in 0..4 {
        let (own, reqwest, layer) = (own.clone(), reqwest.clone(), layer.clone());
        let url = move |who: &str| format!("{who}{nth}");
        let (one, two, three) =
            (site.url(&url("/own")), site.url(&url("/reqwest")), site.url(&url("/tower")));
        all.spawn(async move { own.get(&one).await.unwrap().status });
        all.spawn(async move {
            let answer = reqwest.get(&two).send().await.unwrap();
            let status = answer.status().as_u16();
            assert_eq!(answer.text().await.unwrap(), "a page");
            status
        });
        all.spawn(async move { asked(&layer, &three).await.unwrap() });
    }
    assert_eq!(soon("all of them", all.join_all()).await, [200; 12]);
    assert_eq!(site.asked().len(), 12);
    assert_paced(&site, 1, began, 60);
    assert_eq!(site.most_in_flight(1), 1);
    assert_eq!(counted(&gate, Outcome::Success), 12);
}

/// B20, B23, B44: a 429 is passed on unchanged, and holds all clients for as long as it says.
#[tokio::test]
async fn a_429_to_one_client_holds_all_of_them() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/refused" => reply(429).header("retry-after", "1"),
        _ => reply(200),
    })
    .await;
    for who in ["tower", "reqwest"] {
        let gate = quick("10ms");
        let layer = PoliteLayer::new(gate.clone());
        let reqwest = polite_reqwest(layer.clone());
        let own = comity::client::Client::with(&config(QUICK), gate.clone()).unwrap();
        let before = site.asked().len();
        let refused = site.url("/refused");
        let status = match who {
            "tower" => asked(&layer, &refused).await.unwrap(),
            _ => reqwest.get(&refused).send().await.unwrap().status().as_u16(),
        };
        assert_eq!((status, counted(&gate, Outcome::RateLimited)), (429, 1));
        let url = site.url("/page");
        let rest = async {
            let read = async { reqwest.get(&url).send().await.unwrap().text().await };
            let (one, two, three) = tokio::join!(asked(&layer, &url), read, own.get(&url));
            assert_eq!((one.unwrap(), two.unwrap().as_str(), three.unwrap().status), (200, "a page", 200));
        };
        soon("the rest", rest).await;
        let hits = &site.asked()[before..];
        assert_eq!(hits.len(), 4, "no retries");
        assert!(hits[1].at.since(hits[0].at) >= ms(990), "{who}");
    }
}

/// B44: without following, a redirect is a normal response, and the next hop waits for its own turn.
#[tokio::test]
async fn redirects_are_passed_on_untouched() {
    let site = Site::start(|_| reply(302).header("location", "/next")).await;
    let layer = PoliteLayer::new(quick("100ms"));
    let response = polite_reqwest(layer.clone()).get(site.url("/a")).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["location"]),
        (302, &"/next".parse().unwrap())
    );
    assert_eq!(response.url().as_str(), site.url("/a"));
    drop(response);
    assert_eq!(asked(&layer, &site.url("/next")).await.unwrap(), 302);
    assert_gaps(&site, 1, 90);
    assert_eq!(site.paths(), ["/a", "/next"]);
}

/// A site whose pages redirect within one domain and to another.
async fn leading() -> Site {
    Site::start(|asked: &Asked| match asked.path.as_str() {
        "/a" => reply(302).header("location", "/b"),
        "/b" => reply(307).header("location", &asked.url_on(2, "/c")),
        "/c" => reply(303).header("location", &asked.url_on(2, "/d")),
        "/loop" => reply(302).header("location", "/other"),
        "/other" => reply(302).header("location", "/loop"),
        "/file" => reply(302).header("location", "file:///etc/passwd"),
        "/keep" => reply(308).header("location", "/d"),
        _ => reply(200),
    })
    .await
}

/// B44: every hop is paced on its own domain.
#[tokio::test]
async fn followed_redirects_are_paced_hop_by_hop() {
    let site = leading().await;
    let gate = quick("100ms");
    let began = gate.clock().now();
    let layer = PoliteLayer::new(gate.clone()).following(5);
    let response = layer.layer(hyper_client()).oneshot(get(&site.url("/a"))).await.unwrap();
    assert_eq!(response.status(), 200);
    drop(response);
    let page = soon("the page", polite_reqwest(layer).get(site.url("/a")).send()).await.unwrap();
    assert_eq!((page.status().as_u16(), page.url().as_str()), (200, site.url_on(2, "/d").as_str()));
    assert_eq!(page.text().await.unwrap(), "a page");
    assert_eq!(site.paths(), ["/a", "/b", "/c", "/d", "/a", "/b", "/c", "/d"]);
    assert_paced(&site, 1, began, 100);
    assert_paced(&site, 2, began, 100);
    assert_eq!(counted(&gate, Outcome::Success), 8);
}

/// A POST becomes a GET after 303 and is sent again after 307; credentials stay with their origin.
#[tokio::test]
async fn methods_bodies_and_credentials_are_redirected_as_in_browsers() {
    let site = leading().await;
    let layer = PoliteLayer::new(quick("1ms")).following(5);
    let request =
        || Request::post(site.url("/b")).header("authorization", "Bearer secret").header("cookie", "a=b");
    let tower = request().body(Full::from("form")).unwrap();
    layer.layer(hyper_client()).oneshot(tower).await.unwrap();
    let client = polite_reqwest(layer.clone());
    let post = client.post(site.url("/b")).header("authorization", "Bearer secret").header("cookie", "a=b");
    post.body("form").send().await.unwrap();
    let streamed = reqwest::Body::wrap(Full::new(Bytes::from_static(b"form")));
    let kept = client.post(site.url("/keep")).body(streamed).send().await.unwrap();
    assert_eq!(kept.status(), 308, "a streamed body is not sent again");
    let hits = site.asked();
    let told: Vec<(String, bool, Option<&str>)> = hits
        .iter()
        .map(|hit| {
            // The site doesn't read bodies, so they precede the next request.
            let method = hit.head.split(' ').next().unwrap().trim_start_matches("form");
            let secret = hit.head.contains("secret") || hit.header("cookie").is_some();
            (format!("{method} {}", hit.path), secret, hit.header("content-length"))
        })
        .collect();
    let one = [
        ("POST /b".to_owned(), true, Some("4")),
        ("POST /c".to_owned(), false, Some("4")),
        ("GET /d".to_owned(), false, None),
    ];
    assert_eq!(told[..3], one);
    assert_eq!(told[3..6], one);
}

#[tokio::test]
async fn circular_and_invalid_redirects_are_errors() {
    let site = leading().await;
    let layer = PoliteLayer::new(quick("1ms")).following(3);
    for (path, text) in [("/loop", "more than 3 times"), ("/file", "isn't a valid http or https URL")] {
        let error = layer.layer(hyper_client()).oneshot(get(&site.url(path))).await.unwrap_err();
        assert!(layer_error(&error).to_string().contains(text), "{error}");
        let error = polite_reqwest(layer.clone()).get(site.url(path)).send().await.unwrap_err();
        assert!(middleware_error(error).to_string().contains(text));
    }
    assert_eq!(site.asked().len(), 2 * (4 + 1));
}

/// B44: the request that a client sent without waiting is charged to the domain it went to.
#[tokio::test]
async fn a_client_that_follows_redirects_on_its_own_is_an_error() {
    let site = leading().await;
    let gate = quick("3s");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let client = reqwest_middleware::ClientBuilder::new(client).with(PoliteLayer::new(gate.clone())).build();
    let error = middleware_error(client.get(site.url("/a")).send().await.unwrap_err());
    assert!(matches!(error, LayerError::Followed { .. }));
    let text = error.to_string();
    assert!(text.contains("redirect(Policy::none())") && text.contains("PoliteLayer::following"), "{text}");
    assert!(text.contains(&site.url("/a")) && text.contains(&site.url_on(2, "/d")), "{text}");
    assert!(gate.peek(&site.domain(2), Intent::Fetch).await.unwrap().is_some(), "it was charged there");
    // A fragment and a user don't count as a redirect.
    let url = site.url("/x#part").replace("//", "//me:secret@");
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
}

/// B11
#[tokio::test]
async fn a_caller_that_gives_up_leaves_nothing_behind() {
    let site =
        Site::start(|asked: &Asked| reply(200).after(if asked.path == "/slow" { 10_000 } else { 0 })).await;
    let gate = quick("200ms");
    let layer = PoliteLayer::new(gate.clone());
    let reqwest = polite_reqwest(layer.clone());
    let url = site.url("/slow");
    let slow = tokio::spawn({
        let (layer, url) = (layer.clone(), url.clone());
        async move { asked(&layer, &url).await }
    });
    eventually("it is in flight", || site.asked().len() == 1).await;
    for _ in 0..5 {
        let waits = tokio::time::timeout(Duration::from_millis(20), asked(&layer, &url));
        assert!(waits.await.is_err());
        let waits = tokio::time::timeout(Duration::from_millis(20), reqwest.get(&url).send());
        assert!(waits.await.is_err());
    }
    assert_eq!(waiting(&gate, &site.domain(1)), 0);
    // Whether in flight or in line, its place is free immediately.
    slow.abort();
    assert_eq!(soon("the next", asked(&layer, &site.url("/next"))).await.unwrap(), 200);
    assert_eq!(site.paths(), ["/slow", "/next"]);
    let in_flight = gate.with_pace(&site.domain(1), |pace, _, now| pace.in_flight(now)).await.unwrap();
    assert_eq!(in_flight, 0);
}

/// B78: a request is in flight until the body of its response has been read or dropped.
#[tokio::test]
async fn an_unread_body_keeps_its_request_in_flight() {
    let site = Site::start(|_| reply(200).body(vec![b'x'; 4 << 20])).await;
    let gate = quick("1ms");
    let layer = PoliteLayer::new(gate.clone());
    let client = polite_reqwest(layer.clone());
    let in_flight =
        async || gate.with_pace(&site.domain(1), |pace, _, now| pace.in_flight(now)).await.unwrap();
    for reads in [true, false] {
        let one: Response<InFlightBody<Incoming>> =
            layer.layer(hyper_client()).oneshot(get(&site.url("/1"))).await.unwrap();
        let next = tokio::spawn({
            let (client, url) = (client.clone(), site.url("/2"));
            async move { client.get(url).send().await.unwrap() }
        });
        let before = site.asked().len();
        a_moment().await;
        assert_eq!((site.asked().len(), in_flight().await), (before, 1));
        match reads {
            true => assert_eq!(one.into_body().collect().await.unwrap().to_bytes().len(), 4 << 20),
            false => drop(one),
        }
        let two = soon("the next", next).await.unwrap();
        assert_eq!((two.content_length(), in_flight().await), (Some(4 << 20), 1));
        match reads {
            true => assert_eq!(two.bytes().await.unwrap().len(), 4 << 20),
            false => drop(two),
        }
        assert_eq!(in_flight().await, 0);
    }
    assert_eq!(counted(&gate, Outcome::Success), 4);
}

/// Code that holds a response while requesting another from the same site doesn't wait for itself forever.
#[tokio::test]
async fn a_body_that_nobody_reads_counts_only_for_a_while() {
    let site = Site::start(|_| reply(200)).await;
    let client = polite_reqwest(PoliteLayer::new(quick("1ms")));
    let kept = client.get(site.url("/1")).send().await.unwrap();
    let next = soon("the next", client.get(site.url("/2")).send()).await.unwrap();
    assert_eq!(
        (kept.text().await.unwrap(), next.text().await.unwrap()),
        ("a page".to_owned(), "a page".to_owned())
    );
    assert_gaps(&site, 1, 4_500);
}

/// B20, B27: what a server asks for in its headers takes effect immediately, however long the body takes.
#[tokio::test]
async fn headers_take_effect_before_the_body_ends() {
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/quota" => reply(200).header("ratelimit-remaining", "0").header("ratelimit-reset", "1"),
        _ => reply(200),
    })
    .await;
    let gate = gate(&format!("{QUICK}in_flight = \"unlimited\"\n"));
    let layer = PoliteLayer::new(gate.clone());
    let kept = layer.layer(hyper_client()).oneshot(get(&site.url("/quota"))).await.unwrap();
    assert_eq!(soon("the next", asked(&layer, &site.url("/next"))).await.unwrap(), 200);
    assert_gaps(&site, 1, 990);
    drop(kept);
    assert_eq!(
        gate.peek(&site.domain(1), Intent::Fetch)
            .await
            .unwrap()
            .filter(|r| r.until > gate.clock().now() + ms(500)),
        None
    );
    assert_eq!(counted(&gate, Outcome::Success), 2);
}

/// B24, B43, B46
#[tokio::test]
async fn failures_are_recorded_by_type() {
    let (gate, unused) = (quick("1ms"), Arc::new(Unused::default()));
    gate.events().listen(unused.clone());
    let layer = PoliteLayer::new(gate.clone());
    let closed = ClosedPort::new();
    asked(&layer, &closed.url("/")).await.unwrap_err();
    assert_eq!(counted(&gate, Outcome::NetworkError), 1);
    let site = Site::start(|asked: &Asked| match asked.path.as_str() {
        "/cut" => reply(200).cut(),
        "/slow" => reply(200).after(5_000),
        _ => reply(503),
    })
    .await;
    let error = asked(&layer, &site.url("/cut")).await.unwrap_err();
    assert!(error.is::<hyper::Error>(), "body errors are passed on unchanged: {error}");
    assert_eq!(counted(&gate, Outcome::NetworkError), 2);
    let client = plain().timeout(Duration::from_millis(100)).build().unwrap();
    let client = reqwest_middleware::ClientBuilder::new(client).with(layer.clone()).build();
    let error = client.get(site.url("/slow")).send().await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert_eq!(counted(&gate, Outcome::Timeout), 1);
    assert_eq!(asked(&layer, &site.url("/503")).await.unwrap(), 503);
    assert_eq!(counted(&gate, Outcome::Unavailable), 1);
    assert_eq!(unused.0.load(Ordering::Relaxed), 0, "a failed request used its permit");
}

#[tokio::test]
async fn invalid_urls_are_refused_with_a_clear_error() {
    let gate = quick("1ms");
    let layer = PoliteLayer::new(gate.clone());
    for uri in ["/page", "ftp://example.org/", "example.org:80"] {
        let error = layer.layer(hyper_client()).oneshot(get(uri)).await.unwrap_err();
        assert!(matches!(layer_error(&error), LayerError::Url { .. }), "{uri}");
        assert!(error.to_string().contains("expected an http or https URL with a host"), "{error}");
    }
    let error =
        polite_reqwest(layer).get("ftp://me:secret@example.org/?token=secret").send().await.unwrap_err();
    let text = middleware_error(error).to_string();
    assert!(text.contains("expected an http or https URL") && !text.contains("secret"), "{text}");
}

/// B39: a paused domain is an error immediately, also for those who wait; a hold only for those with little patience.
#[tokio::test]
async fn a_paused_or_held_domain_is_an_error() {
    let site = Site::start(|_| reply(429).header("retry-after", "60")).await;
    let gate = quick("1ms");
    let layer = PoliteLayer::new(gate.clone());
    assert_eq!(asked(&layer, &site.url("/")).await.unwrap(), 429);
    let hurried = layer.clone().patience(Duration::from_secs(5));
    let error = asked(&hurried, &site.url("/")).await.unwrap_err();
    assert!(
        matches!(layer_error(&error), LayerError::Held { .. })
            && error.to_string().contains("the server asked to wait")
    );
    let patient = tokio::spawn({
        let (layer, url) = (layer.clone(), site.url("/"));
        async move { asked(&layer, &url).await }
    });
    eventually("it is waiting", || waiting(&gate, &site.domain(1)) == 1).await;
    gate.with_pace(&site.domain(1), |pace, _, _| pace.pause(None)).await.unwrap();
    for error in [soon("the waiting request", patient).await.unwrap(), asked(&layer, &site.url("/")).await] {
        let error = error.unwrap_err();
        assert!(error.to_string().contains("paused by an operator"), "{error}");
    }
    assert_eq!((site.asked().len(), waiting(&gate, &site.domain(1))), (1, 0));
}

/// B10, B12: hundreds of requests at once to many domains: each domain at its pace, none delayed by another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_at_once_keep_each_domain_at_its_pace() {
    let site = Site::start(|_| reply(200)).await;
    let gate = quick("20ms");
    let began = gate.clock().now();
    let layer = PoliteLayer::new(gate);
    let (client, tower) = (polite_reqwest(layer.clone()), layer.layer(hyper_client()));
    let mut all = tokio::task::JoinSet::new();
    for nth in 0..400_u16 {
        let url = site.url_on(1 + (nth % 20) as u8, &format!("/{nth}"));
        let (client, mut tower) = (client.clone(), tower.clone());
        all.spawn(async move {
            match nth % 40 < 20 {
                true => drop(client.get(url).send().await.unwrap().bytes().await.unwrap()),
                false => drop(tower.call(get(&url)).await.unwrap().into_body().collect().await.unwrap()),
            }
        });
    }
    soon("all of them", all.join_all()).await;
    let paths: HashSet<String> = site.paths().into_iter().collect();
    assert_eq!((paths.len(), site.asked().len()), (400, 400));
    for nth in 1..=20 {
        assert_paced(&site, nth, began, 20);
        assert_eq!(site.most_in_flight(nth), 1);
    }
}

/// A service with room for one request doesn't reserve it for a request that waits for its domain (B10).
#[tokio::test]
async fn the_inner_service_is_not_reserved_while_waiting_for_a_domain() {
    let site = Site::start(|_| reply(200)).await;
    let layer = PoliteLayer::new(quick("5s"));
    let below = tower::ServiceBuilder::new().concurrency_limit(1).service(hyper_client());
    let service = layer.layer(below);
    let call = |url: String| service.clone().oneshot(get(&url));
    drop(call(site.url_on(1, "/1")).await.unwrap());
    let waits = tokio::spawn(call(site.url_on(1, "/2")));
    a_moment().await;
    drop(soon("another domain", call(site.url_on(2, "/"))).await.unwrap());
    assert!(!waits.is_finished(), "the other request did not wait for this one");
    soon("the waiting request", waits).await.unwrap().unwrap();
}
