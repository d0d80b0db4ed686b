//! Reading a robots.txt line by line into the rules of one product token.
//!
//! Lines are octets, not text: a file in an old encoding still matches the URLs that use that encoding. What a
//! pattern means is for `pattern` to say; `Sitemap` and every other key are skipped as if they were not there.

use comity_core::time::Span;

use super::pattern::Pattern;
use super::{BODY_MAX, Robots, Rule};

/// The rules of `body` for `product`: of the groups that name it, else of the groups for everyone.
pub(super) fn read(body: &[u8], product: &str) -> Robots {
    let product = token(product.as_bytes());
    let (mut ours, mut everyones) = (Group::default(), Group::default());
    let mut among_agents = false;
    for line in lines(body) {
        match line {
            Line::Agent(agent) => {
                // The first agent after a rule starts a new group; those that follow it share that group.
                if !among_agents {
                    (ours.open, everyones.open) = (false, false);
                }
                among_agents = true;
                if is_everyone(agent) {
                    everyones.open = true;
                } else if !product.is_empty() && token(agent).eq_ignore_ascii_case(product) {
                    (ours.open, ours.named) = (true, true);
                }
            }
            Line::Rule(key, value) => {
                among_agents = false;
                ours.add(key, value);
                everyones.add(key, value);
            }
        }
    }
    let group = if ours.named { ours } else { everyones };
    Robots::new(group.rules, group.crawl_delay)
}

/// The rules gathered for one agent out of all its groups.
#[derive(Default)]
struct Group {
    /// Whether the group being read is this agent's.
    open: bool,
    /// Whether the agent was named at all: a group without rules allows everything.
    named: bool,
    rules: Vec<Rule>,
    crawl_delay: Option<Span>,
}

impl Group {
    fn add(&mut self, key: Key, value: &[u8]) {
        if !self.open {
            return;
        }
        match key {
            Key::Allow => self.rules.extend(Pattern::read(value).map(Rule::allow)),
            Key::Disallow => self.rules.extend(Pattern::read_cut(value).map(Rule::disallow)),
            Key::CrawlDelay => self.crawl_delay = self.crawl_delay.max(crawl_delay(value)),
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

/// The lines that mean something, comments taken off.
fn lines(body: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let ends = |octet: &u8| matches!(octet, b'\n' | b'\r');
    let body = match body.get(..BODY_MAX) {
        // Half a line may say the opposite of the whole one, so the last whole line is the last.
        Some(start) if body.len() > BODY_MAX => &start[..start.iter().rposition(ends).unwrap_or(0)],
        _ => body,
    };
    body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body).split(ends).filter_map(line)
}

fn line(text: &[u8]) -> Option<Line<'_>> {
    let text = text.split(|octet| *octet == b'#').next()?;
    let colon = text.iter().position(|octet| *octet == b':')?;
    let (key, value) = (text[..colon].trim_ascii(), text[colon + 1..].trim_ascii());
    if key.len() > KEY_MAX {
        return None;
    }
    // A misspelt rule is still a wish, and these are the usual misspellings.
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

/// Decimal seconds, limited to [`CRAWL_DELAY_MAX`]; `None` for what is no such number.
fn crawl_delay(value: &[u8]) -> Option<Span> {
    let text = str::from_utf8(value).ok()?;
    Span::from_decimal_secs(text).map(|span| span.min(CRAWL_DELAY_MAX))
}

/// The product token that `agent` starts with, as in `Comity/1.0`; empty if there is none.
fn token(agent: &[u8]) -> &[u8] {
    let other = |octet: &u8| !(octet.is_ascii_alphabetic() || matches!(octet, b'_' | b'-'));
    &agent[..agent.iter().position(other).unwrap_or(agent.len())]
}

/// Whether `agent` is `*`, perhaps with something after a space.
fn is_everyone(agent: &[u8]) -> bool {
    matches!(agent, [b'*'] | [b'*', b' ' | b'\t', ..])
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The longest key there is, so that no long line is copied only to be compared.
const KEY_MAX: usize = "crawl-delay".len();
const CRAWL_DELAY_MAX: Span = Span::from_hours(24);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Which of the paths `/a` to `/f` are allowed, and the crawl delay.
    fn told(body: &str) -> String {
        let robots = read(body.as_bytes(), "Comity/1.0");
        let allowed = ["a", "b", "c", "d", "e", "f"].into_iter();
        let allowed: String = allowed.filter(|path| robots.allows(&format!("/{path}"))).collect();
        robots.crawl_delay().map_or(allowed.clone(), |delay| format!("{allowed} {delay}"))
    }

    #[test]
    fn the_groups_of_our_token_apply_together_else_those_for_everyone() {
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
            assert_eq!(told(body), expected, "{body}");
        }
    }

    #[test]
    fn agents_in_a_row_share_a_group_and_only_a_rule_ends_the_row() {
        for (body, expected) in [
            ("User-agent: x\nUser-agent: comity\nUser-agent: y\nDisallow: /a", "bcdef"),
            ("User-agent: comity\n\n# hi\nSitemap: /s\nHost: h\nUser-agent: x\nDisallow: /a", "bcdef"),
            ("User-agent: comity\nDisallow: /a\nSitemap: /s\nNoindex: /x\n\nDisallow: /b", "cdef"),
            ("User-agent: comity\nCrawl-delay: 5\nUser-agent: x\nDisallow: /a", "abcdef 5s"),
            ("User-agent: comity\nUser-agent: *\nDisallow: /a\nUser-agent: *\nDisallow: /b", "bcdef"),
        ] {
            assert_eq!(told(body), expected, "{body}");
        }
    }

    #[test]
    fn lines_are_read_kindly() {
        for body in [
            "\u{feff}User-agent: *\nDisallow: /a",
            "user-AGENT:*\r\nDISALLOW:/a\r\n",
            "User-agent: *\rDisallow: /a\r",
            " \t User-agent \t : \t * \t\n  Disallow  :  /a  # /b\n#Disallow: /b",
            "useragent: *\ndissallow: /a",
            "User-agent: * # everyone\nDisallow /b\nDisallow: c\nDisallow:\nnonsense\n: /d\nDisallow: /a",
        ] {
            assert_eq!(told(body), "bcdef", "{body:?}");
        }
        let latin = read(b"User-agent: *\nDisallow: /\xe9", "comity");
        assert!(!latin.allows("/%E9t%E9"));
        assert!(latin.allows("/%C3%A9"));
    }

    #[test]
    fn the_longest_crawl_delay_counts_up_to_a_day() {
        for (values, expected) in [
            ("10", "10s"),
            ("0.5", "500ms"),
            ("2 7 3", "7s"),
            ("-1 NaN inf 1e3 5s soon 3,5 ٣ 4", "4s"),
            ("86401", "24h"),
            ("99999999999999999999999999999", "24h"),
        ] {
            let lines: String = values.split(' ').map(|value| format!("Crawl-delay: {value}\n")).collect();
            assert_eq!(told(&format!("User-agent: *\n{lines}")), format!("abcdef {expected}"), "{values}");
        }
        assert_eq!(told("User-agent: *\nCrawl-delay: soon\nUser-agent: x\nCrawl-delay: 9"), "abcdef");
        assert_eq!(told("User-agent: *\nCrawl-delay: 9\nUser-agent: comity\nDisallow: /a"), "bcdef");
    }

    #[test]
    fn what_lies_past_the_limit_and_the_line_it_cuts_are_not_read() {
        let body = |len: usize| {
            let start = "User-agent: *\nDisallow: /b\n";
            let end = "\nDisallow: /a";
            format!("{start}{}{end}", "#".repeat(len - start.len() - end.len()))
        };
        assert_eq!(told(&body(BODY_MAX)), "cdef");
        assert_eq!(told(&body(BODY_MAX + 1)), "acdef");
        assert_eq!(told(&body(BODY_MAX + 100)), "acdef");
        assert_eq!(told(&"x".repeat(BODY_MAX + 1)), "abcdef");
    }

    proptest! {
        /// However lines end, whatever comments and blank lines stand between, the rules are the same.
        #[test]
        fn line_ends_comments_and_case_make_no_difference(
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
        fn any_bytes_are_read(body in prop::collection::vec(any::<u8>(), 0..300), product in "\\PC{0,9}") {
            prop_assert!(read(&body, &product).allows("/robots.txt"));
        }
    }
}
