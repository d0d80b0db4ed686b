//! Proxies from the environment.

use std::sync::Arc;

use comity::transport::{Lead, Proxies, Refusal, Settings, Transport, TransportError};
use comity_core::time::Span;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use super::secure::{Authority, h1_server};
use super::servers::{Server, answer};
use super::{fetch, get, settings};

/// A proxy that grants every CONNECT.
async fn tunnelling() -> Server {
    Server::start(async |mut peer| {
        let Some(head) = peer.request().await else { return };
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let mut server = TcpStream::connect(target).await.unwrap();
        peer.stream.write_all(b"HTTP/1.1 200 Granted\r\n\r\n").await.unwrap();
        let _ = copy_bidirectional(&mut peer.stream, &mut server).await;
    })
    .await
}

fn through(proxy: &Server, settings: Settings) -> Transport {
    let value = format!("http://me:pass@{}", proxy.address);
    let proxies =
        Proxies::from_env([("all_proxy".to_owned(), value), ("no_proxy".to_owned(), "direct".to_owned())]);
    Transport::new(Settings { proxies: proxies.unwrap(), ..settings }).unwrap()
}

#[tokio::test]
async fn plain_requests_are_forwarded_and_names_are_resolved_by_the_proxy() {
    let proxy = Server::answering(answer("", b"from the proxy")).await;
    let transport = through(&proxy, settings());
    for _ in 0..2 {
        assert_eq!(fetch(&transport, "http://listed.invalid/page?q").await.unwrap(), b"from the proxy");
    }
    let head = &proxy.heads()[0];
    assert!(
        head.starts_with("GET http://listed.invalid/page?q HTTP/1.1\r\nhost: listed.invalid\r\n"),
        "{head}"
    );
    assert!(head.contains("proxy-authorization: Basic bWU6cGFzcw==\r\n"), "{head}");
    assert_eq!(proxy.ports()[0], proxy.ports()[1]);
}

/// B76
#[tokio::test]
async fn urls_from_remote_responses_are_checked_before_using_a_proxy() {
    let proxy = Server::answering(answer("", b"")).await;
    let transport = through(&proxy, settings());
    for url in ["http://localhost/", "http://127.0.0.1/", "https://127.0.0.1/"] {
        let refused = get(&transport, url, Lead::Remote).await;
        assert!(
            matches!(refused, Err(TransportError::Refused { refusal: Refusal::NotPublic(_), .. })),
            "{url}"
        );
    }
    let listed = get(&transport, "http://169.254.169.254/", Lead::Listed).await;
    assert!(matches!(listed, Err(TransportError::Refused { refusal: Refusal::Metadata, .. })));
    assert!(proxy.heads().is_empty());
}

#[tokio::test]
async fn https_requests_use_a_tunnel() {
    let authority = Authority::new();
    let server = h1_server(&authority).await;
    let proxy = tunnelling().await;
    let transport = through(&proxy, Settings { roots_extra: vec![authority.root()], ..settings() });
    let url = format!("https://{server}/secret");
    assert_eq!(fetch(&transport, &url).await.unwrap(), b"secured");
    let heads = proxy.heads();
    assert!(heads[0].starts_with(&format!("CONNECT {server} HTTP/1.1\r\nhost: {server}\r\n")), "{heads:?}");
    assert!(heads[0].contains("proxy-authorization: Basic bWU6cGFzcw==\r\n") && !heads[0].contains("secret"));
}

/// B75
#[tokio::test]
async fn a_proxy_that_refuses_is_named_without_its_password() {
    let proxy = Server::answering("HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n").await;
    let transport = through(&proxy, settings());
    let error = fetch(&transport, "https://listed.invalid/").await.unwrap_err();
    assert_eq!(error.to_string(), format!("proxy {}: answered CONNECT with 407", proxy.address));
    let silent = Server::start(async |mut peer| {
        peer.request().await;
        std::future::pending().await
    });
    let hurried = Settings { connect_timeout: Span::from_millis(800), ..settings() };
    let error = fetch(&through(&silent.await, hurried), "https://listed.invalid/").await.unwrap_err();
    assert!(matches!(error, TransportError::TimedOut(comity::transport::Phase::Connect)), "{error}");
}

/// Otherwise a transport in a container would leak requests past its proxy.
#[tokio::test]
async fn proxied_and_direct_requests_do_not_mix() {
    let proxy = Server::answering(answer("", b"proxied")).await;
    let server = Server::answering(answer("", b"direct")).await;
    let list = format!("127.0.0.1:{}", server.address.port());
    let value = format!("http://{}", proxy.address);
    let proxies =
        Proxies::from_env([("http_proxy".to_owned(), value), ("no_proxy".to_owned(), list)]).unwrap();
    let allowance = Arc::new(super::guard::Everything);
    let transport = Transport::new(Settings { proxies, allowance, ..settings() }).unwrap();
    assert_eq!(fetch(&transport, &server.url("/")).await.unwrap(), b"direct");
    assert_eq!(fetch(&transport, "http://127.0.0.1:9/").await.unwrap(), b"proxied");
    assert_eq!(fetch(&transport, &proxy.url("/")).await.unwrap(), b"proxied");
    assert!(proxy.heads()[1].starts_with("GET http://"));
}
