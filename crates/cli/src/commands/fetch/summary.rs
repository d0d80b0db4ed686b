//! How a run of `fetch` ends: what it prints, and its exit code. How to resume it is in `resume`, where its pages are in
//! `place`.

use comity::core::task::JobState;
use comity::core::time::{Span, Timestamp};
use comity::jobs::{Filled, RunCounts, StopReason};
use comity::redact::{shell_word, without_user};
use comity::status::HeldBack;
use comity::store::Store;
use comity::store::jobs::Job;
use serde_json::{Value, json};

use super::resume::{self, Repeat};
use super::{Before, input, place, skips, waits};
use crate::args::{Fetch, Global};
use crate::commands::{failures, hints, jobs, report, stream};
use crate::live::thousands;
use crate::{exit, output};

/// A run that has ended.
pub(super) struct Ended<'a> {
    pub(super) global: &'a Global,
    pub(super) fetch: &'a Fetch,
    pub(super) store: &'a dyn Store,
    pub(super) job: &'a Job,
    pub(super) reason: StopReason,
    pub(super) before: Before,
    /// What was read into the job; `None` if nothing was, or if it is still being read.
    pub(super) filled: Option<Filled>,
    /// What became of the URLs that this run asked for.
    pub(super) counts: RunCounts,
    /// The sites that a run with `--max-wait` did not wait for, the longest waits first.
    pub(super) held_back: Vec<HeldBack>,
    /// Why pages or rows could not be written, if that ended the run.
    pub(super) output_error: Option<String>,
    /// How many URLs a refresh could not fetch again, because they were pruned.
    pub(super) pruned: u64,
    pub(super) began: Timestamp,
    pub(super) elapsed: Span,
}

impl Ended<'_> {
    /// Prints the summary, and how to continue.
    pub(super) async fn print(&self) -> anyhow::Result<()> {
        let Self { global, fetch, job, .. } = self;
        if let Some(error) = &self.output_error {
            output::error_message(error);
        }
        self.print_remarks();
        let skips = self.skips().await?;
        if global.json {
            output::object(&self.object());
        } else if !global.quiet {
            let line =
                self.line() + &skips.as_ref().map(|skips| skips.in_brackets(&job.name)).unwrap_or_default();
            // With rows on stdout, everything else goes to stderr.
            match (stream::is_wanted(fetch), self.exit_code(false)) {
                (false, _) => output::line(&line),
                (true, exit::DONE) => output::remark(&line),
                (true, _) => output::warning(&line),
            }
            if self.counts.fetched() > 0 {
                place::of_pages(&job.options).iter().for_each(|place| output::remark(place));
            }
        } else if let Some(skips) = skips.filter(|_| self.fetched_nothing()) {
            output::warning(&format!(
                "job {}: nothing was fetched{}",
                job.name,
                skips.in_brackets(&job.name)
            ));
        }
        // Why sitemaps could not be read was printed when that happened.
        if let Some(message) = job.message.as_ref().filter(|_| job.state.is_terminal()) {
            output::warning(message);
        }
        if let Some(left_over) = self.left_over() {
            output::warning(&left_over);
        }
        if let Some(pruned) = self.not_refreshed() {
            output::warning(&pruned);
        }
        self.print_lost_rows();
        if !matches!(self.reason, StopReason::Job(_)) {
            let rows = stream::is_wanted(fetch);
            let hint = match job.worked_on {
                true => Some(resume::still_running(self.store, &job.name).await?),
                false => resume::how_to_resume(self.store, &job.name, self.input_to_repeat(), rows),
            };
            hint.iter().for_each(|hint| output::remark(hint));
        } else if !global.quiet && (self.failed() > 0 || self.had_nothing_new() && job.counts.failed > 0) {
            hints::retry(self.store, job).await?.iter().for_each(|hint| output::remark(hint));
        }
        if !global.quiet && self.pruned == 0 {
            jobs::pruned_urls(self.store, job).await?.iter().for_each(|pruned| output::remark(pruned));
        } else if global.quiet {
            let since = self.is_about_this_run().then_some(self.began);
            failures::of_job(self.store, job, self.failed(), since).await?;
        }
        Ok(())
    }

    /// Says where rows are that could not be printed.
    fn print_lost_rows(&self) {
        let is_lost = stream::is_wanted(self.fetch) && output::is_stdout_broken();
        // A reader that closed the pipe, such as `head`, has enough of them.
        if is_lost && !(self.global.quiet && output::is_stdout_closed()) {
            output::warning(&format!(
                "Rows were not printed; to print them again: comity fetch --job {0} --jsonl; for all rows: comity jobs export {0}",
                shell_word(&self.job.name)
            ));
        }
    }

    pub(super) fn exit_code(&self, is_interrupted: bool) -> u8 {
        let is_empty = self.job.counts.tasks == 0;
        match self.reason {
            StopReason::Requested if is_interrupted => exit::INTERRUPTED,
            // A reader of rows that closed the pipe stops the run as Ctrl-C does.
            _ if stream::is_wanted(self.fetch) && output::is_stdout_closed() => exit::INTERRUPTED,
            _ if self.list_error().is_some() => exit::USAGE,
            // What came before an invalid line has been sent by now.
            _ if self.is_list_unread() || self.bad_sitemaps() > 0 => exit::FAILURES,
            StopReason::Unread => exit::USAGE,
            _ if is_empty && self.invalid() > 0 => exit::USAGE,
            _ if is_empty && self.found_nothing().is_some() => exit::FAILURES,
            StopReason::Job(JobState::Done) if self.failed() == 0 && self.pruned == 0 => exit::DONE,
            _ => exit::FAILURES,
        }
    }

    fn print_remarks(&self) {
        let Some(filled) = &self.filled else { return };
        if let Some(error) = &filled.error {
            output::failure(&format!("{LIST_ERROR}: {error}"));
        }
        if filled.bad > 0 {
            let lines = if filled.bad == 1 { "line" } else { "lines" };
            match self.fetch.strict {
                true => output::failure(STRICT),
                false => output::warning(&format!("Skipped {} invalid {lines}", filled.bad)),
            }
        }
        if filled.refused > 0 {
            output::warning(&format!("{} URLs were not added: the job had already ended", filled.refused));
        }
        if let Some(nothing) = self.found_nothing() {
            output::remark(&nothing);
        }
    }

    /// The JSON object that the run ends with.
    fn object(&self) -> Value {
        let mut object = report::summary(self.job, self.elapsed.as_millis_up());
        object["this_run"] = report::this_run(&self.counts, self.skipped(), self.filled.as_ref());
        object["invalid"] = json!(self.invalid());
        if self.fetch.refresh {
            object["changed"] = json!(self.counts.changed);
            object["unchanged"] = json!(self.counts.unchanged);
        }
        if self.job.message.is_none() || !self.job.state.is_terminal() {
            let message = self.output_error.clone().or_else(|| self.input_problem());
            object["message"] = json!(message.or_else(|| self.left_over()).or_else(|| self.not_refreshed()));
        }
        if let StopReason::NotDueUntil(until) = self.reason {
            object["next_at"] = json!((until < Timestamp::MAX).then(|| until.to_string()));
            object["held_back"] = self.held_back.iter().map(waits::object).collect();
        }
        object
    }

    /// The summary in words.
    fn line(&self) -> String {
        let Self { job, reason, elapsed, counts, .. } = self;
        let state = match reason {
            StopReason::Job(_) => job.state.as_str(),
            _ if job.worked_on => "still running",
            _ => "stopped",
        };
        let invalid = match self.invalid() {
            0 => String::new(),
            1 => ", 1 invalid line".to_owned(),
            count => format!(", {count} invalid lines"),
        };
        let (name, progress, elapsed) = (&job.name, report::progress(job), elapsed.prose());
        // The first run of a job is all there is to say about it.
        if self.before.state.is_none() {
            let repeated = match self.filled.as_ref().map_or(0, |filled| filled.known) {
                0 => String::new(),
                1 => ", 1 duplicate in the list".to_owned(),
                count => format!(", {} duplicates in the list", thousands(count)),
            };
            return format!("job {name}: {state}, {progress}{repeated}{invalid} in {elapsed}");
        }
        let fetched = match self.fetch.refresh {
            true => {
                format!("{} changed, {} unchanged", thousands(counts.changed), thousands(counts.unchanged))
            }
            false => format!("{} fetched", thousands(counts.fetched())),
        };
        let rest = report::rest(&[
            (counts.failed, "failed"),
            (self.skipped(), "skipped"),
            (counts.rate_limited, report::RATE_LIMITED),
            (counts.retries, report::retries(counts.retries)),
        ]);
        let known = match &self.filled {
            Some(Filled { new: 0, known: 1, .. }) => ", no new URL (1 was in the job already)".to_owned(),
            Some(Filled { new: 0, known: known @ 2.., .. }) => {
                format!(", no new URLs ({} were in the job already)", thousands(*known))
            }
            _ => String::new(),
        };
        format!(
            "job {name}: {state}; this run: {fetched}{rest}{known}{invalid} in {elapsed}; in total: {progress}"
        )
    }

    /// The URLs that were skipped while this run worked on the job, also together with others.
    fn skipped(&self) -> u64 {
        self.job.counts.skipped.saturating_sub(self.before.skipped)
    }

    /// Why URLs were skipped, if a run that has finished skipped any.
    async fn skips(&self) -> anyhow::Result<Option<skips::Skips>> {
        if self.skipped() == 0 || !matches!(self.reason, StopReason::Job(JobState::Done)) {
            return Ok(None);
        }
        skips::of_job(self.store, self.job).await
    }

    /// Whether this run fetched nothing, although it was not for a failure.
    fn fetched_nothing(&self) -> bool {
        self.counts.fetched() == 0 && self.failed() == 0
    }

    /// Whether URLs were passed, and all of them were in the job already.
    fn had_nothing_new(&self) -> bool {
        self.filled.as_ref().is_some_and(|filled| filled.new == 0 && filled.known > 0)
    }

    /// Whether the exit code and the failures are about this run alone: the job was done, and its earlier failures were
    /// reported then. A run that resumes a job reports on all of it.
    fn is_about_this_run(&self) -> bool {
        self.fetch.refresh || self.before.state == Some(JobState::Done)
    }

    /// Why a list or a sitemap was not read, for programs. For people it was printed while it was read.
    fn input_problem(&self) -> Option<String> {
        let filled = self.filled.as_ref()?;
        match (&filled.error, &filled.sitemap_error) {
            (Some(error), _) => Some(format!("{LIST_ERROR}: {error}")),
            (None, _) if self.fetch.strict && filled.bad > 0 => Some(STRICT.to_owned()),
            (None, Some(error)) if filled.bad_sitemaps == 1 => {
                Some(format!("A sitemap could not be read: {error}"))
            }
            (None, Some(error)) => {
                Some(format!("{} sitemaps could not be read; the first: {error}", filled.bad_sitemaps))
            }
            (None, None) if filled.bad > 0 && self.job.counts.tasks == 0 => {
                Some("The list has no valid line".to_owned())
            }
            (None, None) => self.found_nothing(),
        }
    }

    /// Says that everything was read and there was nothing in it.
    fn found_nothing(&self) -> Option<String> {
        let filled = self.filled.as_ref()?;
        let is_read = filled.error.is_none() && !filled.stopped && filled.bad_sitemaps == 0;
        if !is_read || filled.new + filled.known + filled.refused + filled.bad > 0 {
            return None;
        }
        let sitemaps = self.job.options["sitemaps"].as_array().into_iter().flatten();
        let sitemaps: Vec<String> = sitemaps.filter_map(Value::as_str).map(without_user).collect();
        Some(match (&self.fetch.input, sitemaps.as_slice()) {
            (Some(list), _) => format!("No URLs were found in {}", input::name(list)),
            (None, [sitemap]) => format!("No pages were found: {sitemap} lists none"),
            (None, sitemaps) => format!("No pages were found: {} list none", sitemaps.join(", ")),
        })
    }

    /// What `--max-wait` leaves waiting, and until when.
    fn left_over(&self) -> Option<String> {
        let StopReason::NotDueUntil(until) = self.reason else { return None };
        let urls = match self.job.counts.waiting() {
            1 => "1 URL".to_owned(),
            count => format!("{} URLs", thousands(count)),
        };
        let why = self.held_back.first().map(|held| format!("; {}: {}", held.domain, held.why));
        let why = why.unwrap_or_default();
        let when = match until {
            Timestamp::MAX => "when an operator resumes its site".to_owned(),
            until => format!("at {}", report::moment(until)),
        };
        Some(format!("{urls} left waiting; the first can be fetched {when} (--max-wait){why}"))
    }

    /// Says that a refresh did not fetch pages that are no longer known.
    fn not_refreshed(&self) -> Option<String> {
        let urls = match self.pruned {
            0 => return None,
            1 => "1 URL was not refreshed, because it was".to_owned(),
            count => format!("{} URLs were not refreshed, because they were", thousands(count)),
        };
        Some(format!("{urls} pruned (comity prune, or upkeep.keep); pass the list again to fetch them"))
    }

    /// The failures that count.
    fn failed(&self) -> u64 {
        if self.is_about_this_run() { self.counts.failed } else { self.job.counts.failed }
    }

    fn invalid(&self) -> u64 {
        self.filled.as_ref().map_or(0, |filled| filled.bad)
    }

    fn bad_sitemaps(&self) -> u64 {
        self.filled.as_ref().map_or(0, |filled| filled.bad_sitemaps)
    }

    /// Why a list could not be read to its end.
    fn list_error(&self) -> Option<&String> {
        self.filled.as_ref()?.error.as_ref()
    }

    /// Whether a list of this run was not read to its end.
    fn is_list_unread(&self) -> bool {
        self.list_error().is_some() || self.fetch.strict && self.invalid() > 0
    }

    /// What has to be passed again to resume the job. Sitemaps are known from its options.
    fn input_to_repeat(&self) -> Repeat {
        let has_sitemaps = self.job.options["sitemaps"].as_array().is_some_and(|urls| !urls.is_empty());
        let is_file_read =
            self.filled.as_ref().is_some_and(|filled| !filled.stopped) && !self.is_list_unread();
        let is_gone = |filled: &Filled| filled.sitemaps_unread && !filled.sitemaps_may_come;
        match (self.job.unread, &self.fetch.input) {
            (false, _) => Repeat::Nothing,
            _ if self.filled.as_ref().is_some_and(is_gone) => Repeat::OtherSitemap,
            (true, Some(_)) if is_file_read => Repeat::Nothing,
            (true, None) if has_sitemaps => Repeat::Nothing,
            (true, None) if !self.fetch.urls.is_empty() => Repeat::Arguments,
            (true, _) => Repeat::List,
        }
    }
}

const LIST_ERROR: &str = "Could not read the whole list";
const STRICT: &str = "Stopped reading at an invalid line (--strict); the URLs before it are in the job, those after it are not";
