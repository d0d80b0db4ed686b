//! A sitemap as a source: `urlset`, `sitemapindex`, or a plain list, which the protocol also allows.
//!
//! The protocol requires absolute URLs, so relative ones are not resolved. Priorities and change frequencies are not
//! read: they say what a site wants search engines to believe, not when it changes.

use url::Url;
use xxhash_rust::xxh3::xxh3_64;

use super::collector::{Collector, Room};
use super::xml::{Part, Space, Xml, XmlError};
use super::{Details, FoundItem, Kind, ParsedSource, Unreadable, date, expected, normalize, scan, urls};
use crate::redact;

/// Parses the text of a sitemap. If there is an error, the URLs before it are used and the error becomes a problem.
pub(super) fn read(text: &str) -> Result<ParsedSource, Unreadable> {
    if !text.contains('<') {
        return list(text);
    }
    let mut collector = Collector::default();
    match read_xml(text, &mut collector) {
        Ok(()) => {}
        Err(Stop::Other(found)) => return Err(other(found)),
        Err(Stop::Invalid(XmlError { at, why })) if collector.is_empty() => {
            return Err(Unreadable::Broken { expected: expected(Kind::Sitemap), format: "XML", at, why });
        }
        Err(Stop::Invalid(XmlError { at, why })) => {
            collector.truncated(format!("XML error at byte {at}: {why}; only the URLs before it were read"));
        }
    }
    Ok(collector.finish())
}

/// Why reading stopped early.
enum Stop {
    Other(String),
    Invalid(XmlError),
}

/// What the URLs in a sitemap are.
#[derive(Clone, Copy)]
enum Listed {
    Pages,
    Sitemaps,
}

/// One `url` or `sitemap` while it is read.
#[derive(Default)]
struct Entry {
    /// The protocol allows one; some sites have more.
    locs: Vec<String>,
    lastmod: String,
}

/// The part of an entry that text belongs to.
#[derive(Clone, Copy)]
enum Field {
    Loc,
    Lastmod,
}

impl Entry {
    fn push(&mut self, field: Field, text: &str) {
        match field {
            Field::Loc => self.locs.last_mut().unwrap_or(&mut self.lastmod).push_str(text),
            Field::Lastmod => self.lastmod.push_str(text),
        }
    }
}

fn read_xml(text: &str, collector: &mut Collector) -> Result<(), Stop> {
    let mut xml = Xml::new(text);
    let mut listed = None;
    let mut entry = Entry::default();
    let mut field: Option<Field> = None;
    loop {
        match xml.next().map_err(Stop::Invalid)? {
            Part::Open(tag) => match (xml.depth(), tag.space, tag.name()) {
                (1, _, "urlset") => listed = Some(Listed::Pages),
                (1, _, "sitemapindex") => listed = Some(Listed::Sitemaps),
                (1, _, name) => return Err(Stop::Other(instead(name, text))),
                (2, Space::Core, "url" | "sitemap") => {
                    if collector.next_entry() == Room::None {
                        return Ok(());
                    }
                    entry = Entry::default();
                }
                (3, Space::Core, "loc") => {
                    if !entry.locs.is_empty() && collector.next_entry() == Room::None {
                        return Ok(());
                    }
                    entry.locs.push(String::new());
                    field = Some(Field::Loc);
                }
                (3, Space::Core, "lastmod") => field = Some(Field::Lastmod),
                _ => {}
            },
            Part::Text(text) => {
                if let Some(field) = field {
                    entry.push(field, &text);
                }
            }
            Part::Close => match (xml.depth(), listed) {
                (2, _) => field = None,
                (1, Some(listed)) => finish(std::mem::take(&mut entry), listed, collector),
                // Anything after the root was appended by the hosting provider.
                (0, _) => return Ok(()),
                _ => {}
            },
            Part::End if listed.is_none() => return Err(Stop::Other("XML without tags".to_owned())),
            Part::End => return Ok(()),
        }
    }
}

fn finish(entry: Entry, listed: Listed, collector: &mut Collector) {
    // A tag that is neither `url` nor `sitemap` doesn't need a URL.
    if entry.locs.is_empty() && !entry.lastmod.is_empty() {
        collector.add_problem(format!("entry {}: no URL", collector.number()));
    }
    if entry.locs.len() > 1 {
        let (number, count) = (collector.number(), entry.locs.len());
        collector.add_problem(format!("entry {number}: {count} URLs in one entry, read as separate entries"));
    }
    for loc in entry.locs {
        match (normalize::fetchable(&loc, None), listed) {
            (Some(url), Listed::Pages) => collector.add_item(page(url, entry.lastmod.trim())),
            (Some(url), Listed::Sitemaps) => collector.add_sitemap(url),
            (None, _) => {
                let shown = redact::text(&loc);
                collector.add_problem(format!(
                    "entry {}: {shown:?} is not an http or https URL",
                    collector.number()
                ));
            }
        }
    }
}

fn page(url: Url, lastmod: &str) -> FoundItem {
    let hash = xxh3_64(format!("{url}\n{lastmod}").as_bytes());
    let published_at = date::read(lastmod);
    let details = Details::default();
    FoundItem { identity: normalize::by_link(&url), url, title: None, published_at, hash, details }
}

/// A plain list as a sitemap, if at least one line is a URL.
fn list(text: &str) -> Result<ParsedSource, Unreadable> {
    let parsed = urls::read(text);
    if parsed.items.is_empty() { Err(other("plain text without URLs".to_owned())) } else { Ok(parsed) }
}

fn instead(root: &str, text: &str) -> String {
    match root {
        "rss" | "RDF" | "feed" => "a feed; add it as a feed instead".to_owned(),
        _ if root.eq_ignore_ascii_case("html") => {
            let titled = scan::title(text).map(|title| format!(" titled {title:?}")).unwrap_or_default();
            format!("an HTML page{titled}; robots.txt often lists the sitemaps of a site")
        }
        _ => format!("XML that starts with <{}>", redact::text(root)),
    }
}

fn other(found: String) -> Unreadable {
    Unreadable::Other { expected: expected(Kind::Sitemap), found }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URLSET: &str = "<?xml version='1.0'?><urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9' \
        xmlns:image='http://www.google.com/schemas/sitemap-image/1.1'>\
        <url><loc> https://a.example/?a=1&amp;b=2 </loc><lastmod>2026-01-05</lastmod><priority>1</priority></url>\
        <url><loc><![CDATA[https://a.example/2]]></loc><image:image><image:loc>https://i.example/</image:loc></image:image></url>\
        <url><loc>/relative?secret</loc></url><url/></urlset>";

    fn outline(text: &str) -> String {
        match read(text) {
            Ok(parsed) => {
                let items = parsed.items.iter().map(|found| found.url.to_string());
                let sitemaps = parsed.sitemaps.iter().map(|url| format!("sitemap {url}"));
                items.chain(sitemaps).chain(parsed.problems.clone()).collect::<Vec<_>>().join(" | ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn urls_and_dates_are_parsed() {
        assert_eq!(
            outline(URLSET),
            "https://a.example/?a=1&b=2 | https://a.example/2 | entry 3: \"/relative?…\" is not an http or https URL"
        );
        let parsed = read(URLSET).unwrap();
        let dates: Vec<_> = parsed.items.iter().map(|found| found.published_at.is_some()).collect();
        assert_eq!(dates, [true, false]);
        let later = read(&URLSET.replace("2026-01-05", "2026-01-06")).unwrap();
        let changed: Vec<_> = parsed.items.iter().zip(&later.items).map(|(a, b)| a.hash != b.hash).collect();
        assert_eq!(changed, [true, false]);
    }

    /// Regression: the two were read as one URL, which was neither.
    #[test]
    fn two_urls_in_one_entry_are_separate() {
        let text = "<urlset><url><loc>https://a.example/1</loc><loc>https://a.example/<![CDATA[2]]></loc></url>\
                    <url><loc>https://a.example/3</loc></url></urlset>";
        assert_eq!(
            outline(text),
            "https://a.example/1 | https://a.example/2 | https://a.example/3 \
             | entry 2: 2 URLs in one entry, read as separate entries"
        );
        let index = "<sitemapindex><sitemap><loc>https://a.example/1</loc><loc>https://a.example/2</loc></sitemap></sitemapindex>";
        assert!(
            outline(index).starts_with("sitemap https://a.example/1 | sitemap https://a.example/2 | "),
            "{}",
            outline(index)
        );
        let many = "<loc>https://a.example/</loc>".repeat(60_000);
        let parsed = read(&format!("<urlset><url>{many}</url></urlset>")).unwrap();
        assert_eq!(parsed.problems, ["more than 50000 entries: only the first 50000 were read"]);
    }

    #[test]
    fn a_prefixed_sitemap_is_parsed() {
        let declared = "xmlns:s='http://www.sitemaps.org/schemas/sitemap/0.9' xmlns:image='urn:x'";
        for declared in [declared, ""] {
            let text = format!(
                "<s:urlset {declared}><s:url><s:loc>https://a.example/1</s:loc><s:lastmod>2026-01-05</s:lastmod>\
                 <image:loc>https://i.example/</image:loc></s:url></s:urlset>"
            );
            assert_eq!(outline(&text), "https://a.example/1", "{text}");
            assert!(read(&text).unwrap().items[0].published_at.is_some());
        }
        let index = "<s:sitemapindex xmlns:s='urn:s'><s:sitemap><s:loc>https://a.example/1</s:loc></s:sitemap></s:sitemapindex>";
        assert_eq!(outline(index), "sitemap https://a.example/1");
    }

    #[test]
    fn an_index_lists_sitemaps() {
        let index = "<sitemapindex><sitemap><loc>https://a.example/1.xml.gz</loc></sitemap>\
                     <sitemap><loc>https://a.example/1.xml.gz</loc></sitemap></sitemapindex>";
        assert_eq!(outline(index), "sitemap https://a.example/1.xml.gz");
    }

    #[test]
    fn a_plain_list_is_a_sitemap_too() {
        assert_eq!(
            outline("https://a.example/1\nhttps://a.example/2"),
            "https://a.example/1 | https://a.example/2"
        );
        assert_eq!(outline("hello"), "not a sitemap: the response is plain text without URLs");
    }

    #[test]
    fn the_error_names_what_was_found_instead_of_a_sitemap() {
        for (text, expected) in [
            (
                "<!doctype html><html><title>Not found</title>",
                "not a sitemap: the response is an HTML page titled \"Not found\"; robots.txt often lists the sitemaps of a site",
            ),
            ("<rss/>", "not a sitemap: the response is a feed; add it as a feed instead"),
            ("<x/>", "not a sitemap: the response is XML that starts with <x>"),
            ("<!-- -->", "not a sitemap: the response is XML without tags"),
            ("<urlset><url>", "not a sitemap: XML error at byte 13: the document ends with 2 tags open"),
            (
                "<urlset><a></b>",
                "not a sitemap: XML error at byte 11: ill-formed document: expected `</a>`, but `</b>` was found",
            ),
        ] {
            assert_eq!(outline(text), expected, "{text}");
        }
        let cut = URLSET.split("<image:loc>").next().unwrap();
        assert!(
            outline(cut).starts_with("https://a.example/?a=1&b=2 | XML error at byte "),
            "{}",
            outline(cut)
        );
    }
}
