//! TLS and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use comity::transport::{Lead, Request, Settings, Transport, TransportError};
use comity_core::time::Span;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use url::Url;

use super::{fetch, get, read, settings};
use crate::support::eventually;

/// A certificate authority of our own.
pub(super) struct Authority {
    root: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { root, issuer: Issuer::new(params, key) }
    }

    pub(super) fn root(&self) -> CertificateDer<'static> {
        self.root.clone()
    }

    /// The server's side of TLS for `name`, valid until the given year.
    pub(super) fn acceptor(&self, name: &str, until: i32, alpn: &[&str]) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// An HTTP/1.1 server with a valid certificate.
pub(super) async fn h1_server(authority: &Authority) -> SocketAddr {
    h1_server_with(authority.acceptor("127.0.0.1", 3000, &["http/1.1"])).await
}

pub(super) async fn h1_server_with(acceptor: TlsAcceptor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(async |_| {
                    Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"secured"))))
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}

/// An HTTP/2 server that logs the connection of each request.
struct H2Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(u16, String)>>>,
    /// Responses to `/slow` wait for one permit each.
    slow: Arc<Semaphore>,
    /// Sends GOAWAY on all connections.
    leave: Arc<Notify>,
}

async fn h2_server(authority: &Authority) -> H2Server {
    let acceptor = authority.acceptor("127.0.0.1", 3000, &["h2", "http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server =
        H2Server { address, seen: Arc::default(), slow: Arc::new(Semaphore::new(0)), leave: Arc::default() };
    let (seen, slow, leave) = (Arc::clone(&server.seen), Arc::clone(&server.slow), Arc::clone(&server.leave));
    tokio::spawn(async move {
        while let Ok((stream, client)) = listener.accept().await {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            let (slow, leave) = (Arc::clone(&slow), Arc::clone(&leave));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (seen, slow) = (Arc::clone(&seen), Arc::clone(&slow));
                    async move {
                        seen.lock().unwrap().push((client.port(), request.uri().to_string()));
                        if request.uri().path() == "/slow" {
                            slow.acquire().await.unwrap().forget();
                        }
                        let mut answer = http::Response::new(Full::new(Bytes::from_static(b"two")));
                        if request.uri().path() == "/large" {
                            let value = http::HeaderValue::try_from("x".repeat(70_000)).unwrap();
                            answer.headers_mut().insert("x", value);
                        }
                        Ok::<_, Infallible>(answer)
                    }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
                tokio::select! {
                    _ = serving.as_mut() => return,
                    () = leave.notified() => serving.as_mut().graceful_shutdown(),
                }
                let _ = serving.await;
            });
        }
    });
    server
}

fn trusting(authority: &Authority) -> Transport {
    waiting_for(authority, settings().first_byte_timeout)
}

/// The same, with this first byte timeout.
fn waiting_for(authority: &Authority, first_byte_timeout: Span) -> Transport {
    Transport::new(Settings { roots_extra: vec![authority.root()], first_byte_timeout, ..settings() })
        .unwrap()
}

#[tokio::test]
async fn valid_certificates_are_trusted_and_others_are_not() {
    let authority = Authority::new();
    let good = h1_server(&authority).await;
    let transport = trusting(&authority);
    for _ in 0..2 {
        assert_eq!(fetch(&transport, &format!("https://{good}/")).await.unwrap(), b"secured");
    }
    let stranger = h1_server(&Authority::new()).await;
    let expired = h1_server_with(authority.acceptor("127.0.0.1", 2001, &[])).await;
    let misnamed = h1_server_with(authority.acceptor("example.org", 3000, &[])).await;
    for (address, why) in [
        (stranger, "the certificate is not signed by a trusted authority"),
        (expired, "the certificate has expired"),
        (misnamed, "the certificate is for a different host name"),
    ] {
        let error = fetch(&transport, &format!("https://{address}/")).await.unwrap_err();
        assert!(matches!(error, TransportError::Tls { .. }), "{error:?}");
        let remedy = "to accept it anyway: comity fetch --insecure 127.0.0.1";
        assert_eq!(error.to_string(), format!("127.0.0.1: TLS handshake failed: {why} ({remedy})"));
    }
}

#[tokio::test]
async fn a_server_without_tls_is_a_tls_error() {
    let server = super::servers::Server::start(async |mut peer| {
        peer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        sleep(Duration::from_secs(5)).await;
    })
    .await;
    let error =
        fetch(&trusting(&Authority::new()), &format!("https://{}/", server.address)).await.unwrap_err();
    assert!(matches!(error, TransportError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn http2_streams_share_one_connection() {
    let authority = Authority::new();
    let server = h2_server(&authority).await;
    let transport = trusting(&authority);
    let url = |path: &str| format!("https://{}{path}", server.address);
    let first = get(&transport, &url("/page?q=1"), Lead::Listed).await.unwrap();
    assert_eq!(first.version, http::Version::HTTP_2);
    assert_eq!(read(first).await.unwrap(), b"two");
    // The second request is answered while the first one waits.
    let (slow_url, fast_url) = (url("/slow"), url("/"));
    let fast = async {
        eventually("the first request has arrived", || server.seen.lock().unwrap().len() == 2).await;
        let body = fetch(&transport, &fast_url).await;
        server.slow.add_permits(1);
        body
    };
    let (slow, fast) = tokio::join!(fetch(&transport, &slow_url), fast);
    assert_eq!((slow.unwrap(), fast.unwrap()), (b"two".to_vec(), b"two".to_vec()));
    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|(port, _)| *port == seen[0].0), "{seen:?}");
    assert_eq!(seen[0].1, url("/page?q=1"));
}

#[tokio::test]
async fn of_http2_connections_opened_at_once_only_one_is_kept() {
    let authority = Authority::new();
    let server = h2_server(&authority).await;
    let transport = trusting(&authority);
    let url = format!("https://{}/", server.address);
    let (one, other) = tokio::join!(fetch(&transport, &url), fetch(&transport, &url));
    one.and(other).unwrap();
    fetch(&transport, &url).await.unwrap();
    let seen = server.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|(port, _)| *port == seen[0].0), "{seen:?}");
}

/// B25, B44
#[tokio::test]
async fn after_goaway_requests_use_a_new_connection() {
    let authority = Authority::new();
    let server = h2_server(&authority).await;
    let transport = trusting(&authority);
    let url = Url::parse(&format!("https://{}/", server.address)).unwrap();
    let slow = format!("https://{}/slow", server.address);
    fetch(&transport, url.as_str()).await.unwrap();
    // An open stream keeps the old connection open, but new requests must not use it.
    let (old, new) = tokio::join!(fetch(&transport, &slow), async {
        eventually("the stream is open", || server.seen.lock().unwrap().len() == 2).await;
        server.leave.notify_waiters();
        // Long enough for the GOAWAY to arrive.
        sleep(Duration::from_millis(500)).await;
        let asked = AtomicU32::new(0);
        let depart = || async {
            asked.fetch_add(1, Relaxed);
            Ok::<(), ()>(())
        };
        let sent = transport.send(Request::new(&url, Lead::Listed), depart).await.unwrap();
        server.slow.add_permits(1);
        (read(sent).await.unwrap(), asked.load(Relaxed))
    });
    assert_eq!(old.unwrap(), b"two", "the open stream is answered");
    assert_eq!(new.0, b"two");
    assert!((1..=2).contains(&new.1));
    let seen = server.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 3);
    assert_ne!(seen[2].0, seen[0].0);
}

#[tokio::test]
async fn an_http2_connection_that_timed_out_is_not_reused() {
    let authority = Authority::new();
    let server = h2_server(&authority).await;
    let transport = waiting_for(&authority, Span::from_secs(3));
    let url = |path: &str| format!("https://{}{path}", server.address);
    let error = fetch(&transport, &url("/slow")).await.unwrap_err();
    assert!(matches!(error, TransportError::TimedOut(_)), "{error}");
    fetch(&transport, &url("/")).await.unwrap();
    let seen = server.seen.lock().unwrap().clone();
    assert_ne!(seen[0].0, seen[1].0);
}

#[tokio::test]
async fn http2_headers_are_limited_too() {
    let authority = Authority::new();
    let server = h2_server(&authority).await;
    let error = fetch(&trusting(&authority), &format!("https://{}/large", server.address)).await.unwrap_err();
    assert!(matches!(error, TransportError::Broken(_)), "{error:?}");
}

/// A server that sends the same bytes forever after a request, and never reads.
async fn deaf_server(authority: &Authority, first: Vec<u8>, again: Vec<u8>) -> (SocketAddr, Arc<AtomicU32>) {
    let acceptor = authority.acceptor("127.0.0.1", 3000, &["h2"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let open = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, open) = (acceptor.clone(), Arc::clone(&counted));
            let (first, again) = (first.clone(), again.repeat(500));
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                open.fetch_add(1, Relaxed);
                // Preface, settings, window and request headers fit into one read.
                let _ = stream.read(&mut [0; 4_096]).await;
                sleep(Duration::from_millis(50)).await;
                let _ = stream.write_all(&first).await;
                while stream.write_all(&again).await.is_ok() {}
                open.fetch_sub(1, Relaxed);
            });
        }
    });
    (address, open)
}

/// Pings that are never answered block a connection, and would keep it open after its last use.
#[tokio::test]
async fn a_server_that_never_reads_cannot_keep_a_connection_open() {
    let authority = Authority::new();
    let settings_frame = b"\0\0\0\x04\0\0\0\0\0".to_vec();
    let ping = b"\0\0\x08\x06\0\0\0\0\0pingpong".to_vec();
    let (address, open) = deaf_server(&authority, settings_frame, ping).await;
    let transport = waiting_for(&authority, Span::from_millis(400));
    let error = fetch(&transport, &format!("https://{address}/")).await.unwrap_err();
    assert!(matches!(error, TransportError::TimedOut(_)), "{error}");
    assert_eq!(open.load(Relaxed), 1);
    eventually("the connection ends", || open.load(Relaxed) == 0).await;
}

/// A flood of frames without a response ends because of its size, long before the timeout.
#[tokio::test]
async fn a_flood_of_meaningless_frames_ends_soon() {
    let authority = Authority::new();
    let settings_frame = b"\0\0\0\x04\0\0\0\0\0".to_vec();
    let unknown = [b"\0\x04\0\xbe\0\0\0\0\0".to_vec(), vec![0; 1_024]].concat();
    let hints = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103".to_vec();
    for flood in [unknown, hints] {
        let (address, open) = deaf_server(&authority, settings_frame.clone(), flood).await;
        let error = fetch(&trusting(&authority), &format!("https://{address}/")).await.unwrap_err();
        assert!(matches!(error, TransportError::Noise), "{error:?}");
        eventually("the connection ends", || open.load(Relaxed) == 0).await;
    }
}
