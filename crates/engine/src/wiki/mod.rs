//! MediaWiki wikis: a paced API client, and archives with the complete history.
//!
//! - [`api`]: sends one request at a time, paced, and interprets errors; `responses`: the format of responses;
//!   `loop_detector`: detects lists that never end
//! - [`archive`]: archives everything in rounds (`round`); `changes`: updates an archive; `content`: compresses text;
//!   [`files`]: uploaded files; `progress`: how far an archive is; `site`: site information
//! - [`mod@estimate`]: how long an archive would take
//! - [`export`]: writes a dump that MediaWiki can import
//!
//! Each response is stored in one transaction together with the progress, so that an archive resumes where it was after
//! a kill.

pub mod api;
pub mod archive;
mod changes;
mod content;
pub mod error;
pub mod estimate;
pub mod export;
pub mod files;
mod loop_detector;
pub mod progress;
mod responses;
mod round;
mod site;

pub use api::{Api, Assert, Login};
pub use archive::{Archive, Summary};
pub use error::{Code, WikiError};
pub use loop_detector::LoopDetector;
pub use progress::{Progress, Strategy};
