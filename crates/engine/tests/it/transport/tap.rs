//! A witness sees exactly the bytes of its own exchange.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use comity::transport::{Answered, Lead, Proxies, Request, Settings, Transport, Witness};
use http::Version;
use url::Url;

use super::secure::{Authority, h1_server_with};
use super::servers::{Server, answer};
use super::{fetch, read, settings, transport};

/// The observed bytes.
#[derive(Debug, Default)]
struct Seen(Mutex<(Option<IpAddr>, String, String)>);

impl Seen {
    fn server(&self) -> Option<IpAddr> {
        self.0.lock().unwrap().0
    }

    fn both(&self) -> (String, String) {
        let seen = self.0.lock().unwrap();
        (seen.1.clone(), seen.2.clone())
    }
}

impl Witness for Seen {
    fn begin(&self, server: Option<IpAddr>) {
        *self.0.lock().unwrap() = (server, String::new(), String::new());
    }

    fn sent(&self, bytes: &[u8]) {
        self.0.lock().unwrap().1 += &String::from_utf8_lossy(bytes);
    }

    fn received(&self, bytes: &[u8]) {
        self.0.lock().unwrap().2 += &String::from_utf8_lossy(bytes);
    }
}

async fn watched(transport: &Transport, url: &str) -> (Answered, Arc<Seen>) {
    let (url, seen) = (Url::parse(url).unwrap(), Arc::new(Seen::default()));
    let witness: Arc<dyn Witness> = seen.clone();
    let request = Request { witness: Some(&witness), ..Request::new(&url, Lead::Listed) };
    let sent = transport.send(request, || async { Ok::<(), Infallible>(()) }).await;
    (sent.unwrap_or_else(|error| panic!("{error}")), seen)
}

#[tokio::test]
async fn each_exchange_on_a_connection_is_seen_by_its_own_witness() {
    let octets = answer("X-Odd:  Case\r\n", b"a body");
    let server = Server::answering(octets.clone()).await;
    let transport = transport();
    let mut seen = Vec::new();
    for nth in 0..3 {
        let (answered, one) = watched(&transport, &format!("http://{}/{nth}", server.address)).await;
        assert_eq!(read(answered).await.unwrap(), b"a body");
        seen.push(one);
    }
    for (nth, seen) in seen.iter().enumerate() {
        let (sent, received) = seen.both();
        assert_eq!(sent, server.heads()[nth]);
        assert!(sent.starts_with(&format!("GET /{nth} HTTP/1.1\r\n")), "{sent}");
        assert_eq!(received.as_bytes(), octets);
        assert_eq!(seen.server(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    let ports = server.ports();
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    // Requests without a witness use other connections.
    fetch(&transport, &format!("http://{}/", server.address)).await.unwrap();
    assert_ne!(server.ports()[3], ports[0]);
}

/// HTTP/2 has no plain bytes to record, so it is not offered.
#[tokio::test]
async fn over_tls_the_witness_sees_plain_http1() {
    let authority = Authority::new();
    let address = h1_server_with(authority.acceptor("127.0.0.1", 3000, &["h2", "http/1.1"])).await;
    let settings = Settings { roots_extra: vec![authority.root()], ..settings() };
    let transport = Transport::new(settings).unwrap();
    let (answered, seen) = watched(&transport, &format!("https://{address}/page")).await;
    assert_eq!(answered.version, Version::HTTP_11);
    assert_eq!(read(answered).await.unwrap(), b"secured");
    let (sent, received) = seen.both();
    assert!(sent.starts_with("GET /page HTTP/1.1\r\n") && sent.ends_with("\r\n\r\n"), "{sent}");
    assert!(
        received.starts_with("HTTP/1.1 200 OK\r\n") && received.ends_with("\r\n\r\nsecured"),
        "{received}"
    );
}

/// The address of a proxy is not that of the server.
#[tokio::test]
async fn the_server_address_is_unknown_behind_a_proxy() {
    let proxy = Server::answering(answer("", b"from the proxy")).await;
    let value = format!("http://{}", proxy.address);
    let proxies = Proxies::from_env([("all_proxy".to_owned(), value)]).unwrap();
    let transport = Transport::new(Settings { proxies, ..settings() }).unwrap();
    let (answered, seen) = watched(&transport, "http://listed.invalid/page").await;
    assert_eq!(read(answered).await.unwrap(), b"from the proxy");
    assert_eq!(seen.server(), None);
    assert!(seen.both().0.starts_with("GET http://listed.invalid/page HTTP/1.1\r\n"));
}
