//! Archived wikis: their pages, all revisions, and the progress of each archive.
//!
//! The content of a response and the progress it makes are saved in one transaction ([`WikiStore::keep_wiki`]), so
//! after a crash an archive resumes where it was and has nothing twice. The meaning of the progress is known to the
//! archiver only: the store saves it as it is.

use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::HolderId;

/// The id of a wiki.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WikiId(pub i64);

/// A wiki as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Wiki {
    /// The wiki's id.
    pub id: WikiId,
    /// The URL of its API.
    pub api: String,
    /// What the wiki says about itself; null before it was asked.
    pub site: Value,
    /// The progress of its archive; null before it started.
    pub progress: Value,
}

/// A page of a wiki.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WikiPage {
    /// The page's id in the wiki.
    pub id: i64,
    /// The id of its namespace.
    pub namespace: i64,
    /// The title, including the name of the namespace.
    pub title: String,
    /// The content model, such as `wikitext`.
    pub model: String,
    /// Whether it redirects to another page.
    pub redirect: bool,
    /// The id of its newest revision.
    pub newest: i64,
    /// Whether it was deleted from the wiki. What was archived of it stays.
    pub deleted: bool,
    /// Whether its history was fetched completely.
    pub whole: bool,
}

/// A revision of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The revision's id in the wiki.
    pub id: i64,
    /// The id of its page.
    pub page: i64,
    /// The id of the revision before it; 0 for the first one.
    pub parent: i64,
    /// When it was made.
    pub at: Timestamp,
    /// Who made it; `None` if hidden.
    pub user: Option<String>,
    /// The user's id; 0 for an IP address.
    pub user_id: i64,
    /// The edit summary; `None` if hidden.
    pub comment: Option<String>,
    /// The wiki's SHA-1 of all its content, in hexadecimal; `None` if hidden.
    pub sha1: Option<String>,
    /// The size of its content in bytes.
    pub size: u64,
    /// Whether it is marked as a minor edit.
    pub minor: bool,
    /// What the wiki hides.
    pub hidden: Hidden,
    /// The tags, as the wiki wrote them.
    pub tags: Vec<String>,
    /// The content by role; the first slot is `main`.
    pub slots: Vec<Slot>,
}

/// What a wiki hides of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hidden {
    /// The content.
    pub text: bool,
    /// The user.
    pub user: bool,
    /// The edit summary.
    pub comment: bool,
    /// Hidden from administrators too.
    pub suppressed: bool,
}

/// A content slot of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The role, usually `main`.
    pub role: String,
    /// The content model, such as `wikitext`.
    pub model: String,
    /// The content format, such as `text/x-wiki`.
    pub format: String,
    /// The content; `None` if the wiki did not provide it.
    pub content: Option<Content>,
}

/// Content, possibly compressed. Content with the same SHA-1 is stored once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The SHA-1 of the uncompressed content.
    pub sha1: [u8; 20],
    /// The uncompressed size in bytes.
    pub size: u64,
    /// How `bytes` is compressed.
    pub compression: Compression,
    /// The bytes as stored.
    pub bytes: Vec<u8>,
}

/// How content is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    Plain,
    /// Zstandard.
    Zstd,
}

/// The content of one or more responses, to be saved in one transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Pages as they are now. A page whose history is complete stays complete, unless it had been deleted.
    pub pages: Vec<WikiPage>,
    /// Pages mentioned in a response that did not ask for them; saved only if they are new. They may not be all there
    /// are.
    pub mentioned: Vec<WikiPage>,
    /// Titles that have no page any more.
    pub missing: Vec<String>,
    /// Pages that moved to a namespace that is not archived.
    pub moved_away: Vec<i64>,
    /// Whether any other page stored under the title of one of `pages` is gone.
    pub titles_are_exclusive: bool,
    /// Pages whose history differs from what is stored; it has to be fetched again completely.
    pub history_changed: Vec<i64>,
    /// File versions, as they are now.
    pub files: Vec<WikiFile>,
    /// Revisions. The fields of known ones are updated, but content that was saved stays.
    pub revisions: Vec<Revision>,
    /// The current round of listing pages. Pages seen in it are known to exist.
    pub round: i64,
    /// Namespaces that were listed to the end: their pages that were not seen in this round are gone.
    pub fully_listed: Vec<i64>,
    /// Which pages of this round have their complete history with this batch, provided their newest revision is stored.
    pub completed: CompletedPages,
    /// What the wiki says about itself, if it was asked.
    pub site: Option<Value>,
    /// The progress of the archive, including this batch.
    pub progress: Value,
}

/// A version of an uploaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WikiFile {
    /// The title of its page, including the name of the namespace.
    pub title: String,
    /// When it was uploaded.
    pub at: Timestamp,
    /// Its SHA-1 in hexadecimal; `None` if the wiki does not show it.
    pub sha1: Option<String>,
    /// The size in bytes.
    pub size: u64,
    /// The MIME type, such as `image/png`.
    pub mime: String,
    /// The URL; `None` if the wiki does not show it.
    pub url: Option<String>,
    /// Who uploaded it; `None` if hidden.
    pub user: Option<String>,
    /// The upload comment; `None` if hidden.
    pub comment: Option<String>,
    /// Whether a newer version replaced it.
    pub superseded: bool,
}

/// A file version, and whether it was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Its id in the store.
    pub id: i64,
    /// What the wiki says about it.
    pub file: WikiFile,
    /// Whether it was fetched.
    pub kept: bool,
    /// Why the last attempt to fetch it failed.
    pub problem: Option<String>,
    /// Whether its page was deleted from the wiki.
    pub deleted: bool,
}

/// Counts of a wiki's file versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileTally {
    /// File versions that were fetched or that the wiki still offers.
    pub files: u64,
    /// File versions that were fetched.
    pub kept: u64,
    /// The size of the fetched ones in bytes.
    pub bytes: u64,
}

/// The right to add to the archive of a wiki. It is valid until somebody else claims the wiki or the holder is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WikiTenure {
    /// The wiki.
    pub wiki: WikiId,
    /// The process that archives it, if it is registered.
    pub holder: Option<HolderId>,
    /// Which claim of the wiki this is.
    pub epoch: i64,
}

/// Whether a wiki may be archived.
#[derive(Debug, Clone, PartialEq)]
pub enum WikiClaim {
    /// It may. The wiki as it is now, and the right to add to its archive.
    Ours(Wiki, WikiTenure),
    /// Another process is archiving it.
    Taken,
}

/// Which pages have their complete history, because all their revisions were fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CompletedPages {
    /// No more than before.
    #[default]
    None,
    /// Pages whose first revision is stored; the later ones were fetched.
    WithFirstRevision,
    /// All pages.
    All,
}

/// What a batch changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchChanges {
    /// Pages that are new.
    pub pages: u64,
    /// Pages whose title changed.
    pub moved: u64,
    /// Pages that had been deleted and are back.
    pub restored: u64,
    /// Pages that are gone.
    pub deleted: u64,
    /// Revisions that are new.
    pub revisions: u64,
    /// Revisions whose text the wiki did not provide, although it is not hidden.
    pub textless: u64,
}

impl std::ops::AddAssign for BatchChanges {
    fn add_assign(&mut self, more: Self) {
        let Self { pages, moved, restored, deleted, revisions, textless } = more;
        self.pages += pages;
        self.moved += moved;
        self.restored += restored;
        self.deleted += deleted;
        self.revisions += revisions;
        self.textless += textless;
    }
}

/// Counts of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceTally {
    /// The id of the namespace.
    pub namespace: i64,
    /// Pages that exist in the wiki.
    pub pages: u64,
    /// Existing pages that are redirects.
    pub redirects: u64,
    /// Pages that were deleted from the wiki.
    pub deleted: u64,
    /// Revisions of all these pages.
    pub revisions: u64,
    /// Pages whose history is incomplete.
    pub lacking: u64,
}

/// Counts of the content that was first stored for this wiki.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContentTally {
    /// Distinct pieces of content.
    pub pieces: u64,
    /// Their uncompressed size in bytes.
    pub bytes: u64,
    /// Their compressed size in bytes.
    pub packed: u64,
}

/// A wiki in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedWiki {
    /// The wiki.
    pub wiki: Wiki,
    /// What was stored for it.
    pub content: ContentTally,
    /// Whether a process that was alive at last check is archiving it.
    pub worked_on: bool,
}

/// Storage of wiki archives.
pub trait WikiStore {
    /// Claims the wiki with this API for `holder`, creating it if needed. Nobody else can claim it while the holder
    /// lives. Without a holder, the next process to claim it gets it.
    fn claim_wiki(&self, api: String, holder: Option<HolderId>, now: Timestamp) -> Reply<'_, WikiClaim>;

    /// The wiki with this API.
    fn find_wiki(&self, api: String) -> Reply<'_, Option<Wiki>>;

    /// All wikis, in the order they were added. A wiki whose row cannot be read is left out.
    fn list_wikis(&self) -> Reply<'_, Vec<ListedWiki>>;

    /// Saves the content of responses together with the progress, all or nothing.
    /// [`StoreError::Lost`](crate::StoreError::Lost) if the claim is no longer valid.
    fn keep_wiki(&self, tenure: WikiTenure, batch: Batch) -> Reply<'_, BatchChanges>;

    /// Pages after `after` with an incomplete history, by id: it was not fetched completely or has changed, the newest
    /// revision is missing, or the parent of a later revision is missing.
    fn lacking_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>>;

    /// Those of `revisions` that are not stored.
    fn unknown_revisions(&self, wiki: WikiId, revisions: Vec<i64>) -> Reply<'_, Vec<i64>>;

    /// The newest revision of each of `pages` that exists, as (page, revision) pairs.
    fn newest_of(&self, wiki: WikiId, pages: Vec<i64>) -> Reply<'_, Vec<(i64, i64)>>;

    /// Pages after `after`, by id.
    fn wiki_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>>;

    /// Revisions of a page after `after`, by id, with their content: as many as fit in about `bytes` compressed, and at
    /// least one.
    fn page_history(&self, wiki: WikiId, page: i64, after: i64, bytes: u64) -> Reply<'_, Vec<Revision>>;

    /// File versions after `after` that were not fetched yet and can be, by id. Those whose page was deleted are left
    /// out.
    fn files_to_fetch(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>>;

    /// Records that a file version was fetched, or what went wrong. [`StoreError::Lost`](crate::StoreError::Lost) if
    /// the claim is no longer valid.
    fn settle_file(&self, tenure: WikiTenure, file: i64, problem: Option<String>) -> Reply<'_, ()>;

    /// File versions after `after`, by id.
    fn wiki_files(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>>;

    /// Counts the file versions.
    fn tally_files(&self, wiki: WikiId) -> Reply<'_, FileTally>;

    /// The number of revisions stored.
    fn count_revisions(&self, wiki: WikiId) -> Reply<'_, u64>;

    /// Counts what is stored, per namespace and for content.
    fn tally_wiki(&self, wiki: WikiId) -> Reply<'_, (Vec<NamespaceTally>, ContentTally)>;
}
