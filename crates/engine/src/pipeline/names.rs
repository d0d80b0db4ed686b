//! Names of sources that nobody named: the URL first, and after the first fetch the title.

use comity_core::cadence::last_fetch_at;
use comity_store::sources::{Rename, Source};
use url::Url;

/// A name for a source without one: its host and path.
pub fn name_of(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}{}", url.host_str().unwrap_or_default(), url.path().trim_end_matches('/'))
}

/// Whether a title such as "RSS feed" says nothing about this feed.
pub fn is_generic(title: &str) -> bool {
    let is_generic = |word: &str| {
        ["rss", "atom", "json", "xml", "feed", "rdf"].iter().any(|generic| word.eq_ignore_ascii_case(generic))
            || word.chars().all(|c| !c.is_alphabetic())
    };
    title.split_whitespace().all(is_generic)
}

/// The change that names a source after its title, if this is its first fetch and it is named after its URL.
pub(super) fn from_title(source: &Source, title: Option<&str>) -> Option<Rename> {
    let title = title.filter(|title| !is_generic(title))?;
    let cursor = serde_json::from_str(&source.cursor_json).unwrap_or_default();
    let is_first = last_fetch_at(&cursor).is_ok_and(|at| at.is_none());
    let is_unnamed = || Url::parse(&source.listed_url).is_ok_and(|url| name_of(&url) == source.name);
    (is_first && is_unnamed()).then(|| Rename { from: source.name.clone(), to: title.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_a_name_is_named_after_its_url() {
        for (url, name) in [
            ("https://u:p@example.org/", "example.org"),
            ("https://example.org:8080/a/b.xml?key=1#x", "example.org:8080/a/b.xml"),
        ] {
            assert_eq!(name_of(&Url::parse(url).unwrap()), name);
        }
    }

    #[test]
    fn generic_feed_titles_are_not_names() {
        for title in ["RSS", "RSS 2.0", "Atom Feed", "feed", "JSON feed", ""] {
            assert!(is_generic(title), "{title}");
        }
        for title in ["RSS of the harbour", "Example", "日本"] {
            assert!(!is_generic(title), "{title}");
        }
    }
}
