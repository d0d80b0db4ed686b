//! MediaWiki wikis: asking their API politely, and archiving them with their whole history.
//!
//! - [`api`]: one request at a time, paced, with its errors by their code; `answers`: what comes back; `trail`: lists that
//!   never end
//! - [`archive`]: everything once, in rounds (`round`); `changes`: what is new since; `content`: text, packed;
//!   [`files`]: what was uploaded
//! - [`mod@estimate`]: how long it would take
//! - [`export`]: a dump that MediaWiki imports
//!
//! What an answer brought and how far the archive is with it are stored in one transaction, so that an archive that was
//! killed goes on where it was (B69).

mod answers;
pub mod api;
pub mod archive;
mod changes;
mod content;
pub mod error;
pub mod estimate;
pub mod export;
pub mod files;
pub mod progress;
mod round;
mod site;
mod trail;

pub use api::{Api, Assert, Login};
pub use archive::{Archive, Summary};
pub use error::{Code, WikiError};
pub use progress::{Progress, Way};
pub use trail::Trail;
