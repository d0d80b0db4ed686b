//! Fetches the sitemaps listed in a sitemap index: those of one host in sequence, those of different hosts in parallel,
//! so that a host that does not respond doesn't delay the others.

use std::collections::BTreeMap;

use comity_store::StoreError;
use comity_store::sources::{Kind, Source, SourceTenure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

use super::fetch::{NotFetched, Tally, lead_to, parse_response};
use super::{Pipeline, Turn};
use crate::connectors::ParsedSource;

/// The result for one sitemap.
struct Part {
    url: Url,
    parsed: Result<ParsedSource, String>,
}

type Parts = mpsc::Sender<Result<Part, StoreError>>;

impl Pipeline {
    /// Fetches the sitemaps listed in a sitemap index and stores each as it arrives. If one can't be read, the source
    /// counts as read in part. The turn of the source ends when no sitemap of its own domain is left.
    pub(super) async fn follow(
        &self,
        source: &Source,
        tenure: SourceTenure,
        sitemaps: Vec<Url>,
        turn: Turn,
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        if sitemaps.len() > SITEMAPS_MAX {
            tally.add_problem(format!(
                "skipped {} sitemaps: only the first {SITEMAPS_MAX} are read",
                sitemaps.len() - SITEMAPS_MAX
            ));
        }
        let mut hosts: BTreeMap<String, Vec<Url>> = BTreeMap::new();
        for url in sitemaps.into_iter().take(SITEMAPS_MAX) {
            hosts.entry(self.domain_of(url.as_str())).or_default().push(url);
        }
        let (parts, mut received) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        let mut turn = Some(turn);
        for (host, urls) in hosts {
            let turn = turn.take_if(|_| host == self.domain_of(&source.url));
            let (pipeline, source, parts) = (self.clone(), source.clone(), parts.clone());
            tasks.spawn(async move {
                pipeline.follow_host(&source, urls, &parts).await;
                drop(turn);
            });
        }
        drop((turn, parts));
        while let Some(part) = received.recv().await {
            let Part { url, parsed } = part?;
            let shown = crate::redact::url(&url);
            if tally.found >= FOUND_MAX {
                tally.add_problem(format!("{shown}: skipped, because there are {FOUND_MAX} items already"));
                return Ok(());
            }
            match parsed {
                Ok(parsed) => {
                    if !self.keep(source, tenure, parsed, tally).await?.is_empty() {
                        tally.add_problem(format!("{shown}: skipped the sitemaps in a nested sitemap index"));
                    }
                }
                Err(why) => tally.add_problem(format!("{shown}: {why}")),
            }
        }
        Ok(())
    }

    /// Fetches the sitemaps of one host, until the receiver is gone.
    async fn follow_host(&self, source: &Source, urls: Vec<Url>, parts: &Parts) {
        let mut unanswered = 0;
        for url in urls {
            let parsed = match unanswered < UNANSWERED_MAX {
                true => self.follow_one(source, &url, &mut unanswered).await,
                false => Ok(Err("skipped, because its host does not respond".to_owned())),
            };
            if parts.send(parsed.map(|parsed| Part { url, parsed })).await.is_err() {
                return;
            }
        }
    }

    async fn follow_one(
        &self,
        source: &Source,
        url: &Url,
        unanswered: &mut u32,
    ) -> Result<Result<ParsedSource, String>, StoreError> {
        let lead = lead_to(source, url);
        let response = self.request(source, Ok(url.clone()), lead).await;
        *unanswered = match &response {
            Err(NotFetched::Failed { status: None, .. }) => *unanswered + 1,
            _ => 0,
        };
        Ok(match response {
            Ok(page) => parse_response(Kind::Sitemap, &page).await,
            Err(
                NotFetched::Held { why, .. } | NotFetched::Failed { why, .. } | NotFetched::Unconfigured(why),
            ) => Err(why),
            Err(NotFetched::Gone) => Err("answered 410".to_owned()),
            Err(NotFetched::Stopped) => Err("stopped before it was fetched".to_owned()),
            Err(NotFetched::Store(error)) => return Err(error),
        })
    }
}

/// How many sitemaps of one sitemap index are read.
const SITEMAPS_MAX: usize = 200;
/// How many items one fetch may find.
const FOUND_MAX: u64 = 1_000_000;
/// After this many consecutive requests without a response, the remaining sitemaps of a host are skipped.
const UNANSWERED_MAX: u32 = 3;
