//! `comity config init`: writes a commented configuration file to start from.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::args::Global;
use crate::{exit, output, setup};

/// What to do if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Keep,
    Overwrite,
}

/// Writes the file that `--config` names, or comity.toml.
pub(super) fn run(global: &Global, existing: Existing) -> anyhow::Result<u8> {
    let path = global.config.clone().unwrap_or_else(|| PathBuf::from(setup::DEFAULT_FILE));
    let shown = path.display();
    let mut file = open(&path, existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            exit::usage(format!("{shown} already exists; use --force to overwrite it"))
        }
        _ => exit::usage(format!("{shown}: {error}")),
    })?;
    file.write_all(TEMPLATE.as_bytes()).map_err(|error| exit::usage(format!("{shown}: {error}")))?;
    if global.json {
        output::object(&json!({ "file": path }));
    } else {
        output::line(&format!("Wrote {shown}. Set http.contact in it, then run: comity config check"));
    }
    Ok(exit::DONE)
}

fn open(path: &Path, existing: Existing) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    match existing {
        Existing::Keep => options.create_new(true),
        Existing::Overwrite => options.create(true).truncate(true),
    };
    options.open(path)
}

const TEMPLATE: &str = include_str!("template.toml");

#[cfg(test)]
mod tests {
    use super::*;
    use comity::config::{Config, Overrides, Sources};
    use comity::core::domain::Domain;
    use comity::core::rule::Profile;

    fn load(text: &str) -> Config {
        let (default_profile, overrides) = (Profile::standard(), Overrides::default());
        let file = Some(("comity.toml", text));
        Config::load(Sources { default_profile, file, env: Vec::new(), overrides })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_template_sets_only_defaults() {
        let (template, default) = (load(TEMPLATE), Config::default());
        assert_eq!((template.profile, &template.store), (default.profile, &default.store));
        assert_eq!(
            (&template.http, &template.upkeep, &template.job),
            (&default.http, &default.upkeep, &default.job)
        );
        let host = Domain::parse("example.org").unwrap();
        assert_eq!(template.rules().rule(&host), default.rules().rule(&host));
    }

    #[test]
    fn commented_out_settings_are_valid_when_uncommented() {
        let uncomment = |line: &str| {
            let rest = line.strip_prefix("# ").filter(|rest| rest.starts_with('[') || rest.contains(" = "));
            rest.unwrap_or(line).to_owned()
        };
        let text: Vec<String> = TEMPLATE.lines().map(uncomment).collect();
        let config = load(&text.join("\n"));
        assert_eq!(config.http.contact.as_deref(), Some("you@example.org"));
        assert_eq!(config.domains.len(), 1);
    }
}
