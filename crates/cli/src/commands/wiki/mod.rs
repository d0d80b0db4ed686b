//! `comity wiki`: one file per subcommand. What an archive is made of is in the engine (`comity::wiki`).

mod archive;
mod export;
mod status;

use comity::config::Overrides;
use comity::core::rule::Profile;
use comity::redact::shell_word;
use comity::store::Store;
use comity::store::wiki::Wiki;
use comity::wiki::api::address;

use crate::args::{self, Global};
use crate::{exit, output, setup};

pub(crate) async fn run(global: &Global, command: args::Wiki) -> anyhow::Result<u8> {
    // The default profile is archiver.
    let config = setup::config_from(global, Overrides::default(), Profile::archiver())?;
    output::log(&config.log, global);
    match command {
        args::Wiki::Archive(archive) => archive::run(global, config, archive).await,
        args::Wiki::Export(export) => export::run(global, &config, export).await,
        args::Wiki::Status { api } => status::run(global, &config, &api).await,
    }
}

/// The archive of a wiki, which must exist.
async fn find(store: &dyn Store, api: &str) -> anyhow::Result<Wiki> {
    let api = address(api).map_err(|error| exit::usage(error.to_string()))?;
    let found = store.find_wiki(api.clone()).await?;
    found.ok_or_else(|| {
        exit::usage(format!(
            "api = {api:?}: not archived in {} yet; start with: comity wiki archive {}",
            store.location(),
            shell_word(&api)
        ))
    })
}
