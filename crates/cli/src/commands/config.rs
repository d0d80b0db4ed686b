//! `comity config` and `comity profiles`.

mod init;

use comity::config::{Config, Overrides};
use comity::core::rule::Profile;
use comity::request::{JobRequest, Requests};
use serde_json::json;

use self::init::Existing;
use crate::args::{ConfigCommand, Global};
use crate::{exit, output, setup};

pub(crate) fn run(global: &Global, command: &ConfigCommand) -> anyhow::Result<u8> {
    match command {
        ConfigCommand::Init { force } => {
            return init::run(global, if *force { Existing::Overwrite } else { Existing::Keep });
        }
        ConfigCommand::Reference { markdown: false } => output::text(&Config::reference()),
        ConfigCommand::Reference { markdown: true } => output::text(&Config::reference_markdown()),
        ConfigCommand::Check => {
            let config = setup::config(global, Overrides::default())?;
            let (profile, domains) = (config.profile, config.domains.len());
            let warnings = missing_secrets(&config);
            if global.json {
                output::object(&json!({
                    "ok": true,
                    "profile": profile,
                    "domains": domains,
                    "store": config.store.to_string(),
                    "warnings": warnings,
                }));
            } else {
                let rules = match domains {
                    0 => "no rules for single sites".to_owned(),
                    1 => "rules for 1 site".to_owned(),
                    domains => format!("rules for {domains} sites"),
                };
                output::line(&format!(
                    "The configuration is valid: profile {profile}, {rules}, store {}",
                    config.store
                ));
                for warning in &warnings {
                    output::line(&format!("Warning: {warning}"));
                }
                if config.http.contact.is_none() {
                    output::line(
                        "No contact is set, so site operators can't reach you: set http.contact or COMITY_HTTP_CONTACT",
                    );
                }
            }
        }
    }
    Ok(exit::DONE)
}

/// Variables and files that request options refer to and that are missing or unusable here, and what can't be fetched
/// without them. They may exist where the configuration is used, so they aren't errors.
fn missing_secrets(config: &Config) -> Vec<String> {
    let env = |name: &str| std::env::var(name).ok();
    let with = |problem: String, effect: &str| format!("{problem}; {effect}");
    match Requests::open(config, &JobRequest::default(), &env) {
        Ok(requests) => {
            requests.site_problems().into_iter().map(|problem| with(problem, SITE_FAILS)).collect()
        }
        Err(error) => error.0.into_iter().map(|problem| with(problem, NOTHING_STARTS)).collect(),
    }
}

const SITE_FAILS: &str = "this site can't be fetched without it";
const NOTHING_STARTS: &str = "commands that fetch don't start without it";

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
            output::remark("Print one as configuration to copy: comity profiles NAME");
        }
    }
    Ok(exit::DONE)
}
