//! Whether a store can be used at the moment. A gate looks here before each request, so looking costs one load.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use comity_core::decision::Away;

/// Whether a store can be used at the moment.
#[derive(Debug, Default)]
pub struct Availability {
    /// How often the store went away or came back: odd while it is away.
    turns: AtomicU64,
    /// Why it went away last.
    why: AtomicU8,
    /// It was away for long enough that people were told.
    announced: AtomicBool,
}

impl Availability {
    /// A number that changes whenever the store goes away and whenever it comes back.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Why it went away last.
    pub fn why(&self) -> Away {
        match self.why.load(Ordering::SeqCst) {
            LOCKED => Away::Locked,
            FULL => Away::Full,
            GONE => Away::Gone,
            _ => Away::Unreadable,
        }
    }

    /// Why it cannot be used at the moment, if it cannot.
    pub fn away(&self) -> Option<Away> {
        (self.turns() % 2 == 1).then(|| self.why())
    }

    /// The same, once it is more than a moment.
    pub fn away_for_long(&self) -> Option<Away> {
        self.away().filter(|_| self.announced.load(Ordering::SeqCst))
    }

    pub(crate) fn leaves(&self, away: Away) {
        let code = match away {
            Away::Locked => LOCKED,
            Away::Full => FULL,
            Away::Gone => GONE,
            Away::Unreadable => UNREADABLE,
        };
        self.why.store(code, Ordering::SeqCst);
        // Only the thread that writes tells of it.
        if self.away().is_none() {
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_announced(&self) {
        self.announced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn returns(&self) {
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
