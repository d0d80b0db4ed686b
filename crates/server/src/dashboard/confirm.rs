//! The page that asks before something is changed, and says what that would affect. The record of it is in `audit`.

use askama::Template;
use axum::response::Response;

use super::guard::Viewer;
use super::page::{Failure, Shell, show};

/// A question before something is changed.
#[derive(Debug, Template)]
#[template(path = "confirm.html")]
pub(super) struct Question {
    pub(super) shell: Shell,
    /// What is asked: `Cancel the job nightly?`
    pub(super) title: String,
    /// What it will change, with numbers.
    pub(super) impact: String,
    /// What else is worth knowing.
    pub(super) remarks: Vec<&'static str>,
    /// What can be filled in.
    pub(super) fields: Vec<Field>,
    /// The text of the button.
    pub(super) button: &'static str,
    /// Whether it can't be undone.
    pub(super) is_grave: bool,
    /// Where the answer is sent.
    pub(super) path: String,
    /// Where somebody goes who changes their mind.
    pub(super) back: String,
}

/// Something to fill in.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) kind: FieldKind,
    pub(super) value: String,
    pub(super) hint: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldKind {
    /// A number of seconds.
    Seconds,
    /// Yes or no.
    Check,
    /// One of these: value and text.
    Choice(Vec<(&'static str, &'static str)>),
    /// Sent along, but not shown.
    Hidden,
}

impl Field {
    pub(super) fn is_seconds(&self) -> bool {
        self.kind == FieldKind::Seconds
    }

    pub(super) fn is_check(&self) -> bool {
        self.kind == FieldKind::Check
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.kind == FieldKind::Hidden
    }

    pub(super) fn choices(&self) -> &[(&'static str, &'static str)] {
        match &self.kind {
            FieldKind::Choice(choices) => choices,
            _ => &[],
        }
    }
}

/// Asks. Only those who may act are asked.
pub(super) fn ask(viewer: &Viewer, question: Question) -> Result<Response, Failure> {
    viewer.caller.require_admin()?;
    show(&question)
}
