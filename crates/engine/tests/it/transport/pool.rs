//! Connections are reused, shared and closed as documented.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use comity::transport::{Lead, Request, SendError, Settings, Transport, TransportError};
use comity_core::time::Span;
use http::HeaderValue;
use http::header::IF_NONE_MATCH;
use tokio::sync::Notify;
use tokio::time::sleep;
use url::Url;

use super::servers::{Server, answer};
use super::{fetch, get, read, settings, transport};
use crate::support::{eventually, soon};

/// Long enough to notice that a connection was closed.
async fn a_while() {
    sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_connection_is_reused_once_its_body_was_read() {
    let server = Server::answering(answer("", b"hello")).await;
    let transport = transport();
    for _ in 0..3 {
        assert_eq!(fetch(&transport, &server.url("/")).await.unwrap(), b"hello");
    }
    drop(get(&transport, &server.url("/"), Lead::Listed).await.unwrap());
    fetch(&transport, &server.url("/")).await.unwrap();
    let ports = server.ports();
    assert!(ports[..4].iter().all(|port| *port == ports[0]), "{ports:?}");
    assert_ne!(ports[4], ports[0], "dropping an unread body closes its connection");
}

#[tokio::test]
async fn responses_without_a_body_free_their_connection_immediately() {
    let server = Server::answering("HTTP/1.1 304 Not Modified\r\ncontent-encoding: gzip\r\n\r\n").await;
    let transport = transport();
    let one = get(&transport, &server.url("/"), Lead::Listed).await.unwrap();
    assert_eq!(one.status, 304);
    let other = get(&transport, &server.url("/"), Lead::Listed).await.unwrap();
    assert_eq!((read(one).await.unwrap(), read(other).await.unwrap()), (vec![], vec![]));
    assert_eq!(server.ports()[0], server.ports()[1]);
}

/// B76
#[tokio::test]
async fn listed_and_remote_led_requests_never_share_a_connection() {
    let server = Server::answering(answer("", b"")).await;
    let allowance = std::sync::Arc::new(super::guard::Everything);
    let transport = Transport::new(Settings { allowance, ..settings() }).unwrap();
    for lead in [Lead::Listed, Lead::Remote, Lead::Listed, Lead::Remote] {
        read(get(&transport, &server.url("/"), lead).await.unwrap()).await.unwrap();
    }
    let ports = server.ports();
    assert_eq!((ports[0], ports[1]), (ports[2], ports[3]));
    assert_ne!(ports[0], ports[1]);
}

/// B25, B44
#[tokio::test]
async fn a_connection_closed_while_idle_is_no_attempt_and_depart_is_called_again() {
    let server = Server::answering_once(answer("", b"one")).await;
    let transport = transport();
    fetch(&transport, &server.url("/")).await.unwrap();
    let url = Url::parse(&server.url("/")).unwrap();
    // The close may be noticed before or after taking the connection: no request may be lost, or sent twice or unasked.
    for round in 0..20 {
        let asked = AtomicU32::new(0);
        let depart = || async {
            asked.fetch_add(1, Relaxed);
            sleep(Duration::from_millis(round % 3)).await;
            Ok::<(), ()>(())
        };
        let sent = transport.send(Request::new(&url, Lead::Listed), depart).await.unwrap();
        assert!((1..=2).contains(&asked.load(Relaxed)), "{asked:?}");
        assert_eq!(read(sent).await.unwrap(), b"one");
    }
    assert_eq!(server.heads().len(), 21);
}

/// B25: closed while awaiting departure.
#[tokio::test]
async fn a_connection_closed_before_departure_is_replaced() {
    let (close, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let theirs = (close.clone(), closed.clone());
    let server = Server::start(move |mut peer| {
        let (close, closed) = theirs.clone();
        async move {
            peer.request().await;
            peer.write(&answer("", b"one")).await;
            close.notified().await;
            drop(peer);
            closed.notify_one();
        }
    })
    .await;
    let transport = transport();
    fetch(&transport, &server.url("/")).await.unwrap();
    let url = Url::parse(&server.url("/")).unwrap();
    let asked = AtomicU32::new(0);
    let depart = || async {
        if asked.fetch_add(1, Relaxed) == 0 {
            close.notify_one();
            closed.notified().await;
            a_while().await;
        }
        Ok::<(), ()>(())
    };
    // The first departure takes longer than the idle connection lasts; the server keeps the new one open.
    let sent = transport.send(Request::new(&url, Lead::Listed), depart).await.unwrap();
    assert_eq!(read(sent).await.unwrap(), b"one");
    assert_eq!((asked.load(Relaxed), server.heads().len()), (2, 2));
}

/// B25: a new connection may also be closed while awaiting departure, but only a limited number of times.
#[tokio::test]
async fn a_server_that_closes_every_connection_is_given_up() {
    let (close, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let theirs = (close.clone(), closed.clone());
    let server = Server::start(move |peer| {
        let (close, closed) = theirs.clone();
        async move {
            close.notified().await;
            drop(peer);
            closed.notify_one();
        }
    })
    .await;
    let url = Url::parse(&server.url("/")).unwrap();
    let asked = AtomicU32::new(0);
    let depart = || async {
        asked.fetch_add(1, Relaxed);
        close.notify_one();
        closed.notified().await;
        a_while().await;
        Ok::<(), ()>(())
    };
    let sent = transport().send(Request::new(&url, Lead::Listed), depart).await;
    assert!(matches!(sent, Err(SendError::Failed(TransportError::Broken(_)))));
    assert_eq!((asked.load(Relaxed), server.heads().len()), (3, 0));
}

#[tokio::test]
async fn a_withheld_request_writes_nothing_and_keeps_the_connection() {
    let server = Server::answering(answer("", b"")).await;
    let transport = transport();
    let url = Url::parse(&server.url("/")).unwrap();
    let withheld = transport.send(Request::new(&url, Lead::Listed), || async { Err("later") }).await;
    assert!(matches!(withheld, Err(SendError::Withheld("later"))));
    sleep(Duration::from_millis(50)).await;
    assert!(server.heads().is_empty());
    for _ in 0..2 {
        fetch(&transport, &server.url("/")).await.unwrap();
        let withheld = transport.send(Request::new(&url, Lead::Listed), || async { Err("later") }).await;
        assert!(matches!(withheld, Err(SendError::Withheld("later"))));
    }
    assert_eq!(server.ports()[0], server.ports()[1]);
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn idle_connections_are_closed_in_time() {
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut peer| {
        let ended = ended.clone();
        async move {
            while peer.request().await.is_some() {
                peer.write(&answer("", b"")).await;
            }
            ended.send(()).unwrap();
        }
    })
    .await;
    let transport = Transport::new(Settings { idle_timeout: Span::from_millis(100), ..settings() }).unwrap();
    fetch(&transport, &server.url("/")).await.unwrap();
    soon("the connection", ends.recv()).await.unwrap();
    fetch(&transport, &server.url("/")).await.unwrap();
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn idle_connections_are_limited() {
    let server = Server::answering(answer("", b"")).await;
    let transport = Transport::new(Settings { idle_max_per_host: 1, ..settings() }).unwrap();
    let url = server.url("/");
    for _ in 0..2 {
        let (one, other) = tokio::join!(fetch(&transport, &url), fetch(&transport, &url));
        one.and(other).unwrap();
    }
    let mut ports = server.ports();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3, "one of two connections was kept");
}

/// B42
#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let mut servers = Vec::new();
    for _ in 0..6 {
        servers.push(Server::answering(answer("", b"hello")).await);
    }
    let transport = Transport::new(Settings { connections_max: 2, ..settings() }).unwrap();
    for _ in 0..2 {
        for server in &servers {
            assert_eq!(fetch(&transport, &server.url("/")).await.unwrap(), b"hello");
        }
    }
    let again = &servers[5];
    fetch(&transport, &again.url("/")).await.unwrap();
    assert_eq!(again.ports()[1], again.ports()[2], "the most recent one was kept");
}

/// B42: without a free slot nothing is sent to the site, and the site is not blamed.
#[tokio::test]
async fn without_a_free_slot_a_request_waits_and_fails_unsent() {
    let server = Server::answering(answer("", b"hello")).await;
    let transport = Transport::new(Settings { connections_max: 2, ..settings() }).unwrap();
    let one = get(&transport, &server.url("/1"), Lead::Listed).await.unwrap();
    let two = get(&transport, &server.url("/2"), Lead::Listed).await.unwrap();
    let error = fetch(&transport, &server.url("/3")).await.unwrap_err();
    assert!(matches!(error, TransportError::Exhausted { .. }) && error.is_ours(), "{error}");
    assert_eq!(server.heads().len(), 2);
    // A waiting request gets the slot of one that ends.
    let url = server.url("/4");
    let (waited, ()) = tokio::join!(fetch(&transport, &url), async {
        sleep(Duration::from_millis(50)).await;
        drop(one);
    });
    assert_eq!(waited.unwrap(), b"hello");
    drop(two);
}

/// B44
#[tokio::test]
async fn a_connection_that_dies_with_the_request_is_an_error_and_not_retried() {
    let server = Server::start(async |mut peer| {
        peer.request().await;
    })
    .await;
    let asked = AtomicU32::new(0);
    let url = Url::parse(&server.url("/")).unwrap();
    let depart = || async {
        asked.fetch_add(1, Relaxed);
        Ok::<(), ()>(())
    };
    let sent = transport().send(Request::new(&url, Lead::Listed), depart).await;
    assert!(matches!(sent, Err(SendError::Failed(TransportError::Broken(_)))));
    assert_eq!((asked.load(Relaxed), server.heads().len()), (1, 1));
}

#[tokio::test]
async fn requests_carry_only_the_expected_headers() {
    let server = Server::answering(answer("", b"")).await;
    let transport = transport();
    fetch(&transport, &server.url("/a%20b?q=1#part")).await.unwrap();
    let listed = server.url("/").replace("//", "//me:se%20cret@");
    fetch(&transport, &listed).await.unwrap();
    let url = Url::parse(&server.url("/")).unwrap();
    let headers = [(IF_NONE_MATCH, HeaderValue::from_static("\"v1\""))];
    let accept = HeaderValue::from_static("text/html");
    let request = Request { headers: &headers, accept: Some(&accept), ..Request::new(&url, Lead::Listed) };
    transport.send(request, || async { Ok::<(), ()>(()) }).await.unwrap();
    let heads = server.heads();
    let usual = "user-agent: Comity/1.0\r\naccept: */*\r\naccept-encoding: gzip, br, zstd\r\n";
    assert_eq!(heads[0], format!("GET /a%20b?q=1 HTTP/1.1\r\nhost: {}\r\n{usual}\r\n", server.address));
    assert!(heads[1].contains("authorization: Basic bWU6c2UgY3JldA==\r\n"), "{}", heads[1]);
    assert!(heads[2].contains("if-none-match: \"v1\"\r\n") && heads[2].contains("accept: text/html\r\n"));
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut peer| {
        let ended = ended.clone();
        async move {
            while peer.request().await.is_some() {}
            ended.send(()).unwrap();
        }
    })
    .await;
    let transport = transport();
    let url = Url::parse(&server.url("/")).unwrap();
    for is_sent in [true, false] {
        let departing = Notify::new();
        let depart = || async {
            departing.notify_one();
            if !is_sent {
                std::future::pending::<()>().await;
            }
            Ok::<(), ()>(())
        };
        let given_up = async {
            departing.notified().await;
            if is_sent {
                eventually("the request has arrived", || server.heads().len() == 1).await;
            }
        };
        tokio::select! {
            _ = transport.send(Request::new(&url, Lead::Listed), depart) => panic!("there is no response"),
            () = given_up => {}
        }
        soon("the connection", ends.recv()).await.unwrap();
    }
    assert_eq!(server.heads().len(), 1);
}

/// A request can be sent from any task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_transport() {
    let server = Server::answering(answer("", b"x")).await;
    let transport = transport();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (transport, url) = (transport.clone(), Url::parse(&server.url("/")).unwrap());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let depart = || async {
                        tokio::task::yield_now().await;
                        Ok::<(), ()>(())
                    };
                    let sent = transport.send(Request::new(&url, Lead::Listed), depart).await.unwrap();
                    assert_eq!(read(sent).await.unwrap(), b"x");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(server.heads().len(), 640);
}
