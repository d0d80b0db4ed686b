//! What was typed, as configuration, store and gate.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comity::archive::{Archive, Files, Warc};
use comity::clock::Clock;
use comity::config::{ArchiveFormat, Config, Given, Sources, environment, exposed, has_password, read_file};
use comity::core::domain::Domain;
use comity::core::rule::Profile;
use comity::event::Events;
use comity::gate::{Gate, GateError};
use comity::request::JobRequest;
use comity::shown;
use comity::store::{self, Store};

use crate::args::{Format, Global};
use crate::exit::usage;
use crate::output;

/// The configuration that `given` and the global flags lead to.
pub(crate) fn config(global: &Global, given: Given) -> anyhow::Result<Config> {
    config_from(global, given, Profile::standard())
}

/// The same, with another profile when none is named.
pub(crate) fn config_from(global: &Global, given: Given, unnamed_profile: Profile) -> anyhow::Result<Config> {
    let default = PathBuf::from(DEFAULT_FILE);
    let path = global.config.clone().or_else(|| default.exists().then_some(default));
    let text = path.as_deref().map(read_file).transpose()?;
    let name = path.as_deref().map(Path::display).map(|name| name.to_string());
    let given = Given {
        store: global.store.clone(),
        profile: global.profile.clone().or(given.profile),
        log_level: global.log_level.clone(),
        log_format: global.log_format.clone(),
        ..given
    };
    let file = name.as_deref().zip(text.as_deref());
    let config = Config::load(Sources { unnamed_profile, file, env: environment(), given });
    let has_secrets =
        text.as_deref().is_some_and(has_password) || config.as_ref().is_ok_and(|config| config.has_secrets);
    if let Some(warning) = path.as_deref().filter(|_| has_secrets).and_then(exposed) {
        output::remark(&format!("warning: {warning}"));
    }
    Ok(config?)
}

/// The store that the configuration names, for a command that is soon over: one that is locked is waited for for 10 seconds.
pub(crate) fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(noted(store::open(config.store.as_str())?))
}

/// The same for work that takes long: a store that is away is waited for as long as `upkeep.patience` says, now and later.
pub(crate) async fn open_store_to_work(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let (place, patience) = (config.store.clone(), config.upkeep.patience);
    let opening = tokio::task::spawn_blocking(move || store::open_patiently(place.as_str(), patience));
    Ok(noted(opening.await??))
}

fn noted(store: Arc<dyn Store>) -> Arc<dyn Store> {
    store.notes().iter().for_each(|note| tracing::warn!("{note}"));
    store
}

/// Stores that this process has open, by name: a configuration that is read again finds the one it had.
#[derive(Default)]
pub(crate) struct Stores(HashMap<String, Arc<dyn Store>>);

impl Stores {
    /// The store that the configuration names; one that is open is not opened again.
    pub(crate) async fn open(&mut self, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
        if let Some(store) = self.0.get(config.store.as_str()) {
            store.set_patience(config.upkeep.patience);
            return Ok(store.clone());
        }
        let store = open_store_to_work(config).await?;
        self.0.insert(config.store.as_str().to_owned(), store.clone());
        Ok(store)
    }
}

/// A gate on that store; `name` tells other processes who this is.
pub(crate) async fn gate(config: &Config, store: Arc<dyn Store>, name: &str) -> anyhow::Result<Gate> {
    let name = format!("{name}, pid {}", std::process::id());
    // Started here, and only here, the clock takes the store's time.
    let gate = Gate::with_store(config.rules().clone(), Clock::new(), Events::new(), store, &name).await?;
    gate.set_keep(config.upkeep.keep);
    Ok(gate)
}

/// Waits for a domain that another process holds, but not for ever: a request of it may be on the wire.
pub(crate) async fn in_time<T>(asking: impl Future<Output = Result<T, GateError>>) -> anyhow::Result<T> {
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(result) => Ok(result?),
        Err(_) => anyhow::bail!(
            "another process holds the domain and did not hand it over within {} s; comity domains show tells which",
            PATIENCE.as_secs()
        ),
    }
}

/// Where pages are kept; `what` says which setting named the folder.
pub(crate) fn archive(
    what: &str,
    format: ArchiveFormat,
    out: &Path,
    job: &str,
    config: &Config,
) -> anyhow::Result<Archive> {
    let wrong = |error| usage(format!("{what}: {error}"));
    Ok(match format {
        ArchiveFormat::None => Archive::Nothing,
        ArchiveFormat::Files => Archive::Files(Files::open(out).map_err(wrong)?),
        ArchiveFormat::Warc => Archive::Warc(Warc::open(out, job, config, Clock::new()).map_err(wrong)?),
    })
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

/// Sites that mind want to tell somebody.
pub(crate) fn warn_without_contact(config: &Config) {
    if config.http.contact.is_none() {
        tracing::warn!(
            "no contact is set, so sites cannot reach you: set http.contact in comity.toml or COMITY_HTTP_CONTACT"
        );
    }
}

/// What somebody should know who gave secrets, or trusts a host without looking.
pub(crate) fn warn_of_risks(config: &Config, request: &JobRequest) {
    let configured = config.request.insecure();
    for host in request.insecure().iter().cloned().chain(configured) {
        tracing::warn!(
            "the certificate of {host} is not checked: anybody on the way can read and change what is sent"
        );
    }
    for warning in request.files().into_iter().filter_map(exposed) {
        tracing::warn!("{warning}");
    }
}

/// The host that a URL or the name of a domain means.
pub(crate) fn host(text: &str) -> anyhow::Result<Domain> {
    if text.trim().contains(['\n', '\r']) {
        return Err(usage("a URL or domain must not contain a line break"));
    }
    let parsed = if text.contains("://") { Domain::of_url(text) } else { Domain::parse(text) };
    // What is not understood may hold a password.
    parsed.map_err(|error| {
        usage(format!("domain = {:?}: expected {}", shown::text(&error.value), error.expected))
    })
}

/// How long a command waits for a domain.
const PATIENCE: Duration = Duration::from_secs(15);
/// The file that is read where none is named.
pub(crate) const DEFAULT_FILE: &str = "comity.toml";
