//! How one site behaves, and what it counts: time and a path in, a response out. No sockets here.

use std::time::Duration;

use comity::core::time::{Span, Timestamp};

use super::pages;

/// How a site behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    /// Answers ten requests, then 429 with Retry-After.
    Strict,
    /// Allows one request per 1.5 seconds with a small burst, and answers 429 without Retry-After.
    Hidden,
    /// Takes two seconds per page.
    Slow,
    /// Sometimes answers 503, sometimes drops the connection.
    Flaky,
    /// Has a robots.txt with a crawl-delay and disallowed pages.
    Robots,
    /// Has a feed.
    Feed,
    /// Just answers.
    Plain,
}

/// What a site counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    /// All requests.
    pub(crate) requests: u64,
    /// Pages served.
    pub(crate) pages: u64,
    /// Requests refused with 429 or 503.
    pub(crate) refused: u64,
    /// Requests that came earlier than the site had allowed, or to pages that robots.txt disallows.
    pub(crate) early: u64,
}

/// A site's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
    /// How long the response takes.
    pub(super) after: Duration,
    /// Whether the connection is closed without a response.
    pub(super) hangs_up: bool,
}

/// A site.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    behavior: Behavior,
    tally: Tally,
    /// The end of its Retry-After.
    closed_until: Option<Timestamp>,
    /// The requests it still allows.
    allowed: f64,
    /// When `allowed` was last updated.
    allowed_at: Option<Timestamp>,
    /// When the last page was requested.
    last_at: Option<Timestamp>,
}

impl Site {
    pub(super) fn new(name: &'static str, about: &'static str, behavior: Behavior) -> Self {
        let allowed = match behavior {
            Behavior::Strict => f64::from(STRICT_ALLOWS),
            _ => HIDDEN_BURST,
        };
        let (tally, closed_until, allowed_at, last_at) = (Tally::default(), None, None, None);
        Self { name, about, behavior, tally, closed_until, allowed, allowed_at, last_at }
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
        match (path, self.behavior) {
            ("/robots.txt", Behavior::Robots) => {
                return Reply::ok("text/plain", pages::robots(base, CRAWL_DELAY));
            }
            ("/robots.txt", _) => return Reply::status(404),
            ("/sitemap.xml", _) => return Reply::ok("application/xml", pages::sitemap(base)),
            (FEED, Behavior::Feed) => {
                let feed = Reply::ok("application/rss+xml", pages::feed(base));
                return feed.unless_known(known, &self.tag(path));
            }
            _ => {}
        }
        let reply = match self.behavior {
            Behavior::Strict => self.strict(base, path, now),
            Behavior::Hidden => self.hidden(base, path, now),
            Behavior::Slow => Reply { after: SLOW, ..self.page(base, path) },
            Behavior::Flaky => self.flaky(base, path, now),
            Behavior::Robots => self.robots(base, path, now),
            Behavior::Feed | Behavior::Plain => self.page(base, path),
        };
        match reply.status {
            200 if !reply.hangs_up => reply.unless_known(known, &self.tag(path)),
            _ => reply,
        }
    }

    /// The entity tag of what is at `path`, which never changes.
    fn tag(&self, path: &str) -> String {
        format!("\"{}{path}\"", self.name)
    }

    fn page(&mut self, base: &str, path: &str) -> Reply {
        let feed = (self.behavior == Behavior::Feed).then_some(FEED);
        match pages::page(self.name, self.about, base, path, feed) {
            Some(body) => {
                self.tally.pages += 1;
                Reply::ok("text/html; charset=utf-8", body)
            }
            None => Reply::missing(),
        }
    }

    fn refuse(&mut self, status: u16, retry_after: Option<Span>, now: Timestamp) -> Reply {
        self.tally.refused += 1;
        let mut reply = Reply::status(status);
        if let Some(span) = retry_after {
            // A second 429 doesn't extend the first one.
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
        // Allow for jitter: on a busy machine, the gap between arrivals may be shorter than between departures.
        let shortest = CRAWL_DELAY.less(CRAWL_DELAY.split(20));
        if gap.is_some_and(|gap| gap < shortest) || path.starts_with("/private") {
            self.tally.early += 1;
        }
        self.page(base, path)
    }
}

impl Reply {
    fn ok(content_type: &str, body: String) -> Self {
        let headers = vec![("content-type", content_type.to_owned())];
        Self { status: 200, headers, body, ..Self::status(200) }
    }

    fn missing() -> Self {
        Self { status: 404, ..Self::ok("text/html; charset=utf-8", pages::missing()) }
    }

    /// The response with its entity tag, or 304 if that is the one that the client knows.
    fn unless_known(mut self, known: Option<&str>, tag: &str) -> Self {
        if known == Some(tag) {
            self = Self { after: self.after, ..Self::status(304) };
        }
        self.headers.push(("etag", tag.to_owned()));
        self
    }

    pub(super) fn status(status: u16) -> Self {
        let (headers, body, after) = (Vec::new(), String::new(), Duration::ZERO);
        Self { status, headers, body, after, hangs_up: false }
    }
}

/// The path of the feed.
const FEED: &str = "/feed.xml";
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

    /// Requests pages at these times, and returns the statuses and what the site counted.
    fn asked(behavior: Behavior, at_ms: &[i64]) -> (Vec<u16>, Tally) {
        let mut site = Site::new("test", "a site", behavior);
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
    fn the_strict_site_answers_again_after_its_retry_after() {
        let mut times: Vec<i64> = (0..11).collect();
        times.extend([5_009, 5_010]);
        let (statuses, tally) = asked(Behavior::Strict, &times);
        assert_eq!(statuses[9..], [200, 429, 429, 200]);
        assert_eq!((tally.pages, tally.refused, tally.early), (11, 2, 1));
    }

    #[test]
    fn the_hidden_site_refuses_only_requests_that_are_too_fast() {
        let (statuses, tally) = asked(Behavior::Hidden, &[0, 0, 0, 1_510, 1_600, 3_020]);
        assert_eq!(statuses, [200, 200, 429, 200, 429, 200]);
        assert_eq!(tally.early, 0, "it never said when to come back");
        let every_two_seconds: Vec<i64> = (0..50).map(|nth| nth * 2_000).collect();
        assert_eq!(asked(Behavior::Hidden, &every_two_seconds).1.refused, 0);
    }

    #[test]
    fn the_flaky_site_recovers() {
        let times: Vec<i64> = (0..18).map(|nth| nth * 2_500).collect();
        let (statuses, tally) = asked(Behavior::Flaky, &times);
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3);
        assert_eq!((tally.refused, tally.early, tally.pages), (3, 0, 13));
        assert_eq!(asked(Behavior::Flaky, &[0, 1, 2, 3]).1.early, 1);
    }

    #[test]
    fn requests_within_the_crawl_delay_count_as_early() {
        assert_eq!(asked(Behavior::Robots, &[0, 3_000, 6_010]).1.early, 0);
        assert_eq!(asked(Behavior::Robots, &[0, 2_800]).1.early, 1);
        let mut site = Site::new("test", "a site", Behavior::Robots);
        site.answer("http://test", "/private/1", None, at(0));
        assert_eq!(site.tally().early, 1);
        let robots = site.answer("http://test", "/robots.txt", None, at(0));
        assert!(robots.body.contains("Crawl-delay: 3"), "{robots:?}");
    }

    #[test]
    fn an_unchanged_feed_or_page_is_answered_with_304() {
        for path in ["/feed.xml", "/page/3", "/"] {
            let mut site = Site::new("test", "a site", Behavior::Feed);
            let first = site.answer("http://test", path, None, at(0));
            let tag = &first.headers.iter().find(|(name, _)| *name == "etag").unwrap().1;
            assert_eq!(first.status, 200);
            let again = site.answer("http://test", path, Some(tag), at(1));
            assert_eq!((again.status, again.body.as_str()), (304, ""), "{path}");
            assert_eq!(site.answer("http://test", path, Some("\"another\""), at(2)).status, 200);
        }
        let mut strict = Site::new("strict", "a site", Behavior::Strict);
        let statuses = (0..11).map(|nth| strict.answer("http://s", "/", Some("\"strict/\""), at(nth)).status);
        assert_eq!(statuses.last(), Some(429), "a conditional request counts");
    }

    #[test]
    fn every_site_has_a_sitemap_and_a_404_and_the_front_page_links_to_them() {
        for (behavior, has_feed) in
            [(Behavior::Plain, false), (Behavior::Feed, true), (Behavior::Robots, false)]
        {
            let mut site = Site::new("test", "a site", behavior);
            let mut body = |path: &str| {
                let reply = site.answer("http://test", path, None, at(0));
                (reply.status, reply.body)
            };
            let (_, front) = body("/");
            let feed = "<link rel=\"alternate\" type=\"application/rss+xml\" title=\"News of the test\" href=\"http://test/feed.xml\">";
            assert_eq!(front.contains(feed), has_feed, "{front}");
            for path in ["/sitemap.xml", "/missing"] {
                assert!(front.contains(&format!("href=\"http://test{path}\"")), "{front}");
            }
            assert_eq!(body("/missing").0, 404);
            let (status, sitemap) = body("/sitemap.xml");
            assert_eq!((status, sitemap.matches("<loc>http://test/page/").count()), (200, 12), "{sitemap}");
        }
    }
}
