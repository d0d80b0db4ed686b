//! `comity wiki export`: writes an archive as a MediaWiki XML dump to a file, a pipe or stdout.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use comity::archive::AtomicFile;
use comity::config::Config;
use comity::status::{Status, Work};
use comity::store::Store;
use comity::store::wiki::Wiki;
use comity::wiki::export::{DumpCompression, ExportError, Exported, export};
use serde_json::json;

use super::find;
use crate::args::{Global, WikiExport};
use crate::live::View;
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, args: WikiExport) -> anyhow::Result<u8> {
    let store = setup::open_existing_store(config)?;
    let wiki = find(&*store, &args.api).await?;
    let (namespaces, _) = store.tally_wiki(wiki.id).await?;
    let lacking: u64 = namespaces.iter().map(|one| one.lacking).sum();
    let is_complete = comity::wiki::Progress::of(&wiki)?.current_round.is_none() && lacking == 0;
    if !is_complete {
        output::warning(&format!(
            "The archive is incomplete ({lacking} incomplete pages); comity wiki archive continues it"
        ));
    }
    let code = if is_complete { exit::DONE } else { exit::FAILURES };
    let all = namespaces.iter().map(|one| one.pages).sum();
    if args.out.as_os_str() == "-" && global.json {
        return Err(exit::usage("--out - can't be combined with --json: both write to stdout"));
    }
    let wrong = |error: io::Error| exit::usage(format!("--out = {:?}: {error}", args.out));
    let exported = match Target::of(&args.out)? {
        Target::Stdout => {
            let out = BufWriter::new(output::Results);
            match write(global, &*store, &wiki, all, out, &args.out).await {
                // `output` reports write errors; a closed pipe is not one.
                Err(_) if output::is_stdout_broken() => return Ok(code),
                exported => exported?,
            }
        }
        Target::File(path) => {
            let mut file = AtomicFile::create(path).map_err(wrong)?;
            let exported = write(global, &*store, &wiki, all, &mut file, &args.out).await?;
            file.finish_synced().map_err(write_error(&args.out))?;
            exported
        }
        Target::Other(path) => {
            let file = File::create(path).map_err(wrong)?;
            write(global, &*store, &wiki, all, BufWriter::new(file), &args.out).await?
        }
    };
    let Exported { pages, revisions } = exported;
    if global.json {
        let file = args.out.display().to_string();
        output::object(&json!({
            "api": wiki.api, "file": file, "pages": pages, "revisions": revisions, "complete": is_complete,
        }));
    } else if !global.quiet {
        output::remark(&format!("Wrote {pages} pages with {revisions} revisions to {}", args.out.display()));
    }
    Ok(code)
}

/// Where a dump goes.
enum Target {
    Stdout,
    /// A file, written under a temporary name until it is complete.
    File(PathBuf),
    /// Something else that can be written to, such as a pipe.
    Other(PathBuf),
}

impl Target {
    fn of(out: &Path) -> anyhow::Result<Self> {
        if out.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        // Follow symbolic links, so that the temporary file is next to the target.
        let path = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => {
                Err(exit::usage(format!("--out = {out:?}: is a folder; name a file in it")))
            }
            Ok(found) if !found.is_file() => Ok(Self::Other(path)),
            _ => Ok(Self::File(path)),
        }
    }
}

async fn write(
    global: &Global,
    store: &dyn Store,
    wiki: &Wiki,
    all: u64,
    out: impl Write + Send,
    path: &Path,
) -> anyhow::Result<Exported> {
    let mut view = View::begin(global);
    let clock = comity::clock::Clock::new();
    let began = clock.now();
    let mut packed = DumpCompression::of(path).writer(out).map_err(write_error(path))?;
    let on_progress = |so_far: Exported| {
        if so_far.pages.is_multiple_of(100) {
            let now = clock.now();
            let (name, unit) = ("export".to_owned(), "pages".to_owned());
            let rate = so_far.pages as f64 / now.since(began).as_secs_f64().max(0.001);
            let left_ms = Some((all.saturating_sub(so_far.pages) as f64 / rate.max(0.001) * 1e3) as u64);
            let (done, all, rate) = (so_far.pages, Some(all), Some(rate));
            let note = format!("{} revisions", so_far.revisions);
            let work = Work { name, unit, done, all, rate, left_ms, note, ..Work::default() };
            view.show(&Status { work: Some(work), ..Status::default() }, now);
        }
    };
    let exported = export(store, wiki, &mut packed, on_progress).await.map_err(|error| match error {
        // Unwrapped, so that the exit code is that of an unavailable store.
        ExportError::Store(error) => error.into(),
        ExportError::Write(error) => write_error(path)(error),
        error => anyhow::Error::from(error),
    })?;
    packed.finish().map_err(write_error(path))?;
    Ok(exported)
}

/// A write error. Unlike a file that can't be opened, it is a failure and not a usage error.
fn write_error(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow!("--out = {path:?}: {error}")
}
