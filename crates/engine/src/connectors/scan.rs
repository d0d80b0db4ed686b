//! Finds the title and the visible text of a page without parsing it, which works for any input. It is only good enough
//! to describe a response and to compare two of them; text for people comes from `text`.

use super::plain_title::plain_title;

/// The title of a page.
pub(super) fn title(html: &str) -> Option<String> {
    let start = find_ignoring_case(html, "<title")?;
    let (_, text) = html.get(start..)?.split_once('>')?;
    plain_title(text.split("</").next()?)
}

/// The text outside of tags, comments, scripts and styles, with one space between words.
pub(super) fn visible_text(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.find('<').and_then(|start| rest.split_at_checked(start)) {
        text.push_str(before);
        text.push(' ');
        let end = end_of(tag);
        let end_at = find_ignoring_case(tag, end);
        rest = end_at.and_then(|at| tag.get(at + end.len()..)).unwrap_or_default();
    }
    text.push_str(rest);
    let text = html_escape::decode_html_entities(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text that ends what starts with `tag`, after which content is visible again.
fn end_of(tag: &str) -> &'static str {
    if tag.starts_with("<!--") {
        return "-->";
    }
    let name = tag.get(1..).unwrap_or_default();
    let name = name.split(|letter: char| letter.is_whitespace() || matches!(letter, '>' | '/')).next();
    let hidden = |(hidden, _): &&(&str, &str)| name.is_some_and(|name| name.eq_ignore_ascii_case(hidden));
    HIDDEN.iter().find(hidden).map_or(">", |(_, end)| end)
}

fn find_ignoring_case(text: &str, word: &str) -> Option<usize> {
    let is_here = |at: &usize| {
        let here = text.get(*at..).and_then(|rest| rest.get(..word.len()));
        here.is_some_and(|here| here.eq_ignore_ascii_case(word))
    };
    text.match_indices(word.chars().next()?).map(|(at, _)| at).find(is_here)
}

/// Elements whose content is invisible, and their closing tags.
const HIDDEN: [(&str, &str); 4] = [
    ("script", "</script>"),
    ("style", "</style>"),
    ("noscript", "</noscript>"),
    ("template", "</template>"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_found() {
        assert_eq!(
            title("<HTML><TITLE lang=en> Log\nin &amp; out </TITLE>").as_deref(),
            Some("Log in & out")
        );
        for html in ["", "<title", "<title>", "<title></title>", "é<titleé"] {
            assert_eq!(title(html), None, "{html}");
        }
    }

    #[test]
    fn only_visible_text_is_extracted() {
        for (html, expected) in [
            ("<p class='x'>a<SCRIPT nonce=1>b</script>c<!-- d > --><style>e</style>&amp;<br>f", "a c & f"),
            ("a<script>b", "a"),
            ("a < b", "a"),
            ("<template-view>a</template-view>", "a"),
            ("é<é>é</", "é é"),
            ("", ""),
        ] {
            assert_eq!(visible_text(html), expected, "{html}");
        }
    }
}
