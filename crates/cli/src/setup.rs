//! Turns flags into what commands work with: configuration, store, gate, archive.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comity::archive::{Archive, Files, Warc};
use comity::clock::Clock;
use comity::config::{
    ArchiveFormat, Config, Overrides, Sources, StoreUrl, environment, exposure_warning, has_password,
    read_file,
};
use comity::core::domain::Domain;
use comity::core::rule::Profile;
use comity::core::time::Span;
use comity::event::{Events, Listener};
use comity::gate::{Gate, GateError};
use comity::redact;
use comity::request::JobRequest;
use comity::store::{self, Store, StoreError};

use crate::args::{Format, Global};
use crate::exit::usage;
use crate::output;

/// Loads the configuration from file, environment, global flags and `overrides`. Warns if others can read its secrets.
pub(crate) fn config(global: &Global, overrides: Overrides) -> anyhow::Result<Config> {
    config_from(global, overrides, Profile::standard())
}

/// Like [`config`] for the many short commands that look and steer, and for a second look: without the warning.
pub(crate) fn config_without_warning(global: &Global, overrides: Overrides) -> anyhow::Result<Config> {
    load(global, overrides, Profile::standard()).0
}

/// Like [`config`], with another default profile.
pub(crate) fn config_from(
    global: &Global,
    overrides: Overrides,
    default_profile: Profile,
) -> anyhow::Result<Config> {
    let (config, warning) = load(global, overrides, default_profile);
    if let Some(warning) = warning.filter(|_| !global.quiet) {
        output::warning(&format!("warning: {warning}"));
    }
    config
}

/// The configuration, and a warning if others can read its secrets.
fn load(
    global: &Global,
    overrides: Overrides,
    default_profile: Profile,
) -> (anyhow::Result<Config>, Option<String>) {
    let default = PathBuf::from(DEFAULT_FILE);
    let path = global.config.clone().or_else(|| default.exists().then_some(default));
    let text = match path.as_deref().map(read_file).transpose() {
        Ok(text) => text,
        Err(error) => return (Err(error.into()), None),
    };
    let name = path.as_deref().map(Path::display).map(|name| name.to_string());
    let overrides = Overrides {
        store: global.store.clone(),
        profile: global.profile.clone().or(overrides.profile),
        log_level: global.log_level.clone(),
        log_format: global.log_format.clone(),
        ..overrides
    };
    let file = name.as_deref().zip(text.as_deref());
    let config = Config::load(Sources { default_profile, file, env: environment(), overrides });
    let has_secrets =
        text.as_deref().is_some_and(has_password) || config.as_ref().is_ok_and(|config| config.has_secrets);
    let warning = path.as_deref().filter(|_| has_secrets).and_then(exposure_warning);
    (config.map_err(Into::into), warning)
}

/// Opens the store for a short command, or creates it: waits up to 10 seconds if it is locked.
pub(crate) fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(log_notes(store::open(config.store.as_str())?))
}

/// Opens the store for a short command that needs what is in it. It is never created, because a store that doesn't exist
/// is probably misspelled. Only the default store counts as empty before its first use.
pub(crate) fn open_existing_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    or_empty(config, store::open_existing(config.store.as_str(), store::PATIENCE)?)
}

/// Like [`open_existing_store`], for long work: waits up to `upkeep.patience` if it is unavailable, now and later.
pub(crate) async fn open_existing_store_for_work(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let (place, patience) = (config.store.clone(), config.upkeep.patience);
    let opening = tokio::task::spawn_blocking(move || store::open_existing(place.as_str(), patience));
    or_empty(config, opening.await??)
}

/// The store that was found, or an empty one in place of the default store.
fn or_empty(config: &Config, found: Option<Arc<dyn Store>>) -> anyhow::Result<Arc<dyn Store>> {
    match found {
        Some(store) => Ok(log_notes(store)),
        None if config.store == StoreUrl::default() => Ok(store::open("memory:")?),
        None => Err(no_store(config)),
    }
}

/// There is no store, and this command doesn't create one.
pub(crate) fn no_store(config: &Config) -> anyhow::Error {
    let what = "there is no store here; check the name (--store, COMITY_STORE, or store in comity.toml), or create one with a \
                command that adds something, such as comity fetch URL or comity sources add URL";
    let location = location(config);
    StoreError::Unavailable { location, what: what.to_owned(), outage: None }.into()
}

/// Opens the store for long work, or creates it: waits up to `upkeep.patience` if it is unavailable, now and later.
pub(crate) async fn open_store_for_work(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let (place, patience) = (config.store.clone(), config.upkeep.patience);
    let opening = tokio::task::spawn_blocking(move || store::open_with_patience(place.as_str(), patience));
    Ok(log_notes(opening.await??))
}

/// Where the store is or would be, for messages to people.
pub(crate) fn location(config: &Config) -> String {
    let url = config.store.to_string();
    url.strip_prefix("sqlite:").map(str::to_owned).unwrap_or(url)
}

fn log_notes(store: Arc<dyn Store>) -> Arc<dyn Store> {
    store.notes().iter().for_each(|note| tracing::warn!("{note}"));
    store
}

/// The stores that this process has open, by name, so that a reload reuses them.
#[derive(Default)]
pub(crate) struct Stores(HashMap<String, Arc<dyn Store>>);

impl Stores {
    /// Opens the store that the configuration names, unless it is open already.
    pub(crate) async fn open(&mut self, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
        if let Some(store) = self.0.get(config.store.as_str()) {
            store.set_patience(config.upkeep.patience);
            return Ok(store.clone());
        }
        let store = open_store_for_work(config).await?;
        self.0.insert(config.store.as_str().to_owned(), store.clone());
        Ok(store)
    }
}

/// A gate on that store; other processes see this one as `name`.
pub(crate) async fn gate(config: &Config, store: Arc<dyn Store>, name: &str) -> anyhow::Result<Gate> {
    let name = format!("{name}, pid {}", std::process::id());
    // Only a clock that starts here can take the store's time.
    let events = Events::new();
    if let Some(listener) = LISTENER.get() {
        events.listen(listener.clone());
    }
    let gate = Gate::with_store(config.rules().clone(), Clock::new(), events, store, &name).await?;
    gate.set_keep(config.upkeep.keep);
    Ok(gate)
}

/// Has the events of all gates that follow go to `listener`, too: that of a dashboard in this process.
pub(crate) fn listen(listener: Arc<dyn Listener>) {
    // Only one command runs in a process, and it starts at most one dashboard.
    let _ = LISTENER.set(listener);
}

static LISTENER: OnceLock<Arc<dyn Listener>> = OnceLock::new();

/// Waits for a domain that another process holds, with a timeout: that process may have a request in flight.
pub(crate) async fn with_timeout<T>(asking: impl Future<Output = Result<T, GateError>>) -> anyhow::Result<T> {
    match tokio::time::timeout(HANDOVER_TIMEOUT, asking).await {
        Ok(result) => Ok(result?),
        Err(_) => anyhow::bail!(
            "another process is in charge of the site and did not hand it over within {}; comity domains show names it",
            Span::from(HANDOVER_TIMEOUT).prose()
        ),
    }
}

/// Opens the archive that pages are saved to; errors name `setting`, the one that named the folder.
pub(crate) fn archive(
    setting: &str,
    format: ArchiveFormat,
    out: &Path,
    job: &str,
    config: &Config,
) -> anyhow::Result<Archive> {
    let wrong = |error: comity::archive::ArchiveError| match error.path == out {
        true => usage(format!("{setting} = {out:?}: {}", error.cause)),
        false => usage(format!("{setting} = {out:?}: {error}")),
    };
    if format != ArchiveFormat::None {
        check_folder(setting, out)?;
    }
    Ok(match format {
        ArchiveFormat::None => Archive::Nothing,
        ArchiveFormat::Files => Archive::Files(Files::open(out).map_err(wrong)?),
        ArchiveFormat::Warc => Archive::Warc(Warc::open(out, job, config, Clock::new()).map_err(wrong)?),
    })
}

/// Refuses a path that can't be a folder because there is a file, at the path itself or on the way to it.
fn check_folder(setting: &str, folder: &Path) -> anyhow::Result<()> {
    match folder.ancestors().find(|path| path.exists()) {
        Some(found) if !found.is_dir() => {
            let (folder, found) = (folder.display().to_string(), found.display());
            Err(usage(format!("{setting} = {folder:?}: expected a folder, but {found} is a file")))
        }
        _ => Ok(()),
    }
}

impl From<Format> for ArchiveFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Files => Self::Files,
            Format::Warc => Self::Warc,
            Format::None => Self::None,
        }
    }
}

/// Warns if no contact is set: a site's operators should be able to reach whoever fetches.
pub(crate) fn warn_without_contact(config: &Config) {
    if config.http.contact.is_none() {
        tracing::warn!(
            "no contact is set, so site operators can't reach you: set http.contact in comity.toml or COMITY_HTTP_CONTACT"
        );
    }
}

/// Warns of hosts whose certificate is not verified, and of secrets in files that others can read.
pub(crate) fn warn_of_risks(config: &Config, request: &JobRequest) {
    let configured = config.request.insecure();
    for host in request.insecure().iter().cloned().chain(configured) {
        tracing::warn!(
            "the TLS certificate of {host} is not verified: others on the network can read and change what is sent"
        );
    }
    for warning in request.files().into_iter().filter_map(exposure_warning) {
        tracing::warn!("{warning}");
    }
}

/// The host of a URL, or a domain name.
pub(crate) fn host(text: &str) -> anyhow::Result<Domain> {
    if text.trim().contains(['\n', '\r']) {
        return Err(usage("a URL or site must not contain a line break"));
    }
    let parsed = if text.contains("://") { Domain::of_url(text) } else { Domain::parse(text) };
    // Text that doesn't parse may still contain a password.
    parsed.map_err(|error| {
        usage(format!("URL or site = {:?}: expected {}", redact::text(&error.value), error.expected))
    })
}

/// How long a command waits for another process to release a domain.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(15);
/// The configuration file that is read by default.
pub(crate) const DEFAULT_FILE: &str = "comity.toml";
