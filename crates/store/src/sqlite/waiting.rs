//! Waits while a database is locked, full, gone or unreadable: how long, and what is logged meanwhile. How a retry
//! works is not known here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comity_core::decision::Outage;
use comity_core::time::Span;

use super::location::Location;
use super::lock_owner::lock_owner;
use crate::machine::{Machine, ThisMachine};
use crate::{Availability, StoreError};

/// How long to wait for the database; it can be changed at any time.
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

/// One wait, starting with the first failed attempt.
pub(super) struct Wait<'a> {
    location: &'a Location,
    availability: &'a Availability,
    /// How long an earlier wait lasted that was given up.
    before: Span,
    /// The machine's uptime when the first attempt failed.
    since: Option<Span>,
    /// The current problem, and since when.
    seen: Option<(String, Span)>,
    /// The problem that was logged.
    logged: Option<String>,
}

impl<'a> Wait<'a> {
    pub(super) fn new(location: &'a Location, availability: &'a Availability, before: Span) -> Self {
        Self { location, availability, before, since: None, seen: None, logged: None }
    }

    /// How long the wait has lasted.
    pub(super) fn waited(&self) -> Span {
        self.since.map_or(Span::ZERO, |since| ThisMachine.up().less(since)).max(self.before)
    }

    /// Whether an attempt has failed.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Call after an attempt failed for a reason that may pass. Returns when it is time to retry, or an error when
    /// patience has run out.
    pub(super) fn failed(
        &mut self,
        outage: Outage,
        error: StoreError,
        patience: Span,
    ) -> Result<(), StoreError> {
        let now = ThisMachine.up();
        let waited = now.less(*self.since.get_or_insert(now));
        self.availability.set_unavailable(outage);
        if waited >= patience {
            return Err(self.given_up(outage, error));
        }
        self.log(outage, &error, patience, now);
        // SQLite has already waited for the lock.
        if outage != Outage::Locked {
            std::thread::sleep(RETRY_AFTER.min(patience.less(waited).into()));
        }
        Ok(())
    }

    /// Logs the problem: once, and again if another problem lasts for more than a moment.
    fn log(&mut self, outage: Outage, error: &StoreError, patience: Span, now: Span) {
        // The owner of the lock may change with every attempt.
        let what = if outage == Outage::Locked { outage.to_string() } else { self.what(outage, error) };
        let (seen, since) = self.seen.get_or_insert_with(|| (what.clone(), now));
        if *seen != what {
            (*seen, *since) = (what.clone(), now);
        }
        if now.less(*since) < WARN_AFTER || self.logged.as_ref() == Some(&what) {
            return;
        }
        self.logged = Some(what);
        self.availability.set_announced();
        let (what, patience) = (self.what(outage, error), patience.prose());
        tracing::warn!(
            "{}: {what}; waiting up to {patience} for it; no requests are sent meanwhile",
            self.location
        );
    }

    /// Call when an attempt succeeded.
    pub(super) fn finish(self) {
        self.availability.set_available();
        if let (Some(_), Some(since)) = (&self.logged, self.since) {
            let waited = ThisMachine.up().less(since).prose();
            tracing::warn!("{}: available again after {waited}; work continues", self.location);
        }
    }

    fn given_up(&self, outage: Outage, error: StoreError) -> StoreError {
        let waited = self.waited();
        let what = self.what(outage, &error);
        let what = match outage {
            Outage::Locked => format!("{what}; stop that program, or wait until it is done"),
            Outage::Full => format!("{what}; free some space and run the same command again"),
            Outage::Gone | Outage::Unreadable => what,
        };
        let waited = if waited.is_zero() {
            String::new()
        } else {
            format!("; gave up after waiting {}", waited.prose())
        };
        self.location.outage(outage, what + &waited)
    }

    /// The problem, for people.
    fn what(&self, outage: Outage, error: &StoreError) -> String {
        match (outage, self.location) {
            (Outage::Locked, Location::File(path)) => match lock_owner(path) {
                Some(lock_owner) => format!("{outage} ({lock_owner})"),
                None => outage.to_string(),
            },
            (Outage::Full, _) => "the disk is full".to_owned(),
            _ => error.what(),
        }
    }
}

/// Opens a database, waiting while it is locked or the disk is full. Any other problem is an error at once, because the
/// database was not in use before.
pub(super) fn open_waiting<T>(
    location: &Location,
    patience: Span,
    mut open: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let availability = Availability::default();
    let mut wait = Wait::new(location, &availability, Span::ZERO);
    loop {
        let error = match open() {
            Ok(opened) => {
                wait.finish();
                return Ok(opened);
            }
            Err(error) => error,
        };
        match error.outage() {
            Some(outage @ (Outage::Locked | Outage::Full)) => wait.failed(outage, error, patience)?,
            _ => return Err(error),
        }
    }
}

/// How long one attempt waits for a lock, once it is known to be locked.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an attempt waits for a lock at first: other processes on the store need less than this for their turn.
pub(super) const FIRST_LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// An outage shorter than this is not logged.
const WARN_AFTER: Span = Span::from_secs(2);
/// The time between an attempt and the next.
const RETRY_AFTER: Duration = Duration::from_millis(250);
