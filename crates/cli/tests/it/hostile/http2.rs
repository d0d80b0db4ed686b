//! Sites that send invalid or malicious HTTP/2 frames.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::servers::{Certificate, Peer, Speech, talk};
use super::{Outcome, Planned, failed, fetched};

pub(super) fn sites() -> Vec<Planned> {
    let broke = failed("connection closed before the response was complete", "network_error");
    let head_late = failed("timed out waiting for the response", "timeout");
    let noise = Outcome::Noise;
    vec![
        site("a page", fetched(2), |on| [ok(on), frame(DATA, END_STREAM, on, b"ok")].concat()),
        site("goaway instead of an answer", broke, |_| go_away(NO_ERROR)),
        site("goaway in the body", broke, |on| {
            [ok(on), frame(DATA, 0, on, b"so"), go_away(INTERNAL_ERROR)].concat()
        }),
        site("a reset stream", broke, |on| reset(on, INTERNAL_ERROR)),
        site("a refused stream", broke, |on| reset(on, REFUSED_STREAM)),
        site("a reset in the body", broke, |on| {
            [ok(on), frame(DATA, 0, on, b"so"), reset(on, INTERNAL_ERROR)].concat()
        }),
        site("a head of a wrong table", broke, |on| frame(HEADERS, END_HEADERS, on, &[0xff; 20])),
        site("a head without a status", broke, |on| frame(HEADERS, END_HEADERS, on, &[])),
        site("a frame of nobody's stream", broke, |_| frame(DATA, 0, 99, b"x")),
        site("data before the head", broke, |on| frame(DATA, END_STREAM, on, b"x")),
        site("a frame beyond the limit", broke, |on| frame(DATA, 0, on, &[0; 70_000])),
        site("a push", broke, |on| frame(PUSH_PROMISE, END_HEADERS, on, &[0, 0, 0, 2, 0x82])),
        site("a window that overflows", broke, |_| {
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(2)
        }),
        site("noise", broke, |_| vec![0xff; 4_096]),
        site("a length that is wrong", broke, |on| {
            [frame(HEADERS, END_HEADERS, on, LENGTH_9), frame(DATA, END_STREAM, on, b"ok")].concat()
        }),
        planned("more than its window allows", broke, async |mut peer: Peer, on: u32| {
            peer.write([ok(on), frame(DATA, 0, on, &[b'x'; 16_384]).repeat(1_000)].concat()).await;
        }),
        site("silence", head_late, |_| Vec::new()),
        site("no streams allowed", head_late, |_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0])),
        flood("a flood of settings", noise, |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        flood("a flood of pings", noise, |_| frame(PING, 0, 0, &[7; 8])),
        flood("a flood of unknown frames", noise, |_| frame(0xbe, 0, 0, &[7; 64])),
        flood("a flood of priorities", noise, |on| frame(PRIORITY, 0, on, &[0, 0, 0, 3, 9])),
        flood("a flood of 103s", noise, |on| frame(HEADERS, END_HEADERS, on, HINTS)),
        deaf("pings of one that does not listen", head_late, |_| frame(PING, 0, 0, &[7; 8])),
        // A client that reads these closes the connection.
        flood_after("empty frames", broke, ok, |on| frame(DATA, 0, on, b"")),
        flood_after(
            "endless continuations",
            broke,
            |on| frame(HEADERS, 0, on, OK),
            |on| frame(CONTINUATION, 0, on, b"\x00\x01a\x01b"),
        ),
        flood_after(
            "empty continuations",
            broke,
            |on| frame(HEADERS, 0, on, OK),
            |on| frame(CONTINUATION, 0, on, b""),
        ),
    ]
}

/// The frames to send, given the id of a stream.
type Saying = fn(u32) -> Vec<u8>;

/// A host that answers each request with these frames.
fn site(name: &str, outcome: Outcome, answer: Saying) -> Planned {
    planned(name, outcome, move |mut peer: Peer, on: u32| async move {
        peer.write(answer(on)).await;
        while let Some(on) = asked(&mut peer).await {
            peer.write(answer(on)).await;
        }
    })
}

/// Sends the same frames forever, and reads what it receives.
fn flood(name: &str, outcome: Outcome, again: Saying) -> Planned {
    flood_after(name, outcome, |_| Vec::new(), again)
}

fn flood_after(name: &str, outcome: Outcome, first: Saying, again: Saying) -> Planned {
    planned(name, outcome, move |mut peer: Peer, on: u32| async move {
        peer.write(first(on)).await;
        let again = again(on).repeat(100);
        let (mut read, mut write) = tokio::io::split(peer.stream);
        let mut buffer = [0; 16_384];
        tokio::select! {
            () = async { while read.read(&mut buffer).await.is_ok_and(|read| read > 0) {} } => {}
            () = async { while write.write_all(&again).await.is_ok() {} } => {}
        }
    })
}

/// Sends the same frames forever without reading anything, until the client is gone.
fn deaf(name: &str, outcome: Outcome, again: Saying) -> Planned {
    planned(name, outcome, move |mut peer: Peer, on: u32| async move {
        let again = again(on).repeat(1_000);
        while peer.write(&again).await {}
    })
}

fn planned<F: Future<Output = ()> + Send + 'static>(
    name: &str,
    outcome: Outcome,
    rest: impl Fn(Peer, u32) -> F + Send + Sync + Clone + 'static,
) -> Planned {
    let talk = talk(move |mut peer: Peer| {
        let rest = rest.clone();
        async move {
            let mut preface = [0; 24];
            if peer.stream.read_exact(&mut preface).await.is_err() {
                return;
            }
            peer.write(frame(SETTINGS, 0, 0, &[])).await;
            if let Some(on) = asked(&mut peer).await {
                rest(peer, on).await;
            }
        }
    });
    Planned { name: format!("h2: {name}"), speech: Speech::Tls(Certificate::HTTP2), talk, outcome }
}

/// Reads frames until the head of a request, and returns its stream id.
async fn asked(peer: &mut Peer) -> Option<u32> {
    loop {
        let mut head = [0; 9];
        peer.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        peer.stream.read_exact(&mut payload).await.ok()?;
        match kind {
            HEADERS => {
                peer.note("a request");
                return Some(u32::from_be_bytes(stream));
            }
            SETTINGS if flags & ACK == 0 => {
                peer.write(frame(SETTINGS, ACK, 0, &[])).await;
            }
            _ => {}
        }
    }
}

fn ok(on: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, on, OK)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// A GOAWAY that says that no stream was processed.
fn go_away(reason: u8) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, reason])
}

fn reset(on: u32, reason: u8) -> Vec<u8> {
    frame(RST_STREAM, 0, on, &[0, 0, 0, reason])
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const NO_ERROR: u8 = 0;
const INTERNAL_ERROR: u8 = 2;
const REFUSED_STREAM: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `:status: 200`, from the static table.
const OK: &[u8] = &[0x88];
/// `:status: 200` and `content-length: 9`.
const LENGTH_9: &[u8] = &[0x88, 0x0f, 0x0d, 0x01, b'9'];
/// `:status: 103`, and a header.
const HINTS: &[u8] = b"\x08\x03103\x00\x04link\x04</a>";
