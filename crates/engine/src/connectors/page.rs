//! A page as a source: the page is its only item, and changes when its main text changes.

use dom_query::Document;
use url::Url;
use xxhash_rust::xxh3::xxh3_64;

use super::{Details, FoundItem, ParsedSource, decode, html, scan, text};
use crate::redact;

/// Parses the page at `base`.
pub(super) fn read(body: &[u8], content_type: Option<&str>, base: &Url) -> ParsedSource {
    let page = decode::html(body, content_type);
    let parsed = html::parse(&page);
    let title = title(&parsed.document);
    // Ads, scripts and nonces differ in every response, so only the main text is compared.
    let text = text::of_parsed(parsed, base).map_or_else(|| scan::visible_text(&page), |main| main.text);
    let mut url = base.clone();
    url.set_fragment(None);
    let item = FoundItem {
        identity: "page".to_owned(),
        url,
        title: title.clone(),
        published_at: None,
        hash: xxh3_64(text.as_bytes()),
        details: Details::default(),
    };
    ParsedSource { title, items: vec![item], ..ParsedSource::default() }
}

/// The title of the page, or else its Open Graph title.
fn title(document: &Document) -> Option<String> {
    let own = || redact::line(&document.select_single("title").text());
    let open_graph = || redact::line(&document.select_single("meta[property='og:title']").attr("content")?);
    own().or_else(open_graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(html: &str) -> FoundItem {
        let base = Url::parse("https://a.example/page?x=1#part").unwrap();
        let mut parsed = read(html.as_bytes(), Some("text/html"), &base);
        assert_eq!((parsed.items.len(), parsed.problems_count), (1, 0));
        parsed.items.remove(0)
    }

    fn page(advert: &str, news: &str) -> String {
        let sentence =
            "a long sentence, with commas, and with enough words to count as something to read, ".repeat(9);
        format!(
            "<title>Gazette</title><script nonce={advert}>{advert}</script><div class='advert'>{advert}</div>\
             <article><p>{sentence}</p><p>{news}: {sentence}</p></article>"
        )
    }

    #[test]
    fn the_page_itself_is_the_item() {
        let found = item("<title> A\n&amp; B </title>");
        assert_eq!(found.identity, "page");
        assert_eq!(found.url.as_str(), "https://a.example/page?x=1");
        assert_eq!(found.title.as_deref(), Some("A & B"));
        let found = item("<meta property='og:title' content='Elsewhere'><p>x");
        assert_eq!(found.title.as_deref(), Some("Elsewhere"));
        assert_eq!(item("just text").title, None);
    }

    #[test]
    fn only_the_main_text_counts_as_a_change() {
        let before = item(&page("abc", "old")).hash;
        assert_eq!(item(&page("xyz", "old")).hash, before);
        assert_ne!(item(&page("abc", "new")).hash, before);
    }

    #[test]
    fn a_page_without_main_text_is_compared_by_its_visible_text() {
        let deep = |nonce: &str, text: &str| {
            item(&format!("{}<script>{nonce}</script>{text}", "<div>".repeat(100_000))).hash
        };
        assert_eq!(deep("1", "text"), deep("2", "text"));
        assert_ne!(deep("1", "text"), deep("1", "changed"));
    }
}
