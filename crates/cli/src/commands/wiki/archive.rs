//! `comity wiki archive`: runs or resumes an archive with a live view, or estimates it (`--dry-run`).

use comity::client::{self, Client, SetupError};
use comity::config::Config;
use comity::core::outcome::Outcome;
use comity::core::time::{Span, Timestamp};
use comity::gate::{CloseMode, Gate};
use comity::status::{Status, Work};
use comity::store::wiki::FileTally;
use comity::wiki::api::Options;
use comity::wiki::archive::{Plan, Stage};
use comity::wiki::estimate::{Estimate, estimate};
use comity::wiki::files::Folder;
use comity::wiki::{Api, Archive, Assert, Login, Strategy, Summary, WikiError};
use serde_json::{Value, json};
use tokio::sync::watch;
use url::Url;

use crate::args::{Global, WikiArchive, WikiAssert};
use crate::live::{self, Watched};
use crate::signals::Signals;
use crate::{exit, output, setup};

pub(super) async fn run(global: &Global, config: Config, archive: WikiArchive) -> anyhow::Result<u8> {
    let store = setup::open_store_for_work(&config).await?;
    let gate = setup::gate(&config, store.clone(), "wiki archive").await?;
    let (stop, stopping) = watch::channel(false);
    let options = Options {
        maxlag: maxlag(&archive.maxlag)?,
        assert: archive.assert.map(assert),
        login: login(archive.user.as_deref())?,
        stop: Some(stopping),
        ..Options::default()
    };
    let transport = client::transport(&config)?;
    if let Ok(url) = Url::parse(&archive.api) {
        transport.check(&url).map_err(SetupError::from)?;
    }
    let api = Api::with_gate(&archive.api, &config, gate.clone(), transport.clone(), options)
        .map_err(with_exit_code)?;
    let began = gate.clock().now();
    let plan = Plan { namespaces: archive.namespace, incremental: archive.incremental };
    let ended = match archive.dry_run {
        true => dry_run(global, &api, &plan, archive.files.is_some(), stop).await,
        false => {
            let archiving = Archive::new(api, store.clone());
            let archiving = match archive.files {
                Some(path) => {
                    let client = Client::with_transport(&config, gate.clone(), transport, Some(store));
                    archiving.with_files(Folder { path, client })
                }
                None => archiving,
            };
            run_archive(global, &archiving, &plan, stop, began).await
        }
    };
    let closed = gate.close(CloseMode::Stop).await;
    let code = ended?;
    closed?;
    Ok(code)
}

async fn run_archive(
    global: &Global,
    archive: &Archive,
    plan: &Plan,
    stop: watch::Sender<bool>,
    began: Timestamp,
) -> anyhow::Result<u8> {
    let gate = archive.api().gate().clone();
    let mut signals = Signals::new()?;
    let name = host_of(&archive.api().address());
    let mut watched = Archiving { name, gate: gate.clone(), stage: archive.watch(), began, stop };
    let (summary, _) = live::watch(global, &mut watched, archive.run(plan), &mut signals).await;
    match summary {
        Ok(summary) => {
            print_summary(global, archive, &summary, gate.clock().now().since(began));
            let all_files = summary.files.is_none_or(|files| files.kept == files.files);
            Ok(if summary.lacking == 0 && all_files { exit::DONE } else { exit::FAILURES })
        }
        Err(WikiError::Stopped) => {
            output::remark(&WikiError::Stopped.to_string());
            Ok(exit::INTERRUPTED)
        }
        Err(error) => Err(with_exit_code(error)),
    }
}

/// The archive as the live view watches it.
struct Archiving {
    /// The host of the wiki.
    name: String,
    gate: Gate,
    stage: watch::Receiver<Stage>,
    began: Timestamp,
    stop: watch::Sender<bool>,
}

impl Watched for Archiving {
    async fn status(&mut self) -> (Status, Timestamp) {
        let now = self.gate.clock().now();
        let work = work(&self.stage.borrow(), now.since(self.began));
        let rate_limited = self.gate.events().counters().outcome(Outcome::RateLimited);
        self.gate.set_work(Work { name: self.name.clone(), rate_limited, ..work });
        (self.gate.status(1), now)
    }

    fn stop(&mut self) -> String {
        self.stop.send_replace(true);
        self.gate.hurry();
        "1 request in flight".to_owned()
    }

    fn quit_message(&self) -> String {
        "Stopped; what was archived so far is kept".to_owned()
    }
}

fn host_of(address: &str) -> String {
    Url::parse(address).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

/// The progress of the archive.
fn work(stage: &Stage, elapsed: Span) -> Work {
    let Stage { doing, pages, requests, .. } = stage;
    let doing = if doing.is_empty() { String::new() } else { format!("{doing}, ") };
    let note = format!("{doing}{pages} pages, {requests} requests");
    let work = Work { unit: "revisions".to_owned(), note, ..Work::default() };
    if stage.files_expected > 0 {
        let (done, all) = (stage.files, Some(stage.files_expected));
        return Work { unit: "files".to_owned(), done, all, ..work };
    }
    let fetched = stage.revisions.saturating_sub(stage.revisions_before);
    let rate = fetched as f64 / elapsed.as_secs_f64().max(0.001);
    let expected = stage.revisions_expected.map(|expected| expected.max(stage.revisions).max(1));
    let rest = expected.map(|expected| expected.saturating_sub(stage.revisions));
    let left_ms = rest.filter(|_| rate > 0.0).map(|rest| (rest as f64 / rate * 1e3) as u64);
    Work { done: stage.revisions, all: expected, rate: Some(rate), left_ms, ..work }
}

fn print_summary(global: &Global, archive: &Archive, summary: &Summary, elapsed: Span) {
    let Summary { kept, pages, revisions, requests, rate_limited, lacking, statistics, strategies, files } =
        summary;
    let way = strategies.last().map_or("nothing", |way| match way {
        Strategy::Full => "whole",
        Strategy::Changes => "recentchanges",
        Strategy::Compare => "compared",
    });
    if global.json {
        output::object(&json!({
            "api": archive.api().address(),
            "pages": pages,
            "revisions": revisions,
            "new_revisions": kept.revisions,
            "new_pages": kept.pages,
            "moved": kept.moved,
            "deleted": kept.deleted,
            "restored": kept.restored,
            "lacking": lacking,
            "without_text": kept.textless,
            "files": files.map(|files| json!({ "listed": files.files, "kept": files.kept, "bytes": files.bytes })),
            "way": way,
            "requests": requests,
            "rate_limited": rate_limited,
            "elapsed_ms": elapsed.as_millis_up(),
            "statistics": statistics,
        }));
        return;
    }
    if global.quiet {
        return;
    }
    let how = match strategies.last() {
        Some(Strategy::Full) | None => "full archive",
        Some(Strategy::Changes) => "updated from recent changes",
        Some(Strategy::Compare) => "updated by comparing all pages",
    };
    output::line(&format!(
        "{}: {pages} pages, {revisions} revisions; {how}, {requests} requests in {}",
        archive.api().address(),
        elapsed.prose()
    ));
    output::line(&format!(
        "new: {} revisions, {} pages; {} moved, {} deleted, {} restored",
        kept.revisions, kept.pages, kept.moved, kept.deleted, kept.restored
    ));
    if let Some(FileTally { files, kept, bytes }) = files {
        output::line(&format!("files: {kept} of {files} versions, {bytes} bytes"));
    }
    let count = |key: &str| statistics.get(key).and_then(Value::as_u64).unwrap_or(0);
    output::line(&format!(
        "Special:Statistics reports {} pages and {} edits in all namespaces",
        count("pages"),
        count("edits")
    ));
    if kept.textless > 0 {
        output::warning(&format!("The wiki did not return the text of {} revisions", kept.textless));
    }
    if *lacking > 0 {
        output::warning(&format!(
            "{lacking} pages are incomplete: the wiki did not return all of their data"
        ));
    }
}

async fn dry_run(
    global: &Global,
    api: &Api,
    plan: &Plan,
    with_files: bool,
    stop: watch::Sender<bool>,
) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let estimated = tokio::select! {
        estimated = estimate(api, plan, with_files) => estimated.map_err(with_exit_code)?,
        _ = signals.next() => {
            stop.send_replace(true);
            return Ok(exit::INTERRUPTED);
        }
    };
    let Estimate { namespaces, revisions, files, requests, spacing, duration } = estimated;
    let pages: u64 = namespaces.iter().map(|(.., pages)| pages).sum();
    if global.json {
        let namespaces: Vec<Value> = namespaces
            .iter()
            .map(|(id, name, pages)| json!({ "namespace": id, "name": name, "pages": pages }))
            .collect();
        output::object(&json!({
            "api": api.address(),
            "namespaces": namespaces,
            "pages": pages,
            "revisions": revisions,
            "files": files,
            "requests": requests,
            "spacing_ms": spacing.as_millis_up(),
            "duration_ms": duration.as_millis_up(),
        }));
        return Ok(exit::DONE);
    }
    for (_, name, pages) in &namespaces {
        output::line(&format!("{pages:>10} pages  {name}"));
    }
    if let Some(files) = files {
        output::line(&format!("{files:>10} files, plus their older versions"));
    }
    output::line(&format!(
        "{pages} pages with about {revisions} revisions: about {requests} requests, one every {}, takes about {}",
        spacing.prose(),
        duration.prose()
    ));
    Ok(exit::DONE)
}

fn login(user: Option<&str>) -> anyhow::Result<Option<Login>> {
    let Some(user) = user else { return Ok(None) };
    if user.trim().is_empty() {
        return Err(exit::usage(format!(
            "--user = {user:?}: expected the name of a bot, such as You@archive"
        )));
    }
    match std::env::var("COMITY_WIKI_PASSWORD") {
        Ok(password) if !password.is_empty() => Ok(Some(Login { user: user.to_owned(), password })),
        _ => Err(exit::usage(format!("--user = {user:?}: set its password in COMITY_WIKI_PASSWORD"))),
    }
}

fn maxlag(text: &str) -> anyhow::Result<Option<u32>> {
    match text {
        "none" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| exit::usage(format!("--maxlag = {text:?}: expected seconds such as 5, or none"))),
    }
}

fn assert(assert: WikiAssert) -> Assert {
    match assert {
        WikiAssert::Anon => Assert::Anon,
        WikiAssert::User => Assert::User,
        WikiAssert::Bot => Assert::Bot,
    }
}

/// Converts an error so that it gets the right exit code.
fn with_exit_code(error: WikiError) -> anyhow::Error {
    match error {
        WikiError::InvalidUrl(_)
        | WikiError::NoContact
        | WikiError::Namespace { .. }
        | WikiError::InsecureLogin(_)
        | WikiError::Login { .. }
        | WikiError::Folder { .. } => exit::usage(error.to_string()),
        WikiError::Store(error) => error.into(),
        WikiError::Gate(error) => error.into(),
        error => error.into(),
    }
}
