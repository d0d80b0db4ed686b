//! Whether a store can be used at the moment. A gate looks here before each request, so looking costs one load.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use comity_core::decision::Away;

/// Whether a store can be used at the moment.
#[derive(Debug, Default)]
pub struct Availability {
    /// How often the store went away or came back.
    turns: AtomicU64,
    away: AtomicU8,
    /// It was away for long enough that people were told.
    announced: AtomicBool,
}

impl Availability {
    /// A number that changes whenever the store goes away and when it comes back. Whoever remembers it and finds the same
    /// number later knows that the store was available all the time, if it was then.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Why it cannot be used at the moment, if it cannot.
    pub fn away(&self) -> Option<Away> {
        Some(match self.away.load(Ordering::SeqCst) {
            LOCKED => Away::Locked,
            FULL => Away::Full,
            GONE => Away::Gone,
            UNREADABLE => Away::Unreadable,
            _ => return None,
        })
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
        if self.away.swap(code, Ordering::SeqCst) == HERE {
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_announced(&self) {
        self.announced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn returns(&self) {
        self.announced.store(false, Ordering::SeqCst);
        if self.away.swap(HERE, Ordering::SeqCst) != HERE {
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }
}

const HERE: u8 = 0;
const LOCKED: u8 = 1;
const FULL: u8 = 2;
const GONE: u8 = 3;
const UNREADABLE: u8 = 4;
