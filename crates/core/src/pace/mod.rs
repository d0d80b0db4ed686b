//! Everything remembered about one domain, and the decisions made from it.
//!
//! A [`Pace`] is a plain value without locks or timers; `now` is passed to every call. Callers that share a pace have
//! to read the clock while they hold its lock, so that time doesn't run backwards between them. A pace knows nothing
//! about stores, queues or other domains.
//!
//! - this file: the state; asking for a permit, charging for it, departing
//! - `constraint`: all limits on the next request, in one list
//! - `record`: how responses change the state
//! - `upkeep`: clock steps, handover, lost and restored state, operator commands
//! - `bracket`: bracket learning, whose state is in `cold`
//! - `codec`: the binary encoding for a database column
//! - `lease`: permits that are lent to other processes
//! - `cold`: state that few domains need

mod bracket;
mod codec;
mod cold;
mod constraint;
mod lease;
mod record;
mod upkeep;

pub use bracket::{Estimate, Step};
pub use codec::DecodeError;
pub use lease::{LEASE, LEASE_MAX, LentPermit};
pub use record::{Freshness, PermitRef, Recorded, RetryAfterEffect};
pub use upkeep::{LastHolder, Pinned, SavedLimits};

use crate::decision::{Decision, Limit, Permit, Reason, wait_until};
use crate::intent::Intent;
use crate::learn::{Bracket, Learned, Learning, Sent};
use crate::rule::Rule;
use crate::time::{Span, Timestamp};
use cold::ColdState;

/// Everything remembered about one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// The `now` of the latest call, to notice a clock that stepped back.
    latest_now: Timestamp,
    /// The latest start, charged or sent.
    last_start: Timestamp,
    last_success: Timestamp,
    learned: Learned,
    /// The oldest own permit that is not yet recorded; further ones, and lent permits, are in `cold`.
    open: Option<Permit>,
    /// Boxed because most domains never have a penalty.
    holds: Option<Box<Holds>>,
    cold: Option<Box<ColdState>>,
    /// Consecutive penalties, which determine the backoff.
    penalties: u32,
    next_id: u32,
    /// The permit of the latest start.
    last_id: u32,
}

/// Deadlines set by penalties and by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holds {
    /// The server asked us not to send requests before this time.
    server_until: Timestamp,
    /// We decided ourselves not to send requests before this time.
    own_until: Timestamp,
    /// When the latest penalty was recorded; responses to requests that started before it are late.
    penalty_at: Timestamp,
    /// Length of the server's hold when it was set: a clock that steps back must not make it longer.
    server_ms: u32,
    /// Length of our own hold when it was set.
    own_ms: u32,
    server_cause: ServerCause,
    own_cause: OwnCause,
}

/// The limits that apply to one host: its rule, and the crawl-delay of its own robots.txt.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The rule of the host.
    pub rule: &'a Rule,
    /// The crawl-delay of the host's robots.txt, or zero.
    pub crawl_delay: Span,
}

/// Whether a request may be written to its connection, which is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// Write it now; the request starts at this moment.
    Go,
    /// Not yet: a hold began or another request was sent since the permit was drawn. Ask again at `until`, or give up
    /// the permit with [`Pace::abandon`].
    Wait {
        /// The earliest time at which it may be written.
        until: Timestamp,
        /// What delays it until then.
        reason: Reason,
    },
}

/// How the server asked us to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ServerCause {
    #[default]
    RetryAfter,
    QuotaSpent,
}

/// Why we decided to wait ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum OwnCause {
    #[default]
    Backoff,
    WaitOn429,
    Learned,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            server_until: Timestamp::NEVER,
            own_until: Timestamp::NEVER,
            penalty_at: Timestamp::NEVER,
            server_ms: 0,
            own_ms: 0,
            server_cause: ServerCause::default(),
            own_cause: OwnCause::default(),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            latest_now: Timestamp::NEVER,
            last_start: Timestamp::NEVER,
            last_success: Timestamp::NEVER,
            learned: Learned::default(),
            open: None,
            holds: None,
            cold: None,
            penalties: 0,
            next_id: 0,
            last_id: 0,
        }
    }
}

impl Pace {
    /// May a request be sent now? If so, the pace is charged and the slot belongs to the caller.
    #[inline]
    pub fn admit(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Decision {
        self.observe_clock(now);
        if self.free(terms, intent, now) {
            return Decision::Proceed(self.charge(terms, intent, now));
        }
        match self.binding(terms, intent, now) {
            Some(reason) => wait_or_refuse(reason),
            None => Decision::Proceed(self.charge(terms, intent, now)),
        }
    }

    /// What would delay a request now, or `None`. Nothing is reserved.
    pub fn peek(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Option<Reason> {
        self.at(now, |pace| pace.binding(terms, intent, now))
    }

    /// All constraints, starting with the one that delays the request; constraints that don't delay it come last.
    pub fn explain(&self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Vec<Reason> {
        let mut reasons = self.at(now, |pace| {
            let mut reasons = Vec::new();
            pace.each_constraint(terms, intent, now, None, |limit, until| {
                reasons.push(Reason { limit, until, asked_at: now });
            });
            pace.each_future_constraint(terms, |limit| {
                reasons.push(Reason { limit, until: now, asked_at: now });
            });
            reasons
        });
        reasons.sort_by_key(|reason| (std::cmp::Reverse(reason.until), reason.origin()));
        reasons
    }

    /// The earliest time for a retry; `now` if one could be sent immediately.
    ///
    /// Requests in flight, lent permits and an operator's pause are ignored: they may end at any time, and the line is
    /// checked again when they do.
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

    /// How long a request has to wait, as shown to people; zero if one could be sent immediately.
    ///
    /// Leases and an operator's pause count; if the wait lasts until somebody acts, this is a minute. Requests in
    /// flight are ignored, because nobody knows when they will be answered.
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
    /// If so, the request starts now, and its charge moves to this time. It has to wait if a hold began since the
    /// permit was drawn, or if it would be too close to a request that was sent meanwhile.
    pub fn depart(&mut self, terms: Terms<'_>, permit: &mut Permit, now: Timestamp) -> Departure {
        self.observe_clock(now);
        let own = self.permit(permit.id).copied().unwrap_or(*permit);
        if let Some(reason) = self.binding_for(terms, own.intent, now, Some(&own)) {
            return Departure::Wait { until: reason.until, reason };
        }
        let start = now.max(own.started_at);
        if start >= self.last_start {
            (self.last_start, self.last_id) = (start, own.id);
        }
        if let Some(cold) = &mut self.cold {
            cold.shift_start(terms.rule.history(), &own, start);
        }
        let (spacing, probe) = (self.spacing(terms), self.probe_or_crowd(terms, &own));
        *permit = Permit { started_at: start, spacing, probe, departed: true, ..own };
        match self.find_mut(permit) {
            Some(open) => *open = *permit,
            // The permit was dropped while it waited; from now on its request is in flight.
            None => {
                if let Some(cold) = &mut self.cold {
                    cold.first_report_of_dropped(permit.id);
                }
                self.reopen(*permit);
            }
        }
        Departure::Go
    }

    /// A request was written a little after it departed: its charge moves to the later time, never to an earlier one.
    pub fn written(&mut self, terms: Terms<'_>, permit: &mut Permit, at: Timestamp) {
        let Some(own) = self.permit(permit.id).copied().filter(|own| own.departed) else { return };
        self.shift(terms, permit, own, at);
    }

    /// Moves the start of an open permit's request to a later time.
    fn shift(&mut self, terms: Terms<'_>, permit: &mut Permit, own: Permit, at: Timestamp) {
        if at <= own.started_at {
            return;
        }
        if at >= self.last_start {
            (self.last_start, self.last_id) = (at, own.id);
        }
        if let Some(cold) = &mut self.cold {
            cold.shift_start(terms.rule.history(), &own, at);
        }
        *permit = Permit { started_at: at, ..own };
        if let Some(open) = self.find_mut(permit) {
            *open = *permit;
        }
    }

    /// Gives up a permit that isn't used. Its slot is not refunded.
    pub fn abandon(&mut self, permit: &Permit, now: Timestamp) {
        self.observe_clock(now);
        self.settle(permit);
    }

    /// Charges for a request that was sent without a permit.
    pub fn charge_now(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) {
        self.observe_clock(now);
        let permit = self.charge(terms, intent, now);
        self.settle(&permit);
    }

    /// The minimum time between two request starts: the longest of the delays of rule, robots.txt and learning.
    #[inline]
    pub fn spacing(&self, terms: Terms<'_>) -> Span {
        terms.baseline().max(self.learned_delay(terms))
    }

    /// What was learned.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Consecutive penalties.
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

    /// Until when the server asked us to wait, even if that has passed. This has to survive a crash.
    pub fn server_until(&self) -> Option<Timestamp> {
        self.holds.as_ref().and_then(|holds| holds.server_until.ever())
    }

    /// The open permit with this number, for callers that only know the number.
    pub fn permit(&self, id: u32) -> Option<&Permit> {
        self.opens().chain(self.leases().map(|lent| &lent.permit)).find(|open| open.id == id)
    }

    /// Number of permits that are neither recorded nor expired at `now`.
    pub fn in_flight(&self, now: Timestamp) -> usize {
        self.opens().count() + self.leases().filter(|lent| lent.until > now).count()
    }

    /// Whether this pace can be forgotten at `now` without changing later decisions or losing what was learned. Only
    /// the count of consecutive penalties may be lost, if the latest one was more than a day ago.
    pub fn is_idle(&self, terms: Terms<'_>, now: Timestamp) -> bool {
        let bursts = Intent::ALL.map(|intent| terms.rule.intent(intent).burst);
        let window = bursts.into_iter().chain([terms.rule.burst()]).flatten().map(|burst| burst.window).max();
        let quiet = |pace: &Self| {
            let window_passed = pace.last_start + window.unwrap_or_default() <= now;
            let limited =
                pace.cold.as_ref().is_some_and(|cold| cold.quotas.iter().any(|quota| quota.until > now));
            let penalty_at = pace.holds.as_ref().map_or(Timestamp::NEVER, |holds| holds.penalty_at);
            let lapsed = pace.penalties == 0 || now.since(penalty_at) >= PENALTIES_LAPSE_AFTER;
            let mut quiet = window_passed && !limited && lapsed && pace.in_flight(now) == 0;
            for intent in Intent::ALL {
                pace.each_constraint(terms, intent, now, None, |_, until| quiet &= until <= now);
            }
            quiet
        };
        let learned = &self.learned;
        let nothing = learned.delay.is_zero() && learned.floor().is_zero() && !learned.pinned;
        nothing && self.bracket_is_blank() && self.at(now, quiet)
    }

    /// What a learner wants to know of a request later: the number of the probe, or how many are in flight with it.
    #[inline]
    fn probe_or_crowd(&self, terms: Terms<'_>, own: &Permit) -> u16 {
        match terms.rule.learning() {
            Learning::Bracket(_) => {
                let others = self.opens().chain(self.leases().map(|lent| &lent.permit));
                let others = others.filter(|open| open.id != own.id).count();
                u16::try_from(others + 1).unwrap_or(u16::MAX)
            }
            Learning::Off | Learning::Linear(_) => self.learned.probe,
        }
    }

    /// What bracket learning knows, if it knows something.
    pub(super) fn bracket(&self) -> Option<&Bracket> {
        self.cold.as_ref()?.bracket.as_deref()
    }

    /// The learned delay if it applies: while learning is on, or if an operator pinned it.
    #[inline]
    fn learned_delay(&self, terms: Terms<'_>) -> Span {
        if let Learning::Bracket(rule) = terms.rule.learning()
            && !self.learned.pinned
        {
            return self.bracket_delay(rule, terms);
        }
        if self.learned.delay.is_zero() {
            return Span::ZERO;
        }
        match terms.rule.learning() {
            _ if self.learned.pinned => self.learned.delay,
            Learning::Off => Span::ZERO,
            // The base may have been higher when the delay was learned, because robots.txt and rules change.
            learning => self.learned.delay.min(learning.most(terms.learn_base())),
        }
    }

    /// Takes the slot at `now` and opens a permit for it.
    #[inline]
    fn charge(&mut self, terms: Terms<'_>, intent: Intent, now: Timestamp) -> Permit {
        if self.next_id == 0 {
            // Numbers must not repeat those of an earlier pace of this domain, whose permits may still be reported.
            self.next_id = now.as_micros() as u32;
        }
        let mut permit = Permit {
            started_at: now,
            spacing: self.spacing(terms),
            id: self.next_id,
            probe: 0,
            intent,
            departed: false,
        };
        permit.probe = self.probe_or_crowd(terms, &permit);
        self.next_id = self.next_id.wrapping_add(1);
        self.start(terms.rule, &permit);
        self.reopen(permit);
        permit
    }

    #[inline]
    fn reopen(&mut self, permit: Permit) {
        match self.open {
            None => self.open = Some(permit),
            Some(_) => self.cold_mut().open(permit),
        }
    }

    /// Registers a start.
    #[inline]
    fn start(&mut self, rule: &Rule, permit: &Permit) {
        let history = *rule.history();
        let remembers = history.all > 0 || history.intents[permit.intent.index()] > 0;
        if permit.intent != Intent::Fetch || remembers {
            self.cold_mut();
        }
        if permit.started_at >= self.last_start {
            (self.last_start, self.last_id) = (permit.started_at, permit.id);
        }
        if let Some(cold) = &mut self.cold {
            cold.start(&history, permit);
        }
    }

    /// Closes a permit and returns its latest version; `None` if it isn't open.
    #[inline]
    fn settle(&mut self, permit: &Permit) -> Option<Permit> {
        if self.open.is_some_and(|open| open.id == permit.id) {
            let next = self.cold.as_mut().and_then(|cold| cold.take_oldest());
            return std::mem::replace(&mut self.open, next);
        }
        let cold = self.cold.as_mut()?;
        cold.take_open(permit.id).or_else(|| cold.take_lent(permit.id))
    }

    /// The own permits, oldest first.
    fn opens(&self) -> impl Iterator<Item = &Permit> {
        self.open.iter().chain(self.cold.iter().flat_map(|cold| cold.opens()))
    }

    fn find_mut(&mut self, permit: &Permit) -> Option<&mut Permit> {
        let rest = self.cold.iter_mut().flat_map(|cold| cold.all_mut());
        self.open.iter_mut().chain(rest).find(|open| open.id == permit.id)
    }

    fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_or_insert_default()
    }

    fn cold_mut(&mut self) -> &mut ColdState {
        let (last_start, last_id) = (self.last_start, self.last_id);
        self.cold.get_or_insert_with(|| Box::new(ColdState::new(last_start, last_id)))
    }

    /// Evaluates `look` for this pace at `now`, without changing the pace even if the clock stepped back.
    fn at<T>(&self, now: Timestamp, look: impl FnOnce(&Self) -> T) -> T {
        if now >= self.latest_now {
            return look(self);
        }
        let mut then = self.clone();
        then.observe_clock(now);
        look(&then)
    }
}

impl<'a> Terms<'a> {
    /// The spacing without the learned delay.
    pub fn baseline(&self) -> Span {
        self.rule.min_delay().max(self.rule.rate_delay()).max(self.crawl_delay)
    }

    /// The delay that learning starts from.
    pub fn learn_base(&self) -> Span {
        self.baseline().max(self.rule.learning().base())
    }
}

/// The terms of a host without a crawl-delay.
impl<'a> From<&'a Rule> for Terms<'a> {
    fn from(rule: &'a Rule) -> Self {
        Self { rule, crawl_delay: Span::ZERO }
    }
}

impl From<&Permit> for Sent {
    fn from(permit: &Permit) -> Self {
        Self { spacing: permit.spacing, probe: permit.probe, started_at: permit.started_at, id: permit.id }
    }
}

fn wait_or_refuse(reason: Reason) -> Decision {
    match reason.limit {
        Limit::Paused if reason.until == Timestamp::MAX => Decision::Refuse(reason),
        _ => Decision::Wait { until: reason.until, reason },
    }
}

/// Penalties older than this don't keep a pace from being forgotten.
const PENALTIES_LAPSE_AFTER: Span = Span::from_hours(24);
