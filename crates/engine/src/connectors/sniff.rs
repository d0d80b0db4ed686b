//! Guesses from the start of a response what kind of source it is.

use url::Url;

use super::xml::{Part, Xml};
use super::{Kind, decode, normalize};

/// What a response seems to be: a feed, a sitemap, a page or a list of URLs. `None` if it looks like none of them.
pub fn sniff(body: &[u8], content_type: Option<&str>) -> Option<Kind> {
    let start = decode::start(body);
    let start = decode::xml(&start, content_type);
    let text = start.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}');
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    match text.chars().next()? {
        '{' => (text.contains("jsonfeed.org/version") || media_type == "application/feed+json")
            .then_some(Kind::Feed),
        '<' => by_root(text).or_else(|| is_html(&media_type).then_some(Kind::Page)),
        _ if is_list(text) && !is_html(&media_type) => Some(Kind::Urls),
        _ => is_html(&media_type).then_some(Kind::Page),
    }
}

fn by_root(text: &str) -> Option<Kind> {
    let mut xml = Xml::new(text);
    loop {
        // HTML is rarely valid XML, so an error does not mean that it isn't a page.
        match xml.next() {
            Ok(Part::Open(tag)) => {
                return match tag.name() {
                    "rss" | "RDF" | "feed" => Some(Kind::Feed),
                    "urlset" | "sitemapindex" => Some(Kind::Sitemap),
                    name => HTML.iter().any(|tag| tag.eq_ignore_ascii_case(name)).then_some(Kind::Page),
                };
            }
            Ok(Part::End) | Err(_) => {
                let start = text.get(..14).unwrap_or_default();
                return start.eq_ignore_ascii_case("<!doctype html").then_some(Kind::Page);
            }
            Ok(Part::Text(_) | Part::Close) => {}
        }
    }
}

/// Whether the first line that isn't a comment is an absolute URL.
fn is_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.next().and_then(|line| normalize::fetchable(line, None::<&Url>)).is_some()
}

fn is_html(media_type: &str) -> bool {
    matches!(media_type, "text/html" | "application/xhtml+xml")
}

const HTML: [&str; 10] = ["html", "head", "body", "title", "meta", "link", "script", "div", "p", "h1"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_recognized() {
        for (body, content_type, expected) in [
            ("<rss version='2.0'>", None, Some(Kind::Feed)),
            ("\u{feff} \n<?xml version='1.0'?><!-- x --><!DOCTYPE rdf><rdf:RDF>", None, Some(Kind::Feed)),
            ("<feed xmlns='http://www.w3.org/2005/Atom'>", Some("text/html"), Some(Kind::Feed)),
            (
                "{\"version\": \"https://jsonfeed.org/version/1.1\"",
                Some("application/json"),
                Some(Kind::Feed),
            ),
            ("{\"a\": 1}", Some("application/json"), None),
            ("<?xml version='1.0'?><urlset>", None, Some(Kind::Sitemap)),
            ("<sitemapindex>", None, Some(Kind::Sitemap)),
            ("<!DOCTYPE html><html lang=en><p>", None, Some(Kind::Page)),
            ("<!doctype html>", None, Some(Kind::Page)),
            ("<h1>Hello", None, Some(Kind::Page)),
            ("Hello", Some("text/html; charset=utf-8"), Some(Kind::Page)),
            ("<svg>", Some("image/svg+xml"), None),
            ("# list\n\nhttps://a.example/\n", Some("text/plain"), Some(Kind::Urls)),
            ("https://a.example/", None, Some(Kind::Urls)),
            ("User-agent: *", Some("text/plain"), None),
            ("", None, None),
            (" \n", Some("text/html"), None),
        ] {
            assert_eq!(sniff(body.as_bytes(), content_type), expected, "{body}");
        }
        let wide: Vec<u8> = "<rss/>".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(sniff(&wide, None), Some(Kind::Feed));
        assert_eq!(sniff(b"\x1f\x8b\x08nonsense", None), None);
    }
}
