//! URLs given as arguments: what is wrong with one that can't be fetched, and what was probably meant.
//!
//! Lists (`--input`) are read elsewhere, and invalid lines in them are skipped. An invalid argument is an error,
//! reported before anything starts.

use std::path::Path;

use comity::core::domain::Domain;
use comity::jobs::{URL_MAX, meant_url};
use comity::redact;
use url::Url;

use crate::exit;

/// Checks that all URLs can be fetched; otherwise returns one error that lists the problems.
pub(crate) fn check(urls: &[String]) -> anyhow::Result<()> {
    let mut problems = urls
        .iter()
        .enumerate()
        .filter_map(|(nth, text)| problem(nth + 1, text.trim(), |name| Path::new(name).is_file()));
    let mut lines: Vec<String> = problems.by_ref().take(SHOWN).collect();
    match problems.count() {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    match lines.is_empty() {
        true => Ok(()),
        false => Err(exit::usage(lines.join("\n"))),
    }
}

/// What is wrong with the `nth` argument, if anything.
fn problem(nth: usize, text: &str, is_file: impl Fn(&str) -> bool) -> Option<String> {
    let shown = redact::text(text);
    if text.is_empty() {
        return Some(format!("argument {nth} is empty: expected a URL such as https://example.org/"));
    }
    if let Some(at) = text.find(['\n', '\r']) {
        let first = redact::text(&text[..at]);
        return Some(format!(
            "argument {nth} contains a line break, after {first:?}: pass each URL as its own argument, or a list \
             with --input FILE"
        ));
    }
    if text.contains('\t') {
        let shown = redact::words(text);
        return Some(format!("argument {nth} contains a tab: expected a URL and nothing else ({shown:?})"));
    }
    let first = text.split_once(char::is_whitespace).and_then(|(first, _)| Url::parse(first).ok());
    if first.is_some_and(|first| matches!(first.scheme(), "http" | "https")) {
        let shown = redact::words(text);
        return Some(format!(
            "argument {nth} contains white space, after a URL: pass each URL as its own argument, and write a space in a \
             URL as %20 ({shown:?})"
        ));
    }
    if text.len() >= URL_MAX {
        let length = text.len();
        return Some(format!(
            "argument {nth} is too long for a URL: {length} bytes, the maximum is {} ({shown:?})",
            URL_MAX - 1
        ));
    }
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => match url.host() {
            // What `Domain` rejects can't be fetched, wherever it comes from.
            Some(_) if Domain::of(&url).is_some() => None,
            Some(_) if url.port() == Some(0) => {
                Some(format!("{shown:?} can't be fetched: port 0 can't be used"))
            }
            Some(_) => Some(format!("{shown:?} can't be fetched: its host isn't a valid name")),
            None => Some(format!("{shown:?} isn't a URL: it has no host")),
        },
        _ if text == "-" => Some("- isn't a URL; to read URLs from standard input: --input -".to_owned()),
        _ if is_file(text) => Some(format!(
            "{shown:?} is a file, not a URL; to fetch the URLs listed in it: comity fetch --input {}",
            redact::shell_word(&shown)
        )),
        _ if has_list_extension(text) => Some(format!(
            "{shown:?} isn't a URL, and there is no such file; pass a list of URLs with --input FILE"
        )),
        _ if let Some(meant) = meant_url(text) => {
            Some(format!("{shown:?} isn't a URL: did you mean {meant} ?"))
        }
        Ok(_) => Some(format!("{shown:?} can't be fetched: only http and https URLs can")),
        Err(error) => Some(format!("{shown:?} isn't a URL: {error}")),
    }
}

/// Whether it looks like the name of a file with a list of URLs.
fn has_list_extension(text: &str) -> bool {
    let extension = Path::new(text).extension().and_then(|extension| extension.to_str());
    !text.contains("://") && extension.is_some_and(|extension| LISTS.contains(&extension))
}

/// Maximum number of problems to list.
const SHOWN: usize = 10;
/// Usual extensions of files with a list of URLs.
const LISTS: [&str; 8] = ["txt", "csv", "tsv", "list", "lst", "urls", "jsonl", "json"];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        problem(1, text.trim(), |name| name == "urls").unwrap_or_default()
    }

    #[test]
    fn urls_are_accepted() {
        for text in ["http://a", " https://example.org/a?b=c#d ", "HTTP://EXAMPLE.org:8080/", "http://[::1]/"]
        {
            assert_eq!(of(text), "", "{text}");
        }
    }

    #[test]
    fn problems_suggest_what_to_type_instead() {
        for (text, expected) in [
            ("", "argument 1 is empty"),
            ("  ", "argument 1 is empty"),
            ("urls", "comity fetch --input urls"),
            ("missing.txt", "there is no such file; pass a list of URLs with --input FILE"),
            ("example.org/a", "did you mean https://example.org/a ?"),
            ("localhost:8080/a", "did you mean http://localhost:8080/a ?"),
            ("127.0.0.1:9", "did you mean http://127.0.0.1:9 ?"),
            ("ftp://example.org/a", "only http and https"),
            ("file:///etc/passwd", "only http and https"),
            ("http://", "empty host"),
            ("http://a..b/", "\"http://a..b/\" can't be fetched: its host isn't a valid name"),
            ("http://.a/", "its host isn't a valid name"),
            ("http://a*b/", "its host isn't a valid name"),
            ("http://a:0/x", "port 0 can't be used"),
            ("http://a:99999/", "invalid port number"),
            ("hello", "\"hello\" isn't a URL"),
            ("#comment", "\"#…\" isn't a URL"),
            ("http://a/ http://b/?c", "argument 1 contains white space, after a URL"),
            ("http://a/ http://b/?c", "as %20 (\"http://a/ http://b/?…\")"),
        ] {
            assert!(of(text).contains(expected), "{text}: {}", of(text));
        }
    }

    #[test]
    fn a_line_break_is_rejected_instead_of_splitting_the_argument() {
        let message = of("http://a/\nhttp://b/");
        assert!(message.contains("argument 1 contains a line break, after \"http://a/\""), "{message}");
        assert!(of("http://a/\rb").contains("line break"));
        assert!(of("http://a/\ttitle").contains("argument 1 contains a tab"));
        assert_eq!(of("http://a/\n"), "", "a trailing line break doesn't start a second URL");
    }

    /// B75: messages are short and contain no password.
    #[test]
    fn long_urls_are_shortened_and_passwords_removed() {
        let message = of(&format!("http://me:secret@a/{}", "x".repeat(100_000)));
        assert!(message.contains("too long for a URL: 100019 bytes"), "{message}");
        assert!(message.len() < 300 && !message.contains("secret"), "{message}");
        let message = of("me:secret@example.org");
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn all_problems_are_reported_together_up_to_a_limit() {
        let wrong: Vec<String> = (0..100).map(|_| String::new()).collect();
        let message = check(&wrong).unwrap_err().to_string();
        assert_eq!(message.lines().count(), SHOWN + 1);
        assert!(message.ends_with("and 90 more"), "{message}");
        assert!(check(&["http://a/".to_owned()]).is_ok());
    }
}
