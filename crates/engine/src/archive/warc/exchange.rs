//! Records a request and its response as they pass on a connection: digests are calculated and long bodies spooled to
//! disk as they arrive. Credentials are removed before anything is digested or written.

use std::io::{self, Write};
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::time::Timestamp;

use super::Ending;
use super::chunks::Chunks;
use super::digest::{Digest, Digester};
use super::head::{self, Framing};
use super::spool::Spool;
use crate::clock::Clock;
use crate::transport::Witness;

/// Records an exchange. After [`Self::take`], nothing more is recorded.
pub(super) struct Recorder(Mutex<Option<Exchange>>);

/// An exchange in progress.
struct Exchange {
    clock: Clock,
    folder: PathBuf,
    server: Option<IpAddr>,
    began_at: Timestamp,
    request: Vec<u8>,
    /// The response head, as far as it has arrived.
    head: Vec<u8>,
    response: Option<Response>,
    error: Option<io::Error>,
}

/// A response whose head has arrived.
struct Response {
    head: Vec<u8>,
    is_plain: bool,
    body: Spool,
    remaining: Remaining,
    block_digest: Digester,
    body_digest: Digester,
    /// The digest of the payload, if the response is chunked.
    chunk_digest: Option<Digester>,
    payload_len: u64,
}

/// How much of the body is still to come.
enum Remaining {
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// A finished exchange.
pub(super) struct RecordedExchange {
    /// When the request was written.
    pub(super) began_at: Timestamp,
    /// The address of the server; `None` if it was reached through a proxy.
    pub(super) server: Option<IpAddr>,
    /// The request.
    pub(super) request: Vec<u8>,
    /// The response head.
    pub(super) head: Vec<u8>,
    /// The response body, including chunked framing.
    pub(super) body: Spool,
    /// The digest of head and body.
    pub(super) block_digest: Digest,
    /// The digest of the body including framing; `None` if readers may disagree on where it starts.
    pub(super) body_digest: Option<Digest>,
    /// Identifies the payload, if there is one and it is complete.
    pub(super) payload: Option<Payload>,
    /// Whether the body is complete.
    pub(super) is_complete: bool,
}

/// Identifies a payload, to find out whether it was recorded before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Payload {
    pub(super) digest: Digest,
    /// Readers combine the head of a revisit with the body of the original, so both must have the same framing.
    pub(super) is_chunked: bool,
}

impl Recorder {
    pub(super) fn new(clock: Clock, folder: PathBuf) -> Self {
        Self(Mutex::new(Some(Exchange {
            began_at: clock.now(),
            clock,
            folder,
            server: None,
            request: Vec::new(),
            head: Vec::new(),
            response: None,
            error: None,
        })))
    }

    /// Ends the recording; `None` if there was no response.
    pub(super) fn take(&self, ending: Ending) -> io::Result<Option<RecordedExchange>> {
        self.lock().take().map_or(Ok(None), |exchange| exchange.end(ending))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Witness for Recorder {
    fn begin(&self, server: Option<IpAddr>) {
        if let Some(exchange) = &mut *self.lock() {
            exchange.server = server;
            exchange.request.clear();
            exchange.head.clear();
            exchange.response = None;
        }
    }

    fn sent(&self, bytes: &[u8]) {
        if let Some(exchange) = &mut *self.lock() {
            if exchange.request.is_empty() {
                exchange.began_at = exchange.clock.now();
            }
            exchange.request.extend_from_slice(bytes);
        }
    }

    fn received(&self, bytes: &[u8]) {
        if let Some(exchange) = &mut *self.lock()
            && exchange.error.is_none()
        {
            exchange.error = exchange.read(bytes).err();
        }
    }
}

impl Exchange {
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(response) = &mut self.response {
            return response.read(bytes);
        }
        let mut from = self.head.len();
        self.head.extend_from_slice(bytes);
        loop {
            // HTTP allows blank lines before a response, which are not part of it.
            let blank = self.head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if blank > 0 {
                self.head.drain(..blank);
                from = 0;
            }
            let Some(end) = head::end(&self.head, from) else { return Ok(()) };
            let rest = self.head.split_off(end);
            let head = mem::replace(&mut self.head, rest);
            from = 0;
            // Readers would take an interim response (100, 103) for the final one.
            if !matches!(head::status(&head), Some(100..=199)) {
                let response = self.response.insert(Response::new(&head, Spool::new(&self.folder)));
                return response.read(&mem::take(&mut self.head));
            }
        }
    }

    fn end(self, ending: Ending) -> io::Result<Option<RecordedExchange>> {
        let (Some(response), false) = (self.response, ending == Ending::Lost) else { return Ok(None) };
        if let Some(error) = self.error {
            return Err(error);
        }
        let is_complete = match response.remaining {
            Remaining::Length(left) => left == 0,
            Remaining::Chunks(chunks) => chunks == Chunks::Done,
            Remaining::UntilClose => ending == Ending::Complete,
        };
        let is_chunked = response.chunk_digest.is_some();
        let body_digest = response.body_digest.finish();
        let digest = response.chunk_digest.map_or(body_digest, Digester::finish);
        let is_known = is_complete && response.is_plain && response.payload_len > 0;
        let end = head::end(&self.request, 0).unwrap_or(self.request.len());
        let mut request = head::harmless(&self.request[..end]);
        request.extend_from_slice(&self.request[end..]);
        Ok(Some(RecordedExchange {
            began_at: self.began_at,
            server: self.server,
            request,
            head: response.head,
            body: response.body,
            block_digest: response.block_digest.finish(),
            body_digest: response.is_plain.then_some(body_digest),
            payload: is_known.then_some(Payload { digest, is_chunked }),
            is_complete,
        }))
    }
}

impl Response {
    fn new(head: &[u8], body: Spool) -> Self {
        let remaining = match head::framing(head) {
            Framing::Length(length) => Remaining::Length(length),
            Framing::Chunked => Remaining::Chunks(Chunks::START),
            Framing::UntilClose => Remaining::UntilClose,
        };
        let head = head::without_credentials(head);
        let mut block_digest = Digester::new();
        block_digest.update(&head);
        Self {
            is_plain: head::is_plain(&head),
            head,
            body,
            chunk_digest: matches!(remaining, Remaining::Chunks(_)).then(Digester::new),
            remaining,
            block_digest,
            body_digest: Digester::new(),
            payload_len: 0,
        }
    }

    /// Reads more of the body; anything after the end of the response is ignored.
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let taken = match &mut self.remaining {
            Remaining::UntilClose => bytes.len(),
            Remaining::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                taken
            }
            Remaining::Chunks(chunks) => chunks.read(bytes, |part| {
                self.payload_len += part.len() as u64;
                if let Some(digest) = &mut self.chunk_digest {
                    digest.update(part);
                }
            }),
        };
        let bytes = &bytes[..taken];
        if self.chunk_digest.is_none() {
            self.payload_len += bytes.len() as u64;
        }
        self.block_digest.update(bytes);
        self.body_digest.update(bytes);
        self.body.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The response, the request and the exchange as recorded; checks that they don't depend on the size of the pieces.
    fn record(request: &str, response: &str) -> (String, String, RecordedExchange) {
        let mut last = None;
        for size in [1, 2, 7, 10_000] {
            let folder = std::env::temp_dir();
            let recorder = Recorder::new(Clock::new(), folder);
            recorder.begin(None);
            request.as_bytes().chunks(size).for_each(|piece| recorder.sent(piece));
            response.as_bytes().chunks(size).for_each(|piece| recorder.received(piece));
            let mut exchange = recorder.take(Ending::Complete).unwrap().expect("a response");
            let mut body = String::new();
            let spool = mem::replace(&mut exchange.body, Spool::new(&std::env::temp_dir()));
            spool.into_reader().unwrap().read_to_string(&mut body).unwrap();
            let head = String::from_utf8(exchange.head.clone()).unwrap();
            let block = head + &body;
            assert_eq!(exchange.block_digest, Digest::of(block.as_bytes()), "{block}");
            if let Some(digest) = exchange.body_digest {
                assert_eq!(digest, Digest::of(body.as_bytes()), "{block}");
            }
            recorder.received(b"more");
            if let Some((before, _, _)) = &last {
                assert_eq!(before, &block, "in pieces of {size}");
            }
            last = Some((block, String::from_utf8(exchange.request.clone()).unwrap(), exchange));
        }
        last.unwrap()
    }

    #[test]
    fn a_response_is_recorded_unchanged() {
        let response = "HTTP/1.1 200 Fine\r\nX-ODD:  case\r\ncontent-length: 4\r\n\r\nbody";
        let (block, request, exchange) =
            record("GET / HTTP/1.1\r\nhost: a\r\n\r\n", &format!("{response}junk"));
        assert_eq!((block.as_str(), request.as_str()), (response, "GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(exchange.payload, Some(Payload { digest: Digest::of(b"body"), is_chunked: false }));
        assert!(exchange.is_complete);
    }

    #[test]
    fn chunks_are_recorded_and_their_payload_identified() {
        let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n";
        let (block, _, exchange) = record("", &format!("{response}HTTP/1.1 408 Late"));
        assert_eq!(block, response);
        assert_eq!(exchange.payload, Some(Payload { digest: Digest::of(b"body"), is_chunked: true }));
        assert_ne!(exchange.body_digest, Some(Digest::of(b"body")));
    }

    #[test]
    fn interim_responses_are_not_recorded() {
        let response = "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
        let early = "\r\nHTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n";
        let (block, _, exchange) = record("", &format!("{early}{response}"));
        assert_eq!(block, response);
        assert_eq!(exchange.payload, None);
    }

    #[test]
    fn incomplete_responses_are_detected() {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        ] {
            let (_, _, exchange) = record("", response);
            assert!(!exchange.is_complete && exchange.payload.is_none(), "{response}");
        }
        for (response, ending, expected) in [
            ("HTTP/1.1 200 OK\r\n", Ending::Complete, None),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Complete, Some(true)),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Truncated("time"), Some(false)),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Lost, None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", Ending::Truncated("length"), Some(true)),
        ] {
            let recorder = Recorder::new(Clock::new(), std::env::temp_dir());
            recorder.received(response.as_bytes());
            let exchange = recorder.take(ending).unwrap();
            assert_eq!(exchange.map(|exchange| exchange.is_complete), expected, "{response:?} {ending:?}");
        }
    }

    /// B75
    #[test]
    fn credentials_are_removed_before_digests_are_calculated() {
        let (block, request, _) = record(
            "GET / HTTP/1.1\r\nauthorization: Basic c2VjcmV0\r\nx-api-key: secret\r\nhost: a\r\n\r\n",
            "HTTP/1.1 302 Found\r\nSet-Cookie: id=secret\r\nLocation: http://me:secret@a/\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(request, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(block, "HTTP/1.1 302 Found\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n");
    }
}
