//! Whether a store can be used right now. A gate checks this before each request, so it costs a single atomic load.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use comity_core::decision::Outage;

/// Whether a store can be used right now.
#[derive(Debug, Default)]
pub struct Availability {
    /// How many times the store became unavailable or available again: odd while it is unavailable.
    turns: AtomicU64,
    /// The cause of the latest outage.
    why: AtomicU8,
    /// The outage lasted long enough to be logged.
    announced: AtomicBool,
}

impl Availability {
    /// A number that changes whenever the store becomes unavailable or available again.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// The cause of the latest outage.
    pub fn why(&self) -> Outage {
        match self.why.load(Ordering::SeqCst) {
            LOCKED => Outage::Locked,
            FULL => Outage::Full,
            GONE => Outage::Gone,
            _ => Outage::Unreadable,
        }
    }

    /// The cause of the current outage, if there is one.
    pub fn outage(&self) -> Option<Outage> {
        (self.turns() % 2 == 1).then(|| self.why())
    }

    /// The cause of the current outage, if it has lasted more than a moment.
    pub fn long_outage(&self) -> Option<Outage> {
        self.outage().filter(|_| self.announced.load(Ordering::SeqCst))
    }

    pub(crate) fn set_unavailable(&self, outage: Outage) {
        let code = match outage {
            Outage::Locked => LOCKED,
            Outage::Full => FULL,
            Outage::Gone => GONE,
            Outage::Unreadable => UNREADABLE,
        };
        self.why.store(code, Ordering::SeqCst);
        // Only the writer thread reports outages.
        if self.outage().is_none() {
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn set_announced(&self) {
        self.announced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn set_available(&self) {
        self.announced.store(false, Ordering::SeqCst);
        if self.turns() % 2 == 1 {
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }
}

const LOCKED: u8 = 1;
const FULL: u8 = 2;
const GONE: u8 = 3;
const UNREADABLE: u8 = 4;
