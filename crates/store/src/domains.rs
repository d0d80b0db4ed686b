//! Who holds which domain, and what must outlive a holder.

use comity_core::domain::Domain;
use comity_core::pace::{Kept, Lent};
use comity_core::time::Timestamp;

use crate::Reply;

/// A process that holds domains, as the store numbers it; numbers are never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub i64);

/// A domain, as the store numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainKey(pub i64);

/// The right to write about a domain: valid while its holder is and nobody took it since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Which domain.
    pub key: DomainKey,
    /// Which taking of it.
    pub epoch: i64,
}

/// A domain that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Its name.
    pub domain: Domain,
    /// The right to write about it.
    pub hold: Hold,
    /// What was kept of it.
    pub kept: Kept,
    /// An operator's word on it.
    pub steering: Steering,
    /// How its last holder left it.
    pub left: LeftBehind,
    /// If that died: the permits it had lent and whose leases have not ended.
    pub lent: Vec<Lent>,
}

/// What an operator said about a domain; it survives whoever holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steering {
    /// The learned state stays as it is.
    pub pinned: bool,
    /// No request leaves before, past or not; [`Timestamp::MAX`] is until resumed.
    pub paused_until: Option<Timestamp>,
}

impl Steering {
    /// Until when the domain is closed, if it is at `now`.
    pub fn paused_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.paused_until.filter(|until| *until > now)
    }
}

/// How the last holder left a domain; the owned form of [`comity_core::pace::Left`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftBehind {
    /// Nobody ever held it.
    New,
    /// A living process passed its pace on.
    HandedOver(Vec<u8>),
    /// Its holder stopped cleanly and left its pace.
    Stopped(Vec<u8>),
    /// Its holder died.
    Died {
        /// The last moment at which it may have sent.
        latest: Timestamp,
    },
}

/// What became of the wish to hold a domain.
#[derive(Debug, Clone, PartialEq)]
pub enum Take {
    /// It is ours now.
    Taken(Box<Taken>),
    /// It was ours before.
    Ours,
    /// A living process holds it and has been told that it is wanted.
    Held {
        /// Who, for people.
        by: String,
    },
}

/// What a holder keeps of a domain it goes on holding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saved {
    /// The right to.
    pub hold: Hold,
    /// What must survive a crash.
    pub kept: Kept,
    /// An operator's word.
    pub steering: Steering,
}

/// A domain that is given back.
#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    /// What is kept of it.
    pub saved: Saved,
    /// Its whole pace, as [`comity_core::pace::Pace::encode`] writes it.
    pub pace: Vec<u8>,
    /// How it is left.
    pub parting: Parting,
}

/// How a holder parts from a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// Others go on where it stopped.
    HandOver,
    /// It stops, and whoever takes the domain later starts anew.
    Stop,
}

/// A domain as people look at it.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainRow {
    /// Its name.
    pub domain: String,
    /// What is kept of it.
    pub kept: Kept,
    /// An operator's word on it.
    pub steering: Steering,
    /// Who holds it, if somebody alive does.
    pub holder: Option<String>,
    /// How often it was taken.
    pub epoch: i64,
    /// How its last holder left it, if nobody holds it.
    pub left: Option<LeftBehind>,
    /// Tasks that wait for it, counted up to 1,000.
    pub waiting: u64,
}

/// A domain that nobody has used for a while, and of which a store knows nothing that is worth keeping.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleDomain {
    /// Its name.
    pub domain: Domain,
    /// Which row is meant; it is another one when the domain was taken since.
    pub hold: Hold,
    /// What was kept of it.
    pub kept: Kept,
    /// How its last holder left it.
    pub left: LeftBehind,
}

/// Some of the domains that may be forgotten.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IdleDomains {
    /// The domains.
    pub domains: Vec<IdleDomain>,
    /// Where to look on; nothing when all rows were looked at.
    pub next: Option<DomainKey>,
}

/// Who holds which domain.
pub trait DomainStore {
    /// A process becomes a holder; `name` is for people. Its time runs from `now`.
    fn register(&self, name: String, now: Timestamp) -> Reply<'_, HolderId>;

    /// A holder says that it lives: its time is [`crate::LEASE`] from `now`. Holders that died are noticed here
    /// too, and what they worked on waits again. [`crate::StoreError::Lost`] when it came too late.
    fn beat(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()>;

    /// A number that changes when another process has written something. Cheap enough to ask many times a second.
    fn version(&self) -> Reply<'_, i64>;

    /// Which of its domains others want.
    fn wanted(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>>;

    /// Takes domains that nobody alive holds, and marks the others as wanted. A domain that is new is entered.
    fn take(&self, holder: HolderId, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, Vec<Take>>;

    /// Keeps what must survive a crash. What is no longer held is skipped, and returned.
    fn save(&self, holder: HolderId, saved: Vec<Saved>) -> Reply<'_, Vec<Hold>>;

    /// Gives domains back, with the lanes that were served on them. What is no longer held is skipped.
    fn release(&self, holder: HolderId, released: Vec<Released>, now: Timestamp) -> Reply<'_, ()>;

    /// The process stops; it must have released everything, and what it has not counts as left by a death.
    fn deregister(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()>;

    /// Domains by name, from `after` on, whose name contains `like`.
    fn list_domains(&self, like: String, after: String, limit: u32) -> Reply<'_, Vec<DomainRow>>;

    /// One domain.
    fn find_domain(&self, domain: Domain) -> Reply<'_, Option<DomainRow>>;

    /// Domains that may be forgotten, if their pace agrees: nobody holds or wants them or has tasks for them, nothing was
    /// learned, pinned or paused, and they were last used before `before`. Looks at `limit` rows from `after` on.
    fn idle_domains(&self, after: DomainKey, before: Timestamp, limit: u32) -> Reply<'_, IdleDomains>;

    /// Forgets domains, and says how many. What was taken since, or may not be forgotten any more, stays.
    fn forget_domains(&self, idle: Vec<Hold>, before: Timestamp) -> Reply<'_, u64>;
}
