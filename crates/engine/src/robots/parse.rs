//! Parses a robots.txt line by line into the rules for one product token.
//!
//! Lines are bytes, not text, so a file in an old encoding still matches URLs in that encoding. Patterns are parsed in
//! `pattern`; `Sitemap` and all other keys are skipped.

use comity_core::time::Span;

use super::pattern::Pattern;
use super::{BODY_MAX, CRAWL_DELAY_MAX, Robots, Rule};

/// The rules of `body` for `product`: those of the groups that name it, or else of the groups for `*`.
pub(super) fn read(body: &[u8], product: &str) -> Robots {
    let product = token(product.as_bytes());
    let (mut ours, mut everyones) = (Group::default(), Group::default());
    let mut before = Before::Agent;
    for line in lines(body) {
        match line {
            Line::Agent(agent) => {
                ours.next_agent(before);
                everyones.next_agent(before);
                if is_everyone(agent) {
                    everyones.name();
                } else if !product.is_empty() && token(agent).eq_ignore_ascii_case(product) {
                    ours.name();
                }
                before = Before::Agent;
            }
            Line::Rule(key, value) => {
                ours.add(key, value);
                everyones.add(key, value);
                before = match (before, key) {
                    (Before::Agent | Before::Delay, Key::CrawlDelay) => Before::Delay,
                    _ => Before::Rule,
                };
            }
        }
    }
    let group = if ours.named { ours } else { everyones };
    Robots::new(group.rules, group.crawl_delay)
}

/// The most significant line since the last `User-agent` line.
#[derive(Clone, Copy)]
enum Before {
    Agent,
    Delay,
    Rule,
}

/// The rules for one agent, collected from all its groups.
#[derive(Default)]
struct Group {
    /// Whether the current group applies to this agent.
    open: bool,
    /// Whether the next crawl delay applies to this agent.
    takes_delay: bool,
    /// Whether the agent was named at all: a group without rules allows everything.
    named: bool,
    rules: Vec<Rule>,
    crawl_delay: Option<Span>,
}

impl Group {
    /// Handles a `User-agent` line, for this agent or another.
    ///
    /// Consecutive agents share a group, which only a rule ends (RFC 9309, section 2.2.1); lines that the RFC does not
    /// define are ignored (section 2.2.4). A crawl delay is such a line, so the rules after it also apply to the agents
    /// before it. The delay itself, however, applies only to the agents before it, because files with a different delay
    /// for each crawler are common.
    fn next_agent(&mut self, before: Before) {
        match before {
            Before::Agent => {}
            Before::Delay => self.takes_delay = false,
            Before::Rule => (self.open, self.takes_delay) = (false, false),
        }
    }

    fn name(&mut self) {
        (self.open, self.takes_delay, self.named) = (true, true, true);
    }

    fn add(&mut self, key: Key, value: &[u8]) {
        match key {
            Key::Allow if self.open => self.rules.extend(Pattern::read(value).map(Rule::allow)),
            Key::Disallow if self.open => {
                self.rules.extend(Pattern::read_truncated(value).map(Rule::disallow))
            }
            Key::CrawlDelay if self.takes_delay => {
                self.crawl_delay = self.crawl_delay.max(crawl_delay(value))
            }
            _ => {}
        }
    }
}

enum Line<'a> {
    Agent(&'a [u8]),
    Rule(Key, &'a [u8]),
}

#[derive(Clone, Copy)]
enum Key {
    Allow,
    Disallow,
    CrawlDelay,
}

/// The meaningful lines, without comments.
fn lines(body: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let ends = |octet: &u8| matches!(octet, b'\n' | b'\r');
    let body = match body.get(..BODY_MAX) {
        // Half a line may mean the opposite of the whole line, so stop after the last complete one.
        Some(start) if body.len() > BODY_MAX => &start[..start.iter().rposition(ends).unwrap_or(0)],
        _ => body,
    };
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body).split(ends).filter_map(line)
}

fn line(text: &[u8]) -> Option<Line<'_>> {
    let text = text.split(|octet| *octet == b'#').next()?.trim_ascii();
    let (key, value) = match text.iter().position(|octet| *octet == b':') {
        Some(colon) => (text[..colon].trim_ascii(), text[colon + 1..].trim_ascii()),
        // The colon is sometimes missing; two words are taken for key and value.
        None => {
            let (key, value) = text.split_at(text.iter().position(u8::is_ascii_whitespace)?);
            let value = value.trim_ascii();
            (key, Some(value).filter(|value| !value.iter().any(u8::is_ascii_whitespace))?)
        }
    };
    if key.len() > KEY_MAX {
        return None;
    }
    // Honor misspelled rules too; these are the common misspellings.
    match key.to_ascii_lowercase().as_slice() {
        b"user-agent" | b"useragent" | b"user agent" => Some(Line::Agent(value)),
        b"allow" => Some(Line::Rule(Key::Allow, value)),
        b"disallow" | b"dissallow" | b"disalow" | b"dissalow" | b"diasllow" | b"disallaw" => {
            Some(Line::Rule(Key::Disallow, value))
        }
        b"crawl-delay" | b"crawldelay" | b"crawl delay" => Some(Line::Rule(Key::CrawlDelay, value)),
        _ => None,
    }
}

/// Parses decimal seconds, limited to [`CRAWL_DELAY_MAX`]; `None` if the value isn't such a number.
fn crawl_delay(value: &[u8]) -> Option<Span> {
    let text = str::from_utf8(value).ok()?;
    Span::from_decimal_secs(text).map(|span| span.min(CRAWL_DELAY_MAX))
}

/// The product token that `agent` starts with, as in `Comity/1.0`; empty if there is none.
fn token(agent: &[u8]) -> &[u8] {
    let other = |octet: &u8| !(octet.is_ascii_alphabetic() || matches!(octet, b'_' | b'-'));
    &agent[..agent.iter().position(other).unwrap_or(agent.len())]
}

/// Whether `agent` is `*`, optionally followed by a space and more text.
fn is_everyone(agent: &[u8]) -> bool {
    matches!(agent, [b'*'] | [b'*', b' ' | b'\t', ..])
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The length of the longest key, so that long lines are not copied just to be compared.
const KEY_MAX: usize = "crawl-delay".len();

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Which of the paths `/a` to `/f` are allowed, and the crawl delay.
    fn outcome(body: &str) -> String {
        let robots = read(body.as_bytes(), "Comity/1.0");
        let allowed = ["a", "b", "c", "d", "e", "f"].into_iter();
        let allowed: String = allowed.filter(|path| robots.allows(&format!("/{path}"))).collect();
        robots.crawl_delay().map_or(allowed.clone(), |delay| format!("{allowed} {delay}"))
    }

    #[test]
    fn all_groups_for_our_token_apply_or_else_those_for_everyone() {
        for (body, expected) in [
            ("", "abcdef"),
            ("User-agent: *\nDisallow: /a", "bcdef"),
            ("User-agent: other\nDisallow: /", "abcdef"),
            ("User-agent: *\nDisallow: /\nUser-agent: comity\nDisallow: /b", "acdef"),
            ("User-agent: COMITY/9 (x)\nDisallow: /a\nUser-agent: *\nDisallow: /b", "bcdef"),
            (
                "User-agent: comity\nDisallow: /a\nUser-agent: x\nDisallow: /\nUser-agent: comity\nDisallow: /b",
                "cdef",
            ),
            ("User-agent: *\nDisallow: /a\nUser-agent: * x\nDisallow: /b", "cdef"),
            ("User-agent: comity-news\nDisallow: /a\nUser-agent: com\nDisallow: /b", "abcdef"),
            ("User-agent: *comity\nDisallow: /a\nUser-agent:\nDisallow: /b", "abcdef"),
            ("User-agent: *\nDisallow: /\nUser-agent: comity\nDisallow:", "abcdef"),
            ("User-agent: *\nDisallow: /\nUser-agent: comity", "abcdef"),
            ("Disallow: /a\nUser-agent: *\nDisallow: /b", "acdef"),
        ] {
            assert_eq!(outcome(body), expected, "{body}");
        }
    }

    #[test]
    fn consecutive_agents_share_a_group_until_a_rule_ends_it() {
        for (body, expected) in [
            ("User-agent: x\nUser-agent: comity\nUser-agent: y\nDisallow: /a", "bcdef"),
            ("User-agent: comity\n\n# hi\nSitemap: /s\nHost: h\nUser-agent: x\nDisallow: /a", "bcdef"),
            ("User-agent: comity\nDisallow: /a\nSitemap: /s\nNoindex: /x\n\nDisallow: /b", "cdef"),
            ("User-agent: comity\nNoindex: /x\nnonsense\nUser-agent: x\nDisallow: /a", "bcdef"),
            ("User-agent: comity\nCrawl-delay: 5\nUser-agent: x\nDisallow: /a", "bcdef 5s"),
            ("User-agent: x\nCrawl-delay: 5\nUser-agent: comity\nDisallow: /a", "bcdef"),
            ("User-agent: *\nCrawl-delay: 5\nSitemap: /s\nUser-agent: x\nDisallow: /a", "bcdef 5s"),
            (
                "User-agent: x\nCrawl-delay: 9\nUser-agent: comity\nCrawl-delay: 5\nUser-agent: y\nCrawl-delay: 7\n\
                 User-agent: *\nDisallow: /a",
                "bcdef 5s",
            ),
            ("User-agent: comity\nDisallow: /a\nCrawl-delay: 5\nUser-agent: x\nDisallow: /b", "bcdef 5s"),
            ("User-agent: comity\nAllow: /a\nUser-agent: x\nDisallow: /a", "abcdef"),
            ("User-agent: comity\nUser-agent: *\nDisallow: /a\nUser-agent: *\nDisallow: /b", "bcdef"),
        ] {
            assert_eq!(outcome(body), expected, "{body}");
        }
    }

    #[test]
    fn lines_are_parsed_leniently() {
        for body in [
            "\u{feff}User-agent: *\nDisallow: /a",
            "user-AGENT:*\r\nDISALLOW:/a\r\n",
            "User-agent: *\rDisallow: /a\r",
            " \t User-agent \t : \t * \t\n  Disallow  :  /a  # /b\n#Disallow: /b",
            "useragent: *\ndissallow: /a",
            "User-agent: * # everyone\nDisallow: c\nDisallow:\nDisallow\nnonsense\n: /d\nDisallow: /a",
            "User-agent *\nDisallow \t /a # /b\nDisallow /b or /c",
        ] {
            assert_eq!(outcome(body), "bcdef", "{body:?}");
        }
        let latin = read(b"User-agent: *\nDisallow: /\xe9", "comity");
        assert!(!latin.allows("/%E9t%E9"));
        assert!(latin.allows("/%C3%A9"));
    }

    #[test]
    fn the_longest_crawl_delay_applies_up_to_a_year() {
        for (values, expected) in [
            ("10", "10s"),
            ("0.5", "500ms"),
            (".5", "500ms"),
            ("5.", "5s"),
            ("2 7 3", "7s"),
            ("-1 NaN inf 1e3 5s soon 3,5 ٣ . 4", "4s"),
            ("86401", "86401s"),
            ("31536000", "365d"),
            ("31536000.5", "365d"),
            ("99999999999999999999999999999", "365d"),
        ] {
            let lines: String = values.split(' ').map(|value| format!("Crawl-delay: {value}\n")).collect();
            assert_eq!(outcome(&format!("User-agent: *\n{lines}")), format!("abcdef {expected}"), "{values}");
        }
        assert_eq!(outcome("User-agent: *\nCrawl-delay: soon\nUser-agent: x\nCrawl-delay: 9"), "abcdef");
        assert_eq!(outcome("User-agent: *\nCrawl-delay: 9\nUser-agent: comity\nDisallow: /a"), "bcdef");
    }

    #[test]
    fn lines_past_the_limit_are_ignored_including_a_partial_one() {
        let body = |len: usize| {
            let start = "User-agent: *\nDisallow: /b\n";
            let end = "\nDisallow: /a";
            format!("{start}{}{end}", "#".repeat(len - start.len() - end.len()))
        };
        assert_eq!(outcome(&body(BODY_MAX)), "cdef");
        assert_eq!(outcome(&body(BODY_MAX + 1)), "acdef");
        assert_eq!(outcome(&body(BODY_MAX + 100)), "acdef");
        assert_eq!(outcome(&"x".repeat(BODY_MAX + 1)), "abcdef");
    }

    proptest! {
        /// The rules don't depend on line endings, comments, blank lines and case.
        #[test]
        fn line_endings_comments_and_case_make_no_difference(
            rules in prop::collection::vec(("(dis)?allow", "/[ab*]{0,3}[$]?"), 0..8),
            end in "\r\n|\n|\r|\n\n| #x\n",
        ) {
            let plain: String = rules.iter().map(|(key, path)| format!("{key}:{path}\n")).collect();
            let dressed: String =
                rules.iter().map(|(key, path)| format!(" {} : {path}{end}", key.to_uppercase())).collect();
            let plain = read(format!("user-agent:*\n{plain}").as_bytes(), "comity");
            prop_assert_eq!(read(format!("User-Agent: *{end}{dressed}").as_bytes(), "comity"), plain);
        }

        #[test]
        fn no_input_causes_a_panic(body in prop::collection::vec(any::<u8>(), 0..300), product in "\\PC{0,9}") {
            prop_assert!(read(&body, &product).allows("/robots.txt"));
        }
    }
}
