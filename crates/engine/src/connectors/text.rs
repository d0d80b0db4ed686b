//! Extracts the main text of a page, without menus, ads and scripts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dom_smoothie::{Config, Readability, TextMode};
use url::Url;

use super::{decode, html};
use crate::redact;

/// The main text of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainText {
    /// One line of plain text, which may be empty.
    pub title: String,
    /// Paragraphs, separated by blank lines.
    pub text: String,
}

/// The main text of `html`, the page at `url`; `None` if it has none, or if it exceeds the limits for parsing.
pub fn main_text(html: &[u8], content_type: Option<&str>, url: &Url) -> Option<MainText> {
    of_parsed(html::parse(&decode::html(html, content_type)), url)
}

/// The whole text of a piece of HTML, such as the content of a feed entry, which has no menus.
pub fn plain(html: &str) -> String {
    let document = html::parse(html).document;
    document.select(NOT_TEXT).remove();
    paragraphs(&document.formatted_text())
}

/// The main text of a parsed page; `None` if it was not parsed completely.
pub(super) fn of_parsed(parsed: html::Parsed, url: &Url) -> Option<MainText> {
    if !parsed.is_complete {
        return None;
    }
    let document = parsed.document;
    // These elements have no text, and the URL of an iframe can make the extraction panic.
    document.select(EMBEDDED).remove();
    let config = Config {
        // JSON-LD only repeats the title, which is not worth a second parser.
        disable_json_ld: true,
        text_mode: TextMode::Formatted,
        max_elements_to_parse: ELEMENTS_MAX,
        ..Config::default()
    };
    // The URL is only used to resolve links, which are not part of the text.
    let mut readability = Readability::with_document(document, Some(url.as_str()), Some(config)).ok()?;
    // The extraction is a long chain of heuristics in third-party code. If it panics, the page has no main text.
    let article = catch_unwind(AssertUnwindSafe(|| readability.parse())).ok()?.ok()?;
    let text = paragraphs(&article.text_content);
    let title = redact::line(&article.title).unwrap_or_default();
    (!text.is_empty()).then_some(MainText { title, text })
}

/// Trims every line, and reduces blank lines to one.
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

const EMBEDDED: &str = "iframe, embed, object, video, audio, canvas, svg, math";
const NOT_TEXT: &str =
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
    fn html_is_converted_to_text() {
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
    fn the_main_text_has_paragraphs_and_no_menus() {
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
    fn the_declared_encoding_is_used() {
        let html = page("x").replace("Second:", "Zw\u{f6}lf:");
        let (bytes, _, _) = encoding_rs::WINDOWS_1252.encode(&html);
        let url = Url::parse("https://a.example/").unwrap();
        let main = main_text(&bytes, Some("text/html; charset=iso-8859-1"), &url).unwrap();
        assert!(main.text.contains("Zwölf:"));
    }

    #[test]
    fn lines_are_trimmed_and_blank_lines_merged() {
        assert_eq!(paragraphs(" \n\n a \n\n\n \n b\nc \n\n"), "a\n\nb\nc");
        assert_eq!(paragraphs(""), "");
    }
}
