//! The result of a URL as users see it: one row, the same in `index.jsonl`, in the output of `fetch --jsonl` and in
//! that of `jobs export`.
//!
//! Rows contain no secrets: no user names or passwords, and only the names of headers that carry credentials.

use comity_core::outcome::Outcome;
use comity_core::time::Span;
use comity_store::tasks::TaskView;
use http::HeaderMap;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::redact::{is_secret_header, without_user, without_user_info};

/// The result of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The requested URL, without user and password.
    pub url: String,
    /// The URL after redirects; the same as `url` if there were none.
    pub final_url: String,
    /// `done`, `failed`, `skipped` or `waiting`.
    pub state: String,
    /// The HTTP status of the last response.
    pub status: Option<u16>,
    /// The outcome of the last request: `success`, `unchanged` (304), `answered` (404, and other responses without a
    /// usable page that a retry doesn't change), `rate_limited`, `blocked`, `unavailable`, `server_error`, `timeout` or `network_error`; `None`
    /// if no request was sent.
    pub outcome: Option<&'static str>,
    /// Why it failed or was skipped.
    pub error: Option<String>,
    /// How many requests were sent, including redirects. If its site's robots.txt could not be fetched, the requests for
    /// that.
    pub attempts: u32,
    /// When the last request was sent.
    pub started_at: Option<String>,
    /// When the headers of the last response arrived.
    pub fetched_at: Option<String>,
    /// How long the last request took, including its body.
    pub elapsed_ms: Option<u64>,
    /// The `Content-Type` of the page. This and the next three are about the page as it was last fetched, also if a later
    /// fetch failed.
    pub content_type: Option<String>,
    /// The size of its body in bytes.
    pub bytes: Option<u64>,
    /// The SHA-256 of its body, in hexadecimal.
    pub sha256: Option<String>,
    /// The file that contains its body, relative to the job's output folder; its whole path if the job has changed that
    /// folder since.
    pub file: Option<String>,
    /// Whether the page is new, or has another body than when it was fetched before; `None` if it was not fetched.
    pub changed: Option<bool>,
    /// The headers of the last response, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
}

impl Row {
    /// The row of a task.
    pub fn of(task: &TaskView) -> Self {
        let facts = &*task.facts;
        let url = without_user(&task.url);
        Self {
            final_url: facts.final_url.as_deref().map_or_else(|| url.clone(), without_user),
            url,
            state: task.state.clone(),
            status: task.status,
            outcome: task.outcome.map(|outcome| outcome_name(outcome, task)),
            error: task.error.clone(),
            attempts: task.attempts,
            started_at: task.started_at.map(|at| at.to_string()),
            fetched_at: facts.fetched_at.map(|at| at.to_string()),
            elapsed_ms: task.took.map(Span::as_millis_up),
            content_type: task.content_type.clone(),
            bytes: task.bytes,
            sha256: facts.sha256.as_ref().map(|hash| hex(hash)),
            file: facts.file.clone(),
            changed: task.changed,
            headers: None,
        }
    }

    /// The row as one line of JSON, without a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("texts and numbers are JSON"))
    }

    /// The column names of a table of rows, in order. Headers have no column.
    pub const COLUMNS: [&str; 15] = [
        "url",
        "final_url",
        "state",
        "status",
        "outcome",
        "error",
        "attempts",
        "started_at",
        "fetched_at",
        "elapsed_ms",
        "content_type",
        "bytes",
        "sha256",
        "file",
        "changed",
    ];

    /// The cells of the row, in the order of [`Self::COLUMNS`]; missing values are empty.
    pub fn cells(&self) -> [String; 15] {
        fn or_empty(cell: Option<impl ToString>) -> String {
            cell.map(|cell| cell.to_string()).unwrap_or_default()
        }
        [
            self.url.clone(),
            self.final_url.clone(),
            self.state.clone(),
            or_empty(self.status),
            or_empty(self.outcome),
            or_empty(self.error.as_deref()),
            self.attempts.to_string(),
            or_empty(self.started_at.as_deref()),
            or_empty(self.fetched_at.as_deref()),
            or_empty(self.elapsed_ms),
            or_empty(self.content_type.as_deref()),
            or_empty(self.bytes),
            or_empty(self.sha256.as_deref()),
            or_empty(self.file.as_deref()),
            or_empty(self.changed),
        ]
    }
}

/// Response headers that are safe to show, by name; repeated ones are joined with `, `. Values that carry credentials
/// are redacted, and URLs lose their user and password.
pub fn shown_headers(headers: &HeaderMap) -> Map<String, Value> {
    let mut shown: Map<String, Value> = Map::new();
    for name in headers.keys() {
        let values = headers.get_all(name).iter().map(|value| match is_secret_header(name.as_str()) {
            true => REDACTED.to_owned(),
            false => String::from_utf8_lossy(&without_user_info(value.as_bytes())).into_owned(),
        });
        shown.insert(name.as_str().to_owned(), Value::String(values.collect::<Vec<_>>().join(", ")));
    }
    shown
}

fn outcome_name(outcome: Outcome, task: &TaskView) -> &'static str {
    match (outcome, task.state.as_str(), task.status) {
        // A redirect that led nowhere, for example: the site answered, but there is no page.
        (Outcome::Success, "failed" | "skipped", _) => Outcome::Answered.as_str(),
        (Outcome::Success, _, Some(304)) => "unchanged",
        _ => outcome.as_str(),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const REDACTED: &str = "(redacted)";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_core::task::TaskId;
    use comity_core::time::Timestamp;
    use comity_store::tasks::PageFacts;

    use super::*;

    fn task() -> TaskView {
        TaskView {
            id: TaskId(1),
            url: "http://alice:secret@a.example/?q=1".to_owned(),
            state: "done".to_owned(),
            status: Some(304),
            error: None,
            settled_at: None,
            attempts: 2,
            started_at: Some(Timestamp::from_secs(0)),
            took: Some(Span::from_micros(1_500)),
            outcome: Some(Outcome::Success),
            bytes: Some(3),
            content_type: Some("text/plain".to_owned()),
            changed: Some(false),
            facts: Arc::new(PageFacts {
                final_url: Some("http://bob:hidden@b.example/".to_owned()),
                sha256: Some([0xab; 32]),
                ..PageFacts::default()
            }),
        }
    }

    /// B75
    #[test]
    fn rows_contain_no_passwords() {
        let row = Row::of(&task());
        assert_eq!(
            (row.url.as_str(), row.final_url.as_str()),
            ("http://a.example/?q=1", "http://b.example/")
        );
        assert_eq!((row.outcome, row.elapsed_ms), (Some("unchanged"), Some(2)));
        let json = row.to_json();
        assert!(!json.contains("secret") && !json.contains("hidden") && !json.contains("headers"), "{json}");
        assert!(json.starts_with("{\"url\":"), "{json}");
        let table: Vec<String> =
            serde_json::from_str::<Map<String, Value>>(&json).unwrap().keys().cloned().collect();
        let mut columns = Row::COLUMNS.map(str::to_owned).to_vec();
        columns.sort();
        assert_eq!(table, columns, "a table has the same columns");
        assert_eq!(row.cells()[12], "ab".repeat(32));
    }

    /// B75, B86
    #[test]
    fn headers_that_carry_credentials_are_redacted() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("x-auth-token", "hidden"),
            ("location", "http://u:p@a.example/"),
            ("link", "<http://u:p@a.example/next>; rel=next"),
            ("refresh", "5; url=http://u:p@a.example/"),
            ("vary", "a"),
            ("vary", "b"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let shown = Value::Object(shown_headers(&headers)).to_string();
        assert_eq!(
            shown,
            "{\"link\":\"<http://a.example/next>; rel=next\",\"location\":\"http://a.example/\",\"refresh\":\"5; url=http://a.example/\",\"set-cookie\":\"(redacted), (redacted)\",\"vary\":\"a, b\",\"x-auth-token\":\"(redacted)\"}"
        );
    }
}
