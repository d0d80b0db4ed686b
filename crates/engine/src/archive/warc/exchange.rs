//! One request and its answer, as they pass on a connection: digests are calculated and long bodies put aside while
//! they arrive. Credentials are left out before anything is digested or written down (B75).

use std::io::{self, Write};
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::time::Timestamp;

use super::Ending;
use super::chunks::Chunks;
use super::digest::{Digest, Digesting};
use super::head::{self, Framing};
use super::spool::Spool;
use crate::clock::Clock;
use crate::transport::Witness;

/// Sees an exchange. What passes after it was taken out is not seen any more.
pub(super) struct Scene(Mutex<Option<Exchange>>);

/// An exchange under way.
struct Exchange {
    clock: Clock,
    folder: PathBuf,
    server: Option<IpAddr>,
    began_at: Timestamp,
    request: Vec<u8>,
    /// The head of the answer, as far as it arrived.
    head: Vec<u8>,
    answer: Option<Answer>,
    error: Option<io::Error>,
}

/// An answer whose head has arrived.
struct Answer {
    head: Vec<u8>,
    is_plain: bool,
    body: Spool,
    left: Left,
    block_digest: Digesting,
    body_digest: Digesting,
    /// Of what is inside the chunks, if there are chunks.
    chunk_digest: Option<Digesting>,
    payload_len: u64,
}

/// What is still to come.
enum Left {
    Length(u64),
    Chunks(Chunks),
    UntilClose,
}

/// An exchange that is over.
pub(super) struct Passed {
    /// When the request was written.
    pub(super) began_at: Timestamp,
    /// Who answered, if that was no proxy.
    pub(super) server: Option<IpAddr>,
    /// The request.
    pub(super) request: Vec<u8>,
    /// The head of the answer.
    pub(super) head: Vec<u8>,
    /// Its body, framing included.
    pub(super) body: Spool,
    /// Of head and body.
    pub(super) block_digest: Digest,
    /// Of the body with its framing; none where readers may not agree on where it begins.
    pub(super) body_digest: Option<Digest>,
    /// What the answer is known by, if it has a payload and all of it is there.
    pub(super) payload: Option<Payload>,
    /// Whether all of the body is there.
    pub(super) is_whole: bool,
}

/// By what it is known that a payload was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Payload {
    pub(super) digest: Digest,
    /// Readers put the head of one answer before the body of another that is the same, so both must be framed alike.
    pub(super) is_chunked: bool,
}

impl Scene {
    pub(super) fn new(clock: Clock, folder: PathBuf) -> Self {
        Self(Mutex::new(Some(Exchange {
            began_at: clock.now(),
            clock,
            folder,
            server: None,
            request: Vec::new(),
            head: Vec::new(),
            answer: None,
            error: None,
        })))
    }

    /// What passed; none if no answer came.
    pub(super) fn take(&self, ending: Ending) -> io::Result<Option<Passed>> {
        self.lock().take().map_or(Ok(None), |exchange| exchange.end(ending))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Witness for Scene {
    fn begin(&self, server: Option<IpAddr>) {
        if let Some(exchange) = &mut *self.lock() {
            exchange.server = server;
            exchange.request.clear();
            exchange.head.clear();
            exchange.answer = None;
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
        if let Some(answer) = &mut self.answer {
            return answer.read(bytes);
        }
        let mut from = self.head.len();
        self.head.extend_from_slice(bytes);
        loop {
            // What HTTP lets pass before an answer is no part of it.
            let blank = self.head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if blank > 0 {
                self.head.drain(..blank);
                from = 0;
            }
            let Some(end) = head::end(&self.head, from) else { return Ok(()) };
            let rest = self.head.split_off(end);
            let head = mem::replace(&mut self.head, rest);
            from = 0;
            // A word in between (100, 103) says nothing about the page, and readers would take it for the answer.
            if !matches!(head::status(&head), Some(100..=199)) {
                let answer = self.answer.insert(Answer::new(&head, Spool::new(&self.folder)));
                return answer.read(&mem::take(&mut self.head));
            }
        }
    }

    fn end(self, ending: Ending) -> io::Result<Option<Passed>> {
        let (Some(answer), false) = (self.answer, ending == Ending::Lost) else { return Ok(None) };
        if let Some(error) = self.error {
            return Err(error);
        }
        let is_whole = match answer.left {
            Left::Length(left) => left == 0,
            Left::Chunks(chunks) => chunks == Chunks::Over,
            Left::UntilClose => ending == Ending::Whole,
        };
        let is_chunked = answer.chunk_digest.is_some();
        let body_digest = answer.body_digest.finish();
        let digest = answer.chunk_digest.map_or(body_digest, Digesting::finish);
        let is_known = is_whole && answer.is_plain && answer.payload_len > 0;
        let end = head::end(&self.request, 0).unwrap_or(self.request.len());
        let mut request = head::harmless(&self.request[..end]);
        request.extend_from_slice(&self.request[end..]);
        Ok(Some(Passed {
            began_at: self.began_at,
            server: self.server,
            request,
            head: answer.head,
            body: answer.body,
            block_digest: answer.block_digest.finish(),
            body_digest: answer.is_plain.then_some(body_digest),
            payload: is_known.then_some(Payload { digest, is_chunked }),
            is_whole,
        }))
    }
}

impl Answer {
    fn new(head: &[u8], body: Spool) -> Self {
        let left = match head::framing(head) {
            Framing::Length(length) => Left::Length(length),
            Framing::Chunked => Left::Chunks(Chunks::START),
            Framing::UntilClose => Left::UntilClose,
        };
        let head = head::without_credentials(head);
        let mut block_digest = Digesting::new();
        block_digest.update(&head);
        Self {
            is_plain: head::is_plain(&head),
            head,
            body,
            chunk_digest: matches!(left, Left::Chunks(_)).then(Digesting::new),
            left,
            block_digest,
            body_digest: Digesting::new(),
            payload_len: 0,
        }
    }

    /// Reads on; what comes after the end of the answer belongs to nobody.
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        let taken = match &mut self.left {
            Left::UntilClose => bytes.len(),
            Left::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                taken
            }
            Left::Chunks(chunks) => chunks.read(bytes, |part| {
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

    /// What is kept of what passed, whatever pieces it came in.
    fn passed(request: &str, answer: &str) -> (String, String, Passed) {
        let mut last = None;
        for size in [1, 2, 7, 10_000] {
            let folder = std::env::temp_dir();
            let scene = Scene::new(Clock::new(), folder);
            scene.begin(None);
            request.as_bytes().chunks(size).for_each(|piece| scene.sent(piece));
            answer.as_bytes().chunks(size).for_each(|piece| scene.received(piece));
            let mut passed = scene.take(Ending::Whole).unwrap().expect("an answer");
            let mut body = String::new();
            let spool = mem::replace(&mut passed.body, Spool::new(&std::env::temp_dir()));
            spool.into_reader().unwrap().read_to_string(&mut body).unwrap();
            let head = String::from_utf8(passed.head.clone()).unwrap();
            let block = head + &body;
            assert_eq!(passed.block_digest, Digest::of(block.as_bytes()), "{block}");
            if let Some(digest) = passed.body_digest {
                assert_eq!(digest, Digest::of(body.as_bytes()), "{block}");
            }
            scene.received(b"more");
            if let Some((before, _, _)) = &last {
                assert_eq!(before, &block, "in pieces of {size}");
            }
            last = Some((block, String::from_utf8(passed.request.clone()).unwrap(), passed));
        }
        last.unwrap()
    }

    #[test]
    fn an_answer_is_kept_as_it_came() {
        let answer = "HTTP/1.1 200 Fine\r\nX-ODD:  case\r\ncontent-length: 4\r\n\r\nbody";
        let (block, request, passed) = passed("GET / HTTP/1.1\r\nhost: a\r\n\r\n", &format!("{answer}junk"));
        assert_eq!((block.as_str(), request.as_str()), (answer, "GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(passed.payload, Some(Payload { digest: Digest::of(b"body"), is_chunked: false }));
        assert!(passed.is_whole);
    }

    #[test]
    fn chunks_stay_and_their_payload_is_known() {
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n";
        let (block, _, passed) = passed("", &format!("{answer}HTTP/1.1 408 Late"));
        assert_eq!(block, answer);
        assert_eq!(passed.payload, Some(Payload { digest: Digest::of(b"body"), is_chunked: true }));
        assert_ne!(passed.body_digest, Some(Digest::of(b"body")));
    }

    #[test]
    fn words_in_between_are_not_the_answer() {
        let answer = "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
        let early = "\r\nHTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n";
        let (block, _, passed) = passed("", &format!("{early}{answer}"));
        assert_eq!(block, answer);
        assert_eq!(passed.payload, None);
    }

    #[test]
    fn what_is_missing_is_noticed() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbody",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        ] {
            let (_, _, passed) = passed("", answer);
            assert!(!passed.is_whole && passed.payload.is_none(), "{answer}");
        }
        for (answer, ending, expected) in [
            ("HTTP/1.1 200 OK\r\n", Ending::Whole, None),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Whole, Some(true)),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Cut("time"), Some(false)),
            ("HTTP/1.1 200 OK\r\n\r\nbody", Ending::Lost, None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", Ending::Cut("length"), Some(true)),
        ] {
            let scene = Scene::new(Clock::new(), std::env::temp_dir());
            scene.received(answer.as_bytes());
            let passed = scene.take(ending).unwrap();
            assert_eq!(passed.map(|passed| passed.is_whole), expected, "{answer:?} {ending:?}");
        }
    }

    /// B75
    #[test]
    fn credentials_are_gone_before_digests_are_made() {
        let (block, request, _) = passed(
            "GET / HTTP/1.1\r\nauthorization: Basic c2VjcmV0\r\nx-api-key: secret\r\nhost: a\r\n\r\n",
            "HTTP/1.1 302 Found\r\nSet-Cookie: id=secret\r\nLocation: http://me:secret@a/\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(request, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(block, "HTTP/1.1 302 Found\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n");
    }
}
