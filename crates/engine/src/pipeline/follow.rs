//! The sitemaps that a sitemap names: those of one host one after the other, those of different hosts at the same time,
//! so that a host that does not answer keeps nobody else waiting (B10).

use std::collections::BTreeMap;

use comity_store::StoreError;
use comity_store::sources::{Asking, Kind, Source};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

use super::fetch::{Tally, Unread, lead_to, read_answer};
use super::{Pipeline, Turn};
use crate::connectors::Harvest;

/// What became of one of them.
struct Part {
    url: Url,
    read: Result<Harvest, String>,
}

type Parts = mpsc::Sender<Result<Part, StoreError>>;

impl Pipeline {
    /// Reads the sitemaps that a sitemap names, each kept as it comes. One that cannot be read leaves the source read in
    /// part. The turn of the source ends when nothing of its own domain is left.
    pub(super) async fn follow(
        &self,
        source: &Source,
        right: Asking,
        more: Vec<Url>,
        turn: Turn,
        tally: &mut Tally,
    ) -> Result<(), StoreError> {
        if more.len() > MORE_MAX {
            tally.note(format!("{} more sitemaps than the {MORE_MAX} that are read", more.len() - MORE_MAX));
        }
        let mut hosts: BTreeMap<String, Vec<Url>> = BTreeMap::new();
        for url in more.into_iter().take(MORE_MAX) {
            hosts.entry(self.pace_of(url.as_str())).or_default().push(url);
        }
        let (parts, mut read) = mpsc::channel(1);
        let mut asking = JoinSet::new();
        let mut turn = Some(turn);
        for (host, urls) in hosts {
            let turn = turn.take_if(|_| host == self.pace_of(&source.url));
            let (pipeline, source, parts) = (self.clone(), source.clone(), parts.clone());
            asking.spawn(async move {
                pipeline.follow_host(&source, urls, &parts).await;
                drop(turn);
            });
        }
        drop((turn, parts));
        while let Some(part) = read.recv().await {
            let Part { url, read } = part?;
            let shown = crate::shown::url(&url);
            if tally.found >= FOUND_MAX {
                tally.note(format!("{shown}: not read, because there are {FOUND_MAX} items already"));
                return Ok(());
            }
            match read {
                Ok(harvest) => {
                    if !self.keep(source, right, harvest, tally).await?.is_empty() {
                        tally.note(format!("{shown}: sitemaps named by a named sitemap are not read"));
                    }
                }
                Err(why) => tally.note(format!("{shown}: {why}")),
            }
        }
        Ok(())
    }

    /// Asks for those of one host, until nobody wants them any more.
    async fn follow_host(&self, source: &Source, urls: Vec<Url>, parts: &Parts) {
        let mut unanswered = 0;
        for url in urls {
            let read = match unanswered < UNANSWERED_MAX {
                true => self.follow_one(source, &url, &mut unanswered).await,
                false => Ok(Err("not asked, because its host does not answer".to_owned())),
            };
            if parts.send(read.map(|read| Part { url, read })).await.is_err() {
                return;
            }
        }
    }

    async fn follow_one(
        &self,
        source: &Source,
        url: &Url,
        unanswered: &mut u32,
    ) -> Result<Result<Harvest, String>, StoreError> {
        let lead = lead_to(source, url);
        let asked = self.ask(source, Ok(url.clone()), lead).await;
        *unanswered = match &asked {
            Err(Unread::Failed { status: None, .. }) => *unanswered + 1,
            _ => 0,
        };
        Ok(match asked {
            Ok(page) => read_answer(Kind::Sitemap, &page).await,
            Err(Unread::Held { why, .. } | Unread::Failed { why, .. }) => Err(why),
            Err(Unread::Gone) => Err("answered 410".to_owned()),
            Err(Unread::Stopped) => Err("stopped before it was asked".to_owned()),
            Err(Unread::Store(error)) => return Err(error),
        })
    }
}

/// Sitemaps that one sitemap may name.
const MORE_MAX: usize = 200;
/// Items that one fetch may find.
const FOUND_MAX: u64 = 1_000_000;
/// A host that did not answer so often in a row is not asked for the rest.
const UNANSWERED_MAX: u32 = 3;
