//! `comity wiki export`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use comity::config::Config;
use comity::store::Store;
use comity::store::wiki::Wiki;
use comity::wiki::export::{ExportError, Exported, Packed, export};
use serde_json::json;

use super::find;
use crate::args::{Global, WikiExport};
use crate::output::{self, Progress};
use crate::{exit, setup};

pub(super) async fn run(global: &Global, config: &Config, typed: WikiExport) -> anyhow::Result<u8> {
    let store = setup::open_store(config)?;
    let wiki = find(&*store, &typed.api).await?;
    let (namespaces, _) = store.tally_wiki(wiki.id).await?;
    let lacking: u64 = namespaces.iter().map(|one| one.lacking).sum();
    if comity::wiki::Progress::of(&wiki)?.under_way.is_some() || lacking > 0 {
        output::remark(&format!(
            "the archive is not complete ({lacking} pages lack something): comity wiki archive goes on with it"
        ));
    }
    let all = namespaces.iter().map(|one| one.pages).sum();
    let to_stdout = typed.out.as_os_str() == "-";
    if to_stdout && global.json {
        return Err(exit::usage("--out -: the dump is on stdout, where --json writes its object"));
    }
    let packed = Packed::of(&typed.out);
    let exported = match to_stdout {
        true => write(global, &*store, &wiki, all, BufWriter::new(std::io::stdout()), packed).await?,
        false => {
            // Under another name until it is whole.
            let part = typed.out.with_added_extension("part");
            let wrong = |path: &Path, error: std::io::Error| {
                exit::usage(format!("--out {}: {error}", path.display()))
            };
            let file = File::create(&part).map_err(|error| wrong(&part, error))?;
            let flushed = file.try_clone().map_err(|error| wrong(&part, error))?;
            let exported = write(global, &*store, &wiki, all, BufWriter::new(file), packed).await?;
            flushed.sync_all().map_err(|error| wrong(&part, error))?;
            std::fs::rename(&part, &typed.out).map_err(|error| wrong(&typed.out, error))?;
            exported
        }
    };
    let Exported { pages, revisions } = exported;
    if global.json {
        let file = typed.out.display().to_string();
        output::object(&json!({ "api": wiki.api, "file": file, "pages": pages, "revisions": revisions }));
    } else {
        output::remark(&format!("{pages} pages, {revisions} revisions in {}", typed.out.display()));
    }
    Ok(exit::DONE)
}

async fn write(
    global: &Global,
    store: &dyn Store,
    wiki: &Wiki,
    all: u64,
    out: impl Write + Send,
    packed: Packed,
) -> Result<Exported, ExportError> {
    let mut progress = Progress::start(global);
    let clock = comity::clock::Clock::new();
    let began = clock.now();
    let mut packed = packed.writer(out)?;
    let told = |so_far: Exported| {
        if so_far.pages.is_multiple_of(100) {
            let message = || format!("pages, {} revisions", so_far.revisions);
            progress.show(so_far.pages, all, clock.now().since(began), message);
        }
    };
    let exported = export(store, wiki, &mut packed, told).await?;
    packed.finish()?;
    Ok(exported)
}
