//! What sources say about items.

use comity_store::Store;
use comity_store::details::{Details, Enclosure, Markup, Passage};
use comity_store::items::{ItemId, ItemQuery, Order};
use comity_store::sources::{ItemChanges, NewItem};

use super::fetches::added;
use crate::backend::Backend;
use crate::follower::{found, keep, page};
use crate::process::at;

fn rich() -> Details {
    let passage = |text: &str, markup| Some(Passage { text: text.to_owned(), markup });
    let file = |url: &str, media_type: Option<&str>, length| Enclosure {
        url: url.to_owned(),
        media_type: media_type.map(str::to_owned),
        length,
    };
    Details {
        summary: passage("1 < 2 \u{1f409}", Markup::Text),
        content: passage("<p>\"x\"</p>", Markup::Html),
        author: Some("Jo, Doe".to_owned()),
        categories: vec!["a,b".to_owned(), "ü".to_owned()],
        enclosures: vec![
            file("https://a.example/x.mp3", Some("audio/mpeg"), Some(u64::from(u32::MAX) + 1)),
            file("https://a.example/y", None, None),
        ],
        truncated: vec!["content".to_owned()],
    }
}

async fn details(store: &dyn Store, item: ItemId) -> Details {
    store.find_details(vec![item]).await.unwrap().remove(0)
}

pub(crate) async fn details_come_back_unchanged(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let items = vec![NewItem { details: rich(), ..page("https://a.example/1") }, page("https://a.example/2")];
    found(&*store, source.id, items, at(1)).await;
    let other = backend.store().await;
    let listed = ItemQuery { order: Order::After(ItemId(0)), limit: 9, ..ItemQuery::default() };
    let ids: Vec<_> = other.list_items(listed).await.unwrap().iter().map(|item| item.id).collect();
    let asked = vec![ids[1], ItemId(99), ids[0]];
    let expected = [Details::default(), Details::default(), rich()];
    assert_eq!(other.find_details(asked).await.unwrap(), expected, "in the order asked for");
}

/// Even if the content hash is the same: a store of an older version has no details, and enclosures move.
pub(crate) async fn the_latest_details_are_kept(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    let item = keep(&*store, source.id, &["https://a.example/1".to_owned()]).await[0];
    assert_eq!(details(&*store, item).await, Details::default());
    let with_details = |details: Details| vec![NewItem { details, ..page("https://a.example/1") }];
    let known = ItemChanges { new: 0, known: 1, changed: 0 };
    assert_eq!(found(&*store, source.id, with_details(rich()), at(2)).await, known);
    assert_eq!(details(&*store, item).await, rich());
    let fewer = Details { categories: Vec::new(), ..rich() };
    assert_eq!(found(&*store, source.id, with_details(fewer.clone()), at(3)).await, known);
    assert_eq!(details(&*store, item).await, fewer);
    found(&*store, source.id, with_details(Details::default()), at(4)).await;
    assert_eq!(details(&*store, item).await, Details::default());
}

pub(crate) async fn details_are_removed_with_their_source(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    found(&*store, source.id, vec![NewItem { details: rich(), ..page("https://a.example/1") }], at(1)).await;
    let item = store.list_items(ItemQuery { limit: 1, ..ItemQuery::default() }).await.unwrap()[0].id;
    store.remove_source(source.id).await.unwrap();
    assert_eq!(details(&*store, item).await, Details::default());
}

pub(crate) async fn items_can_be_listed_by_when_they_were_first_seen(backend: &dyn Backend) {
    let (store, source) = added(backend).await;
    for (second, url) in [(1, "https://a.example/1"), (2, "https://a.example/2"), (3, "https://a.example/3")]
    {
        found(&*store, source.id, vec![page(url)], at(second)).await;
    }
    let changed = NewItem { content_hash: 9, ..page("https://a.example/1") };
    found(&*store, source.id, vec![changed], at(4)).await;
    let urls = async |since, source| {
        let order = Order::After(ItemId(0));
        let items = ItemQuery { since: Some(since), source, order, limit: 9, ..ItemQuery::default() };
        let items = store.list_items(items).await.unwrap().into_iter();
        items.map(|item| item.url.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        urls(at(2), None).await,
        ["2", "3"],
        "the given time is included, and a change does not make a new item"
    );
    assert_eq!(urls(at(3), Some(source.id)).await, ["3"]);
    assert!(urls(at(4), None).await.is_empty());
}
