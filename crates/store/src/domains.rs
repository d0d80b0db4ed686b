//! Which process holds which domain, and what must outlive the holder.

use comity_core::domain::Domain;
use comity_core::pace::{LentPermit, SavedLimits};
use comity_core::time::Timestamp;

use crate::Reply;

/// The id of a process that holds domains. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub i64);

/// The id of a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainKey(pub i64);

/// A holder's time with a domain, and the right to write to it. It ends when the holder dies or somebody else takes the
/// domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenure {
    /// The domain.
    pub key: DomainKey,
    /// Which take of the domain this is. Later ones have higher numbers, which need not be consecutive.
    pub epoch: i64,
}

/// A domain that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// The domain's name.
    pub domain: Domain,
    /// The right to write to it.
    pub tenure: Tenure,
    /// The limits that were saved for it.
    pub kept: SavedLimits,
    /// The operator's settings for it.
    pub steering: Steering,
    /// How the last holder left it.
    pub last_holder: LastHolderBuf,
    /// If the last holder died, the permits it had lent whose leases have not ended.
    pub lent: Vec<LentPermit>,
}

/// An operator's settings for a domain. They stay in force whoever holds the domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steering {
    /// The learned delay stays as it is.
    pub pinned: bool,
    /// No request leaves before this time, which may be in the past; [`Timestamp::MAX`] means until resumed.
    pub paused_until: Option<Timestamp>,
}

impl Steering {
    /// Until when the domain is paused, if it is at `now`.
    pub fn paused_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.paused_until.filter(|until| *until > now)
    }
}

/// How the last holder left a domain; the owned form of [`comity_core::pace::LastHolder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastHolderBuf {
    /// Nobody ever held it.
    None,
    /// A live process handed over its pace.
    HandedOver(Vec<u8>),
    /// The holder stopped cleanly and left its pace.
    Stopped(Vec<u8>),
    /// The holder died.
    Died {
        /// The latest time at which it may have sent a request.
        latest: Timestamp,
    },
}

/// The result of trying to take a domain.
#[derive(Debug, Clone, PartialEq)]
pub enum Take {
    /// It was taken.
    Taken(Box<Taken>),
    /// It was held by this process already.
    Ours,
    /// A live process holds it and can see that it is wanted.
    Held {
        /// The holder's name.
        by: String,
    },
}

/// What a holder saves of a domain that it keeps holding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saved {
    /// The right to save it.
    pub tenure: Tenure,
    /// The limits that must survive a crash.
    pub kept: SavedLimits,
    /// The operator's settings.
    pub steering: Steering,
}

/// A deadline that a server stated, which a store that lost writes may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// The domain.
    pub domain: Domain,
    /// Until when the server asked to wait.
    pub until: Timestamp,
    /// When it did so.
    pub stated_at: Timestamp,
}

/// A domain that is released.
#[derive(Debug, Clone, PartialEq)]
pub struct Released {
    /// What to save of it.
    pub saved: Saved,
    /// Its complete pace, as written by [`comity_core::pace::Pace::encode`].
    pub pace: Vec<u8>,
    /// Whether others continue with this pace.
    pub mode: ReleaseMode,
}

/// How a holder releases a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseMode {
    /// The next holder continues with the same pace.
    HandOver,
    /// The process stops; whoever takes the domain later starts fresh.
    Stop,
}

/// A domain as shown to people.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainRow {
    /// The domain's name.
    pub domain: String,
    /// The limits saved for it.
    pub kept: SavedLimits,
    /// The operator's settings for it.
    pub steering: Steering,
    /// The name of the live process that holds it, if any.
    pub holder: Option<String>,
    /// Which take of it was the last; 0 if nobody ever took it. See [`Tenure::epoch`].
    pub epoch: i64,
    /// How its last holder left it, if nobody holds it.
    pub last_holder: Option<LastHolderBuf>,
    /// Tasks waiting for it, counted up to 1,000.
    pub waiting: u64,
}

/// A domain that nobody has used for a while, and for which nothing worth keeping is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleDomain {
    /// The domain's name.
    pub domain: Domain,
    /// Identifies the row; it changes if the domain is taken meanwhile.
    pub tenure: Tenure,
    /// The limits saved for it.
    pub kept: SavedLimits,
    /// How its last holder left it.
    pub last_holder: LastHolderBuf,
}

/// Some of the domains that may be deleted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IdleDomains {
    /// The domains.
    pub domains: Vec<IdleDomain>,
    /// Where to continue; `None` when all rows were looked at.
    pub next: Option<DomainKey>,
}

/// Storage of domains and their holders.
pub trait DomainStore {
    /// Registers a process as a holder and starts its lease. `name` is shown to people.
    fn register(&self, name: String, now: Timestamp) -> Reply<'_, HolderId>;

    /// Sends a heartbeat, which renews the holder's lease to [`crate::LEASE`] from `now`. It also detects dead holders
    /// and frees what they were working on. [`crate::StoreError::Lost`] if the heartbeat came too late.
    fn beat(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()>;

    /// A number that changes when another process has written something. Cheap enough to read many times per second.
    fn version(&self) -> Reply<'_, i64>;

    /// The holder's domains that others want.
    fn wanted(&self, holder: HolderId) -> Reply<'_, Vec<DomainKey>>;

    /// Takes domains that no live process holds, and marks the others as wanted. New domains are created.
    fn take(&self, holder: HolderId, domains: Vec<Domain>, now: Timestamp) -> Reply<'_, Vec<Take>>;

    /// Saves what must survive a crash. Domains that are no longer held are skipped and returned.
    fn save(&self, holder: HolderId, saved: Vec<Saved>) -> Reply<'_, Vec<Tenure>>;

    /// Saves deadlines again that servers stated to a process which has lost its domains, whoever holds them by now. A
    /// deadline never becomes an earlier one, and a domain gets only one.
    fn restate(&self, stated: Vec<Stated>) -> Reply<'_, ()>;

    /// Releases domains, together with the lanes served on them. Domains that are no longer held are skipped.
    fn release(&self, holder: HolderId, released: Vec<Released>, now: Timestamp) -> Reply<'_, ()>;

    /// Unregisters a process that stops. It should have released everything; a domain it has not counts as left by a
    /// dead holder.
    fn deregister(&self, holder: HolderId, now: Timestamp) -> Reply<'_, ()>;

    /// Domains after `after` whose name contains `like`, sorted by name.
    fn list_domains(&self, like: String, after: String, limit: u32) -> Reply<'_, Vec<DomainRow>>;

    /// The domain with this name.
    fn find_domain(&self, domain: Domain) -> Reply<'_, Option<DomainRow>>;

    /// Domains that may be deleted, provided their pace would delay nobody: nobody holds them, wants them or has tasks
    /// for them, nothing is learned, pinned or paused, and they were last used before `before`. Looks at `limit` rows
    /// after `after`.
    fn idle_domains(&self, after: DomainKey, before: Timestamp, limit: u32) -> Reply<'_, IdleDomains>;

    /// Deletes idle domains and returns how many. Domains that were taken meanwhile, or that are no longer idle, stay.
    fn forget_domains(&self, idle: Vec<Tenure>, before: Timestamp) -> Reply<'_, u64>;
}
