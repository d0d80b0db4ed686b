//! Sites with a hostile robots.txt.

use std::time::Duration;

use tokio::time::sleep;

use super::bombs::gzip;
use super::servers::{Peer, Speech, talk};
use super::{Outcome, Planned, failed, fetched};

/// Sites with a `/page` and its expected outcome, and a `/private/page` that their robots.txt disallows.
pub(super) fn sites() -> Vec<Planned> {
    let drip =
        failed("timed out reading the response after 2 attempts (while fetching robots.txt)", "timeout");
    vec![
        site("two gigabytes", fetched(4), async |mut peer| {
            peer.write(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 2_u64 << 30)).await;
            pour(peer, 2 << 30).await;
        }),
        site("two gigabytes in chunks", fetched(4), async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            peer.write(format!("{:x}\r\n{RULES}\r\n", RULES.len())).await;
            let chunk = format!("4000\r\n{}\r\n", COMMENT.repeat(0x4000 / COMMENT.len()));
            for _ in 0..(2_u64 << 30) / 0x4000 {
                if !peer.write(&chunk).await {
                    return;
                }
            }
        }),
        site("endless", fetched(4), async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\n\r\n").await;
            pour(peer, u64::MAX).await;
        }),
        site("endless and packed", fetched(4), async |mut peer| {
            peer.write("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n").await;
            peer.write(gzip(RULES.as_bytes())).await;
            let more = gzip(COMMENT.repeat(1_000).as_bytes());
            while peer.write(&more).await {}
        }),
        site("in colour", fetched(4), async |mut peer| {
            let body = format!("{RULES}\u{1b}[2J\u{9b}: \u{202e}\nSitemap: http://\u{1b}]0;x\u{7}/\n");
            let length = body.len();
            peer.write(format!("HTTP/1.1 200 \u{9b}31m\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        }),
        site("a slow drip", drip, async |mut peer| {
            peer.write(format!("HTTP/1.1 200 OK\r\n\r\n{RULES}")).await;
            while peer.write("#").await {
                sleep(Duration::from_millis(20)).await;
            }
        }),
    ]
}

fn site<F: Future<Output = ()> + Send + 'static>(
    name: &str,
    outcome: Outcome,
    robots: impl Fn(Peer) -> F + Send + Sync + Clone + 'static,
) -> Planned {
    let talk = talk(move |mut peer: Peer| {
        let robots = robots.clone();
        async move {
            while let Some(path) = peer.request().await {
                if path == "/robots.txt" {
                    return robots(peer).await;
                }
                peer.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npage").await;
            }
        }
    });
    Planned { name: format!("robots: {name}"), speech: Speech::Plain, talk, outcome }
}

/// Sends the rules, and then comments, `bytes` in total.
async fn pour(mut peer: Peer, bytes: u64) {
    peer.write(RULES).await;
    let more = COMMENT.repeat(1_000);
    let mut left = bytes - RULES.len() as u64;
    while left > 0 {
        let piece = &more[..usize::try_from(left).unwrap_or(usize::MAX).min(more.len())];
        if !peer.write(piece).await {
            return;
        }
        left -= piece.len() as u64;
    }
}

const RULES: &str = "User-agent: *\nDisallow: /private/\n";
const COMMENT: &str = "# nobody reads\n#";
