//! Hooks for new items.

use comity_core::interval::SourceInterval;
use comity_store::hooks::HookTiming;
use comity_store::items::{ItemId, ItemQuery, Order};
use comity_store::sources::{NewItem, SourceChange};

use crate::backend::Backend;
use crate::follower::{Follower, found, page};
use crate::process::{Process, at, done};

/// A source with two new items that want a hook, and one that does not.
async fn hooked(backend: &dyn Backend) -> Follower {
    let mut one = Follower::start(backend, SourceInterval::Off, 0).await;
    let new = |nth: u32, wants_hook| NewItem { wants_hook, ..page(&format!("https://a.example/{nth}")) };
    found(one.store(), one.source, vec![new(0, true), new(1, true), new(2, false)], at(0)).await;
    let listed = ItemQuery { order: Order::After(ItemId(0)), limit: 9, ..ItemQuery::default() };
    one.items = one.store().list_items(listed).await.unwrap().iter().map(|item| item.id).collect();
    one
}

async fn claim(process: &Process, timing: HookTiming) -> Vec<ItemId> {
    let items = process.store.claim_hooks(process.holder, timing, 9).await.unwrap();
    items.iter().map(|item| item.id).collect()
}

pub(crate) async fn a_hook_may_run_after_its_item_was_scraped(backend: &dyn Backend) {
    let one = hooked(backend).await;
    assert!(claim(&one.one, HookTiming::AfterScrape).await.is_empty());
    one.scrape(1, at(1)).await;
    one.scrape(2, at(1)).await;
    let claimed = one.store().claim_hooks(one.one.holder, HookTiming::AfterScrape, 9).await.unwrap();
    assert_eq!((claimed.len(), claimed[0].id, claimed[0].status), (1, one.items[1], Some(200)));
    assert!(claim(&one.one, HookTiming::AfterScrape).await.is_empty(), "it is being scraped");
    one.store().end_hooks(one.one.holder, vec![one.items[1]]).await.unwrap();
    assert_eq!(one.store().count_hooks().await.unwrap(), 1);
    // If nothing gets scraped, hooks do not wait for it.
    one.enqueue(&[0], at(2)).await;
    assert!(claim(&one.one, HookTiming::OnceSeen).await.is_empty(), "it is about to be scraped");
    let task = one.task(0, at(2)).await;
    one.settle(task, done(), at(3)).await;
    assert_eq!(claim(&one.one, HookTiming::OnceSeen).await, [one.items[0]]);
}

pub(crate) async fn a_hook_does_not_wait_for_an_item_that_nobody_scrapes(backend: &dyn Backend) {
    let one = hooked(backend).await;
    one.change(SourceChange { auto_scrape: Some(false), ..SourceChange::default() }).await;
    assert_eq!(claim(&one.one, HookTiming::AfterScrape).await, one.items[..2]);
}

/// An item that was known before has had its hook, or wants none.
pub(crate) async fn only_new_items_have_a_hook(backend: &dyn Backend) {
    let one = hooked(backend).await;
    let again = NewItem { wants_hook: true, content_hash: 9, ..page("https://a.example/2") };
    found(one.store(), one.source, vec![again], at(1)).await;
    assert_eq!(one.store().count_hooks().await.unwrap(), 2);
    one.store().remove_source(one.source).await.unwrap();
    assert_eq!(one.store().count_hooks().await.unwrap(), 0);
}

pub(crate) async fn a_hook_of_a_dead_process_goes_to_another(backend: &dyn Backend) {
    let one = hooked(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    assert_eq!(claim(&one.one, HookTiming::OnceSeen).await, one.items[..2]);
    assert!(claim(&other, HookTiming::OnceSeen).await.is_empty());
    one.store().end_hooks(one.one.holder, vec![one.items[0]]).await.unwrap();
    one.store().deregister(one.one.holder, at(1)).await.unwrap();
    assert_eq!(claim(&other, HookTiming::OnceSeen).await, [one.items[1]]);
    // Its own report comes too late.
    one.store().end_hooks(one.one.holder, vec![one.items[1]]).await.unwrap();
    assert_eq!(other.store.count_hooks().await.unwrap(), 1);
}

pub(crate) async fn two_concurrent_claims_share_no_hook(backend: &dyn Backend) {
    let one = hooked(backend).await;
    let other = Process::start(backend, "other", at(0)).await;
    let (first, second) =
        one.one.overlap(claim(&one.one, HookTiming::OnceSeen), claim(&other, HookTiming::OnceSeen)).await;
    let mut all = [first, second].concat();
    all.sort_unstable();
    assert_eq!(all, one.items[..2]);
}
