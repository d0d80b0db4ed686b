//! Rules that others use, written from their published descriptions.
//!
//! Each is a client of its own: some send with one connection at a time, some with several, as they are deployed.

use fastrand::Rng;

use super::clients::{Client, Feedback, Poll};

/// Additive increase, multiplicative decrease of the rate (D.-M. Chiu and R. Jain, "Analysis of the increase and decrease
/// algorithms for congestion avoidance in computer networks", 1989). The increase is per second, the decrease once per
/// refusal of a request that was sent after the latest decrease.
#[derive(Debug)]
pub struct Aimd {
    rate: f64,
    increase: f64,
    decrease: f64,
    at: f64,
    next: f64,
    decreased_at: f64,
    sent: u64,
    sent_at: Vec<(u64, f64)>,
}

impl Aimd {
    /// A client that starts with one request per second.
    pub fn new(increase: f64, decrease: f64) -> Self {
        Self {
            rate: 1.0,
            increase,
            decrease,
            at: 0.0,
            next: 0.0,
            decreased_at: f64::NEG_INFINITY,
            sent: 0,
            sent_at: Vec::new(),
        }
    }
}

impl Client for Aimd {
    fn poll(&mut self, now: f64) -> Poll {
        self.rate = (self.rate + self.increase * (now - self.at)).min(RATE_MAX);
        self.at = now;
        if now + 1e-9 < self.next {
            return Poll::Until(self.next);
        }
        self.next = now + 1.0 / self.rate;
        self.sent += 1;
        self.sent_at.push((self.sent, now));
        Poll::Send(self.sent)
    }

    fn answered(&mut self, now: f64, token: u64, feedback: Feedback) {
        let index = self.sent_at.iter().position(|(sent, _)| *sent == token);
        let Some((_, sent_at)) = index.map(|index| self.sent_at.swap_remove(index)) else { return };
        if let Feedback::Refused { retry_after } = feedback {
            if sent_at >= self.decreased_at {
                self.rate = (self.rate * self.decrease).max(0.01);
                self.decreased_at = now;
                self.next = now + 1.0 / self.rate;
            }
            self.next = self.next.max(now + retry_after.unwrap_or(0.0));
        }
    }
}

/// The client rate limiter of the adaptive retry mode of the AWS SDKs: a token bucket on the client whose fill rate
/// follows CUBIC (AWS SDKs reference guide, "Retry behavior"; botocore `retries/adaptive.py`, `throttling.py` and
/// `bucket.py`). Several workers send, each one request at a time; as in the SDKs, nothing is limited before the first
/// refusal.
#[derive(Debug)]
pub struct AwsAdaptive {
    workers: usize,
    busy: usize,
    enabled: bool,
    measured: f64,
    bucket_at: f64,
    bucket_count: f64,
    rate: f64,
    tokens: f64,
    tokens_at: f64,
    last_max: f64,
    last_fail: f64,
    sent: u64,
}

impl AwsAdaptive {
    /// A client with so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            busy: 0,
            enabled: false,
            measured: 0.0,
            bucket_at: 0.0,
            bucket_count: 0.0,
            rate: 0.5,
            tokens: 0.0,
            tokens_at: 0.0,
            last_max: 0.5,
            last_fail: 0.0,
            sent: 0,
        }
    }

    /// Responses per second, smoothed over half seconds.
    fn measure(&mut self, now: f64) {
        let bucket = (now * 2.0).floor() / 2.0;
        self.bucket_count += 1.0;
        if bucket > self.bucket_at {
            let rate = self.bucket_count / (bucket - self.bucket_at);
            self.measured = rate * 0.8 + self.measured * 0.2;
            (self.bucket_at, self.bucket_count) = (bucket, 0.0);
        }
    }

    fn refill(&mut self, now: f64) {
        let most = self.rate.max(1.0);
        self.tokens = (self.tokens + (now - self.tokens_at) * self.rate).min(most);
        self.tokens_at = now;
    }
}

impl Client for AwsAdaptive {
    fn poll(&mut self, now: f64) -> Poll {
        if self.busy >= self.workers {
            return Poll::Until(f64::INFINITY);
        }
        if self.enabled {
            self.refill(now);
            if self.tokens < 1.0 - 1e-9 {
                return Poll::Until(now + (1.0 - self.tokens) / self.rate);
            }
            self.tokens -= 1.0;
        }
        self.busy += 1;
        self.sent += 1;
        Poll::Send(self.sent)
    }

    fn answered(&mut self, now: f64, _token: u64, feedback: Feedback) {
        self.busy -= 1;
        self.measure(now);
        let wanted = match feedback {
            Feedback::Accepted => {
                let inflection = (self.last_max * (1.0 - CUBIC_BETA) / CUBIC_SCALE).cbrt();
                let since = now - self.last_fail;
                CUBIC_SCALE * (since - inflection).powi(3) + self.last_max
            }
            Feedback::Refused { .. } => {
                let used = if self.enabled { self.measured.min(self.rate) } else { self.measured };
                (self.last_max, self.last_fail, self.enabled) = (used, now, true);
                used * CUBIC_BETA
            }
        };
        self.refill(now);
        self.rate = wanted.min(2.0 * self.measured).max(0.5);
        self.tokens = self.tokens.min(self.rate.max(1.0));
    }
}

/// Scrapy's AutoThrottle with its default settings (Scrapy documentation, "AutoThrottle extension"): the delay follows the
/// latency of responses, and only answers of 200 may shorten it. Eight requests at once, delays between a half and one and
/// a half times as long.
#[derive(Debug)]
pub struct AutoThrottle {
    delay: f64,
    next: f64,
    busy: usize,
    sent: u64,
    sent_at: Vec<(u64, f64)>,
    rng: Rng,
}

impl AutoThrottle {
    /// A client with the start delay of five seconds.
    pub fn new(seed: u64) -> Self {
        Self { delay: 5.0, next: 0.0, busy: 0, sent: 0, sent_at: Vec::new(), rng: Rng::with_seed(seed) }
    }
}

impl Client for AutoThrottle {
    fn poll(&mut self, now: f64) -> Poll {
        if self.busy >= 8 {
            return Poll::Until(f64::INFINITY);
        }
        if now + 1e-9 < self.next {
            return Poll::Until(self.next);
        }
        self.next = now + self.delay * (0.5 + self.rng.f64());
        self.busy += 1;
        self.sent += 1;
        self.sent_at.push((self.sent, now));
        Poll::Send(self.sent)
    }

    fn answered(&mut self, now: f64, token: u64, feedback: Feedback) {
        self.busy -= 1;
        let index = self.sent_at.iter().position(|(sent, _)| *sent == token);
        let Some((_, sent_at)) = index.map(|index| self.sent_at.swap_remove(index)) else { return };
        // The target concurrency is 1.
        let target = now - sent_at;
        let delay = ((self.delay + target) / 2.0).max(target).min(60.0);
        if feedback == Feedback::Accepted || delay > self.delay {
            self.delay = delay;
        }
    }
}

/// `ExponentialIncreaseProportionalDecrease` of rate_throttle_client, made for Heroku's API (R. Schneeman, "A Fast Car
/// Needs Good Brakes"; zombocom/rate_throttle_client): a refusal makes the sleep before each request longer by 0.8 s
/// and then 1.2 times as long, a success shorter by a 4,500th of itself. One request at a time.
#[derive(Debug)]
pub struct RateThrottle {
    sleep: f64,
    next: f64,
    busy: bool,
    rng: Rng,
}

impl RateThrottle {
    /// A client that doesn't sleep yet.
    pub fn new(seed: u64) -> Self {
        Self { sleep: 0.0, next: 0.0, busy: false, rng: Rng::with_seed(seed) }
    }

    fn sleep_from(&mut self, now: f64, sleep: f64) {
        self.next = now + sleep * (1.0 + 0.1 * self.rng.f64());
    }
}

impl Client for RateThrottle {
    fn poll(&mut self, now: f64) -> Poll {
        if self.busy {
            return Poll::Until(f64::INFINITY);
        }
        if now + 1e-9 < self.next {
            return Poll::Until(self.next);
        }
        self.busy = true;
        Poll::Send(0)
    }

    fn answered(&mut self, now: f64, _token: u64, feedback: Feedback) {
        self.busy = false;
        match feedback {
            Feedback::Accepted => {
                self.sleep -= self.sleep / 4_500.0;
                self.sleep_from(now, self.sleep);
            }
            Feedback::Refused { .. } => {
                self.sleep += 0.8;
                self.sleep_from(now, self.sleep);
                self.sleep *= 1.2;
            }
        }
    }
}

const RATE_MAX: f64 = 1_000.0;
const CUBIC_BETA: f64 = 0.7;
const CUBIC_SCALE: f64 = 0.4;
