//! `comity wiki export`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use comity::archive::WholeFile;
use comity::config::Config;
use comity::status::{Status, Work};
use comity::store::Store;
use comity::store::wiki::Wiki;
use comity::wiki::export::{ExportError, Exported, Packed, export};
use serde_json::json;

use super::find;
use crate::args::{Global, WikiExport};
use crate::live::View;
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: &Config, typed: WikiExport) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    let wiki = find(&*store, &typed.api).await?;
    let (namespaces, _) = store.tally_wiki(wiki.id).await?;
    let lacking: u64 = namespaces.iter().map(|one| one.lacking).sum();
    let is_complete = comity::wiki::Progress::of(&wiki)?.under_way.is_none() && lacking == 0;
    if !is_complete {
        output::remark(&format!(
            "the archive is not complete ({lacking} pages lack something): comity wiki archive goes on with it"
        ));
    }
    let code = if is_complete { exit::DONE } else { exit::FAILURES };
    let all = namespaces.iter().map(|one| one.pages).sum();
    if typed.out.as_os_str() == "-" && global.json {
        return Err(exit::usage("--out -: the dump is on stdout, where --json writes its object"));
    }
    let wrong = |error: io::Error| exit::usage(format!("--out {}: {error}", typed.out.display()));
    let exported = match Place::of(&typed.out)? {
        Place::Stdout => {
            let out = BufWriter::new(output::Results);
            match write(global, &*store, &wiki, all, out, &typed.out).await {
                // What became of stdout is reported there, unless its reader just had enough.
                Err(_) if output::is_lost() => return Ok(code),
                exported => exported?,
            }
        }
        Place::File(path) => {
            let mut file = WholeFile::create(path).map_err(wrong)?;
            let exported = write(global, &*store, &wiki, all, &mut file, &typed.out).await?;
            file.finish_synced().map_err(unwritten(&typed.out))?;
            exported
        }
        Place::Other(path) => {
            let file = File::create(path).map_err(wrong)?;
            write(global, &*store, &wiki, all, BufWriter::new(file), &typed.out).await?
        }
    };
    let Exported { pages, revisions } = exported;
    if global.json {
        let file = typed.out.display().to_string();
        output::object(&json!({
            "api": wiki.api, "file": file, "pages": pages, "revisions": revisions, "complete": is_complete,
        }));
    } else if !global.quiet {
        output::remark(&format!("{pages} pages, {revisions} revisions in {}", typed.out.display()));
    }
    Ok(code)
}

/// Where a dump goes.
enum Place {
    Stdout,
    /// A file, which has another name until it is whole.
    File(PathBuf),
    /// Something else that can be written to, such as a pipe.
    Other(PathBuf),
}

impl Place {
    fn of(out: &Path) -> anyhow::Result<Self> {
        if out.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        // A link leads where it leads.
        let path = std::fs::canonicalize(out).unwrap_or_else(|_| out.to_owned());
        match std::fs::metadata(&path) {
            Ok(there) if there.is_dir() => {
                Err(exit::usage(format!("--out {}: that is a folder; name a file in it", out.display())))
            }
            Ok(there) if !there.is_file() => Ok(Self::Other(path)),
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
    let mut packed = Packed::of(path).writer(out).map_err(unwritten(path))?;
    let told = |so_far: Exported| {
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
    let exported = export(store, wiki, &mut packed, told).await.map_err(|error| match error {
        // So that it ends with the code of a store that does not work.
        ExportError::Store(error) => error.into(),
        ExportError::Write(error) => unwritten(path)(error),
        error => anyhow::Error::from(error),
    })?;
    packed.finish().map_err(unwritten(path))?;
    Ok(exported)
}

/// What cannot be begun was typed wrongly; what breaks on the way is a failure.
fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| anyhow!("--out {}: {error}", path.display())
}
