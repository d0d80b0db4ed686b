//! The list of what people changed through the dashboard and the API: who, what, when.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::store::audit::AuditEntry;

use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show, state};
use crate::service::Service;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    shell: Shell,
    entries: Vec<AuditEntry>,
    next: Option<i64>,
    is_first: bool,
}

/// What was changed, newest first.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let state = state(&service)?;
    let before = values.get("before").parse().ok();
    let mut entries = state.store.page_audit(before, PAGE + 1).await?;
    let more = entries.len() > PAGE as usize;
    entries.truncate(PAGE as usize);
    let next = entries.last().filter(|_| more).map(|entry| entry.id);
    let shell = Shell::new(&service, viewer, Section::Audit, "Audit");
    show(&AuditPage { shell, entries, next, is_first: before.is_none() })
}

const PAGE: u32 = 50;
