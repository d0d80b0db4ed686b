//! Hooks: what is to be done for each new item once its page was scraped, or at once where that does not happen.
//!
//! An item that was kept with [`wants_hook`](crate::sources::NewItem::wants_hook) has a hook until somebody says that it
//! ran: a process that dies before leaves it to the next. What a hook is, others know.

use crate::Reply;
use crate::domains::HolderId;
use crate::items::{Item, ItemId};

/// When the hook of an item may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ripe {
    /// When it was scraped, with whatever result, or when nobody is going to scrape it: its source is disabled, or is not
    /// scraped automatically.
    Scraped,
    /// Also when it was not scraped yet and is not being scraped.
    Seen,
}

/// Hooks of items.
pub trait HookStore {
    /// Items whose hooks may run, in the order they were seen, at most `limit`. They are the holder's from now on: nobody else
    /// gets them while it lives, and it does not get them again.
    fn claim_hooks(&self, holder: HolderId, ripe: Ripe, limit: u32) -> Reply<'_, Vec<Item>>;

    /// The hooks of these items ran. Those that are not the holder's any more are skipped.
    fn end_hooks(&self, holder: HolderId, items: Vec<ItemId>) -> Reply<'_, ()>;

    /// How many hooks have not run yet.
    fn count_hooks(&self) -> Reply<'_, u64>;
}
