//! Clients: Comity's own pace with any rule, and a fixed pace.

use std::collections::HashMap;

use comity_core::decision::{Decision, Permit};
use comity_core::headers::PacingHints;
use comity_core::intent::Intent;
use comity_core::outcome::{Answer, Outcome};
use comity_core::pace::{Departure, Pace, Terms};
use comity_core::rule::Rule;
use comity_core::time::{Span, Timestamp};

/// Something that sends requests.
pub trait Client {
    /// May a request be sent now, or when should the client be asked again? An answer asks it again earlier.
    fn poll(&mut self, now: f64) -> Poll;
    /// The answer to a request arrived.
    fn answered(&mut self, now: f64, token: u64, feedback: Feedback);
}

/// What a client does next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Poll {
    /// It sends a request, to be recognized by a number.
    Send(u64),
    /// It waits.
    Until(f64),
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Feedback {
    /// It was accepted.
    Accepted,
    /// It was refused.
    Refused {
        /// How many seconds the site asked to wait.
        retry_after: Option<f64>,
    },
}

/// A client that is paced by Comity.
#[derive(Debug)]
pub struct Comity {
    rule: Rule,
    pace: Pace,
    open: HashMap<u64, Permit>,
    sent: u64,
}

impl Comity {
    /// A client about whose site nothing is known.
    pub fn new(rule: Rule) -> Self {
        Self { rule, pace: Pace::default(), open: HashMap::new(), sent: 0 }
    }

    /// Its pace, to see what it learned.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The delay it keeps between requests, in seconds.
    pub fn spacing(&self) -> f64 {
        self.pace.spacing(Terms::from(&self.rule)).as_secs_f64()
    }
}

impl Client for Comity {
    fn poll(&mut self, now: f64) -> Poll {
        let (terms, at) = (Terms::from(&self.rule), timestamp(now));
        match self.pace.admit(terms, Intent::Fetch, at) {
            Decision::Proceed(mut permit) => {
                if let Departure::Wait { until, .. } = self.pace.depart(terms, &mut permit, at) {
                    self.pace.abandon(&permit, at);
                    return Poll::Until(seconds(until));
                }
                self.sent += 1;
                self.open.insert(self.sent, permit);
                Poll::Send(self.sent)
            }
            Decision::Wait { until, .. } => Poll::Until(seconds(until)),
            Decision::Refuse(_) => Poll::Until(f64::INFINITY),
        }
    }

    fn answered(&mut self, now: f64, token: u64, feedback: Feedback) {
        let Some(permit) = self.open.remove(&token) else { return };
        let answer = match feedback {
            Feedback::Accepted => Outcome::Success.into(),
            Feedback::Refused { retry_after } => {
                let stated = retry_after.and_then(|secs| Span::from_secs_f64(secs).ok());
                let hints = stated.map(PacingHints::retry_after).unwrap_or_default();
                Answer { hints, ..Outcome::RateLimited.into() }
            }
        };
        self.pace.record(Terms::from(&self.rule), &permit, &answer, timestamp(now));
    }
}

/// A client that sends at a fixed pace, whatever it is answered.
#[derive(Debug)]
pub struct FixedPace {
    delay: f64,
    next: f64,
}

impl FixedPace {
    /// A client that sends so many requests per second.
    pub fn new(rate: f64) -> Self {
        Self { delay: 1.0 / rate, next: 0.0 }
    }
}

impl Client for FixedPace {
    fn poll(&mut self, now: f64) -> Poll {
        if now + 1e-9 < self.next {
            return Poll::Until(self.next);
        }
        self.next = now.max(self.next) + self.delay;
        Poll::Send(0)
    }

    fn answered(&mut self, _now: f64, _token: u64, _feedback: Feedback) {}
}

/// An instant on the simulated timeline, rounded up to whole microseconds.
pub(super) fn timestamp(now: f64) -> Timestamp {
    Timestamp::from_micros(EPOCH_MICROS + (now * 1e6 - 1e-3).ceil() as i64)
}

pub(super) fn seconds(at: Timestamp) -> f64 {
    (at.as_micros() - EPOCH_MICROS) as f64 / 1e6
}

const EPOCH_MICROS: i64 = 1_700_000_000_000_000;
