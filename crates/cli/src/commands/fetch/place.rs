//! Where the pages of a job are saved, and what happens to earlier ones if a run changes that.
//!
//! A job saves its pages in one place at a time. Another `--out` or `--format` applies to what is fetched from then on;
//! earlier pages stay where they are, and exports name their files in full.

use std::path::Path;

use comity::store::Store;
use comity::store::jobs::Job;
use serde_json::Value;

use crate::exit;

/// A run saves the pages of an existing job in another place than before.
pub(super) struct Change<'a> {
    job: &'a Job,
    before: Place<'a>,
    after: Place<'a>,
}

/// A format, and the folder that goes with it.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    format: &'a str,
    /// It is saved even while a job saves no pages.
    folder: Option<&'a Path>,
}

impl<'a> Place<'a> {
    /// The place that these options name; `None` if the job has no options yet.
    fn of(options: &'a Value) -> Option<Self> {
        let format = options["format"].as_str()?;
        Some(Self { format, folder: options["out"].as_str().map(Path::new) })
    }

    fn saves_pages(self) -> bool {
        self.format != "none"
    }

    fn shown_folder(self) -> String {
        self.folder.map(|folder| folder.display().to_string()).unwrap_or_default()
    }
}

impl<'a> Change<'a> {
    /// What `options` change for a job, if anything.
    pub(super) fn of(job: &'a Job, options: &'a Value) -> Option<Self> {
        let (before, after) = (Place::of(&job.options)?, Place::of(options)?);
        let change = Self { job, before, after };
        let is_changed = match after.saves_pages() {
            true => before.format != after.format || change.moves(),
            false => before.saves_pages(),
        };
        is_changed.then_some(change)
    }

    /// Refuses it while another process saves pages of the job: each of them would go on with its own place.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Job { name, .. } = self.job;
        if !self.job.worked_on {
            return Ok(());
        }
        let (flag, place) = match self.before.format == self.after.format {
            true => ("--out", format!("saves its pages in {}", self.before.shown_folder())),
            false if self.before.saves_pages() => {
                ("--format", format!("saves its pages as {}", self.before.format))
            }
            false => ("--format", "saves no pages".to_owned()),
        };
        Err(exit::usage(format!(
            "{flag}: job {name} is running and {place}; to join it, leave out --out and --format; to change them, stop it first"
        )))
    }

    /// Names the files of earlier pages by their whole path. If their folder is gone, it was moved to the new place, or
    /// deleted.
    pub(super) async fn keep_earlier_files(&self, store: &dyn Store) -> anyhow::Result<()> {
        let Some(folder) = self.before.folder.filter(|_| self.moves() && !self.is_gone()) else {
            return Ok(());
        };
        let (folder, mut after) = (folder.display().to_string(), None);
        loop {
            after = store.name_files_in_full(self.job.id, folder.clone(), after, BATCH).await?;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// What it means for pages fetched earlier and from now on, for people; `None` if there are no earlier ones.
    pub(super) fn in_words(&self) -> Option<String> {
        if self.job.counts.done == 0 {
            return None;
        }
        let (before, after) = (self.before, self.after);
        let earlier = match before.saves_pages() {
            true if self.moves() && self.is_gone() => {
                format!(
                    "{} no longer exists, so pages fetched earlier are expected there, too",
                    before.shown_folder()
                )
            }
            // They may be in several folders.
            true => "pages fetched earlier stay where they are".to_owned(),
            false => "pages fetched earlier were not saved".to_owned(),
        };
        let name = &self.job.name;
        Some(match after.saves_pages() {
            true if before.format == after.format => {
                format!("From now on, job {name} saves its pages in {}; {earlier}", after.shown_folder())
            }
            true => {
                let (format, folder) = (after.format, after.shown_folder());
                format!("From now on, job {name} saves its pages as {format} in {folder}; {earlier}")
            }
            false => format!("From now on, job {name} saves no pages; {earlier}"),
        })
    }

    /// Why it has no effect on a job that has ended.
    pub(super) fn without_effect(&self) -> String {
        let flags = if self.before.format == self.after.format { "--out" } else { "--format" };
        let place = match self.before.saves_pages() {
            true => format!("its pages are in {}", self.before.shown_folder()),
            false => "its pages were not saved".to_owned(),
        };
        format!("{flags} changed nothing, because nothing was fetched; {place}")
    }

    /// Whether the folder is another one.
    fn moves(&self) -> bool {
        let (Some(before), Some(after)) = (self.before.folder, self.after.folder) else { return false };
        let is_same_folder = || Some(before.canonicalize().ok()? == after.canonicalize().ok()?);
        before != after && is_same_folder() != Some(true)
    }

    fn is_gone(&self) -> bool {
        self.before.folder.is_some_and(|folder| !folder.exists())
    }
}

/// Where the pages of a job with these options are, for people; `None` if they are not saved.
pub(super) fn of_pages(options: &Value) -> Option<String> {
    let place = Place::of(options).filter(|place| place.saves_pages())?;
    let folder = place.folder.filter(|folder| !exit::is_temporary(folder))?;
    let here = std::env::current_dir().ok();
    let near = here.as_deref().and_then(|here| folder.strip_prefix(here).ok());
    let shown = match near {
        Some(near) if near.as_os_str().is_empty() => ".".to_owned(),
        Some(near) => near.display().to_string(),
        None => folder.display().to_string(),
    };
    let shown = shown.trim_end_matches('/');
    Some(match place.format {
        "warc" => format!("Pages are in {shown}/, as WARC files"),
        _ => format!("Pages are in {shown}/, one row per URL in {shown}/index.jsonl"),
    })
}

/// How many files are renamed in the store at once.
const BATCH: u32 = 10_000;
