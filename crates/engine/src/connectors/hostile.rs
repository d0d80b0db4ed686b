//! Hostile responses through the public functions: none may panic, and large ones must be parsed quickly.

use proptest::prelude::*;
use url::Url;

use super::{ITEMS_MAX, Kind, ParsedSource, Unreadable, discover, read, sniff, text};

const KINDS: [Kind; 4] = [Kind::Feed, Kind::Page, Kind::Sitemap, Kind::Urls];

fn base() -> Url {
    Url::parse("https://a.example/feed").unwrap()
}

fn feed(body: &[u8]) -> Result<ParsedSource, Unreadable> {
    read(Kind::Feed, body, None, &base())
}

#[test]
fn an_entity_bomb_stays_small() {
    let bomb = "<?xml version='1.0'?><!DOCTYPE rss [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>\
                <!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'><!ENTITY x SYSTEM 'file:///etc/passwd'>]>\
                <rss version='2.0'><channel><title>&c;&x;</title><item><link>/1</link></item></channel></rss>";
    let parsed = feed(bomb.as_bytes()).unwrap();
    assert_eq!((parsed.title.as_deref(), parsed.items.len()), (Some("&c;&x;"), 1));
}

#[test]
fn deep_nesting_is_rejected_or_truncated() {
    let deep = format!("<rss><channel><item>{}", "<media:group>".repeat(100_000));
    let error = feed(deep.as_bytes()).unwrap_err().to_string();
    assert!(error.ends_with("tags nested more than 200 deep"), "{error}");
    for open in [
        "<a>",
        "<div>",
        "<b><p>",
        "<table><td>",
        "<svg>",
        "<template>",
        "[",
        "{\"a\":",
        "<![CDATA[",
        "<!--",
        "<!DOCTYPE [",
    ] {
        let body = open.repeat(100_000);
        for kind in KINDS {
            let _ = read(kind, body.as_bytes(), None, &base());
        }
        let _ = discover::feeds(body.as_bytes(), None, &base());
    }
}

/// 20 MB and 100,000 entries: half of them are read, in a second or so.
#[test]
fn a_feed_of_100_000_items_is_truncated() {
    let padding = "x".repeat(100);
    let item = |n| {
        format!(
            "<item><guid>g{n}</guid><link>/{n}</link><title>T &amp; {n}</title><description>{padding}</description></item>"
        )
    };
    let body: String = (0..100_000).map(item).collect();
    let parsed = feed(format!("<rss><channel>{body}</channel></rss>").as_bytes()).unwrap();
    assert_eq!((parsed.items.len(), parsed.problems_count), (ITEMS_MAX, 1));
}

#[test]
fn a_feed_is_the_same_in_every_encoding() {
    let text = |encoding: &str| {
        format!(
            "<?xml version='1.0' encoding='{encoding}'?><rss version='2.0'><channel><title>Zürich</title>\
                 <item><link>/1</link></item></channel></rss>"
        )
    };
    let wide =
        |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
    let latin = |text: &str| encoding_rs::WINDOWS_1252.encode(text).0.into_owned();
    for (body, content_type) in [
        (text("utf-8").into_bytes(), None),
        (text("iso-8859-1").into_bytes(), Some("text/xml; charset=utf-8")),
        (format!("\u{feff} \n{}", text("windows-1252")).into_bytes(), None),
        (latin(&text("windows-1252")), None),
        (latin(&text("ISO-8859-1")), None),
        (latin(&text("utf-8")), Some("text/xml; charset=iso-8859-1")),
        (wide(&text("utf-16"), u16::to_le_bytes), None),
        (wide(&format!("\u{feff}{}", text("utf-16")), u16::to_be_bytes), None),
        (text("utf-16").into_bytes(), None),
        (text("no-such-encoding").into_bytes(), None),
    ] {
        let parsed = read(Kind::Feed, &body, content_type, &base()).unwrap();
        assert_eq!((parsed.title.as_deref(), parsed.items.len()), (Some("Zürich"), 1), "{content_type:?}");
    }
    let (japanese, _, _) = encoding_rs::SHIFT_JIS.encode(
        "<?xml version='1.0' encoding='Shift_JIS'?><rss><channel><title>日本語</title></channel></rss>",
    );
    assert_eq!(feed(&japanese).unwrap().title.as_deref(), Some("日本語"));
}

/// Documents with a bit of everything, to be mutated.
const SEEDS: [&str; 5] = [
    "<?xml version='1.0' encoding='utf-8'?><!DOCTYPE rss [<!ENTITY a 'b'>]><rss version='2.0' xmlns:sy='http://purl.org/rss/1.0/modules/syndication/'>\
     <channel><title>T &amp; é</title><ttl>60</ttl><skipHours><hour>3</hour></skipHours><sy:updatePeriod>daily</sy:updatePeriod><!-- c -->\
     <item xml:base='/x/'><guid isPermaLink='false'>g</guid><link>../1?a=b#c</link><pubDate>Mon, 05 Jan 2026 12:00:00 +0100</pubDate>\
     <description><![CDATA[<b>x</b>]]></description></item><item><title>&#65;&nbsp;</title></item></channel></rss>",
    "<feed xmlns='http://www.w3.org/2005/Atom'><title type='xhtml'><div>T</div></title><entry><link rel='alternate' href='/1'/><id>urn:1</id>\
     <updated>2026-01-05T12:00:00Z</updated><content type='html'>&lt;p&gt;</content></entry></feed>",
    "{\"version\":\"https://jsonfeed.org/version/1.1\",\"title\":\"T\",\"items\":[{\"id\":\"1\",\"url\":\"/1\",\"date_published\":\"2026-01-05\"}]}",
    "<urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'><url><loc>https://a.example/?a=1&amp;b=2</loc><lastmod>2026-01</lastmod></url></urlset>",
    "<!doctype html><html><head><title>T</title><base href='/b/'><link rel=alternate type=application/rss+xml href=f title='x'></head><body>\
     <table><tr><td><a href=x>y</a></table><p style='display:none'>é<iframe src='“youtube.com'></iframe><img src='data:image/png;base64,AA'><article><p>A, b, c.</article>",
];

fn all(body: &[u8], content_type: Option<&str>) {
    let base = base();
    for kind in KINDS {
        if let Ok(parsed) = read(kind, body, content_type, &base) {
            assert!(parsed.items.iter().all(|found| found.url.has_host() && found.identity.len() <= 500));
            assert!(parsed.problems.len() as u64 <= parsed.problems_count);
        }
    }
    let _ = sniff(body, content_type);
    let _ = discover::feeds(body, content_type, &base);
    let _ = text::main_text(body, content_type, &base);
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(
        body in prop::collection::vec(any::<u8>(), 0..400),
        content_type in prop::option::of("(text/(html|xml)|\\PC{0,9});? ?(charset=[a-z0-9-]{0,9}|\\PC{0,9})"),
    ) {
        all(&body, content_type.as_deref());
    }

    #[test]
    fn no_mutation_of_a_valid_document_causes_a_panic(
        seed in 0..SEEDS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..20_usize, "\\PC{0,3}|[<>&;'\"/!\\[\\]=0-9 -]{0,6}"), 1..6),
    ) {
        let mut body = SEEDS[seed].as_bytes().to_vec();
        for (at, cut, insert) in changes {
            let at = at.index(body.len() + 1);
            let end = (at + cut).min(body.len());
            body.splice(at..end, insert.bytes());
        }
        all(&body, None);
    }
}
