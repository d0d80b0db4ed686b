//! Hosts on loopback, in plain text or over TLS, that record whole requests; and a SOCKS5 proxy.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::log::wait_until;

/// A request as a host received it.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) path: String,
    /// The head, as it was received.
    pub(super) head: String,
    pub(super) body: String,
}

impl Received {
    pub(super) fn has(&self, line: &str) -> bool {
        self.head.lines().any(|there| there == line)
    }
}

/// Runs the hosts.
pub(super) struct Town {
    runtime: Runtime,
    issuer: Issuer<'static, KeyPair>,
    pub(super) root: String,
}

/// The protocol of a host.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Speech {
    Plain,
    Tls,
    /// With a self-signed certificate.
    Unsigned,
}

pub(super) struct Host {
    pub(super) address: SocketAddr,
    speech: Speech,
    received: Arc<Mutex<Vec<Received>>>,
}

/// Returns a status and header lines, or none to keep the client waiting.
pub(super) type Answer = (u16, String);
type Answering = Arc<dyn Fn(&Received, usize) -> Option<Answer> + Send + Sync>;

impl Host {
    pub(super) fn url(&self, name: &str, path: &str) -> String {
        let scheme = if self.speech == Speech::Plain { "http" } else { "https" };
        format!("{scheme}://{name}:{}{path}", self.address.port())
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// All requests except for robots.txt.
    pub(super) fn pages(&self) -> Vec<Received> {
        self.received().into_iter().filter(|request| !request.path.ends_with("/robots.txt")).collect()
    }

    pub(super) fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} requests"), || self.received().len() >= count);
    }
}

pub(super) fn ok() -> Option<Answer> {
    Some((200, String::new()))
}

pub(super) fn moved(status: u16, to: &str) -> Option<Answer> {
    Some((status, format!("Location: {to}\r\n")))
}

impl Town {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        Self { runtime: runtime.unwrap(), issuer: Issuer::new(params, key), root }
    }

    /// A host; `answer` gets the request and the number of earlier ones, and returns none to keep the client waiting.
    pub(super) fn host(
        &self,
        speech: Speech,
        answer: impl Fn(&Received, usize) -> Option<Answer> + Send + Sync + 'static,
    ) -> Host {
        let answer: Answering = Arc::new(answer);
        let acceptor = (speech != Speech::Plain).then(|| self.acceptor(speech));
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let (address, listener) = listen();
        let log = received.clone();
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, acceptor, log) = (answer.clone(), acceptor.clone(), log.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(stream, &answer, &log).await,
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => serve(stream, &answer, &log).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Host { address, speech, received }
    }

    /// A SOCKS5 proxy that requires a user and a password, and resolves every name to 127.0.0.1. Also returns its log.
    pub(super) fn socks(
        &self,
        user: &'static str,
        password: &'static str,
    ) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (address, listener) = listen();
        let log = asked.clone();
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(socks(stream, user, password, log.clone()));
            }
        });
        (address, asked)
    }

    fn acceptor(&self, speech: Speech) -> TlsAcceptor {
        let names = ["127.0.0.1", "127.0.0.2", "site.localhost", "www.site.localhost", "other.localhost"];
        let params = CertificateParams::new(names.map(str::to_owned).to_vec()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = match speech {
            Speech::Tls => params.signed_by(&key, &self.issuer).unwrap().der().clone(),
            _ => params.self_signed(&key).unwrap().der().clone(),
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

fn listen() -> (SocketAddr, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener.local_addr().unwrap(), listener)
}

async fn serve<S>(mut stream: S, answer: &Answering, log: &Mutex<Vec<Received>>) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.ok()?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let received = Received { path, head, body: String::from_utf8(body).unwrap() };
        let nth = {
            let mut log = log.lock().unwrap();
            log.push(received.clone());
            log.len() - 1
        };
        let Some((status, headers)) = answer(&received, nth) else {
            // Wait until the client is gone.
            let _ = stream.read_u8().await;
            return None;
        };
        let text = format!("HTTP/1.1 {status} Told\r\nContent-Length: 3\r\n{headers}\r\nok\n");
        stream.write_all(text.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

async fn socks(
    mut stream: TcpStream,
    user: &str,
    password: &str,
    asked: Arc<Mutex<Vec<String>>>,
) -> Option<()> {
    async fn bytes(stream: &mut TcpStream, count: u8) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count.into()];
        stream.read_exact(&mut bytes).await.ok()?;
        Some(bytes)
    }
    let hello = bytes(&mut stream, 2).await?;
    let methods = bytes(&mut stream, hello[1]).await?;
    assert!(methods.contains(&2), "no password is offered");
    stream.write_all(&[5, 2]).await.ok()?;
    let head = bytes(&mut stream, 2).await?;
    let name = bytes(&mut stream, head[1]).await?;
    let length = bytes(&mut stream, 1).await?;
    let word = bytes(&mut stream, length[0]).await?;
    let fits = name == user.as_bytes() && word == password.as_bytes();
    stream.write_all(&[1, u8::from(!fits)]).await.ok()?;
    let ask = bytes(&mut stream, 4).await?;
    let host = match ask[3] {
        1 => bytes(&mut stream, 4).await?.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        3 => {
            let length = bytes(&mut stream, 1).await?;
            String::from_utf8(bytes(&mut stream, length[0]).await?).unwrap()
        }
        _ => panic!("an address of kind {}", ask[3]),
    };
    let port = bytes(&mut stream, 2).await?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    asked.lock().unwrap().push(format!("{host}:{port}"));
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.ok()?;
    let _ = copy_bidirectional(&mut stream, &mut server).await;
    Some(())
}
