//! Sources: how often each is fetched, when next, and how it is doing. Run now asks first.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::core::time::Timestamp;
use comity::event::redacted_text;
use comity::pipeline::{DEFAULT_CADENCE, Plan, outlook};
use comity::store::sources::{Source, SourceId};

use super::confirm::{self, Question};
use super::guard::{Action, Values, Viewer};
use super::page::{Failure, Section, Shell, go, show, state};
use super::text::{count, counted};
use crate::api::Path;
use crate::audit::Deed;
use crate::problem::{Kind, Problem};
use crate::service::Service;

#[derive(Template)]
#[template(path = "sources.html")]
struct SourcesPage {
    shell: Shell,
    like: String,
    found: String,
    rows: Vec<Row>,
    next: Option<usize>,
    page: usize,
}

struct Row {
    id: i64,
    name: String,
    url: String,
    kind: &'static str,
    cadence: String,
    last: Option<Timestamp>,
    next: Option<Timestamp>,
    /// In place of the next time: `due now`, `off`.
    word: &'static str,
    why: String,
    health: String,
    class: &'static str,
    may_run: bool,
}

/// The page.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let server = state(&service)?;
    let like = values.get("like").to_owned();
    let lower = like.to_lowercase();
    let now = server.gate.clock().now();
    let mut sources = server.store.list_sources().await?;
    sources.retain(|source| {
        lower.is_empty()
            || source.name.to_lowercase().contains(&lower)
            || source.url.to_lowercase().contains(&lower)
    });
    // Those that fail come first.
    sources.sort_by_key(|source| (std::cmp::Reverse(source.failures), source.id.0));
    let page: usize = values.get("page").parse().unwrap_or(0);
    let found = counted(sources.len() as u64, "source", "sources");
    let next = (sources.len() > (page + 1) * PAGE).then_some(page + 1);
    let rows = sources.iter().skip(page * PAGE).take(PAGE).map(|source| row(source, now));
    let page = SourcesPage {
        rows: rows.collect(),
        shell: Shell::new(&service, viewer, Section::Sources, "Sources").noticing(&values),
        like,
        found,
        next,
        page,
    };
    show(&page)
}

fn row(source: &Source, now: Timestamp) -> Row {
    let outlook = outlook(source, DEFAULT_CADENCE, now);
    let (next, word, why) = match &outlook.plan {
        _ if !source.enabled => (None, "off", source.error.clone().unwrap_or_default()),
        _ if source.requested_at.is_some() => (None, "with the next run", "requested by hand".to_owned()),
        Plan::Held { until, why } => (Some(*until), "", why.to_string()),
        _ => match outlook.next_at {
            Some(next) if next > now => (Some(next), "", String::new()),
            _ => (None, "due now", String::new()),
        },
    };
    let (health, class) = match (source.failures, &source.error) {
        (0, None) => ("ok".to_owned(), "go"),
        (0, Some(error)) => (error.clone(), "wait"),
        (failures, error) => {
            let times = counted(u64::from(failures), "time", "times");
            (format!("failed {times}: {}", error.as_deref().unwrap_or("no reason was saved")), "stop")
        }
    };
    Row {
        id: source.id.0,
        name: source.name.clone(),
        url: redacted_text(&source.url).to_string(),
        kind: source.kind.as_str(),
        cadence: outlook
            .cadence
            .map_or_else(|| "with every run".to_owned(), |cadence| format!("every {}", cadence.prose())),
        last: outlook.last_fetch_at,
        next,
        word,
        why,
        health,
        class,
        may_run: source.enabled && source.requested_at.is_none(),
    }
}

async fn find(service: &Service, id: i64) -> Result<Source, Failure> {
    let source = state(service)?.store.find_source(SourceId(id)).await?;
    source.ok_or_else(|| {
        Failure(Problem::new(Kind::NotFound, format!("there is no source {}", count(id.unsigned_abs()))))
    })
}

/// Asks first.
pub(super) async fn ask(
    State(service): State<Service>,
    viewer: Viewer,
    Path(id): Path<i64>,
) -> Result<Response, Failure> {
    let source = find(&service, id).await?;
    let title = format!("Run {} now?", source.name);
    let question = Question {
        shell: Shell::new(&service, viewer.clone(), Section::Sources, title.clone()).every(0),
        title,
        impact: "Fetches 1 source, although it may not be due yet.".to_owned(),
        remarks: vec![
            "comity run --watch fetches it at once; otherwise the next comity run does. The pace of its site still applies.",
        ],
        fields: Vec::new(),
        button: "Run now",
        is_grave: false,
        path: format!("/sources/{id}/run"),
        back: "/sources".to_owned(),
    };
    confirm::ask(&viewer, question)
}

/// Does it.
pub(super) async fn act(
    State(service): State<Service>,
    Path(id): Path<i64>,
    form: Action,
) -> Result<Response, Failure> {
    let source = find(&service, id).await?;
    let deed = Deed::new("run", format!("source {id} ({})", source.name), "fetches 1 source".to_owned());
    let doing = async {
        let state = service.state()?;
        match state.store.request_fetch(source.id, service.now()).await? {
            true => Ok(()),
            false => Err(Problem::new(Kind::NotFound, format!("there is no source {id}"))),
        }
    };
    deed.carry_out(&service, form.viewer.caller, doing).await?;
    Ok(go("/sources", "run"))
}

const PAGE: usize = 50;
