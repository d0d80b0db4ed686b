//! The content of the hosts in the documentation. Most are a small site with pages, a feed and a sitemap; some behave
//! as their name says.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use crate::mediawiki::MediaWiki;
use crate::site::Answer;

/// A request.
pub(crate) struct Asked<'a> {
    pub(crate) host: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The lines of its head, except for the first.
    pub(crate) head: &'a [String],
    pub(crate) body: &'a [u8],
}

/// All hosts.
#[derive(Default)]
pub(crate) struct Sites {
    /// The port of the wiki at wiki.example.
    wiki: Option<u16>,
    /// How many requests each host received, without robots.txt.
    asked: Mutex<BTreeMap<String, usize>>,
}

impl Sites {
    /// Sites with a wiki at wiki.example.
    pub(crate) fn with_wiki(wiki: Option<&MediaWiki>) -> Self {
        Self { wiki: wiki.map(MediaWiki::port), ..Self::default() }
    }

    /// A response as bytes on the wire.
    pub(crate) fn answer(&self, asked: &Asked<'_>) -> Vec<u8> {
        match self.wiki {
            Some(port) if asked.host == "wiki.example" => passed_on(port, asked).unwrap_or_default(),
            _ => written(&self.answer_of(asked)),
        }
    }

    fn answer_of(&self, asked: &Asked<'_>) -> Answer {
        let (host, path) = (asked.host, asked.path);
        if path == "/robots.txt" {
            return robots(host);
        }
        let before = {
            let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let count = all.entry(host.to_owned()).or_default();
            *count += 1;
            *count - 1
        };
        match host {
            // It answers four requests, then 429 with a Retry-After of a second.
            "busy.example" if before % 5 == 4 => Answer::status(429).header("Retry-After", "1"),
            "closed.example" => Answer::status(403),
            "broken.example" => Answer::status(500),
            "inside.example" => Answer::status(302).header("Location", "http://127.0.0.1:9/admin"),
            _ => page(host, path, asked.head),
        }
    }
}

/// The robots.txt of a host.
fn robots(host: &str) -> Answer {
    let text = match host {
        "forbidden.example" => "User-agent: *\nDisallow: /\n",
        "slow.example" => "User-agent: *\nCrawl-delay: 1\n",
        _ => "User-agent: *\nDisallow: /private/\n",
    };
    Answer { body: text.to_owned(), ..Answer::status(200) }
}

fn page(host: &str, path: &str, head: &[String]) -> Answer {
    let of = |kind: &str, body: String| Answer { body, ..Answer::status(200) }.header("Content-Type", kind);
    let at = |path: &str| format!("https://{host}{path}");
    match path.split('?').next().unwrap_or_default() {
        "/" => of(
            "text/html",
            format!(
                "<html><head><title>{host}</title><link rel=\"alternate\" type=\"application/rss+xml\" href=\"/feed.xml\">\
             </head><body><h1>{host}</h1><p>{PROSE}</p></body></html>"
            ),
        ),
        "/feed.xml" | "/feed" | "/rss" => {
            let known = head.iter().any(|line| line.to_ascii_lowercase().starts_with("if-none-match"));
            if known {
                return Answer::status(304).header("ETag", "\"one\"");
            }
            let items: String = (1..=3)
                .map(|nth| {
                    format!(
                        "<item><title>News {nth}</title><link>{}</link><guid>{nth}</guid></item>",
                        at(&format!("/news/{nth}"))
                    )
                })
                .collect();
            of("application/rss+xml", format!(
                "<?xml version=\"1.0\"?><rss version=\"2.0\"><channel><title>{host}</title><link>{}</link>\
                 <description>News</description>{items}</channel></rss>",
                at("/")
            )).header("ETag", "\"one\"")
        }
        "/sitemap.xml" => {
            let pages: String =
                (1..=3).map(|nth| format!("<url><loc>{}</loc></url>", at(&format!("/page/{nth}")))).collect();
            of(
                "application/xml",
                format!(
                    "<?xml version=\"1.0\"?><urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{pages}</urlset>"
                ),
            )
        }
        "/blogroll.opml" => of("text/x-opml", super::reader::OPML.to_owned()),
        "/gone" => Answer::status(404),
        path => of(
            "text/html",
            format!(
                "<html><head><title>{path}</title></head><body><article><h1>{path}</h1><p>{PROSE}</p><p>{PROSE}</p></article></body></html>"
            ),
        ),
    }
}

fn written(answer: &Answer) -> Vec<u8> {
    let Answer { status, headers, body, .. } = answer;
    format!("HTTP/1.1 {status} Told\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

/// The response of the wiki at `port`; its API is below `/w/`.
fn passed_on(port: u16, asked: &Asked<'_>) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let path = asked.path.strip_prefix("/w").unwrap_or(asked.path);
    let kept = |line: &&String| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("connection:") && !line.starts_with("accept-encoding:")
    };
    let head: String = asked.head.iter().filter(kept).map(|line| format!("{line}\r\n")).collect();
    write!(stream, "{} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n", asked.method)?;
    stream.write_all(asked.body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    // The wiki closes the connection after each response; ours stays open, so the response needs a length.
    let split = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(answer.len() - 4);
    let body = answer.split_off(split + 4);
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let spoken_of = ["connection:", "content-length:"];
    let kept =
        head.lines().filter(|line| !spoken_of.iter().any(|name| line.to_ascii_lowercase().starts_with(name)));
    let head: String = kept.map(|line| format!("{line}\r\n")).collect();
    Ok([format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat())
}

const PROSE: &str = "Some sentences that are long enough to be taken for the text of a page, and not for what stands around it. \
    A second sentence says the same in other words, so that whoever looks for the main text of the page finds it here.";
