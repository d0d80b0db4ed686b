//! The responses of the API, as far as they are used (`formatversion=2`).

use std::collections::BTreeMap;

use comity_core::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Any response.
#[derive(Debug, Deserialize)]
pub(super) struct Envelope<T> {
    pub(super) error: Option<ErrorResponse>,
    #[serde(default)]
    pub(super) warnings: Map<String, Value>,
    #[serde(rename = "continue", default)]
    pub(super) rest: Map<String, Value>,
    pub(super) curtimestamp: Option<String>,
    pub(super) query: Option<T>,
    pub(super) login: Option<Value>,
    /// Whether the batch is complete. In an empty response, this is the only field.
    pub(super) batchcomplete: Option<Value>,
}

/// An error returned by the API.
#[derive(Debug, Deserialize)]
pub(super) struct ErrorResponse {
    pub(super) code: String,
    #[serde(default)]
    pub(super) info: String,
}

/// A successful response.
#[derive(Debug)]
pub(super) struct QueryResponse<T> {
    pub(super) query: T,
    /// The parameters that continue the list; `None` at the end.
    pub(super) rest: Option<Continuation>,
    /// The time on the wiki's clock.
    pub(super) at: Option<Timestamp>,
    /// The result of a login.
    pub(super) login: Option<Value>,
}

/// `meta=tokens`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Tokens {
    #[serde(default)]
    pub(super) tokens: LoginToken,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct LoginToken {
    #[serde(default)]
    pub(super) logintoken: String,
}

/// The parameters that continue a list, which are sent back unchanged.
pub(super) type Continuation = BTreeMap<String, String>;

/// `meta=siteinfo|userinfo`, and the oldest change that is still listed.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Site {
    #[serde(default)]
    pub(super) general: Map<String, Value>,
    #[serde(default)]
    pub(super) namespaces: BTreeMap<String, Namespace>,
    #[serde(default)]
    pub(super) statistics: Map<String, Value>,
    pub(super) userinfo: Option<User>,
    #[serde(default)]
    pub(super) recentchanges: Vec<Change>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Namespace {
    pub(super) id: i64,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) content: bool,
    /// All other fields.
    #[serde(flatten)]
    pub(super) more: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct User {
    #[serde(default)]
    pub(super) rights: Vec<String>,
}

/// Pages, from a list or a lookup.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Pages {
    #[serde(default)]
    pub(super) pages: Vec<Page>,
}

/// `list=allrevisions`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct AllRevisions {
    /// `None` if the wiki does not support this list.
    pub(super) allrevisions: Option<Vec<Page>>,
}

/// `prop=imageinfo`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Uploads {
    #[serde(default)]
    pub(super) pages: Vec<Upload>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Upload {
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) imageinfo: Vec<Version>,
}

/// A version of a file. Hidden fields are missing.
#[derive(Debug, Deserialize)]
pub(super) struct Version {
    pub(super) timestamp: Option<String>,
    pub(super) user: Option<String>,
    pub(super) comment: Option<String>,
    #[serde(default)]
    pub(super) size: u64,
    pub(super) sha1: Option<String>,
    pub(super) mime: Option<String>,
    pub(super) url: Option<String>,
    pub(super) archivename: Option<String>,
}

/// `list=recentchanges`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Changes {
    #[serde(default)]
    pub(super) recentchanges: Vec<Change>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) pageid: i64,
    #[serde(default)]
    pub(super) ns: i64,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) missing: bool,
    #[serde(default)]
    pub(super) invalid: bool,
    pub(super) contentmodel: Option<String>,
    pub(super) lastrevid: Option<i64>,
    #[serde(default)]
    pub(super) redirect: bool,
    #[serde(default)]
    pub(super) revisions: Vec<Revision>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Revision {
    pub(super) revid: i64,
    #[serde(default)]
    pub(super) parentid: i64,
    #[serde(default)]
    pub(super) minor: bool,
    pub(super) user: Option<String>,
    #[serde(default)]
    pub(super) userid: i64,
    #[serde(default)]
    pub(super) userhidden: bool,
    #[serde(default)]
    pub(super) timestamp: String,
    #[serde(default)]
    pub(super) size: u64,
    pub(super) sha1: Option<String>,
    pub(super) comment: Option<String>,
    #[serde(default)]
    pub(super) commenthidden: bool,
    #[serde(default)]
    pub(super) suppressed: bool,
    #[serde(default)]
    pub(super) tags: Vec<String>,
    /// Its content by role, since MediaWiki 1.32.
    #[serde(default)]
    pub(super) slots: Map<String, Value>,
    /// Its only content, before MediaWiki 1.32.
    #[serde(flatten)]
    pub(super) only: Slot,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Slot {
    pub(super) sha1: Option<String>,
    pub(super) contentmodel: Option<String>,
    pub(super) contentformat: Option<String>,
    pub(super) content: Option<String>,
    #[serde(default)]
    pub(super) texthidden: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Change {
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) ns: i64,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) pageid: i64,
    #[serde(default)]
    pub(super) revid: i64,
    pub(super) timestamp: String,
    #[serde(default)]
    pub(super) logid: i64,
    pub(super) logtype: Option<String>,
    pub(super) logaction: Option<String>,
    #[serde(default)]
    pub(super) logparams: Value,
}

/// `list=logevents`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Logs {
    #[serde(default)]
    pub(super) logevents: Vec<LogEvent>,
}

/// Like a [`Change`] of the kind `log`, with different field names.
#[derive(Debug, Deserialize)]
pub(super) struct LogEvent {
    #[serde(default)]
    ns: i64,
    #[serde(default)]
    title: String,
    timestamp: String,
    #[serde(default)]
    pub(super) logid: i64,
    #[serde(rename = "type")]
    logtype: Option<String>,
    action: Option<String>,
    #[serde(default)]
    params: Value,
}

impl From<LogEvent> for Change {
    fn from(event: LogEvent) -> Self {
        let LogEvent { ns, title, timestamp, logid, logtype, action, params } = event;
        let (kind, logaction, logparams) = ("log".to_owned(), action, params);
        Self { kind, ns, title, pageid: 0, revid: 0, timestamp, logid, logtype, logaction, logparams }
    }
}
