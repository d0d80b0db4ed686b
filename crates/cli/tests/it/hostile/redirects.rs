//! Sites with hostile redirects: loops, private addresses, other schemes.

use super::http1::saying;
use super::servers::{Host, Peer};
use super::{Planned, failed};

/// Sites that redirect forever.
pub(super) fn circles() -> Vec<Planned> {
    let too_many = failed("more than 10 redirects", "answered");
    vec![
        saying("to itself", failed("redirected to itself", "answered"), moved("/page")),
        super::http1::plain("round in a circle", too_many, async |mut peer: Peer| {
            // Each connection gets one request; the query counts the redirects.
            peer.write(moved(if peer.paths().len() % 2 == 1 { "/other" } else { "/page" })).await;
        }),
        super::http1::plain("ever further", too_many, async |mut peer: Peer| {
            let to = format!("/page?{}", "x".repeat(peer.paths().len() * 5_000));
            peer.write(moved(&to)).await;
        }),
    ]
}

/// Sites that redirect to private addresses (B76); `canary` must not receive a request.
pub(super) fn inwards(canary: &Host, canary6: &Host) -> Vec<Planned> {
    let (port, port6) = (canary.address.port(), canary6.address.port());
    let private = "blocked redirect or link to private address ";
    let places = [
        (format!("http://127.0.0.1:{port}/secret"), private),
        (format!("http://127.1:{port}/secret"), private),
        (format!("http://2130706433:{port}/secret"), private),
        (format!("http://0x7f.1:{port}/secret"), private),
        (format!("http://0.0.0.0:{port}/secret"), private),
        (format!("http://127.0.0.77:{port}/secret"), private),
        (format!("http://localhost:{port}/secret"), private),
        (format!("http://LocalHost:{port}/secret"), private),
        (format!("http://[::1]:{port6}/secret"), private),
        (format!("http://[::ffff:127.0.0.1]:{port}/secret"), private),
        (format!("http://[::ffff:7f00:1]:{port}/secret"), private),
        (format!("https://127.0.0.1:{port}/secret"), private),
        (format!("http://me:secret@127.0.0.1:{port}/secret"), private),
        ("http://10.0.0.1/".to_owned(), private),
        ("http://192.168.1.1/".to_owned(), private),
        ("http://[fd00::1]/".to_owned(), private),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "blocked cloud metadata endpoint "),
        ("http://[::ffff:a9fe:a9fe]/latest/meta-data/".to_owned(), "blocked cloud metadata endpoint "),
        ("http://metadata.google.internal/".to_owned(), "blocked cloud metadata endpoint "),
        ("file:///etc/passwd".to_owned(), ASTRAY),
        ("FILE://localhost/etc/passwd".to_owned(), ASTRAY),
        ("ftp://127.0.0.1/".to_owned(), ASTRAY),
        ("data:text/html,hello".to_owned(), ASTRAY),
        ("javascript:alert(1)".to_owned(), ASTRAY),
        ("gopher://127.0.0.1:6379/_FLUSHALL".to_owned(), ASTRAY),
        ("http://".to_owned(), ASTRAY),
    ];
    let site = |(to, error): (String, &'static str)| {
        saying(&format!("to {to}"), failed(error, "answered"), moved(&to))
    };
    places.into_iter().map(site).collect()
}

pub(super) fn moved(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {to}\r\n\r\n")
}

const ASTRAY: &str = "redirected to something that isn't a valid http or https URL";
