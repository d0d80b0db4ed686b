//! Waiting for a database that is locked, full, gone or unreadable: for how long, and what people are told meanwhile.
//! How a try is made is not known here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comity_core::decision::Away;
use comity_core::time::Span;

use super::lockers::locker;
use super::place::Place;
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, StoreError};

/// How long a database is waited for; whoever has it may change that at any moment.
#[derive(Debug, Clone)]
pub(super) struct Patience(Arc<AtomicU64>);

impl Patience {
    pub(super) fn new(patience: Span) -> Self {
        Self(Arc::new(AtomicU64::new(patience.as_micros())))
    }

    pub(super) fn set(&self, patience: Span) {
        self.0.store(patience.as_micros(), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Span {
        Span::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// One wait, from the first try that failed on.
pub(super) struct Wait<'a> {
    place: &'a Place,
    availability: &'a Availability,
    /// For how long somebody waited in vain before.
    before: Span,
    /// When the first try failed, counted since the machine booted.
    since: Option<Span>,
    /// What is wrong, and since when.
    seen: Option<(String, Span)>,
    /// What people were told that it waits for.
    told: Option<String>,
}

impl<'a> Wait<'a> {
    pub(super) fn new(place: &'a Place, availability: &'a Availability, before: Span) -> Self {
        Self { place, availability, before, since: None, seen: None, told: None }
    }

    /// For how long it was waited in vain.
    pub(super) fn waited(&self) -> Span {
        self.since.map_or(Span::ZERO, |since| ThisMachine.up().less(since)).max(self.before)
    }

    /// Whether a try failed before.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// A try failed, for a reason that may pass. Returns when the next one is due; an error when it was waited for long
    /// enough.
    pub(super) fn failed(&mut self, away: Away, error: StoreError, patience: Span) -> Result<(), StoreError> {
        let now = ThisMachine.up();
        let waited = now.less(*self.since.get_or_insert(now));
        self.availability.leaves(away);
        if waited >= patience {
            return Err(self.given_up(away, error));
        }
        self.tell(away, &error, patience, now);
        // For a lock SQLite has waited already.
        if away != Away::Locked {
            std::thread::sleep(AGAIN.min(patience.less(waited).into()));
        }
        Ok(())
    }

    /// Says what is waited for: once, and again when something else is wrong for more than a moment.
    fn tell(&mut self, away: Away, error: &StoreError, patience: Span, now: Span) {
        // Who has the lock may change every time.
        let what = if away == Away::Locked { away.to_string() } else { self.what(away, error) };
        let (seen, since) = self.seen.get_or_insert_with(|| (what.clone(), now));
        if *seen != what {
            (*seen, *since) = (what.clone(), now);
        }
        if now.less(*since) < A_MOMENT || self.told.as_ref() == Some(&what) {
            return;
        }
        self.told = Some(what);
        self.availability.is_announced();
        let (what, patience) = (self.what(away, error), patience.about());
        tracing::warn!(
            "{}: {what}; waiting up to {patience} for it, and nothing is sent meanwhile",
            self.place
        );
    }

    /// A try worked.
    pub(super) fn ends(self) {
        self.availability.returns();
        if let (Some(_), Some(since)) = (&self.told, self.since) {
            let waited = ThisMachine.up().less(since).about();
            tracing::warn!("{}: available again after {waited}; work continues", self.place);
        }
    }

    fn given_up(&self, away: Away, error: StoreError) -> StoreError {
        let waited = self.waited();
        let what = self.what(away, &error);
        let what = match away {
            Away::Locked => format!("{what}; end that program or wait for it"),
            Away::Full => format!("{what}; make room and start again, nothing is lost"),
            Away::Gone | Away::Unreadable => what,
        };
        let waited = if waited.is_zero() {
            String::new()
        } else {
            format!("; gave up after waiting {}", waited.about())
        };
        self.place.away(away, what + &waited)
    }

    /// What is wrong, for people.
    fn what(&self, away: Away, error: &StoreError) -> String {
        match (away, self.place) {
            (Away::Locked, Place::File(path)) => match locker(path) {
                Some(locker) => format!("{away} ({locker})"),
                None => away.to_string(),
            },
            (Away::Full, _) => "the disk is full".to_owned(),
            _ => error.what(),
        }
    }
}

/// Opens a database that may be locked, or on a disk that is full. Anything else that is wrong with it is told at once: it
/// was not in use before.
pub(super) fn opened<T>(
    place: &Place,
    patience: Span,
    mut open: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let availability = Availability::default();
    let mut wait = Wait::new(place, &availability, Span::ZERO);
    loop {
        let error = match open() {
            Ok(opened) => {
                wait.ends();
                return Ok(opened);
            }
            Err(error) => error,
        };
        match error.away() {
            Some(away @ (Away::Locked | Away::Full)) => wait.failed(away, error, patience)?,
            _ => return Err(error),
        }
    }
}

/// How long a database is waited for unless somebody says otherwise.
pub(super) const BRIEF: Span = Span::from_secs(10);
/// How long one try waits for a lock, once it is known that somebody has it;
pub(super) const A_TRY: Duration = Duration::from_secs(1);
/// before that, so much: whoever shares the database has its turn in less.
pub(super) const FIRST_TRY: Duration = Duration::from_millis(500);
/// What is over by then is not worth a word.
const A_MOMENT: Span = Span::from_secs(2);
/// How long after a try the next one follows.
const AGAIN: Duration = Duration::from_millis(250);
