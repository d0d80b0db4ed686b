//! How much there is to archive, and how long that takes at the pace in force (B70).

use comity_core::time::Span;
use serde_json::Value;

use super::answers::{Answered, Pages, Site};
use super::api::Api;
use super::archive::{FILE_PAGES, Plan};
use super::error::WikiError;
use super::site::{SITE, batch_of, chosen, must_be_readable};
use super::trail::Trail;

/// What an archive would take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Pages of each namespace: its number, its name, how many.
    pub namespaces: Vec<(i64, String, u64)>,
    /// Revisions of them, about: by the wiki's own count of edits.
    pub revisions: u64,
    /// Files that were uploaded, about, if they are wanted: one version of each.
    pub files: Option<u64>,
    /// Requests that archiving all that takes, about.
    pub requests: u64,
    /// The time between requests.
    pub spacing: Span,
    /// How long that takes, about.
    pub duration: Span,
}

/// Counts what an archive by this plan, with files or without, would ask for; nothing is kept.
pub async fn estimate(api: &Api, plan: &Plan, with_files: bool) -> Result<Estimate, WikiError> {
    let site: Site = api.ask(SITE, None).await?.query;
    must_be_readable(&site, api)?;
    let mut counted = Vec::new();
    let mut namespaces = chosen(&plan.namespaces, &site)?;
    if with_files && !namespaces.contains(&FILE_PAGES) {
        namespaces.push(FILE_PAGES);
    }
    for number in namespaces {
        let named = site.namespaces.values().find(|one| one.id == number);
        counted.push((number, named.map(ToString::to_string).unwrap_or_default(), count(api, number).await?));
    }
    let pages: u64 = counted.iter().map(|(.., pages)| pages).sum();
    let said = |what: &str| site.statistics.get(what).and_then(Value::as_u64).unwrap_or(0);
    // All namespaces together: those that were chosen get their share.
    let (all, edits) = (said("pages").max(pages).max(1), said("edits"));
    let revisions = (u128::from(edits) * u128::from(pages)).div_ceil(u128::from(all));
    let revisions = u64::try_from(revisions).unwrap_or(u64::MAX).max(pages);
    let fetched = batch_of(&site) as u64;
    let lists: u64 = counted.iter().map(|(.., pages)| pages.div_ceil(LISTED * fetched).max(1)).sum();
    let files = with_files.then(|| said("images"));
    let of_files = files.map_or(0, |files| files + files.div_ceil(LISTED * fetched).max(1));
    let requests = 1 + lists + revisions.div_ceil(fetched).max(1) + of_files;
    let spacing = api.spacing();
    let duration = Span::from_micros(spacing.as_micros().saturating_mul(requests));
    Ok(Estimate { namespaces: counted, revisions, files, requests, spacing, duration })
}

async fn count(api: &Api, namespace: i64) -> Result<u64, WikiError> {
    let number = namespace.to_string();
    let params = [("generator", "allpages"), ("gaplimit", "max"), ("gapnamespace", &*number)];
    let (mut pages, mut rest, mut trail) = (0, None, Trail::default());
    loop {
        let answered: Answered<Pages> = api.follow(&params, rest.as_ref(), &mut trail).await?;
        pages += answered.query.pages.len() as u64;
        rest = answered.rest;
        if rest.is_none() {
            return Ok(pages);
        }
    }
}

/// Pages that one request lists for each revision that one fetches.
const LISTED: u64 = 10;
