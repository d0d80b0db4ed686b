//! https: opaque tunnels, decrypted tunnels, and the gateway.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use comity::proxy::{Authority, Https, ProxySettings};
use comity::transport::{Settings, Transport};
use comity_core::time::Timestamp;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use super::support::{OPEN, Proxied, body, by_hand, header, proxied, proxied_with, rest, status, until};
use crate::support::{Site, config, reply, soon};

/// An https site on loopback that logs its requests.
struct Secure {
    address: SocketAddr,
    root: CertificateDer<'static>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Secure {
    /// A site with a certificate for `name`.
    async fn start(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let acceptor =
            TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![leaf.der().clone()], key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), log.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        log.lock().unwrap().push(request.uri().to_string());
                        async {
                            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(
                                b"secured",
                            ))))
                        }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, root, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// A decrypting proxy that trusts the site.
async fn decrypting(site: &Secure, authority: &Arc<Authority>) -> Proxied {
    let allowance = Arc::new(config(OPEN).http.allow_private);
    let settings = Settings { roots_extra: vec![site.root.clone()], allowance, ..Settings::default() };
    let (https, connect_ports) = (Https::Decrypt(authority.clone()), vec![site.address.port()]);
    let proxy = ProxySettings { https, connect_ports, ..ProxySettings::default() };
    proxied_with(OPEN, proxy, Transport::new(settings).unwrap()).await
}

fn authority() -> Arc<Authority> {
    Arc::new(Authority::new(comity::clock::Clock::new().now(), 1, &[]).unwrap())
}

async fn connect(proxied: &Proxied, target: &str) -> (TcpStream, String) {
    let mut stream = proxied.open(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
    let answer = until(&mut stream, "\r\n\r\n").await;
    (stream, answer)
}

/// A TLS client that trusts the proxy's CA alone.
async fn handshake(
    stream: TcpStream,
    authority: &Authority,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let tls = builder.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    soon("a handshake", TlsConnector::from(Arc::new(tls)).connect(name, stream)).await
}

#[tokio::test]
async fn a_tunnel_waits_for_its_turn_and_passes_bytes_on_unseen() {
    let (site, host) = by_hand().await;
    let port = host.rsplit(':').next().unwrap().parse().unwrap();
    let toml = OPEN.replace("0s", "200ms");
    let proxied =
        proxied(&toml, ProxySettings { connect_ports: vec![port], ..ProxySettings::default() }).await;
    for nth in 0..2 {
        let (mut client, answer) = connect(&proxied, &host).await;
        assert_eq!(status(&answer), 200, "{answer}");
        let waited: u64 = header(&answer, "comity-waited").unwrap().parse().unwrap();
        assert_eq!(nth > 0, waited > 0, "{answer}");
        let (mut server, _) = soon("a connection", site.accept()).await.unwrap();
        client.write_all(b"\x16\x03not http").await.unwrap();
        until(&mut server, "not http").await;
        server.write_all(b"neither").await.unwrap();
        drop(server);
        assert_eq!(rest(&mut client).await, "neither");
    }
    assert_eq!(proxied.proxy.counts().requests, 2);
}

/// B76
#[tokio::test]
async fn a_tunnel_leads_only_to_allowed_ports_and_addresses() {
    let (site, host) = by_hand().await;
    let port: u16 = host.rsplit(':').next().unwrap().parse().unwrap();
    let open = proxied(OPEN, ProxySettings::default()).await;
    let (_, answer) = connect(&open, &host).await;
    assert_eq!(status(&answer), 403, "{answer}");
    assert!(header(&answer, "comity-reason").unwrap().contains("proxy.connect_ports"), "{answer}");
    let closed = proxied("", ProxySettings { connect_ports: vec![port], ..ProxySettings::default() }).await;
    let (_, answer) = connect(&closed, &host).await;
    assert_eq!(status(&answer), 403, "{answer}");
    assert!(header(&answer, "comity-reason").unwrap().contains("http.allow_private"), "{answer}");
    let (_, answer) = connect(&open, "example.org").await;
    assert_eq!(status(&answer), 400);
    let nobody = tokio::time::timeout(std::time::Duration::from_millis(50), site.accept()).await;
    assert!(nobody.is_err());
}

#[tokio::test]
async fn inside_a_decrypted_tunnel_every_request_is_relayed() {
    let (site, authority) = (Secure::start("127.0.0.1").await, authority());
    let proxied = decrypting(&site, &authority).await;
    let target = site.address.to_string();
    let (stream, answer) = connect(&proxied, &target).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let mut client = handshake(stream, &authority, "127.0.0.1").await.unwrap();
    for path in ["/1", "/2"] {
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await.unwrap();
        let response = until(&mut client, "secured").await;
        assert!(header(&response, "comity-waited").is_some(), "{response}");
    }
    client.write_all(b"GET /3 HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(status(&rest(&mut client).await), 421);
    assert_eq!(site.asked(), ["/1", "/2"]);
    assert_eq!(proxied.proxy.counts().requests, 2);
}

#[tokio::test]
async fn a_site_with_an_invalid_certificate_gets_no_tunnel() {
    let (site, authority) = (Secure::start("other.example").await, authority());
    let proxied = decrypting(&site, &authority).await;
    for _ in 0..2 {
        let (_, answer) = connect(&proxied, &site.address.to_string()).await;
        assert_eq!(status(&answer), 502, "{answer}");
        assert!(header(&answer, "comity-reason").unwrap().contains("TLS handshake failed"), "{answer}");
    }
    assert!(site.asked().is_empty());
}

#[tokio::test]
async fn a_client_that_names_another_site_gets_no_certificate() {
    let (site, authority) = (Secure::start("127.0.0.1").await, authority());
    let proxied = decrypting(&site, &authority).await;
    let (stream, answer) = connect(&proxied, &site.address.to_string()).await;
    assert_eq!(status(&answer), 200);
    assert!(handshake(stream, &authority, "other.example").await.is_err());
}

#[tokio::test]
async fn a_ca_is_saved_for_its_owner_only_and_can_be_limited_to_names() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("ca");
    let made = Authority::new(Timestamp::from_secs(1_700_000_000), 5, &["example.org".to_owned()]).unwrap();
    made.save(&place).unwrap();
    let mode = |name: &str| std::fs::metadata(place.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("ca.key"), 0o600);
    assert!(made.save(&place).is_err(), "never replaced");
    assert_eq!(Authority::open(&place).unwrap().pem(), made.pem());
    let bytes = CertificateDer::from_pem_slice(made.pem().as_bytes()).unwrap();
    let name = b"example.org";
    assert!(bytes.windows(name.len()).any(|part| part == name), "its name constraint");
    assert!(made.bundle().starts_with(made.pem()));
}

#[tokio::test]
async fn the_gateway_fetches_pages_for_programs_but_not_for_web_pages() {
    let site = Site::start(|_| reply(301).header("Location", "/next").header("Set-Cookie", "a=1")).await;
    let proxied = proxied(OPEN, ProxySettings::default()).await;
    let request = |lines: &str| {
        format!(
            "GET /{} HTTP/1.1\r\nHost: 127.0.0.1:7879\r\nConnection: close\r\n{lines}\r\n",
            site.url("/page")
        )
    };
    let page = proxied.send(&request("Cookie: secret=1\r\nAuthorization: Basic x\r\n")).await;
    assert_eq!((status(&page), body(&page)), (301, "a page"));
    assert_eq!(header(&page, "location"), Some(&*format!("/{}", site.url("/next"))));
    assert_eq!(header(&page, "content-security-policy"), Some("sandbox"));
    assert_eq!(header(&page, "set-cookie"), None);
    let asked = site.asked().remove(0);
    assert_eq!((&*asked.path, asked.header("cookie"), asked.header("authorization")), ("/page", None, None));
    for foreign in ["Sec-Fetch-Site: cross-site\r\n", "Origin: https://evil.example\r\n"] {
        assert_eq!(status(&proxied.send(&request(foreign)).await), 403);
    }
    let rebound = request("").replace("127.0.0.1:7879", "evil.example");
    assert_eq!(status(&proxied.send(&rebound).await), 403);
    let posted = request("").replace("GET", "POST");
    assert_eq!(status(&proxied.send(&posted).await), 405);
    assert_eq!(site.asked().len(), 1);
}
