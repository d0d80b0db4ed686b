//! Bodies are passed on while they arrive, in both directions; other protocols are tunnelled.

use comity::proxy::ProxySettings;
use tokio::io::AsyncWriteExt;

use super::support::{OPEN, body, by_hand, header, proxied, rest, status, until};
use crate::support::{Site, reply, soon};

#[tokio::test]
async fn a_response_is_passed_on_while_it_arrives() {
    let (site, host) = by_hand().await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let mut client = proxied.open(&format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
    let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
    until(&mut server, "\r\n\r\n").await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 10\r\n\r\nfirst")
        .await
        .unwrap();
    let head = until(&mut client, "first").await;
    assert_eq!(header(&head, "content-length"), Some("10"), "not decoded: {head}");
    server.write_all(b"later").await.unwrap();
    until(&mut client, "later").await;
}

#[tokio::test]
async fn a_request_body_is_passed_on_while_it_arrives() {
    let (site, host) = by_hand().await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let head = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\nfirst");
    let mut client = proxied.open(&head).await;
    let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
    let seen = until(&mut server, "first").await;
    assert!(seen.contains("content-length: 10"), "{seen}");
    client.write_all(b"later").await.unwrap();
    until(&mut server, "later").await;
    server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
    assert_eq!(status(&until(&mut client, "\r\n\r\n").await), 204);
}

#[tokio::test]
async fn a_chunked_upload_arrives_and_is_the_last_of_its_connection() {
    let (site, host) = by_hand().await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let request = format!(
        "PUT http://{host}/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n"
    );
    let mut client = proxied.open(&request).await;
    let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
    let seen = until(&mut server, "0\r\n\r\n").await;
    assert!(seen.contains("5\r\nfirst\r\n"), "{seen}");
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    let response = rest(&mut client).await;
    assert_eq!((body(&response), header(&response, "connection")), ("ok", Some("close")));
}

#[tokio::test]
async fn a_response_that_is_cut_off_does_not_look_complete() {
    let site = Site::start(|_| reply(200).cut()).await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let response = proxied.get(&site.url("/")).await;
    let announced: usize = header(&response, "content-length").unwrap().parse().unwrap();
    assert!(body(&response).len() < announced, "{response}");
}

#[tokio::test]
async fn an_upload_that_the_client_gives_up_is_not_the_sites_fault() {
    let (site, host) = by_hand().await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let head = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\nfirst");
    let client = proxied.open(&head).await;
    let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
    until(&mut server, "first").await;
    drop(client);
    assert_eq!(
        soon("the end", tokio::io::AsyncReadExt::read(&mut server, &mut [0; 16])).await.unwrap_or(0),
        0
    );
    let domain = crate::support::domain(&host);
    crate::support::eventually("it is over", || {
        proxied.gate.domain_status(&domain).is_some_and(|status| status.in_flight == 0)
    })
    .await;
    assert_eq!(proxied.gate.domain_status(&domain).unwrap().streaks.error, 0);
}

#[tokio::test]
async fn websockets_are_tunnelled() {
    let (site, host) = by_hand().await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let request = format!(
        "GET http://{host}/socket HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: x\r\n\r\n"
    );
    let mut client = proxied.open(&request).await;
    let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
    let seen = until(&mut server, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(seen.contains("upgrade: websocket") && seen.contains("connection: upgrade"), "{seen}");
    let switched =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    server.write_all(switched).await.unwrap();
    let head = until(&mut client, "hello").await;
    assert_eq!((status(&head), header(&head, "upgrade")), (101, Some("websocket")));
    client.write_all(b"there").await.unwrap();
    until(&mut server, "there").await;
    drop(server);
    rest(&mut client).await;
}
