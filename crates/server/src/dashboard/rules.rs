//! Rules: which one applies to a URL, and where each of its settings comes from.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use comity::client::known_robots;
use comity::config::{FieldOrigin, FieldSource, RuleOrigins};
use comity::core::domain::Domain;
use url::Url;

use super::guard::{Values, Viewer};
use super::page::{Failure, Section, Shell, show, state};
use crate::api::{URL_MAX, validate_length};
use crate::service::Service;

#[derive(Template)]
#[template(path = "rules.html")]
struct RulesPage {
    shell: Shell,
    url: String,
    /// Why the URL can't be used.
    wrong: Option<String>,
    found: Option<Found>,
    profile: &'static str,
    rows: Vec<String>,
}

struct Found {
    host: String,
    site: String,
    path: String,
    rule: RuleView,
    robots: &'static str,
}

/// A rule as people read it.
pub(super) struct RuleView {
    pub(super) about: String,
    pub(super) fields: Vec<FieldView>,
}

pub(super) struct FieldView {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) from: String,
    /// Whether it was set by the configuration, or on the command line.
    pub(super) is_yours: bool,
}

impl RuleView {
    pub(super) fn of(origins: &RuleOrigins) -> Self {
        let about = match &origins.row {
            Some(row) => format!("row {row}"),
            None => "no row of the configuration matches".to_owned(),
        };
        let field = |field: &FieldOrigin| FieldView {
            key: field.key.clone(),
            value: field.value.clone(),
            from: place(field),
            is_yours: matches!(
                field.source,
                FieldSource::Row { .. } | FieldSource::Default | FieldSource::Delay | FieldSource::Learning
            ),
        };
        Self { about, fields: origins.fields.iter().map(field).collect() }
    }
}

/// Where a setting comes from.
pub(super) fn place(field: &FieldOrigin) -> String {
    let source = match &field.source {
        FieldSource::Delay => "--delay".to_owned(),
        FieldSource::Learning => "--learning".to_owned(),
        FieldSource::Row { pattern } => format!("[domains.\"{pattern}\"]"),
        FieldSource::Default => "[default]".to_owned(),
        FieldSource::ProfileRow { pattern } => format!("the profile's row for {pattern}"),
        FieldSource::Profile => "the profile".to_owned(),
        FieldSource::BuiltIn => "built in".to_owned(),
    };
    match &field.place {
        Some(place) => format!("{source}, {place}"),
        None => source,
    }
}

/// The page, with the rule for the URL that was asked for.
pub(super) async fn page(
    State(service): State<Service>,
    viewer: Viewer,
    values: Values,
) -> Result<Response, Failure> {
    let state = state(&service)?;
    let url = values.get("url").to_owned();
    let (mut wrong, mut found) = (None, None);
    if !url.is_empty() {
        validate_length("url", &url, URL_MAX)?;
        match read(&url) {
            Some((host, parsed)) => {
                let robots = match parsed {
                    Some(parsed) => {
                        let now = state.gate.clock().now();
                        known_robots(&*state.store, &state.config, &parsed, now).await?
                    }
                    None => None,
                };
                let site = state.gate.rules().domain(&host);
                found = Some(Found {
                    path: super::sites::path(site.as_str()),
                    rule: RuleView::of(&state.config.explain_rule(&host)),
                    host: host.to_string(),
                    site: site.to_string(),
                    robots: match robots.map(|robots| robots.allowed) {
                        Some(true) => "The site's robots.txt allows this URL.",
                        Some(false) => "The site's robots.txt forbids this URL.",
                        None => {
                            "Whether robots.txt allows this URL is not known here; it is read before the first page."
                        }
                    },
                });
            }
            None => {
                wrong =
                    Some("This isn't a URL or the name of a site: try https://example.org/page.".to_owned())
            }
        }
    }
    let rows = state.config.domains.iter().map(|(pattern, _)| pattern.to_string());
    let page = RulesPage {
        shell: Shell::new(&service, viewer, Section::Rules, "Rules").every(0),
        profile: state.config.profile,
        rows: rows.collect(),
        url,
        wrong,
        found,
    };
    show(&page)
}

/// The host of a URL, or of a bare name.
fn read(text: &str) -> Option<(Domain, Option<Url>)> {
    if let Ok(url) = Url::parse(text)
        && let Some(host) = Domain::of(&url)
    {
        return Some((host, Some(url)));
    }
    Domain::parse(text).ok().map(|host| (host, None))
}
