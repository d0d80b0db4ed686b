//! State that few domains need: burst windows, intents other than fetch, several requests in flight, lent permits,
//! quotas, pauses, lost state, bracket learning.
//!
//! It is boxed, so that a million ordinary domains stay small.

use std::collections::VecDeque;

use super::lease::Lease;
use super::record::REPORT_WITHIN;
use crate::decision::Permit;
use crate::learn::Bracket;
use crate::rule::History;
use crate::time::{Span, Timestamp};
use crate::window::Window;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColdState {
    /// Own permits that aren't recorded yet, oldest first; all are younger than the one in the pace itself.
    pub(super) open: Vec<Permit>,
    /// Lent permits that aren't recorded yet, including those whose lease has ended.
    pub(super) lent: Vec<Lease>,
    /// The latest start per intent.
    pub(super) starts: [Timestamp; 3],
    /// The permits of those starts.
    pub(super) start_ids: [u32; 3],
    /// The latest starts of all intents.
    pub(super) window: Window,
    /// The latest starts per intent.
    pub(super) windows: [Window; 3],
    /// The spacing that each of the server's quotas asks for until it resets.
    pub(super) quotas: Vec<QuotaSpacing>,
    /// An operator paused the domain until this time.
    pub(super) paused_until: Timestamp,
    /// Permits that were dropped, because they expired long ago or too many were open, and not reported since; oldest
    /// first.
    pub(super) dropped: VecDeque<u32>,
    /// Permits that were reported although they had been lost together with their pace; oldest first.
    pub(super) reported_lost: VecDeque<u32>,
    /// Starts up to this time were lost; the last of them may have been at exactly this time.
    pub(super) lost_at: Timestamp,
    /// What bracket learning knows.
    pub(super) bracket: Option<Box<Bracket>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaSpacing {
    pub(super) delay: Span,
    pub(super) until: Timestamp,
    /// Time until the reset when the quota was received.
    pub(super) length: Span,
}

impl ColdState {
    /// New cold state. Every start before it was a fetch, because other intents need cold state.
    pub(super) fn new(last_fetch: Timestamp, last_id: u32) -> Self {
        Self {
            open: Vec::new(),
            lent: Vec::new(),
            starts: [last_fetch, Timestamp::NEVER, Timestamp::NEVER],
            start_ids: [last_id, 0, 0],
            window: Window::default(),
            windows: Default::default(),
            quotas: Vec::new(),
            paused_until: Timestamp::NEVER,
            dropped: VecDeque::new(),
            reported_lost: VecDeque::new(),
            lost_at: Timestamp::NEVER,
            bracket: None,
        }
    }

    pub(super) fn start(&mut self, history: &History, permit: &Permit) {
        let index = permit.intent.index();
        self.latest(permit, permit.started_at);
        if history.all > 0 {
            self.window.push(permit.started_at, history.all);
        }
        if history.intents[index] > 0 {
            self.windows[index].push(permit.started_at, history.intents[index]);
        }
    }

    pub(super) fn shift_start(&mut self, history: &History, permit: &Permit, to: Timestamp) {
        let (index, from) = (permit.intent.index(), permit.started_at);
        self.latest(permit, to);
        if history.all > 0 {
            self.window.shift_start(from, to, history.all);
        }
        if history.intents[index] > 0 {
            self.windows[index].shift_start(from, to, history.intents[index]);
        }
    }

    fn latest(&mut self, permit: &Permit, at: Timestamp) {
        let index = permit.intent.index();
        if at >= self.starts[index] {
            (self.starts[index], self.start_ids[index]) = (at, permit.id);
        }
    }

    pub(super) fn open(&mut self, permit: Permit) {
        if self.open.len() == OPEN_MAX {
            let oldest = self.open.remove(0).id;
            self.drop_permit(oldest);
        }
        self.open.push(permit);
    }

    /// Adds a lent permit, and drops those that nobody is going to record any more.
    pub(super) fn lend(&mut self, lease: Lease, now: Timestamp) {
        let (old, rest) = std::mem::take(&mut self.lent)
            .into_iter()
            .partition(|lent| lent.until <= now && now.since(lent.permit.started_at) > REPORT_WITHIN);
        self.lent = rest;
        let old: Vec<Lease> = old;
        old.iter().for_each(|lent| self.drop_permit(lent.permit.id));
        if self.lent.len() >= OPEN_MAX {
            let first =
                self.lent.iter().enumerate().min_by_key(|(_, lent)| lent.until).map_or(0, |(at, _)| at);
            let id = self.lent.remove(first).permit.id;
            self.drop_permit(id);
        }
        self.lent.push(lease);
    }

    /// Stops tracking a permit; if its response comes after all, it counts once.
    pub(super) fn drop_permit(&mut self, id: u32) {
        push_latest(&mut self.dropped, id);
    }

    /// Whether this is the first report about a dropped permit.
    pub(super) fn first_report_of_dropped(&mut self, id: u32) -> bool {
        let index = self.dropped.iter().position(|gone| *gone == id);
        index.and_then(|index| self.dropped.remove(index)).is_some()
    }

    /// Whether this is the first report about a permit that was granted by an earlier holder and lost with its pace.
    pub(super) fn first_report_of_lost(&mut self, id: u32, granted_at: Timestamp) -> bool {
        let lost = self.lost_at.ever().is_some_and(|lost_at| granted_at <= lost_at);
        if !lost || self.reported_lost.contains(&id) {
            return false;
        }
        push_latest(&mut self.reported_lost, id);
        true
    }

    pub(super) fn take_oldest(&mut self) -> Option<Permit> {
        (!self.open.is_empty()).then(|| self.open.remove(0))
    }

    pub(super) fn take_open(&mut self, id: u32) -> Option<Permit> {
        let index = self.open.iter().position(|open| open.id == id)?;
        Some(self.open.remove(index))
    }

    pub(super) fn take_lent(&mut self, id: u32) -> Option<Permit> {
        let index = self.lent.iter().position(|lent| lent.permit.id == id)?;
        Some(self.lent.remove(index).permit)
    }

    pub(super) fn opens(&self) -> impl Iterator<Item = &Permit> {
        self.open.iter()
    }

    /// All open permits, own or lent.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Permit> {
        self.open.iter_mut().chain(self.lent.iter_mut().map(|lent| &mut lent.permit))
    }

    /// Adds the spacing of a quota, unless another quota asks for at least as much for at least as long; quotas that
    /// are covered by the new one are removed.
    pub(super) fn quota(&mut self, delay: Span, length: Span, now: Timestamp) {
        let until = now + length;
        let kept = |known: &QuotaSpacing| known.until > now && (known.delay > delay || known.until > until);
        let covered = |known: &QuotaSpacing| known.delay >= delay && known.until >= until;
        if self.quotas.iter().any(covered) {
            return;
        }
        self.quotas.retain(kept);
        if self.quotas.len() == QUOTAS_MAX {
            let loosest = self.quotas.iter().enumerate().min_by_key(|(_, quota)| quota.delay);
            if let Some((index, _)) = loosest {
                self.quotas.remove(index);
            }
        }
        self.quotas.push(QuotaSpacing { delay, until, length });
    }
}

/// Adds a number, and removes the oldest if there are too many.
fn push_latest(numbers: &mut VecDeque<u32>, id: u32) {
    if numbers.len() == LATE_MAX {
        numbers.pop_front();
    }
    numbers.push_back(id);
}

/// Maximum number of open permits. If there are more, callers don't record them, and the oldest is dropped.
pub(super) const OPEN_MAX: usize = 1_024;
/// Maximum number of dropped or lost permits that are remembered.
pub(super) const LATE_MAX: usize = OPEN_MAX;
/// Maximum number of quotas. More are noise, and the loosest is removed.
pub(super) const QUOTAS_MAX: usize = 4;
