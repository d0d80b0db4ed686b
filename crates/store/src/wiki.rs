//! Wikis that are archived: their pages, every revision of these, and how far an archive got.
//!
//! What an answer brought and how far the archive is with it are kept in one transaction ([`WikiStore::keep_wiki`]):
//! whatever happens, it goes on where it was, and has nothing twice (B69). How far that is, is the archive's own
//! business: the store keeps it as it is.

use comity_core::time::Timestamp;
use serde_json::Value;

use crate::Reply;
use crate::domains::HolderId;

/// The number of a wiki.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WikiId(pub i64);

/// A wiki as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wiki {
    /// Its number.
    pub id: WikiId,
    /// Where its API is.
    pub api: String,
    /// What it says of itself; null before it was asked.
    pub site: Value,
    /// How far its archive is; null before it began.
    pub progress: Value,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WikiPage {
    /// Its number in the wiki.
    pub id: i64,
    /// The number of its namespace.
    pub namespace: i64,
    /// Its title, with the name of the namespace.
    pub title: String,
    /// What its text is, such as `wikitext`.
    pub model: String,
    /// Whether it leads to another page.
    pub redirect: bool,
    /// The number of its newest revision.
    pub newest: i64,
    /// Whether it was deleted from the wiki; what is known of it stays.
    pub deleted: bool,
    /// Whether its history was fetched to its end.
    pub whole: bool,
}

/// A revision of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Its number in the wiki.
    pub id: i64,
    /// Of which page.
    pub page: i64,
    /// The one before it; 0 when it is the first.
    pub parent: i64,
    /// When it was made.
    pub at: Timestamp,
    /// Who made it; `None` when that is hidden.
    pub user: Option<String>,
    /// The number of whoever made it; 0 for an address.
    pub user_id: i64,
    /// What was said of it; `None` when that is hidden.
    pub comment: Option<String>,
    /// The wiki's SHA-1 of all its content, in hexadecimal; `None` when that is hidden.
    pub sha1: Option<String>,
    /// Bytes of its content.
    pub size: u64,
    /// Whether it was called minor.
    pub minor: bool,
    /// What the wiki does not show.
    pub hidden: Hidden,
    /// Tags, as the wiki wrote them.
    pub tags: Vec<String>,
    /// Its content, by role; the first is `main`.
    pub slots: Vec<Slot>,
}

/// What a wiki does not show of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hidden {
    /// The content.
    pub text: bool,
    /// Who made it.
    pub user: bool,
    /// What was said of it.
    pub comment: bool,
    /// All that, from administrators too.
    pub suppressed: bool,
}

/// A piece of content of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// What it is for: `main`, mostly.
    pub role: String,
    /// What it is, such as `wikitext`.
    pub model: String,
    /// How it is written, such as `text/x-wiki`.
    pub format: String,
    /// The content; `None` when the wiki did not give it.
    pub content: Option<Content>,
}

/// Content, packed. Whatever has the same SHA-1 is kept once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The SHA-1 of the content as it is.
    pub sha1: [u8; 20],
    /// Its bytes.
    pub size: u64,
    /// How it is packed.
    pub packing: Packing,
    /// The packed bytes.
    pub bytes: Vec<u8>,
}

/// How content is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As it is.
    Plain,
    /// By Zstandard.
    Zstd,
}

/// What answers brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Pages as they are now. One whose history is known as a whole stays so, unless it was gone meanwhile.
    pub pages: Vec<WikiPage>,
    /// Pages that came up beside what was asked for: kept if they are new. Nothing says that all of them was seen.
    pub sighted: Vec<WikiPage>,
    /// Titles at which there is no page any more.
    pub missing: Vec<String>,
    /// Pages that are elsewhere now, where nothing is archived.
    pub left: Vec<i64>,
    /// Whether whoever else had the title of one of `pages` is gone.
    pub titles_are_theirs: bool,
    /// Pages whose past is another than what is kept of it: their history has to be fetched again as a whole.
    pub reworked: Vec<i64>,
    /// Versions of files, as they are now.
    pub files: Vec<WikiFile>,
    /// Revisions; those that are there already are as these say from now on, but what was kept of their content stays.
    pub revisions: Vec<Revision>,
    /// The round in which pages are looked through; those seen in it are known to be there.
    pub round: i64,
    /// Namespaces that were looked through to their end: what was not seen in this round is gone.
    pub looked_through: Vec<i64>,
    /// Which pages of this round are whole with it, if their newest revision is there.
    pub walked: Walked,
    /// What the wiki says of itself, when it was asked.
    pub site: Option<Value>,
    /// How far the archive is with all this.
    pub progress: Value,
}

/// A version of a file that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WikiFile {
    /// The title of its page, with the name of the namespace.
    pub title: String,
    /// When it was uploaded.
    pub at: Timestamp,
    /// Its SHA-1 in hexadecimal; `None` when the wiki does not show it.
    pub sha1: Option<String>,
    /// Its bytes.
    pub size: u64,
    /// What it is, such as `image/png`.
    pub mime: String,
    /// Where it is; `None` when the wiki does not show it.
    pub url: Option<String>,
    /// Who uploaded it; `None` when that is hidden.
    pub user: Option<String>,
    /// What was said of it; `None` when that is hidden.
    pub comment: Option<String>,
    /// Whether a newer version took its place.
    pub superseded: bool,
}

/// A version of a file, and what became of it here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Its number in the store.
    pub id: i64,
    /// What the wiki says of it.
    pub file: WikiFile,
    /// Whether it was fetched.
    pub kept: bool,
    /// Why it was not, when that was tried.
    pub problem: Option<String>,
    /// Whether its page was deleted from the wiki.
    pub deleted: bool,
}

/// What is known of the files of a wiki.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileTally {
    /// Versions of files that are kept or that the wiki shows.
    pub files: u64,
    /// Those that were fetched,
    pub kept: u64,
    /// and their bytes.
    pub bytes: u64,
}

/// The right to add to the archive of a wiki: valid until somebody else claims it, or its holder is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WikiHold {
    /// Which wiki.
    pub wiki: WikiId,
    /// Who archives it, if that is a holder.
    pub holder: Option<HolderId>,
    /// Which claim of it.
    pub epoch: i64,
}

/// Whether a wiki may be archived.
#[derive(Debug, Clone, PartialEq)]
pub enum WikiClaim {
    /// It may; this is what is known of it now, and the right to add to it.
    Ours(Wiki, WikiHold),
    /// Another process archives it.
    Taken,
}

/// Which pages are whole, because revisions of all of them were fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Walked {
    /// None more than before.
    #[default]
    None,
    /// Those whose first revision is there: the later ones were fetched.
    SinceTheirFirst,
    /// All.
    All,
}

/// What of a batch was new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Pages that were not there before.
    pub pages: u64,
    /// Pages whose title is another than before.
    pub moved: u64,
    /// Pages that were gone and are back.
    pub restored: u64,
    /// Pages that are gone.
    pub deleted: u64,
    /// Revisions that were not there before.
    pub revisions: u64,
    /// Revisions whose text the wiki did not give, although it is not hidden.
    pub textless: u64,
}

impl std::ops::AddAssign for Kept {
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

/// What is kept of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceTally {
    /// Its number.
    pub namespace: i64,
    /// Pages that the wiki has.
    pub pages: u64,
    /// Of those, pages that lead to others.
    pub redirects: u64,
    /// Pages that it had.
    pub deleted: u64,
    /// Revisions of all of them.
    pub revisions: u64,
    /// Pages that lack something.
    pub lacking: u64,
}

/// What is kept of content that a wiki was the first to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContentTally {
    /// Different pieces.
    pub pieces: u64,
    /// Their bytes as they are,
    pub bytes: u64,
    /// and packed.
    pub packed: u64,
}

/// Archives of wikis.
pub trait WikiStore {
    /// `holder` is about to archive the wiki with this API, which is made when it is not there: nobody else does before
    /// it dies. Without a holder, whoever comes next takes it.
    fn claim_wiki(&self, api: String, holder: Option<HolderId>, now: Timestamp) -> Reply<'_, WikiClaim>;

    /// The wiki with this API.
    fn find_wiki(&self, api: String) -> Reply<'_, Option<Wiki>>;

    /// Keeps what answers brought, and how far the archive is with it: all of it or nothing. Whoever does not hold
    /// the wiki any more is [`StoreError::Lost`](crate::StoreError::Lost).
    fn keep_wiki(&self, hold: WikiHold, batch: Batch) -> Reply<'_, Kept>;

    /// Pages after `after` that lack something: they are not whole or their past changed, their newest revision is not
    /// there, or the parent of one that came later. In the order of their numbers.
    fn lacking_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>>;

    /// Those of `revisions` that are not there.
    fn unknown_revisions(&self, wiki: WikiId, revisions: Vec<i64>) -> Reply<'_, Vec<i64>>;

    /// The newest revisions of those of `pages` that are there, as pairs.
    fn newest_of(&self, wiki: WikiId, pages: Vec<i64>) -> Reply<'_, Vec<(i64, i64)>>;

    /// Pages after `after`, in the order of their numbers.
    fn wiki_pages(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<WikiPage>>;

    /// Revisions of a page after `after`, in the order of their numbers, with their content: as many as fit in about
    /// `bytes`, packed, and one at least.
    fn page_history(&self, wiki: WikiId, page: i64, after: i64, bytes: u64) -> Reply<'_, Vec<Revision>>;

    /// Versions of files after `after` that can be fetched and were not, in the order of their numbers. Those whose page
    /// was deleted are gone.
    fn files_to_fetch(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>>;

    /// A version of a file of that wiki was fetched, or there was a problem. Whoever does not hold the wiki any more is
    /// [`StoreError::Lost`](crate::StoreError::Lost).
    fn settle_file(&self, hold: WikiHold, file: i64, problem: Option<String>) -> Reply<'_, ()>;

    /// Versions of files after `after`, in the order of their numbers.
    fn wiki_files(&self, wiki: WikiId, after: i64, limit: u32) -> Reply<'_, Vec<ListedFile>>;

    /// What is known of files.
    fn tally_files(&self, wiki: WikiId) -> Reply<'_, FileTally>;

    /// How many revisions are there.
    fn count_revisions(&self, wiki: WikiId) -> Reply<'_, u64>;

    /// What is there, by namespace, and of content.
    fn tally_wiki(&self, wiki: WikiId) -> Reply<'_, (Vec<NamespaceTally>, ContentTally)>;
}
