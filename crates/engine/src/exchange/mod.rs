//! Lists of sources that people bring and take away: OPML of feed readers, CSV of spreadsheets, lines of URLs.
//!
//! A list is read as far as it can be read: what is wrong with a row is a [`Problem`] with its line, and the rest
//! is there. Only what is no list at all is a [`ReadError`]. Nothing here opens a file, adds a source to a store,
//! or judges a cadence; what a list says about those is handed on as it was written.

mod csv;
mod form;
mod gather;
mod list;
mod opml;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use comity_store::sources::Kind;
use comity_store::tasks::Lead;

pub use form::Form;
pub use gather::address;
pub use write::{Listed, write_opml};

/// One source of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// An http or https URL as the `url` crate writes it, without its fragment. A user and password in it stay.
    pub url: String,
    /// What the list calls it, on one line and without control characters.
    pub name: Option<String>,
    /// What it is, if the list says so.
    pub kind: Option<Kind>,
    /// Who led to it: the operator whose list this is, or whom an OPML of ours says (B76).
    pub lead: Lead,
    /// The page that a feed belongs to: an http or https URL without user and password.
    pub html_url: Option<String>,
    /// The folders it is in, the outermost first; none of them is empty.
    pub folder: Vec<Arc<str>>,
    /// How often it is worth asking, as it was written: `8h`.
    pub cadence: Option<String>,
    /// The least time between two scrapes, as it was written.
    pub min_interval: Option<String>,
    /// The line on which it starts, counted from one.
    pub line: u64,
}

/// What a list came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Read {
    /// Each URL once, in the order of the list; the first of several wins.
    pub entries: Vec<Entry>,
    /// What could not be read, in the order of lines; of very many only the first ones and how many more.
    pub problems: Vec<Problem>,
    /// How many rows named a URL that an earlier row had named.
    pub repeated: u64,
}

/// Something in a list that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands, counted from one.
    pub line: u64,
    /// What is wrong there; a URL in it is without user, password and query.
    pub what: String,
}

/// What is no list of sources; reading it again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is longer than [`BYTES_MAX`].
    #[error("the list has {bytes} bytes: at most {BYTES_MAX} are read, split it into several")]
    TooLarge {
        /// How long it is.
        bytes: usize,
    },
    /// XML of another kind, or no XML.
    #[error(
        "the list starts with {found}: expected <opml>; a feed or page is not a list, add its URL instead"
    )]
    NotOpml {
        /// What stands in the place of `<opml>`.
        found: String,
    },
    /// A table whose header names no column `url`.
    #[error("the columns are {columns}: expected one that is called url")]
    NoUrlColumn {
        /// The columns there are.
        columns: String,
    },
}

/// Reads a list; without a `form` its content tells which one it has.
pub fn read(bytes: &[u8], form: Option<Form>) -> Result<Read, ReadError> {
    if bytes.len() > BYTES_MAX {
        return Err(ReadError::TooLarge { bytes: bytes.len() });
    }
    let (text, problem) = text::decode(bytes);
    let mut gather = gather::Gather::default();
    if let Some(what) = problem {
        gather.problem(1, what);
    }
    match form.unwrap_or_else(|| Form::of(&text)) {
        Form::Opml => opml::read(&text, &mut gather)?,
        Form::Csv => csv::read(&text, &mut gather)?,
        Form::List => list::read(&text, &mut gather),
    }
    Ok(gather.finish())
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// How deep folders go; what is deeper belongs to the innermost of these.
pub const FOLDERS_MAX: usize = 16;
/// The longest list that is read, 64 MiB.
pub const BYTES_MAX: usize = 64 << 20;
