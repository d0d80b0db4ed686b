//! Servers that log their requests and send the responses that a test gives them.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server on a free port of loopback.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Vec<(SocketAddr, String)>>>,
}

/// The server's end of a connection.
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    client: SocketAddr,
    seen: Arc<Mutex<Vec<(SocketAddr, String)>>>,
}

impl Server {
    /// ClockControl each connection to `talk`.
    pub(super) async fn start<F: Future<Output = ()> + Send>(
        talk: impl Fn(Peer) -> F + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (shared, talk) = (Arc::clone(&seen), Arc::new(talk));
        tokio::spawn(async move {
            while let Ok((stream, client)) = listener.accept().await {
                let (seen, talk) = (Arc::clone(&shared), Arc::clone(&talk));
                tokio::spawn(async move { talk(Peer { stream, client, seen }).await });
            }
        });
        Self { address, seen }
    }

    /// Answers every request with these bytes and keeps the connection open.
    pub(super) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut peer| {
            let answer = Arc::clone(&answer);
            async move {
                while peer.request().await.is_some() {
                    peer.write(&answer).await;
                }
            }
        })
        .await
    }

    /// Answers one request of each connection with these bytes and closes it.
    pub(super) async fn answering_once(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |mut peer| {
            let answer = Arc::clone(&answer);
            async move {
                peer.request().await;
                peer.write(&answer).await;
            }
        })
        .await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The heads of the requests seen so far.
    pub(super) fn heads(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(_, head)| head.clone()).collect()
    }

    /// The client's port for each request seen so far.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.seen.lock().unwrap().iter().map(|(client, _)| client.port()).collect()
    }
}

impl Peer {
    /// Reads and logs the headers of the next request.
    pub(super) async fn request(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        self.seen.lock().unwrap().push((self.client, head.clone()));
        Some(head)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        // The client may close the connection early.
        let _ = self.stream.write_all(bytes).await;
    }
}

/// A response with this body and these headers, each of which ends with `\r\n`.
pub(super) fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}
