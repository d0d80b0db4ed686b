//! Wiki archives.

use comity_core::time::Timestamp;
use comity_store::wiki::{
    Batch, BatchChanges, CompletedPages, Compression, Content, FileTally, Hidden, Revision, Slot, WikiClaim,
    WikiFile, WikiPage, WikiTenure,
};
use comity_store::{Store, StoreError};
use serde_json::json;

use crate::backend::Backend;

const API: &str = "https://wiki.example/api.php";

fn page(id: i64, title: &str, newest: i64) -> WikiPage {
    let (title, model) = (title.to_owned(), "wikitext".to_owned());
    WikiPage { id, namespace: 0, title, model, redirect: false, newest, deleted: false, whole: false }
}

fn revision(id: i64, page: i64, parent: i64, text: &str) -> Revision {
    let mut sha1 = [0; 20];
    sha1[..text.len().min(20)].copy_from_slice(&text.as_bytes()[..text.len().min(20)]);
    let content = Content {
        sha1,
        size: text.len() as u64,
        compression: Compression::Plain,
        bytes: text.as_bytes().to_vec(),
    };
    Revision {
        id,
        page,
        parent,
        at: Timestamp::from_secs(1_000 + id),
        user: Some("Somebody".to_owned()),
        user_id: 7,
        comment: Some("ünïcode".to_owned()),
        sha1: Some("00ff".to_owned()),
        size: text.len() as u64,
        minor: id % 2 == 0,
        hidden: Hidden::default(),
        tags: vec!["mobile edit".to_owned()],
        slots: vec![Slot {
            role: "main".to_owned(),
            model: "wikitext".to_owned(),
            format: "text/x-wiki".to_owned(),
            content: Some(content),
        }],
    }
}

async fn open(backend: &dyn Backend) -> (std::sync::Arc<dyn Store>, WikiTenure) {
    let store = backend.store().await;
    let claim = store.claim_wiki(API.to_owned(), None, Timestamp::from_secs(1)).await.unwrap();
    let WikiClaim::Ours(_, tenure) = claim else { panic!("{claim:?}") };
    (store, tenure)
}

/// B69: what was saved comes back unchanged, from another process too, together with the progress.
pub(crate) async fn content_is_saved_together_with_progress(backend: &dyn Backend) {
    let (store, tenure) = open(backend).await;
    let wiki = tenure.wiki;
    assert_eq!(store.find_wiki("https://other.example/api.php".to_owned()).await.unwrap(), None);
    let revisions = vec![revision(11, 1, 0, "one"), revision(12, 1, 11, "two"), revision(21, 2, 0, "one")];
    let batch = Batch {
        pages: vec![page(1, "A", 12), page(2, "B", 21)],
        revisions: revisions.clone(),
        round: 1,
        site: Some(json!({ "general": {} })),
        progress: json!({ "round": 1 }),
        ..Batch::default()
    };
    let kept = store.keep_wiki(tenure, batch.clone()).await.unwrap();
    assert_eq!(kept, BatchChanges { pages: 2, revisions: 3, ..BatchChanges::default() });
    // Saving the same again changes nothing.
    let again = Batch { site: None, ..batch };
    assert_eq!(store.keep_wiki(tenure, again).await.unwrap(), BatchChanges::default());
    let other = backend.store().await;
    let found = other.find_wiki(API.to_owned()).await.unwrap().unwrap();
    assert_eq!(
        (found.id, &found.progress, &found.site),
        (wiki, &json!({ "round": 1 }), &json!({ "general": {} }))
    );
    assert_eq!(other.page_history(wiki, 1, 0, u64::MAX).await.unwrap(), revisions[..2]);
    assert_eq!(other.page_history(wiki, 1, 11, u64::MAX).await.unwrap(), revisions[1..2]);
    assert_eq!(other.page_history(wiki, 1, 0, 1).await.unwrap(), revisions[..1], "at least one");
    assert_eq!(other.unknown_revisions(wiki, vec![10, 11, 22]).await.unwrap(), [10, 22]);
    let (namespaces, contents) = other.tally_wiki(wiki).await.unwrap();
    assert_eq!((namespaces[0].pages, namespaces[0].revisions), (2, 3));
    assert_eq!(contents.pieces, 2, "the same text is stored once");
}

/// A page is incomplete until its history was fetched to its end.
pub(crate) async fn a_page_is_complete_when_its_history_is(backend: &dyn Backend) {
    let (store, tenure) = open(backend).await;
    let wiki = tenure.wiki;
    let lacking = async || {
        let pages = store.lacking_pages(wiki, 0, 10).await.unwrap();
        pages.iter().map(|page| page.id).collect::<Vec<_>>()
    };
    let keep = async |batch: Batch| store.keep_wiki(tenure, batch).await.unwrap();
    let pages = vec![page(1, "A", 12), page(2, "B", 21), page(3, "C", 31)];
    keep(Batch { pages: pages.clone(), round: 1, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 2, 3]);
    let revisions = vec![revision(12, 1, 11, "two"), revision(21, 2, 0, "one")];
    keep(Batch { revisions, round: 1, completed: CompletedPages::WithFirstRevision, ..Batch::default() })
        .await;
    assert_eq!(lacking().await, [1, 3], "page 1 lacks its first revision, and page 3 its newest");
    keep(Batch { round: 1, completed: CompletedPages::All, ..Batch::default() }).await;
    assert_eq!(lacking().await, [3]);
    // Listed once more, it stays complete; with a newer revision, it is incomplete again.
    keep(Batch { pages: vec![page(1, "A", 13), page(2, "B", 21)], round: 2, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3]);
    // A page whose history changed is fetched again, whatever else is known.
    keep(Batch { history_changed: vec![2], round: 2, completed: CompletedPages::All, ..Batch::default() })
        .await;
    assert_eq!(lacking().await, [1, 2, 3]);
    let whole = WikiPage { whole: true, ..page(2, "B", 21) };
    keep(Batch { pages: vec![whole], round: 2, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3]);
    // A page that is only mentioned changes nothing that is known.
    keep(Batch { mentioned: vec![page(2, "b", 9), page(4, "D", 41)], round: 2, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4]);
    // It is not complete with those that were listed, unless its first revision is stored.
    let revisions = vec![revision(41, 4, 40, "four"), revision(51, 5, 0, "five")];
    let mentioned = vec![page(5, "E", 51)];
    keep(Batch { mentioned, revisions, round: 2, completed: CompletedPages::All, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4]);
    // A revision whose parent is missing shows that something is missing, until the history was read to its end.
    keep(Batch { revisions: vec![revision(53, 5, 52, "later")], ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4, 5]);
    keep(Batch { revisions: vec![revision(52, 5, 51, "between")], ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4]);
    keep(Batch { revisions: vec![revision(55, 5, 54, "its parent is nowhere")], ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4, 5]);
    let whole = WikiPage { whole: true, ..page(5, "E", 55) };
    keep(Batch { pages: vec![whole], round: 3, ..Batch::default() }).await;
    assert_eq!(lacking().await, [1, 3, 4]);
    // A page whose history changed stays incomplete until then, whatever else is listed.
    keep(Batch { history_changed: vec![5], ..Batch::default() }).await;
    keep(Batch {
        pages: vec![page(5, "E", 55)],
        round: 4,
        completed: CompletedPages::All,
        ..Batch::default()
    })
    .await;
    assert_eq!(lacking().await, [1, 3, 4, 5]);
}

/// Moves, deletions and restorations are noticed, and what was archived of a page stays.
pub(crate) async fn moved_deleted_and_restored_pages_are_noticed(backend: &dyn Backend) {
    let (store, tenure) = open(backend).await;
    let wiki = tenure.wiki;
    let keep = async |batch: Batch| store.keep_wiki(tenure, batch).await.unwrap();
    let there = async || {
        let pages = store.wiki_pages(wiki, 0, 10).await.unwrap();
        pages.iter().filter(|page| !page.deleted).map(|page| page.title.clone()).collect::<Vec<_>>()
    };
    let all = vec![page(1, "A", 11), page(2, "B", 21), page(3, "C", 31)];
    keep(Batch { pages: all, revisions: vec![revision(31, 3, 0, "c")], round: 1, ..Batch::default() }).await;
    let moved = keep(Batch { pages: vec![page(1, "Z", 12)], round: 1, ..Batch::default() }).await;
    assert_eq!(moved, BatchChanges { moved: 1, ..BatchChanges::default() });
    // Pages that are not in a complete list are gone.
    let seen = vec![page(1, "Z", 12), page(2, "B", 21)];
    let looked = keep(Batch { pages: seen, fully_listed: vec![0], round: 2, ..Batch::default() }).await;
    assert_eq!((looked.deleted, there().await), (1, vec!["Z".to_owned(), "B".to_owned()]));
    assert_eq!(store.page_history(wiki, 3, 0, u64::MAX).await.unwrap().len(), 1);
    let back = keep(Batch { pages: vec![page(3, "C", 31)], round: 3, ..Batch::default() }).await;
    assert_eq!(back.restored, 1);
    let missing = keep(Batch { missing: vec!["B".to_owned(), "X".to_owned()], ..Batch::default() }).await;
    assert_eq!((missing.deleted, there().await), (1, vec!["Z".to_owned(), "C".to_owned()]));
    // Another page has the title now, so the one that had it is gone.
    let new =
        Batch { pages: vec![page(9, "Z", 91)], titles_are_exclusive: true, round: 3, ..Batch::default() };
    assert_eq!((keep(new).await.deleted, there().await), (1, vec!["C".to_owned(), "Z".to_owned()]));
}

/// Content hidden later is marked as hidden, and its text stays.
pub(crate) async fn hidden_content_is_marked_and_kept(backend: &dyn Backend) {
    let (store, tenure) = open(backend).await;
    let wiki = tenure.wiki;
    let shown = revision(11, 1, 0, "one");
    let keep = async |revision: Revision| {
        let pages = vec![page(1, "A", 11)];
        store.keep_wiki(tenure, Batch { pages, revisions: vec![revision], ..Batch::default() }).await.unwrap()
    };
    keep(shown.clone()).await;
    let hidden = Hidden { text: true, user: true, comment: false, suppressed: true };
    let mut later = Revision { user: None, hidden, ..shown.clone() };
    later.slots[0].content = None;
    assert_eq!(keep(later.clone()).await.revisions, 0);
    later.slots = shown.slots;
    assert_eq!(store.page_history(wiki, 1, 0, u64::MAX).await.unwrap(), [later]);
}

/// B83: only one process archives a wiki while it lives; late writes of others are refused.
pub(crate) async fn a_wiki_is_archived_by_one_process_at_a_time(backend: &dyn Backend) {
    let (store, now) = (backend.store().await, Timestamp::from_secs(1));
    let one = store.register("one".to_owned(), now).await.unwrap();
    let other = store.register("other".to_owned(), now).await.unwrap();
    let claim = async |holder| store.claim_wiki(API.to_owned(), Some(holder), now).await.unwrap();
    let fenced = async |tenure| {
        assert!(matches!(store.keep_wiki(tenure, Batch::default()).await, Err(StoreError::Lost)));
        assert!(matches!(store.settle_file(tenure, 1, None).await, Err(StoreError::Lost)));
    };
    let WikiClaim::Ours(_, first) = claim(one).await else { panic!() };
    assert_eq!(claim(other).await, WikiClaim::Taken);
    let WikiClaim::Ours(_, tenure) = claim(one).await else { panic!("its own claim again") };
    fenced(first).await;
    fenced(WikiTenure { holder: Some(other), ..tenure }).await;
    fenced(WikiTenure { holder: None, ..tenure }).await;
    store.keep_wiki(tenure, Batch::default()).await.unwrap();
    store.deregister(one, now).await.unwrap();
    fenced(tenure).await;
    assert!(matches!(claim(other).await, WikiClaim::Ours(..)));
    fenced(tenure).await;
}

/// File versions are fetched once, unless their content turns out to be different.
pub(crate) async fn files_are_fetched_once(backend: &dyn Backend) {
    let (store, tenure) = open(backend).await;
    let wiki = tenure.wiki;
    let file = |title: &str, at: i64, sha1: &str| WikiFile {
        title: title.to_owned(),
        at: Timestamp::from_secs(at),
        sha1: Some(sha1.to_owned()),
        size: 10,
        mime: "image/png".to_owned(),
        url: Some(format!("https://wiki.example/{sha1}.png")),
        user: Some("Somebody".to_owned()),
        comment: None,
        superseded: at < 10,
    };
    let keep = async |files: Vec<WikiFile>| {
        let pages = vec![WikiPage { namespace: 6, ..page(1, "File:A.png", 11) }];
        store.keep_wiki(tenure, Batch { files, pages, ..Batch::default() }).await.unwrap();
    };
    let wanted = async |after| {
        let files = store.files_to_fetch(wiki, after, 10).await.unwrap();
        files
            .into_iter()
            .map(|listed| (listed.id, listed.file.at.as_micros() / 1_000_000))
            .collect::<Vec<_>>()
    };
    let hidden = WikiFile { sha1: None, url: None, ..file("File:B.png", 3, "") };
    keep(vec![file("File:A.png", 5, "aa"), file("File:A.png", 10, "ab"), hidden]).await;
    let [(first, 5), (second, 10)] = wanted(0).await[..] else { panic!() };
    store.settle_file(tenure, first, None).await.unwrap();
    store.settle_file(tenure, second, Some("gone".to_owned())).await.unwrap();
    assert_eq!((wanted(0).await, wanted(second).await), (vec![(second, 10)], vec![]));
    let listed = store.wiki_files(wiki, 0, 10).await.unwrap();
    assert_eq!((listed[0].kept, listed[1].problem.as_deref()), (true, Some("gone")));
    assert_eq!((listed[0].deleted, listed[2].deleted), (false, true), "B has no page");
    assert_eq!(listed[0].file, file("File:A.png", 5, "aa"));
    assert_eq!(store.tally_files(wiki).await.unwrap(), FileTally { files: 2, kept: 1, bytes: 10 });
    // The same again, hidden meanwhile: still stored. Different content: fetched again.
    keep(vec![WikiFile { sha1: None, url: None, ..file("File:A.png", 5, "aa") }]).await;
    assert_eq!(store.tally_files(wiki).await.unwrap().kept, 1);
    keep(vec![file("File:A.png", 5, "ac")]).await;
    assert_eq!(wanted(0).await, [(first, 5), (second, 10)]);
}

pub(crate) async fn wikis_are_listed(backend: &dyn Backend) {
    let (store, now) = (backend.store().await, Timestamp::from_secs(1));
    assert_eq!(store.list_wikis().await.unwrap(), []);
    let one = store.register("one".to_owned(), now).await.unwrap();
    let WikiClaim::Ours(wiki, tenure) = store.claim_wiki(API.to_owned(), Some(one), now).await.unwrap()
    else {
        panic!("nobody else claims it")
    };
    store.claim_wiki("https://other.example/api.php".to_owned(), None, now).await.unwrap();
    let progress = json!({ "round": 1 });
    store.keep_wiki(tenure, Batch { progress, ..Batch::default() }).await.unwrap();
    let listed = store.list_wikis().await.unwrap();
    let shown: Vec<_> = listed.iter().map(|listed| (listed.wiki.api.as_str(), listed.worked_on)).collect();
    assert_eq!(shown, [(API, true), ("https://other.example/api.php", false)]);
    assert_eq!((listed[0].wiki.id, &listed[0].wiki.progress), (wiki.id, &json!({ "round": 1 })));
    store.deregister(one, now).await.unwrap();
    assert!(!store.list_wikis().await.unwrap()[0].worked_on);
}
