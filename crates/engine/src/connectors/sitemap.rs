//! A sitemap as a source: `urlset`, `sitemapindex`, or a plain list, which the protocol allows too.
//!
//! Addresses are whole by the protocol, so none is resolved. Priorities and frequencies are not read: they
//! say what a site wishes search engines to think, not when it changes.

use url::Url;
use xxhash_rust::xxh3::xxh3_64;

use super::gather::{Gather, Room};
use super::xml::{Broken, Part, Space, Xml};
use super::{Details, Found, Harvest, Kind, Unreadable, date, expected, glance, normalise, urls};
use crate::shown;

/// Reads the text of a sitemap. One that breaks off gives the addresses before the break and a problem.
pub(super) fn read(text: &str) -> Result<Harvest, Unreadable> {
    if !text.contains('<') {
        return list(text);
    }
    let mut gather = Gather::default();
    match read_xml(text, &mut gather) {
        Ok(()) => {}
        Err(Stop::Other(found)) => return Err(other(found)),
        Err(Stop::Broken(Broken { at, why })) if gather.is_empty() => {
            return Err(Unreadable::Broken { expected: expected(Kind::Sitemap), format: "XML", at, why });
        }
        Err(Stop::Broken(Broken { at, why })) => {
            gather.cut(format!("XML error at byte {at}: {why}; only the addresses before it were read"));
        }
    }
    Ok(gather.done())
}

/// Why reading stopped early.
enum Stop {
    Other(String),
    Broken(Broken),
}

/// What the addresses in a sitemap are.
#[derive(Clone, Copy)]
enum Of {
    Pages,
    Sitemaps,
}

/// One `url` or `sitemap` while it is read.
#[derive(Default)]
struct Entry {
    /// One by the protocol; some sites write more.
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

fn read_xml(text: &str, gather: &mut Gather) -> Result<(), Stop> {
    let mut xml = Xml::new(text);
    let mut of = None;
    let mut entry = Entry::default();
    let mut field: Option<Field> = None;
    loop {
        match xml.next().map_err(Stop::Broken)? {
            Part::Open(tag) => match (xml.depth(), tag.space, tag.name()) {
                (1, _, "urlset") => of = Some(Of::Pages),
                (1, _, "sitemapindex") => of = Some(Of::Sitemaps),
                (1, _, name) => return Err(Stop::Other(instead(name, text))),
                (2, Space::Core, "url" | "sitemap") => {
                    if gather.next_entry() == Room::None {
                        return Ok(());
                    }
                    entry = Entry::default();
                }
                (3, Space::Core, "loc") => {
                    if !entry.locs.is_empty() && gather.next_entry() == Room::None {
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
            Part::Close => match (xml.depth(), of) {
                (2, _) => field = None,
                (1, Some(of)) => settle(std::mem::take(&mut entry), of, gather),
                // What follows the root was put there by the host.
                (0, _) => return Ok(()),
                _ => {}
            },
            Part::End if of.is_none() => return Err(Stop::Other("XML without tags".to_owned())),
            Part::End => return Ok(()),
        }
    }
}

fn settle(entry: Entry, of: Of, gather: &mut Gather) {
    // A tag that is neither `url` nor `sitemap` has no address and needs none.
    if entry.locs.is_empty() && !entry.lastmod.is_empty() {
        gather.problem(format!("entry {}: no address", gather.number()));
    }
    if entry.locs.len() > 1 {
        let (number, count) = (gather.number(), entry.locs.len());
        gather.problem(format!("entry {number}: {count} addresses in one entry, each was read as its own"));
    }
    for loc in entry.locs {
        match (normalise::fetchable(&loc, None), of) {
            (Some(url), Of::Pages) => gather.found(page(url, entry.lastmod.trim())),
            (Some(url), Of::Sitemaps) => gather.more(url),
            (None, _) => {
                let shown = shown::text(&loc);
                gather.problem(format!("entry {}: {shown:?} is not an http or https URL", gather.number()));
            }
        }
    }
}

fn page(url: Url, lastmod: &str) -> Found {
    let hash = xxh3_64(format!("{url}\n{lastmod}").as_bytes());
    let published_at = date::read(lastmod);
    let details = Details::default();
    Found { identity: normalise::by_link(&url), url, title: None, published_at, hash, details }
}

/// A sitemap of plain lines, if a line of it is an address.
fn list(text: &str) -> Result<Harvest, Unreadable> {
    let harvest = urls::read(text);
    if harvest.items.is_empty() { Err(other("plain text without addresses".to_owned())) } else { Ok(harvest) }
}

fn instead(root: &str, text: &str) -> String {
    match root {
        "rss" | "RDF" | "feed" => "a feed; add it as a feed instead".to_owned(),
        _ if root.eq_ignore_ascii_case("html") => {
            let titled = glance::title(text).map(|title| format!(" titled {title:?}")).unwrap_or_default();
            format!("an HTML page{titled}; robots.txt often names the sitemaps of a site")
        }
        _ => format!("XML that starts with <{}>", shown::text(root)),
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

    fn told(text: &str) -> String {
        match read(text) {
            Ok(harvest) => {
                let items = harvest.items.iter().map(|found| found.url.to_string());
                let more = harvest.more.iter().map(|url| format!("more {url}"));
                items.chain(more).chain(harvest.problems.clone()).collect::<Vec<_>>().join(" | ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(
            told(URLSET),
            "https://a.example/?a=1&b=2 | https://a.example/2 | entry 3: \"/relative\" is not an http or https URL"
        );
        let harvest = read(URLSET).unwrap();
        let dates: Vec<_> = harvest.items.iter().map(|found| found.published_at.is_some()).collect();
        assert_eq!(dates, [true, false]);
        let later = read(&URLSET.replace("2026-01-05", "2026-01-06")).unwrap();
        let changed: Vec<_> = harvest.items.iter().zip(&later.items).map(|(a, b)| a.hash != b.hash).collect();
        assert_eq!(changed, [true, false]);
    }

    /// The two were read as one address, which was neither.
    #[test]
    fn two_addresses_in_one_entry_are_two() {
        let text = "<urlset><url><loc>https://a.example/1</loc><loc>https://a.example/<![CDATA[2]]></loc></url>\
                    <url><loc>https://a.example/3</loc></url></urlset>";
        assert_eq!(
            told(text),
            "https://a.example/1 | https://a.example/2 | https://a.example/3 \
             | entry 2: 2 addresses in one entry, each was read as its own"
        );
        let index = "<sitemapindex><sitemap><loc>https://a.example/1</loc><loc>https://a.example/2</loc></sitemap></sitemapindex>";
        assert!(
            told(index).starts_with("more https://a.example/1 | more https://a.example/2 | "),
            "{}",
            told(index)
        );
        let many = "<loc>https://a.example/</loc>".repeat(60_000);
        let harvest = read(&format!("<urlset><url>{many}</url></urlset>")).unwrap();
        assert_eq!(harvest.problems, ["more than 50000 entries: only the first 50000 were read"]);
    }

    #[test]
    fn a_prefixed_sitemap_is_read() {
        let declared = "xmlns:s='http://www.sitemaps.org/schemas/sitemap/0.9' xmlns:image='urn:x'";
        for declared in [declared, ""] {
            let text = format!(
                "<s:urlset {declared}><s:url><s:loc>https://a.example/1</s:loc><s:lastmod>2026-01-05</s:lastmod>\
                 <image:loc>https://i.example/</image:loc></s:url></s:urlset>"
            );
            assert_eq!(told(&text), "https://a.example/1", "{text}");
            assert!(read(&text).unwrap().items[0].published_at.is_some());
        }
        let index = "<s:sitemapindex xmlns:s='urn:s'><s:sitemap><s:loc>https://a.example/1</s:loc></s:sitemap></s:sitemapindex>";
        assert_eq!(told(index), "more https://a.example/1");
    }

    #[test]
    fn an_index_names_more() {
        let index = "<sitemapindex><sitemap><loc>https://a.example/1.xml.gz</loc></sitemap>\
                     <sitemap><loc>https://a.example/1.xml.gz</loc></sitemap></sitemapindex>";
        assert_eq!(told(index), "more https://a.example/1.xml.gz");
    }

    #[test]
    fn a_plain_list_is_a_sitemap_too() {
        assert_eq!(
            told("https://a.example/1\nhttps://a.example/2"),
            "https://a.example/1 | https://a.example/2"
        );
        assert_eq!(told("hello"), "not a sitemap: the answer is plain text without addresses");
    }

    #[test]
    fn what_is_no_sitemap_says_what_it_is() {
        for (text, expected) in [
            (
                "<!doctype html><html><title>Not found</title>",
                "not a sitemap: the answer is an HTML page titled \"Not found\"; robots.txt often names the sitemaps of a site",
            ),
            ("<rss/>", "not a sitemap: the answer is a feed; add it as a feed instead"),
            ("<x/>", "not a sitemap: the answer is XML that starts with <x>"),
            ("<!-- -->", "not a sitemap: the answer is XML without tags"),
            ("<urlset><url>", "not a sitemap: XML error at byte 13: the document ends with 2 tags open"),
            (
                "<urlset><a></b>",
                "not a sitemap: XML error at byte 11: ill-formed document: expected `</a>`, but `</b>` was found",
            ),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
        let cut = URLSET.split("<image:loc>").next().unwrap();
        assert!(told(cut).starts_with("https://a.example/?a=1&b=2 | XML error at byte "), "{}", told(cut));
    }
}
