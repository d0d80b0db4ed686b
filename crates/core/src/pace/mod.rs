//! Everything remembered about one domain, and the decision that follows from it.
//!
//! A [`Pace`] is a plain value: it holds no lock and no timer, and `now` comes in with every call. Whoever
//! shares one reads the clock while holding it, so that time does not run backwards between callers. What was
//! not told to a pace it does not know: no store, no queue, no other domain.
//!
//! - here: the state, asking, charging and departing
//! - `constraint`: every limit on the next start, in one place
//! - `record`: what an answer changes
//! - `upkeep`: clock steps, handing over, losing and restoring state, an operator's hand
//! - `codec`: the compact form that a database column holds
//! - `lease`: permits that are given out of the process, and for how long
//! - `rare`: what few domains need, kept out of line

mod codec;
mod constraint;
mod lease;
mod rare;
mod record;
mod upkeep;

pub use codec::DecodeError;
pub use lease::{LEASE, LEASE_MAX, Lent};
pub use record::{Heeded, Passed, Recorded, Standing};
pub use upkeep::{Kept, Left, Pinned};

use crate::decision::{Decision, Limit, Permit, Reason, wait_until};
use crate::intent::Intent;
use crate::learn::{Learned, Learning, Sent};
use crate::rule::Rule;
use crate::time::{Span, Timestamp};
use rare::Rare;

/// Everything remembered about one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// The latest `now` that any call brought, to notice a clock that stepped back.
    seen_at: Timestamp,
    /// The latest start, charged or sent.
    last_start: Timestamp,
    last_success: Timestamp,
    learned: Learned,
    /// The oldest permit that is held and not recorded yet; more of them, and those that were lent, are in `rare`.
    open: Option<Permit>,
    /// What penalties left behind; most domains have had none.
    holds: Option<Box<Holds>>,
    rare: Option<Box<Rare>>,
    /// Penalties in a row: the rung of the ladder.
    penalties: u32,
    next_id: u32,
    /// Whose start the latest one is.
    last_id: u32,
}

/// What penalties and the server's words left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holds {
    /// The server asked to stay away until then.
    server_until: Timestamp,
    /// Our own guess says to stay away until then.
    guess_until: Timestamp,
    /// When the latest penalty began: answers to requests that started before are late.
    penalty_at: Timestamp,
    /// How long the server's hold was when it was set, and ours: no clock makes them longer.
    server_ms: u32,
    guess_ms: u32,
    server_word: ServerWord,
    guess: Guess,
}

/// What a host is fetched on: its rule, and the crawl-delay of its own robots.txt.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The rule of the host.
    pub rule: &'a Rule,
    /// The crawl-delay of the host's robots.txt, or zero.
    pub crawl_delay: Span,
}

/// Whether a request whose connection is open may be written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// Write it now; this moment is its start.
    Go,
    /// Not yet: since the permit was drawn a hold began, or another request left. Ask again at `until`, or
    /// give the permit up with [`Pace::abandon`].
    Wait {
        /// The first moment at which it may be written.
        until: Timestamp,
        /// What binds until then.
        reason: Reason,
    },
}

/// In which words the server asked us to stay away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ServerWord {
    #[default]
    RetryAfter,
    QuotaSpent,
}

/// What our own hold goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Guess {
    #[default]
    Backoff,
    WaitOn429,
    Learned,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            server_until: Timestamp::NEVER,
            guess_until: Timestamp::NEVER,
            penalty_at: Timestamp::NEVER,
            server_ms: 0,
            guess_ms: 0,
            server_word: ServerWord::default(),
            guess: Guess::default(),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            seen_at: Timestamp::NEVER,
            last_start: Timestamp::NEVER,
            last_success: Timestamp::NEVER,
            learned: Learned::default(),
            open: None,
            holds: None,
            rare: None,
            penalties: 0,
            next_id: 0,
            last_id: 0,
        }
    }
}

impl Pace {
    /// May a request leave now? A decision to proceed has charged the pace: the slot is the caller's (B3).
    #[inline]
    pub fn admit(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Decision {
        self.meet(now);
        if self.free(terms, intent, now) {
            return Decision::Proceed(self.charge(terms, intent, now));
        }
        match self.binding(terms, intent, now) {
            Some(reason) => wait_or_refuse(reason),
            None => Decision::Proceed(self.charge(terms, intent, now)),
        }
    }

    /// What would keep a request from leaving now; `None` when nothing would. Nothing is reserved.
    pub fn peek(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.at(now, |pace| pace.binding(terms, intent, now))
    }

    /// Every constraint in force, the binding one first, those that are satisfied last (B2).
    pub fn explain(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Vec<Reason> {
        let mut reasons = self.at(now, |pace| {
            let mut reasons = Vec::new();
            pace.each_constraint(terms, intent, now, None, |limit, until| {
                reasons.push(Reason { limit, until, asked_at: now });
            });
            reasons
        });
        reasons.sort_by_key(|reason| (std::cmp::Reverse(reason.until), reason.origin()));
        reasons
    }

    /// The first moment at which the pace lets a request leave; `now` when it could leave at once. This is
    /// the limiter's time of a retry (B41).
    ///
    /// Requests on the wire, permits that are lent and an operator's pause are left out: they may end at any moment, and
    /// whoever waits in line is looked at again when they do.
    pub fn retry_at(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Timestamp {
        let mut next = now;
        self.at(now, |pace| {
            pace.each_constraint(terms, intent, now, None, |limit, until| {
                if !matches!(limit, Limit::InFlight { .. } | Limit::Lease { .. } | Limit::Paused) {
                    next = next.max(until);
                }
            });
        });
        next
    }

    /// How long until a request may leave, as people want to know it; zero when it could leave at once. An operator's
    /// pause counts, and what lasts until somebody acts is looked at again in a minute. Leases count. Requests on the wire
    /// are left out: nobody knows when they are answered.
    pub fn wait(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Span {
        let mut until = now;
        self.at(now, |pace| {
            pace.each_constraint(terms, intent, now, None, |limit, free_at| {
                if !matches!(limit, Limit::InFlight { .. }) {
                    until = until.max(free_at);
                }
            });
        });
        wait_until(until, now)
    }

    /// The connection for `permit` is open: may the request be written?
    ///
    /// If so, this is its start, and the charge moves to it (B25). A hold that began since the permit was
    /// drawn stops it like everybody else (B23), and so does the spacing to a request that left meanwhile.
    pub fn depart(&mut self, terms: Terms<'_>, permit: &mut Permit, now: Timestamp) -> Departure {
        self.meet(now);
        let own = self.permit(permit.id).copied().unwrap_or(*permit);
        if let Some(reason) = self.binding_for(terms, own.intent, now, Some(&own)) {
            return Departure::Wait { until: reason.until, reason };
        }
        let start = now.max(own.started_at);
        if start >= self.last_start {
            (self.last_start, self.last_id) = (start, own.id);
        }
        if let Some(rare) = &mut self.rare {
            rare.shift_start(terms.rule.history(), &own, start);
        }
        let (spacing, probe) = (self.spacing(terms), self.learned.probe);
        *permit = Permit { started_at: start, spacing, probe, departed: true, ..own };
        match self.find_mut(permit) {
            Some(open) => *open = *permit,
            // It was let go while it waited; from now on it is on the wire.
            None => {
                if let Some(rare) = &mut self.rare {
                    rare.hears_of_let_go(permit.id);
                }
                self.reopen(*permit);
            }
        }
        Departure::Go
    }

    /// The request of a permit that departed was written a little later than it departed: the charge moves there,
    /// and never earlier (B25).
    pub fn written(&mut self, terms: Terms<'_>, permit: &mut Permit, at: Timestamp) {
        let Some(own) = self.permit(permit.id).copied().filter(|own| own.departed) else { return };
        self.shift(terms, permit, own, at);
    }

    /// The start of an open permit's request was later than thought.
    fn shift(&mut self, terms: Terms<'_>, permit: &mut Permit, own: Permit, at: Timestamp) {
        if at <= own.started_at {
            return;
        }
        if at >= self.last_start {
            (self.last_start, self.last_id) = (at, own.id);
        }
        if let Some(rare) = &mut self.rare {
            rare.shift_start(terms.rule.history(), &own, at);
        }
        *permit = Permit { started_at: at, ..own };
        if let Some(open) = self.find_mut(permit) {
            *open = *permit;
        }
    }

    /// The permit is not used after all. The charge stays: a slot is not refunded (B25).
    pub fn abandon(&mut self, permit: &Permit, now: Timestamp) {
        self.meet(now);
        self.settle(permit);
    }

    /// A request left without asking: charges for it now.
    pub fn charge_now(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) {
        self.meet(now);
        let permit = self.charge(terms, intent, now);
        self.settle(&permit);
    }

    /// The time between starts: the longest of rule, robots and learned delay (B4).
    #[inline]
    pub fn spacing(&self, terms: Terms<'_>) -> Span {
        terms.baseline().max(self.learned_delay(terms))
    }

    /// What was learnt.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Penalties in a row.
    pub fn penalties(&self) -> u32 {
        self.penalties
    }

    /// The latest start, charged or sent.
    pub fn last_start(&self) -> Option<Timestamp> {
        self.last_start.ever()
    }

    /// When the latest success was recorded.
    pub fn last_success(&self) -> Option<Timestamp> {
        self.last_success.ever()
    }

    /// Until when the server asked us to stay away, past or not: what must survive a crash (B37).
    pub fn server_until(&self) -> Option<Timestamp> {
        self.holds.as_ref().and_then(|holds| holds.server_until.ever())
    }

    /// The permit with this number, if it is open: who was told only the number can record with it.
    pub fn permit(&self, id: u32) -> Option<&Permit> {
        self.opens().chain(self.leases().map(|lent| &lent.permit)).find(|open| open.id == id)
    }

    /// How many permits are neither recorded nor expired at `now`.
    pub fn in_flight(&self, now: Timestamp) -> usize {
        self.opens().count() + self.leases().filter(|lent| lent.until > now).count()
    }

    /// Whether forgetting this pace at `now` would change no later decision and lose nothing learnt, but for
    /// the rung of a ladder that nobody climbed for a day.
    pub fn is_idle(&self, terms: Terms<'_>, now: Timestamp) -> bool {
        let bursts = Intent::ALL.map(|intent| terms.rule.intent(intent).burst);
        let window = bursts.into_iter().chain([terms.rule.burst()]).flatten().map(|burst| burst.window).max();
        let quiet = |pace: &Self| {
            let left = pace.last_start + window.unwrap_or_default() <= now;
            let told =
                pace.rare.as_ref().is_some_and(|rare| rare.quotas.iter().any(|quota| quota.until > now));
            let penalty_at = pace.holds.as_ref().map_or(Timestamp::NEVER, |holds| holds.penalty_at);
            let fallen = pace.penalties == 0 || now.since(penalty_at) >= LADDER_LAPSES;
            let mut quiet = left && !told && fallen && pace.in_flight(now) == 0;
            for intent in Intent::ALL {
                pace.each_constraint(terms, intent, now, None, |_, until| quiet &= until <= now);
            }
            quiet
        };
        let learned = &self.learned;
        learned.delay.is_zero() && learned.floor().is_zero() && !learned.pinned && self.at(now, quiet)
    }

    /// The learned delay, where it counts: while the rule learns, or where an operator pinned it.
    #[inline]
    fn learned_delay(&self, terms: Terms<'_>) -> Span {
        if self.learned.delay.is_zero() {
            return Span::ZERO;
        }
        match terms.rule.learning() {
            _ if self.learned.pinned => self.learned.delay,
            Learning::Off => Span::ZERO,
            // The base may have been higher when it was learnt: robots.txt changes, and so do rules.
            learning => self.learned.delay.min(learning.most(terms.learn_base())),
        }
    }

    /// Takes the slot at `now` and opens a permit for it.
    #[inline]
    fn charge(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Permit {
        if self.next_id == 0 {
            // A permit of an earlier life of this domain must not be taken for one of this.
            self.next_id = now.as_micros() as u32;
        }
        let permit = Permit {
            started_at: now,
            spacing: self.spacing(terms),
            id: self.next_id,
            probe: self.learned.probe,
            intent,
            departed: false,
        };
        self.next_id = self.next_id.wrapping_add(1);
        self.start(terms.rule, &permit);
        self.reopen(permit);
        permit
    }

    #[inline]
    fn reopen(&mut self, permit: Permit) {
        match self.open {
            None => self.open = Some(permit),
            Some(_) => self.rare_mut().open(permit),
        }
    }

    /// Notes a start.
    #[inline]
    fn start(&mut self, rule: &Rule, permit: &Permit) {
        let history = *rule.history();
        let remembers = history.all > 0 || history.intents[permit.intent.index()] > 0;
        if permit.intent != Intent::Fetch || remembers {
            self.rare_mut();
        }
        if permit.started_at >= self.last_start {
            (self.last_start, self.last_id) = (permit.started_at, permit.id);
        }
        if let Some(rare) = &mut self.rare {
            rare.start(&history, permit);
        }
    }

    /// Closes a permit and tells what it had become; `None` when it is not open.
    #[inline]
    fn settle(&mut self, permit: &Permit) -> Option<Permit> {
        if self.open.is_some_and(|open| open.id == permit.id) {
            let next = self.rare.as_mut().and_then(|rare| rare.take_oldest());
            return std::mem::replace(&mut self.open, next);
        }
        let rare = self.rare.as_mut()?;
        rare.take_open(permit.id).or_else(|| rare.take_lent(permit.id))
    }

    /// The permits that are held, oldest first.
    fn opens(&self) -> impl Iterator<Item = &Permit> {
        self.open.iter().chain(self.rare.iter().flat_map(|rare| rare.opens()))
    }

    fn find_mut(&mut self, permit: &Permit) -> Option<&mut Permit> {
        let rest = self.rare.iter_mut().flat_map(|rare| rare.all_mut());
        self.open.iter_mut().chain(rest).find(|open| open.id == permit.id)
    }

    fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_or_insert_default()
    }

    fn rare_mut(&mut self) -> &mut Rare {
        let (last_start, last_id) = (self.last_start, self.last_id);
        self.rare.get_or_insert_with(|| Box::new(Rare::new(last_start, last_id)))
    }

    /// Looks at this pace as of `now`, also when the clock stepped back since.
    fn at<T>(&self, now: Timestamp, look: impl FnOnce(&Self) -> T) -> T {
        if now >= self.seen_at {
            return look(self);
        }
        let mut then = self.clone();
        then.meet(now);
        look(&then)
    }
}

impl<'a> Terms<'a> {
    /// The spacing without anything learnt.
    pub fn baseline(&self) -> Span {
        self.rule.min_delay().max(self.rule.rate_delay()).max(self.crawl_delay)
    }

    /// What learning starts from (B29).
    pub fn learn_base(&self) -> Span {
        self.baseline().max(self.rule.learning().base())
    }
}

/// The terms of a host whose robots.txt asks for no delay.
impl<'a> From<&'a Rule> for Terms<'a> {
    fn from(rule: &'a Rule) -> Self {
        Self { rule, crawl_delay: Span::ZERO }
    }
}

impl From<&Permit> for Sent {
    fn from(permit: &Permit) -> Self {
        Self { spacing: permit.spacing, probe: permit.probe }
    }
}

fn wait_or_refuse(reason: Reason) -> Decision {
    match reason.limit {
        Limit::Paused if reason.until == Timestamp::MAX => Decision::Refuse(reason),
        _ => Decision::Wait { until: reason.until, reason },
    }
}

/// A ladder that nobody climbed for this long may be forgotten with its pace.
const LADDER_LAPSES: Span = Span::from_hours(24);
