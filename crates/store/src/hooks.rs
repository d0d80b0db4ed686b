//! Hooks: what has to run for each new item, once its page was scraped, or right away if it will not be scraped.
//!
//! An item saved with [`wants_hook`](crate::sources::NewItem::wants_hook) has a pending hook until somebody reports
//! that it ran. If a process dies before that, the next one runs it. What a hook does is not known here.

use crate::Reply;
use crate::domains::HolderId;
use crate::items::{Item, ItemId};

/// When the hook of an item may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookTiming {
    /// After the item was scraped, whatever the result, or if nobody will scrape it because its source is disabled or
    /// is not scraped automatically.
    AfterScrape,
    /// As soon as the item was seen, unless it is being scraped right now.
    OnceSeen,
}

/// Storage of pending hooks.
pub trait HookStore {
    /// Claims at most `limit` items whose hooks may run, in the order they were first seen. While the holder lives,
    /// nobody else gets them, and neither does it a second time.
    fn claim_hooks(&self, holder: HolderId, timing: HookTiming, limit: u32) -> Reply<'_, Vec<Item>>;

    /// Records that the hooks of these items ran. Items that the holder no longer owns are skipped.
    fn end_hooks(&self, holder: HolderId, items: Vec<ItemId>) -> Reply<'_, ()>;

    /// The number of hooks that have not run yet.
    fn count_hooks(&self) -> Reply<'_, u64>;
}
