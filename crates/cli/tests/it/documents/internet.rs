//! Makes the hosts in the documentation real without changing the pages: a proxy, used by programs that honor
//! `http_proxy`, with sites behind it whose certificates are signed by our own authority.
//!
//! The content of the sites is in `sites`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::sites::{Asked, Sites};

/// A proxy that runs as long as the tests do.
pub(crate) struct Internet {
    port: u16,
}

impl Internet {
    /// Starts a proxy with `sites` behind it, and writes the authority's certificate to `root`.
    pub(crate) fn start(sites: Sites, root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let authority = Authority::new();
        std::fs::write(root, &authority.root).unwrap();
        let shared = Arc::new((sites, authority));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                // Clients may disconnect at any time.
                std::thread::spawn(move || _ = serve(stream, &shared.0, &shared.1));
            }
        });
        Self { port }
    }

    pub(crate) fn proxy(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// One connection of a client.
fn serve(mut stream: TcpStream, sites: &Sites, authority: &Authority) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = Head::read(&mut reader)? {
        if head.method == "CONNECT" {
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
            let host = head.target.split(':').next().unwrap_or_default().to_owned();
            let connection = ServerConnection::new(authority.server(&host)).map_err(io::Error::other)?;
            let mut secure = StreamOwned::new(connection, stream);
            return answer_all(&mut secure, sites, &host);
        }
        let body = head.body(&mut reader)?;
        let rest = head.target.strip_prefix("http://").unwrap_or(&head.target);
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let asked = Asked { host, method: &head.method, path, head: &head.lines, body: &body };
        stream.write_all(&sites.answer(&asked))?;
    }
    Ok(())
}

/// The requests on a connection to `host`.
fn answer_all(stream: &mut (impl Read + Write), sites: &Sites, host: &str) -> io::Result<()> {
    loop {
        // Unbuffered, because the same stream is written to.
        let Some(head) = Head::read(&mut Bytewise(stream))? else { return Ok(()) };
        let body = head.body(stream)?;
        let asked = Asked { host, method: &head.method, path: &head.target, head: &head.lines, body: &body };
        stream.write_all(&sites.answer(&asked))?;
        stream.flush()?;
    }
}

/// The head of a request.
struct Head {
    method: String,
    target: String,
    lines: Vec<String>,
}

impl Head {
    fn read(reader: &mut impl Lines) -> io::Result<Option<Self>> {
        let first = reader.line()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
        let mut lines = Vec::new();
        loop {
            match reader.line()? {
                line if line.is_empty() => return Ok(Some(Self { method, target, lines })),
                line => lines.push(line),
            }
        }
    }

    fn body(&self, reader: &mut impl Read) -> io::Result<Vec<u8>> {
        let length = self.lines.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        Ok(body)
    }
}

/// Reads lines, without line endings.
trait Lines {
    fn line(&mut self) -> io::Result<String>;
}

impl Lines for BufReader<TcpStream> {
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

struct Bytewise<'a, T>(&'a mut T);

impl<T: Read> Lines for Bytewise<'_, T> {
    fn line(&mut self) -> io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while self.0.read(&mut byte)? == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

/// Our own certificate authority.
struct Authority {
    /// Its certificate, for clients that should trust it.
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        Self { root, issuer: Issuer::new(params, key) }
    }

    /// The TLS configuration of a host. One host has the certificate of another.
    fn server(&self, host: &str) -> Arc<ServerConfig> {
        let name = if host == "expired.example" { "somebody-else.example" } else { host };
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }
}
