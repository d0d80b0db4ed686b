//! `comity jobs remove`: removes jobs by name, or those that have ended and match.

use comity::clock::Clock;
use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::redact::shell_word;
use comity::store::Store;
use comity::store::items::SCRAPE_JOB;
use comity::store::jobs::{Job, Removed};
use serde_json::{Value, json};

use super::find;
use crate::args::{EndState, Global, JobsRemove};
use crate::live::thousands;
use crate::{exit, output};

pub(super) async fn run(global: &Global, store: &dyn Store, which: &JobsRemove) -> anyhow::Result<u8> {
    if which.names.is_empty()
        && which.state.is_empty()
        && which.older_than.is_none()
        && which.matching.is_none()
    {
        return Err(exit::usage(
            "name the jobs to remove, or choose among those that have ended with --state, --older-than or --match",
        ));
    }
    let now = Clock::of(store).await?.now();
    let (jobs, mut busy) = match which.names.is_empty() {
        true => ended(store, which, now).await?,
        false => (named(store, &which.names).await?, Vec::new()),
    };
    let mut removed = Vec::new();
    for job in jobs {
        match which.dry_run || remove(store, &job, now).await? {
            true => removed.push(job),
            false => busy.push(job),
        }
    }
    for job in &busy {
        output::warning(&format!("job {} was not removed, because a process still works on it", job.name));
    }
    print(global, which, &removed);
    Ok(if busy.is_empty() { exit::DONE } else { exit::FAILURES })
}

/// The jobs with these names. If one of them can't be removed, none is.
async fn named(store: &dyn Store, names: &[String]) -> anyhow::Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for name in names {
        let job = find(store, name).await?;
        if job.options["kind"] == SCRAPE_JOB {
            return Err(exit::usage(format!(
                "job {name} belongs to comity run; remove its sources and items with comity sources remove"
            )));
        }
        if job.worked_on {
            return Err(exit::usage(format!(
                "job {name} is running; stop it first, or cancel it with comity jobs cancel {}",
                shell_word(name)
            )));
        }
        if jobs.iter().all(|known| known.id != job.id) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// The jobs that have ended and match; those that a process still works on are returned apart.
async fn ended(
    store: &dyn Store,
    which: &JobsRemove,
    now: Timestamp,
) -> anyhow::Result<(Vec<Job>, Vec<Job>)> {
    let before = match &which.older_than {
        Some(text) => Some(now - age(text)?),
        None => None,
    };
    let is_wanted = |job: &Job| {
        job.state.is_terminal()
            && job.options["kind"] != SCRAPE_JOB
            && (which.state.is_empty() || which.state.iter().any(|state| state.is(job.state)))
            && before.is_none_or(|before| job.ended_at.is_some_and(|ended_at| ended_at < before))
            && which.matching.as_ref().is_none_or(|pattern| is_match(pattern, &job.name))
    };
    let jobs = store.list_jobs().await?.into_iter().filter(is_wanted);
    Ok(jobs.partition(|job| !job.worked_on))
}

fn age(text: &str) -> anyhow::Result<Span> {
    Span::parse(text).ok().filter(|age| !age.is_zero()).ok_or_else(|| {
        exit::usage(format!("--older-than = {text:?}: expected a duration above zero such as 30d or 12h"))
    })
}

impl EndState {
    fn is(self, state: JobState) -> bool {
        match self {
            Self::Done => state == JobState::Done,
            Self::Failed => state == JobState::Failed,
            Self::Cancelled => state == JobState::Cancelled,
        }
    }
}

/// Removes a job. False if a process works on it.
async fn remove(store: &dyn Store, job: &Job, now: Timestamp) -> anyhow::Result<bool> {
    loop {
        match store.remove_job(job.id, REMOVED, now).await? {
            Removed::More => {}
            Removed::Gone => return Ok(true),
            Removed::Busy => return Ok(false),
        }
    }
}

fn print(global: &Global, which: &JobsRemove, jobs: &[Job]) {
    if global.json {
        let object = match (which.names.as_slice(), jobs) {
            ([_], [job]) => {
                json!({ "job": job.name, "removed": !which.dry_run, "tasks": job.counts.tasks })
            }
            _ => {
                let jobs: Vec<Value> =
                    jobs.iter().map(|job| json!({ "job": job.name, "tasks": job.counts.tasks })).collect();
                json!({ "dry_run": which.dry_run, "jobs": jobs })
            }
        };
        return output::object(&object);
    }
    if jobs.is_empty() {
        return output::line("No job that has ended matches; nothing was removed");
    }
    let verb = if which.dry_run { "Would remove" } else { "Removed" };
    for job in jobs {
        let urls = if job.counts.tasks == 1 { "URL" } else { "URLs" };
        let kept = if which.dry_run { "" } else { "; its pages were kept" };
        output::line(&format!("{verb} job {} with {} {urls}{kept}", job.name, thousands(job.counts.tasks)));
    }
}

/// Whether a name matches a pattern, in which `*` matches anything and `?` one character.
pub(in crate::commands) fn is_match(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    // The last `*`, and the first character that it does not match yet.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(c) if *c == '?' || *c == name[at] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((last, matched)) = star else { return false };
                star = Some((last, matched + 1));
                (at, of) = (matched + 1, last + 1);
            }
        }
    }
    pattern[of..].iter().all(|c| *c == '*')
}

/// How many tasks are deleted per transaction.
const REMOVED: u32 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("fetch-*", "fetch-20261116", true),
            ("fetch-*", "my-fetch-1", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("?", "ü", true),
            ("*-*-b", "a-b-c-b", true),
            ("*-*-b", "a-b-c", false),
            ("a*b*c", "aXbXbc", true),
            ("**a", "ba", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(is_match(pattern, name), expected, "{pattern} {name}");
        }
    }
}
