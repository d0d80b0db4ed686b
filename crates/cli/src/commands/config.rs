//! `comity config`, `comity profiles`.

mod init;

use comity::config::{Config, Given};
use comity::core::rule::Profile;
use serde_json::json;

use self::init::Existing;
use crate::args::{ConfigCommand, Global};
use crate::{exit, output, setup};

pub(crate) fn run(global: &Global, command: &ConfigCommand) -> anyhow::Result<u8> {
    match command {
        ConfigCommand::Init { force } => {
            return init::run(global, if *force { Existing::Replaced } else { Existing::Kept });
        }
        ConfigCommand::Reference { markdown: false } => output::text(&Config::reference()),
        ConfigCommand::Reference { markdown: true } => output::text(&Config::reference_page()),
        ConfigCommand::Check => {
            let config = setup::config(global, Given::default())?;
            let (profile, domains) = (config.profile, config.domains.len());
            if global.json {
                output::object(
                    &json!({ "ok": true, "profile": profile, "domains": domains, "store": config.store.to_string() }),
                );
            } else {
                let rows = if domains == 1 {
                    "one domain of its own".to_owned()
                } else {
                    format!("{domains} domains of its own")
                };
                output::line(&format!(
                    "the configuration is valid: profile {profile}, {rows}, store {}",
                    config.store
                ));
                if config.http.contact.is_none() {
                    output::line(
                        "no contact is set: sites cannot reach you (http.contact, COMITY_HTTP_CONTACT)",
                    );
                }
            }
        }
    }
    Ok(exit::DONE)
}

pub(crate) fn profiles(global: &Global, name: Option<&str>) -> anyhow::Result<u8> {
    match name {
        Some(name) => {
            let profile = Profile::named(name).map_err(|error| exit::usage(error.to_string()))?;
            output::text(&profile.to_toml());
        }
        None if global.json => output::object(&json!({ "profiles": Profile::NAMES })),
        None => {
            for profile in Profile::NAMES.iter().filter_map(|name| Profile::named(name).ok()) {
                output::line(&format!("{:10} {}", profile.name, profile.about()));
            }
            output::remark("comity profiles NAME prints one as configuration to copy");
        }
    }
    Ok(exit::DONE)
}
