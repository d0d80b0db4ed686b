//! The main text of a page: what a person came to read, without menus, adverts and scripts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dom_smoothie::{Config, Readability, TextMode};
use url::Url;

use super::{decode, html};
use crate::shown;

/// What a page is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainText {
    /// One line of plain text, perhaps empty.
    pub title: String,
    /// Paragraphs with a blank line between them.
    pub text: String,
}

/// The main text of `html`, the page at `url`; `None` if it has none or is past the limits of a page for
/// people.
pub fn main_text(html: &[u8], content_type: Option<&str>, url: &Url) -> Option<MainText> {
    of_parsed(html::parse(&decode::html(html, content_type)), url)
}

/// The text of a piece of HTML, all of it: what a feed gives has no menus to leave out.
pub fn plain(html: &str) -> String {
    let document = html::parse(html).document;
    document.select(UNREAD).remove();
    paragraphs(&document.formatted_text())
}

/// The main text of a page that was parsed whole.
pub(super) fn of_parsed(parsed: html::Parsed, url: &Url) -> Option<MainText> {
    if !parsed.whole {
        return None;
    }
    let document = parsed.document;
    // Nothing here has text to read, and the address of one of them can make the extraction panic.
    document.select(UNREADABLE).remove();
    let config = Config {
        // The structured description of a page repeats its title; it is not worth a second parser.
        disable_json_ld: true,
        text_mode: TextMode::Formatted,
        max_elements_to_parse: ELEMENTS_MAX,
        ..Config::default()
    };
    // The address is only for resolving links, which the text does not show.
    let mut readability = Readability::with_document(document, Some(url.as_str()), Some(config)).ok()?;
    // The extraction is a long chain of guesses in foreign code. Should one of them panic, this page has no
    // main text.
    let article = catch_unwind(AssertUnwindSafe(|| readability.parse())).ok()?.ok()?;
    let text = paragraphs(&article.text_content);
    let title = shown::line(&article.title).unwrap_or_default();
    (!text.is_empty()).then_some(MainText { title, text })
}

/// Lines without space at their ends, and at most one blank line between them.
fn paragraphs(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut blank = false;
    for line in text.lines().map(str::trim) {
        if line.is_empty() {
            blank = !tidy.is_empty();
            continue;
        }
        if !tidy.is_empty() {
            tidy.push_str(if blank { "\n\n" } else { "\n" });
        }
        tidy.push_str(line);
        blank = false;
    }
    tidy
}

const UNREADABLE: &str = "iframe, embed, object, video, audio, canvas, svg, math";
const UNREAD: &str =
    "script, style, template, noscript, iframe, embed, object, video, audio, canvas, svg, math";
const ELEMENTS_MAX: usize = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(html: &str) -> Option<MainText> {
        main_text(html.as_bytes(), None, &Url::parse("https://a.example/page").unwrap())
    }

    const PARAGRAPH: &str = "The harbour, which had been closed since the storm, opened again on Monday, and the first \
                             ships, laden with timber and with salt, came in before noon.";

    #[test]
    fn a_piece_of_html_becomes_its_text() {
        for (html, expected) in [
            ("<p>One &amp; <b>two</b></p><script>x()</script><p>three", "One & two\n\nthree"),
            ("plain &lt;text", "plain <text"),
            ("<ul><li>a<li>b</ul>", "a\nb"),
            ("", ""),
        ] {
            assert_eq!(plain(html).replace("- ", ""), expected, "{html}");
        }
    }

    fn page(advert: &str) -> String {
        format!(
            "<html><head><title>Harbour opens - The Gazette</title><script nonce={advert}>x()</script></head><body>\
             <nav><a href=/>Home</a><a href=/x>Other</a></nav><div class=ad>{advert}</div>\
             <article><h1>Harbour opens</h1><p>{PARAGRAPH}</p><p>Second: {PARAGRAPH}</p>\
             <iframe src='““““youtube.com'></iframe></article>\
             <footer>Copyright</footer></body></html>"
        )
    }

    #[test]
    fn the_main_text_is_paragraphs_without_menus() {
        let main = of(&page("Buy now")).unwrap();
        assert!(main.title.starts_with("Harbour opens"), "{}", main.title);
        assert!(main.text.contains(&format!("{PARAGRAPH}\n\nSecond: {PARAGRAPH}")), "{}", main.text);
        for other in ["Home", "Copyright", "Buy now", "x()"] {
            assert!(!main.text.contains(other), "{other} in {}", main.text);
        }
    }

    #[test]
    fn a_page_without_text_has_none() {
        for html in
            ["", "<", "plain", "<html></html>", "<p></p>", "<script>x</script>", "<title>only</title>"]
        {
            assert!(of(html).is_none_or(|main| main.text == html), "{html}");
        }
        assert_eq!(of(&"<div>".repeat(200_000)), None);
    }

    #[test]
    fn encodings_are_heeded() {
        let html = page("x").replace("Second:", "Zw\u{f6}lf:");
        let (bytes, _, _) = encoding_rs::WINDOWS_1252.encode(&html);
        let url = Url::parse("https://a.example/").unwrap();
        let main = main_text(&bytes, Some("text/html; charset=iso-8859-1"), &url).unwrap();
        assert!(main.text.contains("Zwölf:"));
    }

    #[test]
    fn paragraphs_are_tidy() {
        assert_eq!(paragraphs(" \n\n a \n\n\n \n b\nc \n\n"), "a\n\nb\nc");
        assert_eq!(paragraphs(""), "");
    }
}
