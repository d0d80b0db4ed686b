//! The sites that a fleet fetches, and their logs: which process asked, when, and for what.

use std::sync::{Arc, Mutex, PoisonError};

use crate::log::wait_until;
use crate::machines::Hub;
use crate::site::{Answer, Site};

/// A request as its site saw it.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    /// When it arrived, in microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) path: String,
    /// The process that sent it, by the user agent that only this one has.
    pub(crate) by: String,
    pub(crate) status: u16,
}

/// Sites, each a domain of its own.
pub(crate) struct Sites {
    sites: Vec<(Site, Arc<Mutex<Vec<Visit>>>)>,
}

impl Sites {
    /// Sites that answer each request with a page.
    pub(crate) fn start(count: usize) -> Self {
        Self::answering(count, |path, _, _| Answer::page(path))
    }

    /// Sites that answer as they are asked to: with the path, the number of requests before, and when this one arrived.
    pub(crate) fn answering(
        count: usize,
        answer: impl Fn(&str, usize, i64) -> Answer + Clone + Send + Sync + 'static,
    ) -> Self {
        let start = |_| {
            let log = Arc::new(Mutex::new(Vec::new()));
            let (visits, answer) = (log.clone(), answer.clone());
            let site = Site::on(&Hub::get().sites, move |asked| {
                let answer = answer(asked.path, asked.before, asked.start);
                let by = asked.headers.lines().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("user-agent")
                        .then(|| value.split_whitespace().next().unwrap_or_default().to_owned())
                });
                let (by, path, status) = (by.unwrap_or_default(), asked.path.to_owned(), answer.status);
                lock(&visits).push(Visit { at: asked.start, path, by, status });
                answer
            });
            (site, log)
        };
        Self { sites: (0..count).map(start).collect() }
    }

    /// A list of URLs: `count` of each site, in turns.
    pub(crate) fn list(&self, prefix: &str, count: usize) -> String {
        let urls = |nth| self.sites.iter().map(move |(site, _)| format!("{}/{prefix}{nth}\n", site.url()));
        (0..count).flat_map(urls).collect()
    }

    /// Each site's domain and log so far, in the order of arrival.
    pub(crate) fn logs(&self) -> Vec<(String, Vec<Visit>)> {
        let log = |(site, log): &(Site, Arc<Mutex<Vec<Visit>>>)| {
            let mut visits = lock(log).clone();
            visits.sort_by_key(|visit| visit.at);
            (site.authority(), visits)
        };
        self.sites.iter().map(log).collect()
    }

    /// How many requests there were so far.
    pub(crate) fn count(&self) -> usize {
        self.sites.iter().map(|(_, log)| lock(log).len()).sum()
    }

    /// Waits for this many requests.
    pub(crate) fn wait_for(&self, count: usize) {
        wait_until(&format!("{count} requests"), || self.count() >= count);
    }

    /// When a process sent its last request so far.
    pub(crate) fn last_by(&self, by: &str) -> Option<i64> {
        let logs = self.sites.iter().map(|(_, log)| lock(log).clone());
        logs.flatten().filter(|visit| visit.by == by).map(|visit| visit.at).max()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
