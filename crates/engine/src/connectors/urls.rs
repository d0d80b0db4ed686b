//! A plain list as a source: one URL a line, `#` starts a comment, blank lines are skipped.

use xxhash_rust::xxh3::xxh3_64;

use super::gather::{Gather, Room};
use super::{Details, Found, Harvest, normalise};
use crate::shown;

/// Reads a list; a line that is no address is a problem of that line.
pub(super) fn read(text: &str) -> Harvest {
    let mut gather = Gather::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if gather.next_entry() == Room::None {
            break;
        }
        let Some(url) = normalise::fetchable(line, None) else {
            let shown = shown::text(line);
            gather.problem(format!("line {}: {shown:?} is not an http or https URL", index + 1));
            continue;
        };
        let (identity, hash) = (normalise::by_link(&url), xxh3_64(url.as_str().as_bytes()));
        gather.found(Found {
            identity,
            url,
            title: None,
            published_at: None,
            hash,
            details: Details::default(),
        });
    }
    gather.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_line_by_line() {
        let list = "\u{feff}# ours\r\nhttps://a.example/1\r\n\r\n  https://a.example/2#x  \n\
                    https://a.example/1?utm_source=x\nftp://user:pass@b.example/f?key=1\nnonsense\n#https://c.example/\n";
        let harvest = read(list);
        let identities: Vec<_> = harvest.items.iter().map(|found| found.identity.as_str()).collect();
        assert_eq!(identities, ["link:https://a.example/1", "link:https://a.example/2"]);
        assert_eq!(
            harvest.problems,
            [
                "line 6: \"ftp://b.example/f\" is not an http or https URL",
                "line 7: \"nonsense\" is not an http or https URL"
            ]
        );
        assert_eq!(harvest.problems_count, 2);
    }

    #[test]
    fn a_list_without_addresses_is_empty() {
        assert_eq!(read("# nothing yet\n\n"), Harvest::default());
    }

    #[test]
    fn a_list_past_the_limit_is_cut() {
        let list: String = (0..50_001).map(|n| format!("https://a.example/{n}\n")).collect();
        let harvest = read(&list);
        assert_eq!((harvest.items.len(), harvest.problems_count), (50_000, 1));
    }
}
