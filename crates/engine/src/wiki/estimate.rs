//! Estimates how much there is to archive, and how long it takes at the current pace.

use comity_core::time::Span;
use serde_json::Value;

use super::api::Api;
use super::archive::{FILE_PAGES, Plan};
use super::error::WikiError;
use super::loop_detector::LoopDetector;
use super::responses::{Pages, QueryResponse, Site};
use super::site::{SITE, batch_size, check_supported, select_namespaces};

/// The effort of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// The number, name and page count of each namespace.
    pub namespaces: Vec<(i64, String, u64)>,
    /// The approximate number of their revisions, based on the wiki's count of edits.
    pub revisions: u64,
    /// The approximate number of uploaded files, if they are requested, with one version each.
    pub files: Option<u64>,
    /// The approximate number of requests.
    pub requests: u64,
    /// The time between requests.
    pub spacing: Span,
    /// The approximate duration.
    pub duration: Span,
}

/// Estimates the effort of an archive according to this plan, with or without files. Nothing is stored.
pub async fn estimate(api: &Api, plan: &Plan, with_files: bool) -> Result<Estimate, WikiError> {
    let site: Site = api.ask(SITE, None).await?.query;
    check_supported(&site, api)?;
    let mut counted = Vec::new();
    let mut namespaces = select_namespaces(&plan.namespaces, &site)?;
    if with_files && !namespaces.contains(&FILE_PAGES) {
        namespaces.push(FILE_PAGES);
    }
    for number in namespaces {
        let named = site.namespaces.values().find(|one| one.id == number);
        counted.push((number, named.map(ToString::to_string).unwrap_or_default(), count(api, number).await?));
    }
    let pages: u64 = counted.iter().map(|(.., pages)| pages).sum();
    let statistic = |name: &str| site.statistics.get(name).and_then(Value::as_u64).unwrap_or(0);
    // The statistics cover all namespaces, so take the share of the selected ones.
    let (all, edits) = (statistic("pages").max(pages).max(1), statistic("edits"));
    let revisions = (u128::from(edits) * u128::from(pages)).div_ceil(u128::from(all));
    let revisions = u64::try_from(revisions).unwrap_or(u64::MAX).max(pages);
    let fetched = batch_size(&site) as u64;
    let lists: u64 = counted.iter().map(|(.., pages)| pages.div_ceil(LISTED * fetched).max(1)).sum();
    let files = with_files.then(|| statistic("images"));
    let of_files = files.map_or(0, |files| files + files.div_ceil(LISTED * fetched).max(1));
    let requests = 1 + lists + revisions.div_ceil(fetched).max(1) + of_files;
    let spacing = api.spacing();
    let duration = Span::from_micros(spacing.as_micros().saturating_mul(requests));
    Ok(Estimate { namespaces: counted, revisions, files, requests, spacing, duration })
}

async fn count(api: &Api, namespace: i64) -> Result<u64, WikiError> {
    let number = namespace.to_string();
    let params = [("generator", "allpages"), ("gaplimit", "max"), ("gapnamespace", &*number)];
    let (mut pages, mut rest, mut loop_detector) = (0, None, LoopDetector::default());
    loop {
        let response: QueryResponse<Pages> = api.follow(&params, rest.as_ref(), &mut loop_detector).await?;
        pages += response.query.pages.len() as u64;
        rest = response.rest;
        if rest.is_none() {
            return Ok(pages);
        }
    }
}

/// How many times more pages than revisions fit in one response.
const LISTED: u64 = 10;
