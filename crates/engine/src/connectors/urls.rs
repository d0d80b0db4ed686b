//! A plain list as a source: one URL per line, `#` starts a comment, blank lines are skipped.

use xxhash_rust::xxh3::xxh3_64;

use super::collector::{Collector, Room};
use super::{Details, FoundItem, ParsedSource, normalize};
use crate::redact;

/// Parses a list. A line that isn't a URL is reported as a problem; the others are still read.
pub(super) fn read(text: &str) -> ParsedSource {
    let mut collector = Collector::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if collector.next_entry() == Room::None {
            break;
        }
        let Some(url) = normalize::fetchable(line, None) else {
            let shown = redact::text(line);
            collector.add_problem(format!("line {}: {shown:?} is not an http or https URL", index + 1));
            continue;
        };
        let (identity, hash) = (normalize::by_link(&url), xxh3_64(url.as_str().as_bytes()));
        collector.add_item(FoundItem {
            identity,
            url,
            title: None,
            published_at: None,
            hash,
            details: Details::default(),
        });
    }
    collector.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_line_by_line() {
        let list = "\u{feff}# ours\r\nhttps://a.example/1\r\n\r\n  https://a.example/2#x  \n\
                    https://a.example/1?utm_source=x\nftp://user:pass@b.example/f?key=1\nnonsense\n#https://c.example/\n";
        let parsed = read(list);
        let identities: Vec<_> = parsed.items.iter().map(|found| found.identity.as_str()).collect();
        assert_eq!(identities, ["link:https://a.example/1", "link:https://a.example/2"]);
        assert_eq!(
            parsed.problems,
            [
                "line 6: \"ftp://b.example/f?…\" is not an http or https URL",
                "line 7: \"nonsense\" is not an http or https URL"
            ]
        );
        assert_eq!(parsed.problems_count, 2);
    }

    #[test]
    fn a_list_without_urls_is_empty() {
        assert_eq!(read("# nothing yet\n\n"), ParsedSource::default());
    }

    #[test]
    fn a_list_is_truncated_at_the_limit() {
        let list: String = (0..50_001).map(|n| format!("https://a.example/{n}\n")).collect();
        let parsed = read(&list);
        assert_eq!((parsed.items.len(), parsed.problems_count), (50_000, 1));
    }
}
