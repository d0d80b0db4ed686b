//! What a source says about an item besides its link, title and date: text, author, categories, enclosures.
//!
//! Stored apart from the items, so that listing items stays fast. Whoever reads the source decides how much to keep;
//! the names of truncated fields are kept.

use crate::Reply;
use crate::items::ItemId;

/// What a source says about an item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// A short summary.
    pub summary: Option<Passage>,
    /// The full content.
    pub content: Option<Passage>,
    /// The author.
    pub author: Option<String>,
    /// The item's categories.
    pub categories: Vec<String>,
    /// Files attached to the item, such as audio or pictures.
    pub enclosures: Vec<Enclosure>,
    /// The fields that were truncated because they were too long or had too many entries, such as `content`.
    pub truncated: Vec<String>,
}

/// A text as the source wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The text.
    pub text: String,
    /// The format of the text.
    pub markup: Markup,
}

/// The format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// Plain text.
    Text,
    /// HTML, not sanitized.
    Html,
}

/// A file attached to an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enclosure {
    /// The file's URL.
    pub url: String,
    /// The media type the source states, such as `audio/mpeg`.
    pub media_type: Option<String>,
    /// The size in bytes the source states.
    pub length: Option<u64>,
}

/// Storage of item details. They are written together with the items by
/// [`SourceStore::keep_items`](crate::sources::SourceStore::keep_items), and deleted with them.
pub trait DetailStore {
    /// The details of each of these items, in the order given; empty for items without any. Ask for a few items at a
    /// time: the details of one may take a mebibyte.
    fn find_details(&self, items: Vec<ItemId>) -> Reply<'_, Vec<Details>>;
}

impl Details {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The approximate size in bytes.
    pub fn size(&self) -> usize {
        let passage = |passage: &Option<Passage>| passage.as_ref().map_or(0, |passage| passage.text.len());
        let kind = |file: &Enclosure| file.url.len() + file.media_type.as_ref().map_or(0, String::len);
        passage(&self.summary)
            + passage(&self.content)
            + self.author.as_ref().map_or(0, String::len)
            + self.categories.iter().map(String::len).sum::<usize>()
            + self.enclosures.iter().map(kind).sum::<usize>()
    }
}

impl Markup {
    /// The name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Html => "html",
        }
    }
}
