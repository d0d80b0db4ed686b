//! Options for single sites.

use std::convert::Infallible;
use std::sync::Arc;

use comity::transport::{Lead, Proxy, Request, Settings, SiteOptions, Transport, Verify, Via};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

use super::secure::{Authority, h1_server};
use super::servers::{Server, answer};
use super::{read, settings, transport};

/// The response body for `url` with these options.
async fn ask(transport: &Transport, url: &str, options: &SiteOptions, authorization: Option<&str>) -> String {
    let url = Url::parse(url).unwrap();
    let headers: Vec<_> = authorization
        .map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap()))
        .into_iter()
        .collect();
    let request = Request { options: Some(options), headers: &headers, ..Request::new(&url, Lead::Listed) };
    let sent = transport.send(request, || async { Ok::<(), Infallible>(()) }).await;
    let answered = sent.unwrap_or_else(|error| panic!("{error:?}"));
    String::from_utf8(read(answered).await.unwrap()).unwrap()
}

/// B86: neither between different proxies or verification settings, nor between accounts.
#[tokio::test]
async fn connections_are_not_shared_between_different_options() {
    let server = Server::answering(answer("", b"direct")).await;
    let proxy = Server::answering(answer("", b"proxied")).await;
    let transport = transport();
    let url = server.url("/");
    let usual = SiteOptions::default();
    let unchecked = SiteOptions { verify: Verify::Nothing, ..SiteOptions::default() };
    let through = Proxy::read(&format!("http://{}", proxy.address)).unwrap();
    let proxied = SiteOptions { proxy: Via::Proxy(Arc::new(through)), ..SiteOptions::default() };
    for (options, account) in [
        (&usual, None),
        (&usual, None),
        (&unchecked, None),
        (&usual, Some("Bearer a")),
        (&usual, Some("Bearer b")),
        (&usual, Some("Bearer a")),
    ] {
        assert_eq!(ask(&transport, &url, options, account).await, "direct");
    }
    assert_eq!(ask(&transport, &url, &proxied, None).await, "proxied");
    assert_eq!(ask(&transport, &url, &usual, None).await, "direct");
    let ports = server.ports();
    assert_eq!((ports[0], ports[3], ports[0]), (ports[1], ports[5], ports[6]));
    for (one, other) in [(0, 2), (0, 3), (3, 4), (2, 3)] {
        assert_ne!(ports[one], ports[other], "{ports:?}");
    }
}

/// A proxy behind TLS, in front of HTTP and HTTPS servers.
#[tokio::test]
async fn https_proxies_are_supported() {
    let authority = Authority::new();
    let server = h1_server(&authority).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = authority.acceptor("127.0.0.1", 3000, &["http/1.1"]);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let target = head.split(' ').nth(1).unwrap().to_owned();
                if head.starts_with("CONNECT ") {
                    let mut server = TcpStream::connect(target).await.unwrap();
                    stream.write_all(b"HTTP/1.1 200 Granted\r\n\r\n").await.unwrap();
                    let _ = copy_bidirectional(&mut stream, &mut server).await;
                } else {
                    stream.write_all(&answer("", target.as_bytes())).await.unwrap();
                    let _ = stream.read_u8().await;
                }
            });
        }
    });
    let settings = Settings { roots_extra: vec![authority.root()], ..settings() };
    let transport = Transport::new(settings).unwrap();
    let through = Proxy::read(&format!("https://127.0.0.1:{}", address.port())).unwrap();
    let options = SiteOptions { proxy: Via::Proxy(Arc::new(through)), ..SiteOptions::default() };
    assert_eq!(ask(&transport, &format!("https://{server}/"), &options, None).await, "secured");
    assert_eq!(
        ask(&transport, "http://listed.invalid/page", &options, None).await,
        "http://listed.invalid/page"
    );
}
