//! What a source said about an item beside its link, title and date: its text, its author, its categories, its files.
//!
//! Kept beside the items, so that listing them stays fast. How much of it is kept is decided by whoever reads the source;
//! what was cut is named.

use crate::Reply;
use crate::items::ItemId;

/// What a source said about an item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// What it is about, in short.
    pub summary: Option<Passage>,
    /// All of it.
    pub content: Option<Passage>,
    /// Who wrote it.
    pub author: Option<String>,
    /// What it is filed under.
    pub categories: Vec<String>,
    /// Files that belong to it: sound, pictures.
    pub enclosures: Vec<Enclosure>,
    /// The fields that were cut because they were too long or too many, such as `content`.
    pub truncated: Vec<String>,
}

/// A text as the source wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The text.
    pub text: String,
    /// How it is written.
    pub markup: Markup,
}

/// How a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// As it is to be read.
    Text,
    /// As HTML, which nobody has checked.
    Html,
}

/// A file that belongs to an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enclosure {
    /// Where it is.
    pub url: String,
    /// What the source says it is, such as `audio/mpeg`.
    pub media_type: Option<String>,
    /// How many bytes the source says it has.
    pub length: Option<u64>,
}

/// What sources said about items. It is written with the items, by
/// [`SourceStore::keep_items`](crate::sources::SourceStore::keep_items), and goes with them.
pub trait DetailStore {
    /// What is kept about each of these items, in the order given; nothing where nothing is. Whoever asks for many asks
    /// for a few at a time: one of them may have a mebibyte.
    fn find_details(&self, items: Vec<ItemId>) -> Reply<'_, Vec<Details>>;
}

impl Details {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// About how many bytes it takes.
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
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Html => "html",
        }
    }
}
