//! Parses robots.txt (RFC 9309) and decides what it allows one crawler, and with which crawl delay.
//!
//! Everything here is pure. `parse` sorts lines into groups, `pattern` matches a rule, `sitemaps` finds `Sitemap`
//! lines. Fetching the file, caching it for a day and deciding whether to obey it happen elsewhere.
//!
//! A robots.txt is written by strangers, so there are limits: on the bytes read ([`BODY_MAX`]), on the length of a
//! pattern ([`PATTERN_MAX`]) and on the work per decision ([`WORK_MAX`]). Whatever exceeds the last two counts as
//! forbidden, never as allowed. Lines past [`BODY_MAX`] are ignored: a `Disallow` there does not forbid anything.

mod parse;
mod pattern;
mod sitemaps;

use comity_core::time::Span;

use pattern::{Path, Pattern};
pub use sitemaps::sitemaps;

/// The rules of a robots.txt that apply to one product token.
#[derive(Clone, Debug, PartialEq)]
pub struct Robots {
    /// The most specific first; of two equally specific rules, the one that allows comes first.
    rules: Box<[Rule]>,
    crawl_delay: Option<Span>,
}

/// What the response to a request for `/robots.txt` means (RFC 9309, section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The body contains the rules.
    Read,
    /// There is no robots.txt, so everything is allowed.
    Allowed,
    /// The server failed: nothing is allowed for now, and robots.txt will be retried later.
    Unavailable,
    /// The server answered 429: robots.txt has to wait, and everything else with it.
    RateLimited,
}

/// What the final `status` of a request for `/robots.txt` means, after following redirects.
pub fn verdict(status: u16) -> Verdict {
    match status {
        200..=299 => Verdict::Read,
        429 => Verdict::RateLimited,
        // A redirect that was not followed is one too many, which the RFC allows to count as a missing file.
        300..=499 => Verdict::Allowed,
        _ => Verdict::Unavailable,
    }
}

impl Robots {
    /// Parses the first [`BODY_MAX`] bytes of a robots.txt for the crawler named `product`.
    ///
    /// The product token is the leading letters, `_` and `-` of `product`, so `Comity/1.0` becomes `comity`. If no
    /// group names the token, the groups for `*` apply. Parsing never fails: invalid lines are skipped.
    pub fn parse(body: &[u8], product: &str) -> Self {
        parse::read(body, product)
    }

    /// Rules that allow everything, as if there were no robots.txt.
    pub fn allow_all() -> Self {
        Self::new(Vec::new(), None)
    }

    /// Rules that forbid everything, for a site whose robots.txt is [`Verdict::Unavailable`].
    pub fn disallow_all() -> Self {
        Self::new(Pattern::read(b"/").map(Rule::disallow).into_iter().collect(), None)
    }

    /// Whether the path and query of a URL, such as `/search?q=1`, may be fetched.
    ///
    /// The longest matching rule decides; of two equally long ones, the one that allows wins. `/robots.txt` itself is
    /// always allowed.
    pub fn allows(&self, path_and_query: &str) -> bool {
        let path = match path_and_query {
            "" => Path::read(b"/"),
            path => Path::read(path.as_bytes()),
        };
        if path.is(b"/robots.txt") {
            return true;
        }
        let mut work = WORK_MAX;
        for rule in &self.rules {
            if rule.pattern.matches(&path, &mut work) {
                return rule.allow;
            }
            // Nobody writes such a file by accident, and whoever does is not asking to be crawled.
            if work == 0 {
                return false;
            }
        }
        true
    }

    /// The delay between two requests that the site asks of this crawler, at most [`CRAWL_DELAY_MAX`].
    pub fn crawl_delay(&self) -> Option<Span> {
        self.crawl_delay
    }

    fn new(mut rules: Vec<Rule>, crawl_delay: Option<Span>) -> Self {
        rules.sort_unstable();
        rules.dedup();
        Self { rules: rules.into_boxed_slice(), crawl_delay }
    }
}

/// One `Allow` or `Disallow` rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    allow: bool,
}

impl Rule {
    fn allow(pattern: Pattern) -> Self {
        Self { pattern, allow: true }
    }

    fn disallow(pattern: Pattern) -> Self {
        Self { pattern, allow: false }
    }
}

/// The order in which rules are tried. Rules that tie are in an arbitrary order that puts equal rules next to each
/// other.
impl Ord for Rule {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let specific = other.pattern.len().cmp(&self.pattern.len());
        specific.then(other.allow.cmp(&self.allow)).then_with(|| self.pattern.cmp(&other.pattern))
    }
}

impl PartialOrd for Rule {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// How many bytes of a robots.txt are read: the minimum that RFC 9309 (section 2.5) requires. The rest is ignored,
/// including `Disallow` lines, and so is the line that the limit cuts in two, because half a line may mean the
/// opposite.
pub const BODY_MAX: usize = 500 * 1024;
/// The longest crawl-delay. A longer one, however absurd, counts as this one, so that no site is closed for ever.
pub const CRAWL_DELAY_MAX: Span = Span::from_hours(365 * 24);
/// The maximum length of a pattern in bytes. A longer `Disallow` is truncated, which forbids more; a longer `Allow` is
/// dropped, which allows less.
pub const PATTERN_MAX: usize = 2_048;
/// How many bytes are searched per decision. Each wildcard rule whose first literal matches counts the whole path once.
/// This is enough for 8,000 such rules against a path of 4 KiB, and takes about a tenth of a second. If a file needs
/// more, the path is forbidden.
pub const WORK_MAX: usize = 32 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Robots {
        Robots::parse(format!("User-agent: *\n{lines}").as_bytes(), "comity")
    }

    #[test]
    fn the_most_specific_rule_decides_and_a_tie_allows() {
        let robots = read("Disallow: /a\nAllow: /a/b\nDisallow: /a/b/c\nDisallow: /t\nAllow: /t");
        let allowed = ["/", "/b", "/a/b", "/a/b/d", "/t", "/A", ""];
        assert!(allowed.iter().all(|path| robots.allows(path)));
        assert!(["/a", "/about", "/a/c", "/a/b/c", "/a/b/cd?e"].iter().all(|path| !robots.allows(path)));
        assert!(!read("Allow: /p\nDisallow: /*.html").allows("/page.html"));
        assert!(read("Allow: /$\nDisallow: /").allows("/"));
        assert!(!read("Allow: /$\nDisallow: /").allows("/x"));
    }

    /// RFC 9309, sections 2.2.1, 5.1 and 5.2.
    #[test]
    fn the_examples_of_the_rfc_are_decided_correctly() {
        let simple = "User-Agent: *\nDisallow: *.gif$\nDisallow: /example/\nAllow: /publications/\n\n\
                      User-Agent: foobot\nDisallow:/\nAllow:/example/page.html\nAllow:/example/allowed.gif\n\n\
                      User-Agent: barbot\nUser-Agent: bazbot\nDisallow: /example/page.html\n\n\
                      User-Agent: quxbot\n\n";
        let longest = "User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif";
        let merged = "user-agent: ExampleBot\ndisallow: /foo\ndisallow: /bar\n\nuser-agent: ExampleBot\ndisallow: /baz";
        for (body, agent, allowed, forbidden) in [
            (simple, "comity", "/ /publications/a.gif /a.gif?x", "/a.gif /example/ /example/page.html"),
            (
                simple,
                "foobot",
                "/example/page.html /example/allowed.gif",
                "/ /publications/ /example/ /a.gif",
            ),
            (simple, "barbot", "/ /example/ /a.gif", "/example/page.html"),
            (simple, "BazBot/1.0", "/ /example/ /a.gif", "/example/page.html"),
            (simple, "quxbot", "/ /example/page.html /a.gif", ""),
            (longest, "foobot", "/example/page/ /example/page/x.gif", "/example/page/disallowed.gif"),
            (merged, "ExampleBot", "/", "/foo /bar /baz"),
        ] {
            let robots = Robots::parse(body.as_bytes(), agent);
            assert!(allowed.split_whitespace().all(|path| robots.allows(path)), "{agent}");
            assert!(!forbidden.split_whitespace().any(|path| robots.allows(path)), "{agent}");
        }
    }

    #[test]
    fn robots_txt_itself_is_always_allowed() {
        assert!(read("Disallow: /").allows("/robots.txt"));
        assert!(Robots::disallow_all().allows("/robots.txt"));
        assert!(!Robots::disallow_all().allows("/"));
        assert!(!Robots::disallow_all().allows(""));
        assert!(Robots::allow_all().allows("/any"));
        assert_eq!(Robots::allow_all().crawl_delay(), None);
    }

    #[test]
    fn equal_rules_make_equal_robots() {
        assert_eq!(read("Disallow: /a\nAllow: /b"), read("Allow: /b\nDisallow: /a\nDisallow: /%61"));
        assert_eq!(read("Disallow: /"), Robots::disallow_all());
        assert_eq!(read("Disallow:"), Robots::allow_all());
    }

    #[test]
    fn the_status_of_robots_txt_decides_the_verdict() {
        for (statuses, expected) in [
            (&[200, 204, 299][..], Verdict::Read),
            (&[301, 304, 399, 400, 401, 403, 404, 410, 428, 430, 499], Verdict::Allowed),
            (&[429], Verdict::RateLimited),
            (&[0, 100, 199, 500, 503, 599, 600, 999, u16::MAX], Verdict::Unavailable),
        ] {
            assert!(statuses.iter().all(|status| verdict(*status) == expected), "{expected:?}");
        }
    }

    /// 500 KiB of long rules that all search a path of 64 KiB in vain. A backtracking matcher would never finish.
    #[test]
    fn hostile_wildcards_are_decided_exactly_and_quickly() {
        let stars = "*a".repeat(PATTERN_MAX / 2 - 10);
        let rules: String = (0..245).map(|n| format!("Disallow: /{stars}b{n}$\n")).collect();
        let (robots, path) = (read(&rules), "a".repeat(64 * 1024));
        assert_eq!(robots.rules.len(), 245);
        assert!(robots.allows(&format!("/{path}")));
        assert!(!robots.allows(&format!("/{path}b244")));
    }

    /// 30,000 short rules against 64 KiB would search two billion bytes, which is too much; against 1 KiB is fine.
    #[test]
    fn a_file_that_needs_too_much_work_forbids_the_path() {
        let rules: String = (0..30_000).map(|n| format!("Allow:/*zq{n:04x}\n")).collect();
        assert!(rules.len() < BODY_MAX);
        let robots = read(&rules);
        assert!(robots.allows(&format!("/{}", "zq".repeat(512))));
        assert!(!robots.allows(&format!("/{}", "zq".repeat(32 * 1024))));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(9309);
        let words =
            ["user-agent:", "*", "allow:", "disallow:", "crawl-delay:", "\n", "\r", "/", "%", "$", "a"];
        for _ in 0..200_000 {
            let mut body = Vec::new();
            for _ in 0..random.usize(..12) {
                match random.usize(..words.len() + 2) {
                    word if word < words.len() => body.extend_from_slice(words[word].as_bytes()),
                    _ => body.push(random.u8(..)),
                }
            }
            let robots = Robots::parse(&body, "comity");
            robots.allows(&String::from_utf8_lossy(&body));
            assert!(robots.allows("/robots.txt"));
        }
    }
}
