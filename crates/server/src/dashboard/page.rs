//! What all pages share: the frame around their content, the way they are sent, and the page that is shown when something
//! is wrong.

use std::sync::Arc;

use askama::Template;
use axum::response::{IntoResponse, Response};
use comity::core::time::Timestamp;
use comity::gate::GateError;
use comity::store::StoreError;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode, Uri};

use super::guard::{Values, Viewer};
use super::{assets, text};
use crate::problem::{Kind, Problem};
use crate::service::Service;
use crate::state::ServingState;

/// The frame around a page.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    /// The name of the page, for the browser's tab.
    pub(crate) title: String,
    /// The entry of the navigation it belongs to.
    pub(crate) section: Section,
    /// Who looks at it.
    pub(crate) viewer: Viewer,
    /// When it was made.
    pub(crate) now: Timestamp,
    /// How often it is brought up to date, in milliseconds; 0 if it isn't.
    pub(crate) live: u32,
    /// What was just done, as the page before asked for.
    pub(crate) notice: &'static str,
}

/// The entries of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Sites,
    Jobs,
    Sources,
    Wikis,
    Rules,
    Events,
    Audit,
}

impl Section {
    const ALL: [Self; 8] = [
        Self::Overview,
        Self::Sites,
        Self::Jobs,
        Self::Sources,
        Self::Wikis,
        Self::Rules,
        Self::Events,
        Self::Audit,
    ];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Sites => "/sites",
            Self::Jobs => "/jobs",
            Self::Sources => "/sources",
            Self::Wikis => "/wikis",
            Self::Rules => "/rules",
            Self::Events => "/events",
            Self::Audit => "/audit",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Sites => "Sites",
            Self::Jobs => "Jobs",
            Self::Sources => "Sources",
            Self::Wikis => "Wiki archives",
            Self::Rules => "Rules",
            Self::Events => "Events",
            Self::Audit => "Audit",
        }
    }
}

impl Shell {
    pub(crate) fn new(service: &Service, viewer: Viewer, section: Section, title: impl Into<String>) -> Self {
        Self { title: title.into(), section, viewer, now: service.now(), live: 2_000, notice: "" }
    }

    /// Brought up to date this often.
    pub(crate) fn every(self, millis: u32) -> Self {
        Self { live: millis, ..self }
    }

    /// With a sentence about what was just done.
    pub(crate) fn noticing(self, values: &Values) -> Self {
        let done = values.get("done");
        let notice = NOTICES.iter().find(|(key, _)| *key == done).map_or("", |(_, text)| text);
        Self { notice, ..self }
    }

    pub(crate) fn sections(&self) -> [Section; 8] {
        Section::ALL
    }

    pub(crate) fn is_at(&self, section: &Section) -> bool {
        self.section == *section
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.now.as_micros() / 1_000
    }

    /// Who looks at the page, in a few words.
    pub(crate) fn role(&self) -> &'static str {
        self.viewer.caller.role.as_str()
    }

    pub(crate) fn style(&self) -> &'static str {
        assets::style_path()
    }

    pub(crate) fn script(&self) -> &'static str {
        assets::script_path()
    }

    // Formatting, for templates.

    pub(crate) fn until(&self, at: &Timestamp) -> String {
        text::until(*at, self.now)
    }

    pub(crate) fn ago(&self, at: &Timestamp) -> String {
        text::ago(*at, self.now)
    }

    pub(crate) fn moment(&self, at: &Timestamp) -> String {
        text::moment(*at)
    }
}

/// Sends a page.
pub(crate) fn show(page: &impl Template) -> Result<Response, Failure> {
    show_with(StatusCode::OK, page)
}

fn show_with(status: StatusCode, page: &impl Template) -> Result<Response, Failure> {
    let html = page.render().map_err(|error| {
        tracing::error!(%error, "could not make a page");
        Failure(Problem::new(Kind::Store, "the page could not be made"))
    })?;
    let mut response = (status, html).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    Ok(response)
}

/// Sends the browser to another page of the dashboard after something was done.
pub(crate) fn go(path: &str, done: &str) -> Response {
    let sign = if path.contains('?') { '&' } else { '?' };
    axum::response::Redirect::to(&format!("{path}{sign}done={done}")).into_response()
}

/// The state to make a page from. Pages can't be made while the store is unavailable.
pub(crate) fn state(service: &Service) -> Result<Arc<ServingState>, Failure> {
    service.state().map_err(Failure)
}

pub(crate) fn path_and_query(uri: &Uri) -> String {
    uri.path_and_query().map_or("/", |path| path.as_str()).to_owned()
}

/// Why a page can't be shown.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

#[derive(Template)]
#[template(path = "failure.html")]
struct FailurePage<'a> {
    title: &'a str,
    detail: String,
    status: u16,
    style: &'static str,
    retry: bool,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let kind = self.0.kind();
        let status = kind.status();
        let retry = status == StatusCode::SERVICE_UNAVAILABLE;
        let page = FailurePage {
            title: kind.title(),
            detail: sentence(&self.0.to_string()),
            status: status.as_u16(),
            style: assets::style_path(),
            retry,
        };
        let shown = show_with(status, &page);
        let mut response = shown.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response());
        if retry {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

/// A message as a sentence.
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(error.into())
    }
}

impl From<GateError> for Failure {
    fn from(error: GateError) -> Self {
        Self(error.into())
    }
}

/// What was done, by the word in the address.
const NOTICES: [(&str, &str); 12] = [
    ("reset", "The site was reset: what was learned about it is forgotten."),
    ("set", "The learned delay was set."),
    ("pin", "The learned delay is pinned."),
    ("unpin", "The learned delay is no longer pinned."),
    ("pause", "The site is paused."),
    ("resume", "The site is resumed."),
    ("release", "The permits were released."),
    ("cancel", "The job was cancelled."),
    ("retry", "What failed waits to be fetched again."),
    ("nothing", "There was nothing to retry."),
    ("run", "The source is fetched with the next run."),
    ("login", "You are logged in."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_sentences() {
        assert_eq!(sentence("no job with this name exists"), "No job with this name exists.");
        assert_eq!(sentence("Done."), "Done.");
        assert_eq!(sentence(""), ".");
    }
}
