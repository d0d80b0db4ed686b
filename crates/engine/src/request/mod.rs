//! What requests are sent with: headers, cookies, credentials, user agent, timeouts, proxy; per job and per site.
//!
//! Who gets a credential is decided here, in one place (`Requests::prepare`):
//!
//! - one that was given for a job goes to the origins that the operator listed in that job,
//! - one of a site's section goes to that very host,
//! - neither goes down from https to http, nor to wherever else a redirect or a feed leads.
//!
//! Files in reading order: `text` (secrets by the name of where they come from), `header`, `site` and `job` (what can be
//! set), `cookie`, `cookie_date`, `netscape` and `jar` (cookies), `ready` (all of it looked up and merged).

mod cookie;
mod cookie_date;
pub mod header;
mod jar;
mod job;
mod netscape;
mod ready;
mod site;
mod text;

pub use job::{JobRequest, Typed};
pub use ready::{RequestError, Requests};
pub use site::{Auth, Place, RequestTable, Scheme, SiteRequest};
pub(crate) use text::is_name;
pub use text::{Env, Missing, Template};

/// How far the address of a request is trusted with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The operator listed its origin: it gets those of the job and of its site.
    Listed,
    /// Something led there: it gets those of its site, and over https only.
    Led,
    /// It is a robots.txt, asked for as freely as this: it gets none, unless the section of its site says so.
    Robots(Freely),
}

/// Whether the operator listed the site of a robots.txt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freely {
    /// Yes.
    Listed,
    /// Something led there.
    Led,
}
