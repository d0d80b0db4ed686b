//! Scripted hosts: each on its own loopback port, in plain text or over TLS, with a log of its connections.
//!
//! What they do is in `http1`, `secure`, `http2` and `robots`.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// Runs the hosts; they end when it is dropped.
pub(super) struct Town {
    runtime: Runtime,
    authority: Authority,
}

/// The script of a host for one connection.
pub(super) type Talk = Arc<dyn Fn(Peer) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

pub(super) fn talk<F: Future<Output = ()> + Send + 'static>(
    talk: impl Fn(Peer) -> F + Send + Sync + 'static,
) -> Talk {
    Arc::new(move |peer| Box::pin(talk(peer)))
}

/// The protocol of a host.
#[derive(Clone, Copy)]
pub(super) enum Speech {
    Plain,
    Tls(Certificate),
    /// The client expects TLS, and the script runs on the raw connection.
    Feigned,
}

/// The certificate of a TLS host, and the protocols it offers (ALPN).
#[derive(Clone, Copy)]
pub(super) struct Certificate {
    pub(super) name: &'static str,
    /// The years between which it is valid.
    pub(super) years: (i32, i32),
    /// Whether it is signed by the trusted authority, or self-signed.
    pub(super) signed: bool,
    /// Whether it may sign other certificates.
    pub(super) authority: bool,
    pub(super) protocol: &'static str,
}

impl Certificate {
    pub(super) const GOOD: Self =
        Self { name: "127.0.0.1", years: (2000, 3000), signed: true, authority: false, protocol: "http/1.1" };
    pub(super) const HTTP2: Self = Self { protocol: "h2", ..Self::GOOD };
}

/// A host, and the log of its connections.
pub(super) struct Host {
    pub(super) address: SocketAddr,
    secure: bool,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    paths: Mutex<Vec<String>>,
    came: AtomicUsize,
    open: AtomicUsize,
}

impl Host {
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.secure { "https" } else { "http" }, self.address)
    }

    /// The requests it received, if its script reads them.
    pub(super) fn paths(&self) -> Vec<String> {
        self.seen.paths.lock().unwrap().clone()
    }

    /// How many connections there were.
    pub(super) fn came(&self) -> usize {
        self.seen.came.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.seen.open.load(Ordering::SeqCst)
    }
}

impl Town {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { runtime: runtime.unwrap(), authority: Authority::new() }
    }

    /// The certificate of the authority that `comity` should trust.
    pub(super) fn root(&self) -> &str {
        &self.authority.pem
    }

    pub(super) fn host(&self, at: &str, speech: Speech, talk: Talk) -> Host {
        let listener = std::net::TcpListener::bind((at, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let acceptor = match speech {
            Speech::Plain | Speech::Feigned => None,
            Speech::Tls(certificate) => Some(self.authority.acceptor(certificate)),
        };
        let (seen, secure) = (Arc::<Seen>::default(), !matches!(speech, Speech::Plain));
        let host = Host { address, secure, seen: Arc::clone(&seen) };
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, talk, acceptor) = (Arc::clone(&seen), Arc::clone(&talk), acceptor.clone());
                tokio::spawn(async move {
                    seen.came.fetch_add(1, Ordering::SeqCst);
                    seen.open.fetch_add(1, Ordering::SeqCst);
                    greet(stream, acceptor, &talk, &seen).await;
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        host
    }
}

async fn greet(stream: TcpStream, acceptor: Option<TlsAcceptor>, talk: &Talk, seen: &Arc<Seen>) {
    let _ = stream.set_nodelay(true);
    let linger = socket(&stream);
    let stream: Box<dyn Stream> = match acceptor {
        None => Box::new(stream),
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => Box::new(stream),
            Err(_) => return,
        },
    };
    talk(Peer { stream, seen: Arc::clone(seen), linger }).await;
}

/// A second handle to a connection, for resetting it.
fn socket(stream: &TcpStream) -> std::net::TcpStream {
    use std::os::fd::AsFd;
    std::net::TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap())
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The host's end of a connection.
pub(super) struct Peer {
    pub(super) stream: Box<dyn Stream>,
    seen: Arc<Seen>,
    linger: std::net::TcpStream,
}

impl Peer {
    /// Reads an HTTP/1.1 request, and logs its path.
    pub(super) async fn request(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        self.note(&path);
        Some(path)
    }

    /// All requests so far, on any connection.
    pub(super) fn paths(&self) -> Vec<String> {
        self.seen.paths.lock().unwrap().clone()
    }

    pub(super) fn note(&self, path: &str) {
        self.seen.paths.lock().unwrap().push(path.to_owned());
    }

    /// Writes; false if the client is gone.
    pub(super) async fn write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// Waits until the client is gone.
    pub(super) async fn linger(&mut self) {
        let mut buffer = [0; 4_096];
        while self.stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    }

    /// Resets the connection.
    pub(super) fn reset(self) {
        use nix::sys::socket::{setsockopt, sockopt};
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.linger, sockopt::Linger, &at_once).unwrap();
    }
}

/// A certificate authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the authority of the town");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn acceptor(&self, certificate: Certificate) -> TlsAcceptor {
        let Certificate { name, years, signed, authority, protocol } = certificate;
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        if authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = match signed {
            true => params.signed_by(&key, &self.issuer).unwrap().der().clone(),
            false => params.self_signed(&key).unwrap().der().clone(),
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}
