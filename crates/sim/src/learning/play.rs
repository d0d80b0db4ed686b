//! Plays clients against one site in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use super::clients::{Client, Feedback, Poll};
use super::limiter::Verdict;
use super::spec::{Hint, SiteSpec};

/// One request of a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// When it was sent.
    pub at: f64,
    /// Which client sent it.
    pub client: usize,
    /// Whether it was accepted.
    pub accepted: bool,
}

/// What happened.
#[derive(Debug, Clone, Default)]
pub struct Played {
    /// All requests, in order.
    pub events: Vec<Event>,
}

/// An answer on its way, ordered by when it arrives. Times are whole nanoseconds, so that they can be compared.
type Pending = Reverse<(u64, u64, usize, u64, u64)>;

/// Plays `clients` against a site until its duration ends, or a client made `requests_max` requests.
pub fn play(spec: &SiteSpec, clients: &mut [&mut dyn Client], seed: u64) -> Played {
    let mut site = Site::new(spec, seed);
    let mut played = Played::default();
    let mut next = vec![0.0_f64; clients.len()];
    let mut pending: BinaryHeap<Pending> = BinaryHeap::new();
    let mut sequence = 0_u64;
    // Several clients of Comity don't start at the same microsecond.
    for (nth, at) in next.iter_mut().enumerate() {
        *at = nth as f64 * 0.37;
    }
    loop {
        let (who, send_at) =
            next.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY));
        let answer_at = pending.peek().map_or(f64::INFINITY, |Reverse((at, ..))| *at as f64 / 1e9);
        let now = send_at.min(answer_at);
        if now >= spec.duration {
            return played;
        }
        if answer_at <= send_at {
            let Some(Reverse((_, _, who, token, outcome))) = pending.pop() else { continue };
            let feedback = match outcome {
                u64::MAX => Feedback::Accepted,
                u64::MIN => Feedback::Refused { retry_after: None },
                stated => Feedback::Refused { retry_after: Some(stated as f64) },
            };
            clients[who].answered(now, token, feedback);
            // The answer may let it send earlier, or later.
            next[who] = next[who].min(now).max(now);
            continue;
        }
        match clients[who].poll(now) {
            Poll::Until(at) => next[who] = at.max(now + 1e-6),
            Poll::Send(token) => {
                let (accepted, after, outcome) = site.arrive(now);
                played.events.push(Event { at: now, client: who, accepted });
                let at = ((now + after) * 1e9) as u64;
                sequence += 1;
                pending.push(Reverse((at, sequence, who, token, outcome)));
            }
        }
    }
}

/// A site with everything around its limiter.
struct Site<'a> {
    spec: &'a SiteSpec,
    limiter: super::Limiter,
    rng: Rng,
    refusals: Vec<f64>,
    banned_until: f64,
    others_next: f64,
}

impl<'a> Site<'a> {
    fn new(spec: &'a SiteSpec, seed: u64) -> Self {
        Self {
            spec,
            limiter: spec.limiter.clone(),
            rng: Rng::with_seed(seed),
            refusals: Vec::new(),
            banned_until: f64::NEG_INFINITY,
            others_next: 0.0,
        }
    }

    /// Whether it is accepted, when it is answered, and what the answer says.
    fn arrive(&mut self, now: f64) -> (bool, f64, u64) {
        self.let_others_in(now);
        let (from, to) = self.spec.latency;
        let latency = from + (to - from) * self.rng.f64();
        let verdict = if now < self.banned_until {
            Verdict::Refuse { free_in: self.banned_until - now }
        } else {
            self.limiter.arrive(now, latency, self.spec.scale(now))
        };
        match verdict {
            Verdict::Accept { delay } => (true, latency + delay, u64::MAX),
            Verdict::Refuse { free_in } => {
                self.count_refusal(now);
                let free_in = free_in.max(self.banned_until - now);
                let stated = match self.spec.hint {
                    Hint::Absent => 0,
                    Hint::Seconds => (free_in.ceil() as u64).max(1),
                    Hint::TooShort => ((free_in / 10.0).ceil() as u64).max(1),
                };
                (false, latency, stated)
            }
        }
    }

    fn count_refusal(&mut self, now: f64) {
        let Some((after, length)) = self.spec.ban else { return };
        self.refusals.retain(|at| *at > now - 60.0);
        self.refusals.push(now);
        if now >= self.banned_until && self.refusals.len() as u32 >= after {
            self.banned_until = now + length;
            self.refusals.clear();
        }
    }

    /// Other clients send at their own pace, whatever they are answered.
    fn let_others_in(&mut self, now: f64) {
        while self.others_next <= now && !self.spec.others.is_empty() {
            let at = self.others_next;
            let rate = self.spec.others(at).max(1e-3);
            self.limiter.arrive(at, 0.1, self.spec.scale(at));
            // Not quite regular.
            self.others_next = at + (0.5 + self.rng.f64()) / rate;
        }
    }
}
