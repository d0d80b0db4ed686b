//! What few domains need: burst windows, other intents, several requests at once, quotas, pauses, lost state.
//!
//! Kept behind one pointer, so that a million ordinary domains stay small.

use std::collections::VecDeque;

use super::lease::Lease;
use super::record::HEARD_FOR;
use crate::decision::Permit;
use crate::rule::History;
use crate::time::{Span, Timestamp};
use crate::window::Window;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rare {
    /// Permits that are held and not recorded yet, oldest first, all younger than the one in the pace itself.
    pub(super) open: Vec<Permit>,
    /// Permits that were lent and not recorded yet, those included whose lease has ended.
    pub(super) lent: Vec<Lease>,
    /// The latest start of each intent.
    pub(super) starts: [Timestamp; 3],
    /// Whose starts those are.
    pub(super) start_ids: [u32; 3],
    /// The latest starts of all intents together.
    pub(super) window: Window,
    /// The latest starts of each intent.
    pub(super) windows: [Window; 3],
    /// Spacings that the server's quotas ask for, each until its reset.
    pub(super) quotas: Vec<QuotaSpacing>,
    /// An operator closed the domain until then.
    pub(super) paused_until: Timestamp,
    /// Permits that were let go, because they expired long ago or too many were open, and were not heard of since; oldest
    /// first.
    pub(super) let_go: VecDeque<u32>,
    /// Permits that were heard of although they were lost with the pace they were drawn from; oldest first.
    pub(super) heard_late: VecDeque<u32>,
    /// Starts before this are not known, and the last of them may have been then.
    pub(super) lost_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaSpacing {
    pub(super) delay: Span,
    pub(super) until: Timestamp,
    /// How long it was to last when it was told.
    pub(super) length: Span,
}

impl Rare {
    /// Before there was any of this, every start was a fetch.
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
            let_go: VecDeque::new(),
            heard_late: VecDeque::new(),
            lost_at: Timestamp::NEVER,
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
            self.let_go(oldest);
        }
        self.open.push(permit);
    }

    /// Keeps a permit that was lent, and lets go of those that nobody records any more.
    pub(super) fn lend(&mut self, lease: Lease, now: Timestamp) {
        let (old, rest) = std::mem::take(&mut self.lent)
            .into_iter()
            .partition(|lent| lent.until <= now && now.since(lent.permit.started_at) > HEARD_FOR);
        self.lent = rest;
        let old: Vec<Lease> = old;
        old.iter().for_each(|lent| self.let_go(lent.permit.id));
        if self.lent.len() >= OPEN_MAX {
            let first =
                self.lent.iter().enumerate().min_by_key(|(_, lent)| lent.until).map_or(0, |(at, _)| at);
            let id = self.lent.remove(first).permit.id;
            self.let_go(id);
        }
        self.lent.push(lease);
    }

    /// Nobody waits for the answer to this permit any more; if it comes after all, it is heard once.
    pub(super) fn let_go(&mut self, id: u32) {
        push_latest(&mut self.let_go, id);
    }

    /// Whether an answer to a permit that is not open is news: it was let go and not heard of since.
    pub(super) fn hears_of_let_go(&mut self, id: u32) -> bool {
        let place = self.let_go.iter().position(|gone| *gone == id);
        place.and_then(|place| self.let_go.remove(place)).is_some()
    }

    /// The same for a permit that was granted at `granted_at` by whoever held the domain then.
    pub(super) fn hears_of_lost(&mut self, id: u32, granted_at: Timestamp) -> bool {
        let lost = self.lost_at.ever().is_some_and(|lost_at| granted_at <= lost_at);
        if !lost || self.heard_late.contains(&id) {
            return false;
        }
        push_latest(&mut self.heard_late, id);
        true
    }

    pub(super) fn take_oldest(&mut self) -> Option<Permit> {
        (!self.open.is_empty()).then(|| self.open.remove(0))
    }

    pub(super) fn take_open(&mut self, id: u32) -> Option<Permit> {
        let place = self.open.iter().position(|open| open.id == id)?;
        Some(self.open.remove(place))
    }

    pub(super) fn take_lent(&mut self, id: u32) -> Option<Permit> {
        let place = self.lent.iter().position(|lent| lent.permit.id == id)?;
        Some(self.lent.remove(place).permit)
    }

    pub(super) fn opens(&self) -> impl Iterator<Item = &Permit> {
        self.open.iter()
    }

    /// All of them, lent or held.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Permit> {
        self.open.iter_mut().chain(self.lent.iter_mut().map(|lent| &mut lent.permit))
    }

    /// Keeps what a quota asks for. What another one asks at least as much of for at least as long is dropped.
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
            if let Some((place, _)) = loosest {
                self.quotas.remove(place);
            }
        }
        self.quotas.push(QuotaSpacing { delay, until, length });
    }
}

/// Keeps the latest numbers only.
fn push_latest(numbers: &mut VecDeque<u32>, id: u32) {
    if numbers.len() == LATE_MAX {
        numbers.pop_front();
    }
    numbers.push_back(id);
}

/// More permits open at once than this are callers that never record; the oldest is let go.
pub(super) const OPEN_MAX: usize = 1_024;
/// As many again are remembered when they were let go, or heard of late; the oldest is forgotten.
pub(super) const LATE_MAX: usize = OPEN_MAX;
/// More quotas in force at once than this are noise; the loosest is let go.
pub(super) const QUOTAS_MAX: usize = 4;
