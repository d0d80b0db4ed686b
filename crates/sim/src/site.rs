//! Simulated sites that rate limit, ban, fail and respond slowly.
//!
//! A site receives requests and answers them; it knows nothing about Comity. `Retry-After` and quotas are real headers,
//! so that the core's own parsers are used.

use std::collections::VecDeque;

use comity_core::time::{Span, Timestamp};
use fastrand::Rng;

/// The description of a site.
#[derive(Debug, Clone)]
pub struct SiteSpec {
    /// Its rate limit.
    pub limit: LimitSpec,
    /// How its 429s say when to come back.
    pub hint_style: HintStyle,
    /// Minimum and maximum time until the response.
    pub latency: (Span, Span),
    /// How often it fails.
    pub flaky: Flaky,
    /// How far its clock is ahead of the true time, in seconds.
    pub clock_ahead: i64,
}

/// The rate limit of a site.
#[derive(Debug, Clone)]
pub enum LimitSpec {
    /// No limit.
    Open,
    /// A token bucket.
    TokenBucket {
        /// Tokens per second.
        rate: f64,
        /// Capacity of the bucket.
        burst: u32,
    },
    /// A leaky bucket: a request that finds more than `burst` requests in it is refused.
    LeakyBucket {
        /// Requests that leak out per second.
        rate: f64,
        /// Capacity of the bucket.
        burst: u32,
    },
    /// A maximum number of requests per fixed window.
    FixedWindow {
        /// Maximum per window.
        count: u32,
        /// Length of a window.
        window: Span,
    },
    /// A maximum number of requests per sliding window.
    SlidingLog {
        /// Maximum per window.
        count: u32,
        /// Length of a window.
        window: Span,
        /// Whether refused requests count too.
        refused_count: bool,
    },
    /// A maximum number of concurrent requests.
    Concurrency {
        /// Maximum number of concurrent requests.
        count: u32,
    },
    /// A number of requests, after which everything is refused for a while, counted from the first refusal.
    Storm {
        /// Number of requests.
        count: u32,
        /// How long everything is refused.
        closed: Span,
    },
    /// Like `inner`, but with a ban after too many refusals.
    Ban {
        /// Number of refusals before the ban.
        after: u32,
        /// Length of the ban.
        banned: Span,
        /// The limit without the ban.
        inner: Box<LimitSpec>,
    },
    /// Several limits in turn, over and over.
    Steps {
        /// How long each limit applies.
        each: Span,
        /// The limits.
        limits: Vec<LimitSpec>,
    },
}

/// How the 429s of a site say when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintStyle {
    /// Not at all.
    Absent,
    /// In whole seconds, rounded up.
    Seconds,
    /// As a date.
    Date,
    /// With an invalid `Retry-After`.
    Wrong,
    /// With a `Retry-After` of thousands of years.
    Absurd,
    /// With an exhausted quota and its reset.
    Quota,
}

/// How often a site fails, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaky {
    /// Answers 500.
    pub errors: u8,
    /// Answers 503.
    pub unavailable: u8,
    /// Never answers.
    pub hangs: u8,
    /// Refuses this connection and all others for a while.
    pub refuses: u8,
    /// Takes ten times as long.
    pub slow: u8,
    /// Answers 404.
    pub missing: u8,
}

/// A running site.
#[derive(Debug)]
pub struct Site {
    spec: SiteSpec,
    limit: Limit,
    rng: Rng,
    /// It refuses connections until this time.
    gone_until: Timestamp,
}

/// The response of a site.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteAnswer {
    /// The status; `None` if the site never answers or refuses the connection.
    pub status: Option<u16>,
    /// Whether the connection was refused.
    pub refused: bool,
    /// The headers.
    pub headers: Vec<(&'static str, String)>,
    /// Time from the request to the response.
    pub after: Span,
    /// How long it validly asked us to wait.
    pub stated: Option<Span>,
}

impl Site {
    /// A new site; `seed` determines everything random about it.
    pub fn new(spec: &SiteSpec, seed: u64) -> Self {
        Self {
            limit: Limit::new(&spec.limit),
            spec: spec.clone(),
            rng: Rng::with_seed(seed),
            gone_until: Timestamp::MIN,
        }
    }

    /// A request arrives.
    pub fn arrive(&mut self, now: Timestamp) -> SiteAnswer {
        let (from, to) = self.spec.latency;
        let mut after = Span::from_micros(self.rng.u64(from.as_micros()..=to.as_micros()));
        let roll = |rng: &mut Rng, percent: u8| rng.u8(0..100) < percent;
        if roll(&mut self.rng, self.spec.flaky.slow) {
            after = after.times(10);
        }
        let plain = |status| SiteAnswer { status, refused: false, headers: Vec::new(), after, stated: None };
        if self.spec.flaky.refuses > 0 && roll(&mut self.rng, self.spec.flaky.refuses) {
            self.gone_until = self.gone_until.max(now + Span::from_secs(self.rng.u64(0..30)));
            return SiteAnswer { refused: true, ..plain(None) };
        }
        if now < self.gone_until {
            return SiteAnswer { refused: true, ..plain(None) };
        }
        if roll(&mut self.rng, self.spec.flaky.hangs) {
            return plain(None);
        }
        if let Err(closed) = self.limit.arrive(now, after) {
            return self.refuse(closed, now, after);
        }
        let flaky = self.spec.flaky;
        for (percent, status) in [(flaky.errors, 500), (flaky.unavailable, 503), (flaky.missing, 404)] {
            if roll(&mut self.rng, percent) {
                return plain(Some(status));
            }
        }
        plain(Some(200))
    }

    fn refuse(&mut self, closed: Span, now: Timestamp, after: Span) -> SiteAnswer {
        let secs = closed.as_secs_up().max(1);
        let date = |ahead: u64| {
            let secs = (now.as_micros() / 1_000_000 + self.spec.clock_ahead) as u64 + ahead;
            httpdate::fmt_http_date(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs))
        };
        let (headers, stated) = match self.spec.hint_style {
            HintStyle::Absent => (Vec::new(), None),
            HintStyle::Seconds => (vec![("Retry-After", secs.to_string())], Some(Span::from_secs(secs))),
            HintStyle::Date => {
                (vec![("Date", date(0)), ("Retry-After", date(secs))], Some(Span::from_secs(secs)))
            }
            HintStyle::Wrong => {
                let wrong = ["soon", "-5", "0", "", "1e9", "Mon, 99 Foo 2026", "\u{1}"];
                (vec![("Retry-After", wrong[self.rng.usize(..wrong.len())].to_owned())], None)
            }
            HintStyle::Absurd => (vec![("Retry-After", "99999999999999".to_owned())], Some(Span::MAX)),
            HintStyle::Quota => {
                let headers =
                    vec![("X-RateLimit-Remaining", "0".to_owned()), ("X-RateLimit-Reset", secs.to_string())];
                (headers, Some(Span::from_secs(secs)))
            }
        };
        SiteAnswer { status: Some(429), refused: false, headers, after, stated }
    }
}

/// The state of a limit.
#[derive(Debug)]
enum Limit {
    Open,
    TokenBucket { rate: f64, burst: f64, tokens: f64, at: Timestamp },
    LeakyBucket { rate: f64, burst: f64, inside: f64, at: Timestamp },
    FixedWindow { count: u32, window: Span, began: Timestamp, used: u32 },
    SlidingLog { count: usize, window: Span, refused_count: bool, log: VecDeque<Timestamp> },
    Concurrency { count: usize, ends: Vec<Timestamp> },
    Storm { count: u32, closed: Span, used: u32, until: Option<Timestamp> },
    Ban { after: u32, banned: Span, refused: u32, until: Timestamp, inner: Box<Limit> },
    Steps { each: Span, limits: Vec<Limit> },
}

impl Limit {
    fn new(spec: &LimitSpec) -> Self {
        let at = Timestamp::from_secs(0);
        match spec {
            LimitSpec::Open => Self::Open,
            LimitSpec::TokenBucket { rate, burst } => {
                let burst = f64::from(*burst);
                Self::TokenBucket { rate: *rate, burst, tokens: burst, at }
            }
            LimitSpec::LeakyBucket { rate, burst } => {
                Self::LeakyBucket { rate: *rate, burst: f64::from(*burst), inside: 0.0, at }
            }
            LimitSpec::FixedWindow { count, window } => {
                Self::FixedWindow { count: *count, window: *window, began: at, used: 0 }
            }
            LimitSpec::SlidingLog { count, window, refused_count } => Self::SlidingLog {
                count: *count as usize,
                window: *window,
                refused_count: *refused_count,
                log: VecDeque::new(),
            },
            LimitSpec::Concurrency { count } => {
                Self::Concurrency { count: *count as usize, ends: Vec::new() }
            }
            LimitSpec::Storm { count, closed } => {
                Self::Storm { count: *count, closed: *closed, used: 0, until: None }
            }
            LimitSpec::Ban { after, banned, inner } => Self::Ban {
                after: *after,
                banned: *banned,
                refused: 0,
                until: Timestamp::NEVER,
                inner: Box::new(Self::new(inner)),
            },
            LimitSpec::Steps { each, limits } => {
                Self::Steps { each: *each, limits: limits.iter().map(Self::new).collect() }
            }
        }
    }

    /// A request arrives that will take `busy`. If it is refused, returns how long it should have waited.
    fn arrive(&mut self, now: Timestamp, busy: Span) -> Result<(), Span> {
        let after = |secs: f64| Span::from_secs_f64(secs.max(0.0)).unwrap_or(Span::MAX);
        match self {
            Self::Open => Ok(()),
            Self::TokenBucket { rate, burst, tokens, at } => {
                *tokens = (*tokens + now.since(*at).as_secs_f64() * *rate).min(*burst);
                *at = now;
                if *tokens < 1.0 {
                    return Err(after((1.0 - *tokens) / *rate));
                }
                *tokens -= 1.0;
                Ok(())
            }
            Self::LeakyBucket { rate, burst, inside, at } => {
                *inside = (*inside - now.since(*at).as_secs_f64() * *rate).max(0.0);
                *at = now;
                if *inside > *burst {
                    return Err(after((*inside - *burst) / *rate));
                }
                *inside += 1.0;
                Ok(())
            }
            Self::FixedWindow { count, window, began, used } => {
                let past = now.since(*began).whole_times(*window);
                if past > 0 {
                    *began = *began + window.times(past);
                    *used = 0;
                }
                if *used == *count {
                    return Err((*began + *window).since(now));
                }
                *used += 1;
                Ok(())
            }
            Self::SlidingLog { count, window, refused_count, log } => {
                while log.front().is_some_and(|first| *first + *window <= now) {
                    log.pop_front();
                }
                let refused = log.len() >= *count;
                if !refused || *refused_count {
                    log.push_back(now);
                }
                match refused {
                    true => Err(log.front().map_or(Span::ZERO, |first| (*first + *window).since(now))),
                    false => Ok(()),
                }
            }
            Self::Concurrency { count, ends } => {
                ends.retain(|end| *end > now);
                if ends.len() >= *count {
                    return Err(ends.iter().min().map_or(Span::ZERO, |end| end.since(now)));
                }
                ends.push(now + busy);
                Ok(())
            }
            Self::Storm { count, closed, used, until } => {
                match *until {
                    Some(at) if now < at => return Err(at.since(now)),
                    Some(_) => (*used, *until) = (0, None),
                    None => {}
                }
                if *used == *count {
                    *until = Some(now + *closed);
                    return Err(*closed);
                }
                *used += 1;
                Ok(())
            }
            Self::Ban { after, banned, refused, until, inner } => {
                if now < *until {
                    return Err(until.since(now));
                }
                let answer = inner.arrive(now, busy);
                if answer.is_err() {
                    *refused += 1;
                    if *refused == *after {
                        (*refused, *until) = (0, now + *banned);
                        return Err(*banned);
                    }
                }
                answer
            }
            Self::Steps { each, limits } => {
                let step = now.since(Timestamp::from_secs(0)).whole_times(*each) as usize;
                let count = limits.len();
                limits.get_mut(step % count.max(1)).map_or(Ok(()), |limit| limit.arrive(now, busy))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(limit: &LimitSpec, arrivals: &[f64]) -> String {
        let mut limit = Limit::new(limit);
        let busy = Span::from_secs(2);
        let mut arrive = |secs: &f64| {
            let now = Timestamp::from_secs(0) + Span::from_secs_f64(*secs).unwrap();
            match limit.arrive(now, busy) {
                Ok(()) => "ok".to_owned(),
                Err(wait) => format!("{wait}"),
            }
        };
        arrivals.iter().map(&mut arrive).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_limit_works_as_its_name_says() {
        let token = LimitSpec::TokenBucket { rate: 1.0, burst: 2 };
        assert_eq!(accepted(&token, &[0.0, 0.0, 0.0, 0.5, 1.0, 1.0]), "ok ok 1s 500ms ok 1s");
        let leaky = LimitSpec::LeakyBucket { rate: 1.0, burst: 1 };
        assert_eq!(accepted(&leaky, &[0.0, 0.0, 0.0, 1.0, 1.5]), "ok ok 1s ok 500ms");
        let strict = LimitSpec::LeakyBucket { rate: 2.0, burst: 0 };
        assert_eq!(accepted(&strict, &[0.0, 0.25, 0.5]), "ok 250ms ok");
        let fixed = LimitSpec::FixedWindow { count: 2, window: Span::from_secs(10) };
        assert_eq!(accepted(&fixed, &[8.0, 9.0, 9.5, 10.0, 10.0, 11.0]), "ok ok 500ms ok ok 9s");
        let window = Span::from_secs(10);
        let sliding = LimitSpec::SlidingLog { count: 2, window, refused_count: false };
        assert_eq!(accepted(&sliding, &[0.0, 4.0, 9.0, 10.0, 11.0]), "ok ok 1s ok 3s");
        let counting = LimitSpec::SlidingLog { count: 2, window, refused_count: true };
        assert_eq!(accepted(&counting, &[0.0, 4.0, 9.0, 10.0, 14.0]), "ok ok 1s 4s 5s");
        assert_eq!(accepted(&LimitSpec::Concurrency { count: 1 }, &[0.0, 1.0, 2.0]), "ok 1s ok");
        let storm = LimitSpec::Storm { count: 2, closed: Span::from_secs(5) };
        assert_eq!(accepted(&storm, &[0.0, 0.0, 1.0, 3.0, 6.0, 6.0, 7.0]), "ok ok 5s 3s ok ok 5s");
        let ban = LimitSpec::Ban { after: 2, banned: Span::from_secs(60), inner: Box::new(token) };
        assert_eq!(accepted(&ban, &[0.0, 0.0, 0.0, 0.0, 30.0, 60.0]), "ok ok 1s 60s 30s ok");
        let steps = LimitSpec::Steps { each: Span::from_secs(5), limits: vec![LimitSpec::Open, strict] };
        assert_eq!(accepted(&steps, &[0.0, 0.0, 5.0, 5.0, 10.0, 10.0]), "ok ok ok 500ms ok ok");
    }
}
