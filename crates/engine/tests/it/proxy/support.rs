//! A proxy on a free port, and clients that write to it byte by byte.

use std::net::SocketAddr;
use std::sync::Arc;

use comity::client::transport;
use comity::clock::Clock;
use comity::event::Events;
use comity::gate::Gate;
use comity::proxy::{Proxy, ProxySettings};
use comity::transport::Transport;
use comity_core::time::Span;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{config, soon};

/// Sites on loopback may be fetched, without any delay.
pub(super) const OPEN: &str = "[default]\nmin_delay = \"0s\"\n[http]\nallow_private = [\"127.0.0.0/8\"]\n";

/// A running proxy.
pub(super) struct Proxied {
    pub(super) proxy: Proxy,
    pub(super) gate: Gate,
    pub(super) address: SocketAddr,
}

impl Drop for Proxied {
    fn drop(&mut self) {
        self.proxy.stop();
    }
}

pub(super) async fn proxied(toml: &str, settings: ProxySettings) -> Proxied {
    proxied_with(toml, settings, transport(&config(toml)).unwrap()).await
}

pub(super) async fn proxied_with(toml: &str, settings: ProxySettings, transport: Transport) -> Proxied {
    let config = config(toml);
    let gate = Gate::new(config.rules().clone(), Clock::new(), Events::new());
    let proxy = Proxy::new(settings, &config, gate.clone(), transport, None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = proxy.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    Proxied { proxy, gate, address }
}

impl Proxied {
    /// Sends these bytes, and returns everything that comes back until the connection ends.
    pub(super) async fn send(&self, text: &str) -> String {
        let mut stream = self.open(text).await;
        rest(&mut stream).await
    }

    /// Sends these bytes on a new connection.
    pub(super) async fn open(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Gets a URL.
    pub(super) async fn get(&self, url: &str) -> String {
        self.get_with(url, "").await
    }

    /// Gets a URL with these header lines.
    pub(super) async fn get_with(&self, url: &str, lines: &str) -> String {
        let host = url.split('/').nth(2).unwrap();
        self.send(&format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n")).await
    }
}

/// Everything until the connection ends.
pub(super) async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let _ = soon("a response", stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What arrives until it ends with `end`.
pub(super) async fn until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let reading = async {
        let mut text = String::new();
        while !text.ends_with(end) {
            let byte = stream.read_u8().await.unwrap_or_else(|error| panic!("{error} after {text:?}"));
            text.push(char::from(byte));
        }
        text
    };
    soon("what was expected", reading).await
}

/// The status of a response.
pub(super) fn status(response: &str) -> u16 {
    let word = response.split(' ').nth(1).unwrap_or_else(|| panic!("no response: {response:?}"));
    word.parse().unwrap()
}

/// A header of a response.
pub(super) fn header<'a>(response: &'a str, name: &str) -> Option<&'a str> {
    let head = response.split("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
    lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

pub(super) fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

pub(super) fn short_wait() -> ProxySettings {
    ProxySettings { wait_max: Span::from_millis(50), ..ProxySettings::default() }
}

/// A site whose connections the test serves itself.
pub(super) async fn by_hand() -> (Arc<TcpListener>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    (Arc::new(listener), host)
}
