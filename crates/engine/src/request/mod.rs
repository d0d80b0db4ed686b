//! Request options per job and per site: headers, cookies, credentials, user agent, timeouts, proxy.
//!
//! `Requests::prepare` is the only place that decides which requests get a credential:
//!
//! - Credentials of a job are sent to the origins that the operator listed in the job.
//! - Credentials of a site are sent to that host only.
//! - Neither are sent after a downgrade from https to http, or to other hosts that a redirect or feed leads to.
//!
//! Modules in reading order: `template` (references to secrets), `header`, `site` and `job` (what can be set),
//! `cookie`, `cookie_date`, `netscape` and `jar` (cookies), `prepare` (resolves and merges all of it).

mod cookie;
mod cookie_date;
pub mod header;
mod jar;
mod job;
mod netscape;
mod prepare;
mod site;
mod template;

pub use job::{JobRequest, RequestFlags};
pub use prepare::{RequestError, Requests};
pub use site::{Auth, RequestTable, Scheme, SecretSource, SiteRequest};
pub(crate) use template::is_name;
pub use template::{Env, Template, TemplateError};

/// Which credentials a request may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The operator listed its origin: it gets the credentials of the job and of its site.
    Listed,
    /// A redirect or link led there: it gets the credentials of its site, and only over https.
    Remote,
    /// Another program wrote it: it gets nothing of ours.
    Relayed,
    /// A request for robots.txt: it gets no credentials, unless its site is configured with `robots_credentials`.
    Robots(RobotsLead),
}

/// Whether the operator listed the site of a robots.txt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RobotsLead {
    /// The operator listed it.
    Listed,
    /// A redirect or link led there.
    Remote,
}
