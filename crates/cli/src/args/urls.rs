//! URLs that were typed as arguments: what is wrong with one that cannot be fetched, and what was probably meant.
//!
//! Lists (`--input`) are read elsewhere: a bad line there is skipped. An argument was typed just now, so a mistake in it is
//! reported before anything starts.

use std::path::Path;

use comity::jobs::URL_MAX;
use comity::shown;
use url::{Host, Url};

use crate::exit;

/// Whether all of them can be fetched; otherwise one error that lists every problem.
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

/// What is wrong with the `nth` argument, if anything is.
fn problem(nth: usize, text: &str, is_file: impl Fn(&str) -> bool) -> Option<String> {
    let shown = shown::text(text);
    if text.is_empty() {
        return Some(format!("argument {nth} is empty: expected a URL such as https://example.org/"));
    }
    if let Some(at) = text.find(['\n', '\r']) {
        let first = shown::text(&text[..at]);
        return Some(format!(
            "argument {nth} contains a line break, after {first:?}: pass each URL as its own argument, or a list \
             with --input FILE"
        ));
    }
    if text.len() >= URL_MAX {
        let length = text.len();
        return Some(format!(
            "argument {nth} is too long for a URL: {length} bytes, at most {} are allowed ({shown:?})",
            URL_MAX - 1
        ));
    }
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => match url.host() {
            Some(_) => None,
            None => Some(format!("{shown:?} isn't a URL: it has no host")),
        },
        _ if is_file(text) => Some(format!(
            "{shown:?} is a file, not a URL; to fetch the URLs listed in it: comity fetch --input {shown}"
        )),
        _ if has_list_extension(text) => Some(format!(
            "{shown:?} isn't a URL, and there is no such file; a list of URLs is given with --input FILE"
        )),
        _ if let Some(meant) = with_scheme(text) => {
            Some(format!("{shown:?} isn't a URL: did you mean {meant} ?"))
        }
        Ok(_) => Some(format!("{shown:?} isn't a URL that can be fetched: only http and https are")),
        Err(error) => Some(format!("{shown:?} isn't a URL: {error}")),
    }
}

/// Whether it looks like the name of a list.
fn has_list_extension(text: &str) -> bool {
    let extension = Path::new(text).extension().and_then(|extension| extension.to_str());
    !text.contains("://") && extension.is_some_and(|extension| LISTS.contains(&extension))
}

/// The URL that a host without a scheme probably means.
fn with_scheme(text: &str) -> Option<String> {
    let is_bare = !text.contains("://") && !text.starts_with(['/', '.', '-', '#', '?']);
    let url = is_bare.then(|| Url::parse(&format!("https://{text}")).ok()).flatten()?;
    let scheme = match url.host()? {
        Host::Domain("localhost") | Host::Ipv4(_) | Host::Ipv6(_) => "http",
        Host::Domain(name) if name.contains('.') => "https",
        Host::Domain(_) => return None,
    };
    Some(shown::text(&format!("{scheme}://{text}")))
}

/// Problems that are listed one by one.
const SHOWN: usize = 10;
/// What files with a list of URLs are called.
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
    fn a_problem_says_what_to_type_instead() {
        for (text, expected) in [
            ("", "argument 1 is empty"),
            ("  ", "argument 1 is empty"),
            ("urls", "comity fetch --input urls"),
            ("missing.txt", "there is no such file; a list of URLs is given with --input FILE"),
            ("example.org/a", "did you mean https://example.org/a ?"),
            ("localhost:8080/a", "did you mean http://localhost:8080/a ?"),
            ("127.0.0.1:9", "did you mean http://127.0.0.1:9 ?"),
            ("ftp://example.org/a", "only http and https"),
            ("file:///etc/passwd", "only http and https"),
            ("http://", "empty host"),
            ("http://a:99999/", "invalid port number"),
            ("hello", "\"hello\" isn't a URL"),
            ("#comment", "\"\" isn't a URL"),
        ] {
            assert!(of(text).contains(expected), "{text}: {}", of(text));
        }
    }

    #[test]
    fn a_line_break_is_refused_and_not_read_as_two_urls() {
        let told = of("http://a/\nhttp://b/");
        assert!(told.contains("argument 1 contains a line break, after \"http://a/\""), "{told}");
        assert!(of("http://a/\rb").contains("line break"));
        assert_eq!(of("http://a/\n"), "", "one at the end is no second URL");
    }

    /// B75: what is wrong is short, and holds no password.
    #[test]
    fn a_long_url_is_cut_and_secrets_are_left_out() {
        let told = of(&format!("http://me:secret@a/{}", "x".repeat(100_000)));
        assert!(told.contains("too long for a URL: 100019 bytes"), "{told}");
        assert!(told.len() < 300 && !told.contains("secret"), "{told}");
        let told = of("me:secret@example.org");
        assert!(!told.contains("secret"), "{told}");
    }

    #[test]
    fn all_problems_are_reported_together_and_no_flood() {
        let wrong: Vec<String> = (0..100).map(|_| String::new()).collect();
        let told = check(&wrong).unwrap_err().to_string();
        assert_eq!(told.lines().count(), SHOWN + 1);
        assert!(told.ends_with("and 90 more"), "{told}");
        assert!(check(&["http://a/".to_owned()]).is_ok());
    }
}
