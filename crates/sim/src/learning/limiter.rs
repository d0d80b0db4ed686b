//! Families of rate limits, as servers and services implement them.
//!
//! A limiter decides about one arriving request and says how long the client would have to wait. Everything a site does
//! besides (headers, latency, other clients) is in the neighbouring modules.

use std::collections::VecDeque;

/// A running limiter. Times are seconds.
#[derive(Debug, Clone)]
pub enum Limiter {
    /// Tokens come at a rate, up to a burst; each accepted request takes one.
    TokenBucket {
        /// Tokens per second.
        rate: f64,
        /// The most tokens there can be.
        burst: f64,
        /// Tokens now.
        tokens: f64,
        /// When `tokens` was computed.
        at: f64,
        /// Whether a refused request costs a token too.
        refused_count: bool,
    },
    /// nginx `limit_req`: requests leak out at a rate; what exceeds the burst is refused. Without `nodelay`, requests wait
    /// in the bucket instead of being answered at once.
    LeakyBucket {
        /// Requests per second that leak out.
        rate: f64,
        /// How many may be in excess.
        burst: f64,
        /// Requests in excess now.
        excess: f64,
        /// When `excess` was computed.
        at: f64,
        /// Whether requests in excess wait.
        queues: bool,
    },
    /// A number of requests per calendar window.
    FixedWindow {
        /// Requests per window.
        count: f64,
        /// Length of the window.
        window: f64,
        /// Number of the current window.
        nth: i64,
        /// Requests in it.
        used: f64,
        /// Whether refused requests count.
        refused_count: bool,
    },
    /// A number of requests in any window of a length.
    SlidingLog {
        /// Requests per window.
        count: f64,
        /// Length of the window.
        window: f64,
        /// When the counted requests arrived.
        log: VecDeque<f64>,
        /// Whether refused requests count.
        refused_count: bool,
    },
    /// The sliding window estimated from two counters: the previous window counts for the share of it that is still
    /// inside.
    SlidingCounter {
        /// Requests per window.
        count: f64,
        /// Length of the window.
        window: f64,
        /// Number of the current window.
        nth: i64,
        /// Requests in the previous and in the current window.
        used: [f64; 2],
        /// Whether refused requests count.
        refused_count: bool,
    },
    /// A number of requests at the same time.
    Concurrency {
        /// The most at the same time.
        count: f64,
        /// When those that are running end.
        ends: Vec<f64>,
    },
}

/// What a limiter says to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It is accepted, and answered after a delay.
    Accept {
        /// Extra seconds until the answer.
        delay: f64,
    },
    /// It is refused.
    Refuse {
        /// Seconds until one would be accepted.
        free_in: f64,
    },
}

impl Limiter {
    /// A request arrives at `now` and takes `busy` seconds if it is accepted. `scale` multiplies the limit at this
    /// moment.
    pub fn arrive(&mut self, now: f64, busy: f64, scale: f64) -> Verdict {
        let accept = Verdict::Accept { delay: 0.0 };
        match self {
            Self::TokenBucket { rate, burst, tokens, at, refused_count } => {
                let rate = *rate * scale;
                *tokens = (*tokens + (now - *at) * rate).min(*burst);
                *at = now;
                if *tokens >= 1.0 - EPSILON {
                    *tokens -= 1.0;
                    return accept;
                }
                if *refused_count {
                    *tokens = (*tokens - 1.0).max(-1.0);
                }
                Verdict::Refuse { free_in: (1.0 - *tokens) / rate }
            }
            Self::LeakyBucket { rate, burst, excess, at, queues } => {
                let rate = *rate * scale;
                let left = (*excess - (now - *at) * rate).max(0.0);
                *at = now;
                // nginx compares the excess that the earlier requests left with the burst.
                if left > *burst + EPSILON {
                    *excess = left;
                    return Verdict::Refuse { free_in: (left - *burst) / rate };
                }
                *excess = left + 1.0;
                Verdict::Accept { delay: if *queues { left / rate } else { 0.0 } }
            }
            Self::FixedWindow { count, window, nth, used, refused_count } => {
                let current = (now / *window).floor() as i64;
                if current != *nth {
                    (*nth, *used) = (current, 0.0);
                }
                let accepted = *used + 1.0 <= (*count * scale).max(1.0);
                if accepted || *refused_count {
                    *used += 1.0;
                }
                let free_in = (current + 1) as f64 * *window - now;
                if accepted { accept } else { Verdict::Refuse { free_in } }
            }
            Self::SlidingLog { count, window, log, refused_count } => {
                while log.front().is_some_and(|first| *first <= now - *window + EPSILON) {
                    log.pop_front();
                }
                let most = (*count * scale).max(1.0);
                let accepted = log.len() as f64 + 1.0 <= most;
                let leaving = (log.len() as f64 - most).max(0.0) as usize;
                let free_in = log.get(leaving).map_or(0.0, |first| first + *window - now);
                if accepted || *refused_count {
                    log.push_back(now);
                    // Entries beyond twice the limit change nothing.
                    if log.len() as f64 > 2.0 * most {
                        log.pop_front();
                    }
                }
                if accepted { accept } else { Verdict::Refuse { free_in } }
            }
            Self::SlidingCounter { count, window, nth, used, refused_count } => {
                let current = (now / *window).floor() as i64;
                if current != *nth {
                    *used = if current == *nth + 1 { [used[1], 0.0] } else { [0.0, 0.0] };
                    *nth = current;
                }
                let inside = 1.0 - (now / *window - current as f64);
                let weighted = used[0] * inside + used[1];
                let most = (*count * scale).max(1.0);
                let accepted = weighted + 1.0 <= most + EPSILON;
                if accepted || *refused_count {
                    used[1] += 1.0;
                }
                let free_in = (weighted + 1.0 - most).max(0.0) * *window / used[0].max(1.0);
                if accepted { accept } else { Verdict::Refuse { free_in: free_in.min(*window) } }
            }
            Self::Concurrency { count, ends } => {
                ends.retain(|end| *end > now + EPSILON);
                if (ends.len() as f64) < (*count * scale).max(1.0).floor() {
                    ends.push(now + busy);
                    return accept;
                }
                let first = ends.iter().copied().fold(f64::INFINITY, f64::min);
                Verdict::Refuse { free_in: first - now }
            }
        }
    }
}

/// Times are computed in floating point.
const EPSILON: f64 = 1e-6;
