//! How one site behaves, and what it counts: time and a path in, an answer out. Sockets are not known here.

use std::time::Duration;

use comity::core::time::{Span, Timestamp};

use super::pages;

/// What a site does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Answers ten requests, then says 429 with Retry-After.
    Strict,
    /// Allows one request in one and a half seconds, a few more at once, and tells nobody.
    Hidden,
    /// Takes its time.
    Slow,
    /// Says 503 now and then, and hangs up now and then.
    Flaky,
    /// Has a robots.txt that asks for a delay and forbids some pages.
    Robots,
    /// Has a feed.
    Feed,
    /// Just answers.
    Calm,
}

/// What a site counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// Requests for anything.
    pub(crate) requests: u64,
    /// Pages it gave.
    pub(crate) pages: u64,
    /// Times that it said no.
    pub(crate) refused: u64,
    /// Requests that came although it had asked to be left alone.
    pub(crate) early: u64,
}

/// What a site answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
    /// It takes this long.
    pub(super) after: Duration,
    /// The connection is closed without an answer.
    pub(super) hangs_up: bool,
}

/// A site.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    manner: Manner,
    tally: Tally,
    /// Until when it wants to be left alone.
    closed_until: Option<Timestamp>,
    /// Requests it still allows, and since when that is so.
    allowed: f64,
    allowed_at: Option<Timestamp>,
    /// When the last page was asked for.
    last_at: Option<Timestamp>,
}

impl Site {
    pub(super) fn new(name: &'static str, about: &'static str, manner: Manner) -> Self {
        let allowed = match manner {
            Manner::Strict => f64::from(STRICT_ALLOWS),
            _ => HIDDEN_BURST,
        };
        let (tally, closed_until, allowed_at, last_at) = (Tally::default(), None, None, None);
        Self { name, about, manner, tally, closed_until, allowed, allowed_at, last_at }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Answers a request for `path` on the site at `base`.
    pub(super) fn answer(&mut self, base: &str, path: &str, known: Option<&str>, now: Timestamp) -> Reply {
        self.tally.requests += 1;
        if self.closed_until.is_some_and(|until| now < until) {
            self.tally.early += 1;
        }
        match (path, self.manner) {
            ("/robots.txt", Manner::Robots) => return Reply::ok("text/plain", pages::robots(CRAWL_DELAY)),
            ("/robots.txt", _) => return Reply::status(404),
            ("/feed.xml", Manner::Feed) => return self.feed(base, known),
            _ => {}
        }
        match self.manner {
            Manner::Strict => self.strict(base, path, now),
            Manner::Hidden => self.hidden(base, path, now),
            Manner::Slow => Reply { after: SLOW, ..self.page(base, path) },
            Manner::Flaky => self.flaky(base, path, now),
            Manner::Robots => self.robots(base, path, now),
            Manner::Feed | Manner::Calm => self.page(base, path),
        }
    }

    fn page(&mut self, base: &str, path: &str) -> Reply {
        match pages::page(self.name, self.about, base, path) {
            Some(body) => {
                self.tally.pages += 1;
                Reply::ok("text/html; charset=utf-8", body)
            }
            None => Reply::status(404),
        }
    }

    fn refuse(&mut self, status: u16, retry_after: Option<Span>, now: Timestamp) -> Reply {
        self.tally.refused += 1;
        let mut reply = Reply::status(status);
        if let Some(span) = retry_after {
            // A second refusal does not make the first one last longer.
            let until = self.closed_until.filter(|until| now < *until).unwrap_or(now + span);
            self.closed_until = Some(until);
            reply.headers.push(("retry-after", until.since(now).as_secs_up().max(1).to_string()));
        }
        reply
    }

    fn strict(&mut self, base: &str, path: &str, now: Timestamp) -> Reply {
        if self.closed_until.is_some_and(|until| now >= until) {
            (self.closed_until, self.allowed) = (None, f64::from(STRICT_ALLOWS));
        }
        if self.closed_until.is_some() || self.allowed < 1.0 {
            return self.refuse(429, Some(STRICT_RETRY_AFTER), now);
        }
        self.allowed -= 1.0;
        self.page(base, path)
    }

    fn hidden(&mut self, base: &str, path: &str, now: Timestamp) -> Reply {
        let since = self.allowed_at.map_or(Span::ZERO, |since| now.since(since));
        let gained = since.as_secs_f64() / HIDDEN_EVERY.as_secs_f64();
        (self.allowed, self.allowed_at) = ((self.allowed + gained).min(HIDDEN_BURST), Some(now));
        if self.allowed < 1.0 {
            return self.refuse(429, None, now);
        }
        self.allowed -= 1.0;
        self.page(base, path)
    }

    fn flaky(&mut self, base: &str, path: &str, now: Timestamp) -> Reply {
        match self.tally.requests {
            nth if nth % 6 == 3 => self.refuse(503, Some(FLAKY_RETRY_AFTER), now),
            nth if nth % 9 == 8 => Reply { hangs_up: true, ..Reply::status(200) },
            _ => self.page(base, path),
        }
    }

    fn robots(&mut self, base: &str, path: &str, now: Timestamp) -> Reply {
        let gap = self.last_at.replace(now).map(|last| now.since(last));
        // A request that waited for a core on its way is not taken for an early one.
        let least = CRAWL_DELAY.less(CRAWL_DELAY.split(20));
        if gap.is_some_and(|gap| gap < least) || path.starts_with("/private") {
            self.tally.early += 1;
        }
        self.page(base, path)
    }

    fn feed(&mut self, base: &str, known: Option<&str>) -> Reply {
        let (body, tag) = (pages::feed(base), "\"harbour-1\"");
        let mut reply = match known == Some(tag) {
            true => Reply::status(304),
            false => Reply::ok("application/rss+xml", body),
        };
        reply.headers.push(("etag", tag.to_owned()));
        reply
    }
}

impl Reply {
    fn ok(content_type: &str, body: String) -> Self {
        let headers = vec![("content-type", content_type.to_owned())];
        Self { status: 200, headers, body, ..Self::status(200) }
    }

    pub(super) fn status(status: u16) -> Self {
        let (headers, body, after) = (Vec::new(), String::new(), Duration::ZERO);
        Self { status, headers, body, after, hangs_up: false }
    }
}

const STRICT_ALLOWS: u32 = 10;
const STRICT_RETRY_AFTER: Span = Span::from_secs(5);
const HIDDEN_EVERY: Span = Span::from_millis(1_500);
const HIDDEN_BURST: f64 = 2.0;
const SLOW: Duration = Duration::from_secs(2);
const FLAKY_RETRY_AFTER: Span = Span::from_secs(2);
const CRAWL_DELAY: Span = Span::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a site answers to pages asked for at these moments: statuses, and what it counted.
    fn asked(manner: Manner, at_ms: &[i64]) -> (Vec<u16>, Tally) {
        let mut site = Site::new("test", "a site", manner);
        let mut ask = |(nth, ms): (usize, &i64)| {
            site.answer("http://test", &format!("/page/{}", nth + 1), None, at(*ms))
        };
        let statuses = at_ms.iter().enumerate().map(&mut ask).map(|reply| reply.status).collect();
        (statuses, site.tally())
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + ms)
    }

    #[test]
    fn the_strict_one_opens_again_when_it_said() {
        let mut times: Vec<i64> = (0..11).collect();
        times.extend([5_009, 5_010]);
        let (statuses, tally) = asked(Manner::Strict, &times);
        assert_eq!(statuses[9..], [200, 429, 429, 200]);
        assert_eq!((tally.pages, tally.refused, tally.early), (11, 2, 1));
    }

    #[test]
    fn the_hidden_one_refuses_what_is_too_fast_and_nothing_else() {
        let (statuses, tally) = asked(Manner::Hidden, &[0, 0, 0, 1_510, 1_600, 3_020]);
        assert_eq!(statuses, [200, 200, 429, 200, 429, 200]);
        assert_eq!(tally.early, 0, "nobody was told");
        let every_two_seconds: Vec<i64> = (0..50).map(|nth| nth * 2_000).collect();
        assert_eq!(asked(Manner::Hidden, &every_two_seconds).1.refused, 0);
    }

    #[test]
    fn the_flaky_one_recovers() {
        let times: Vec<i64> = (0..18).map(|nth| nth * 2_500).collect();
        let (statuses, tally) = asked(Manner::Flaky, &times);
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3);
        assert_eq!((tally.refused, tally.early, tally.pages), (3, 0, 13));
        assert_eq!(asked(Manner::Flaky, &[0, 1, 2, 3]).1.early, 1);
    }

    #[test]
    fn a_crawl_delay_is_watched() {
        assert_eq!(asked(Manner::Robots, &[0, 3_000, 6_010]).1.early, 0);
        assert_eq!(asked(Manner::Robots, &[0, 2_800]).1.early, 1);
        let mut site = Site::new("test", "a site", Manner::Robots);
        site.answer("http://test", "/private/1", None, at(0));
        assert_eq!(site.tally().early, 1);
        let robots = site.answer("http://test", "/robots.txt", None, at(0));
        assert!(robots.body.contains("Crawl-delay: 3"), "{robots:?}");
    }

    #[test]
    fn a_feed_that_is_known_is_not_sent_again() {
        let mut site = Site::new("test", "a site", Manner::Feed);
        let first = site.answer("http://test", "/feed.xml", None, at(0));
        let tag = &first.headers.iter().find(|(name, _)| *name == "etag").unwrap().1;
        assert_eq!(first.status, 200);
        assert_eq!(site.answer("http://test", "/feed.xml", Some(tag), at(1)).status, 304);
    }
}
