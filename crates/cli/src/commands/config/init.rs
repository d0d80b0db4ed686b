//! `comity config init`: a file to start from.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::args::Global;
use crate::{exit, output, setup};

/// What becomes of a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Kept,
    Replaced,
}

/// Writes the file that `--config` names, or comity.toml.
pub(super) fn run(global: &Global, existing: Existing) -> anyhow::Result<u8> {
    let path = global.config.clone().unwrap_or_else(|| PathBuf::from(setup::DEFAULT_FILE));
    let shown = path.display();
    let mut file = open(&path, existing).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exit::usage(format!("{shown} exists already; --force replaces it")),
        _ => exit::usage(format!("{shown}: {error}")),
    })?;
    file.write_all(TEMPLATE.as_bytes()).map_err(|error| exit::usage(format!("{shown}: {error}")))?;
    if global.json {
        output::object(&json!({ "file": path }));
    } else {
        output::line(&format!("Wrote {shown}. Set http.contact in it, then: comity config check"));
    }
    Ok(exit::DONE)
}

fn open(path: &Path, existing: Existing) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    match existing {
        Existing::Kept => options.create_new(true),
        Existing::Replaced => options.create(true).truncate(true),
    };
    options.open(path)
}

const TEMPLATE: &str = include_str!("template.toml");

#[cfg(test)]
mod tests {
    use super::*;
    use comity::config::{Config, Given, Sources};
    use comity::core::domain::Domain;
    use comity::core::rule::Profile;

    fn load(text: &str) -> Config {
        let (unnamed_profile, given) = (Profile::standard(), Given::default());
        let file = Some(("comity.toml", text));
        Config::load(Sources { unnamed_profile, file, env: Vec::new(), given })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn it_sets_nothing_but_the_defaults() {
        let (told, plain) = (load(TEMPLATE), Config::default());
        assert_eq!((told.profile, &told.store), (plain.profile, &plain.store));
        assert_eq!((&told.http, &told.upkeep, &told.job), (&plain.http, &plain.upkeep, &plain.job));
        let host = Domain::parse("example.org").unwrap();
        assert_eq!(told.rules().rule(&host), plain.rules().rule(&host));
    }

    #[test]
    fn what_is_commented_out_can_be_used_as_it_stands() {
        let uncomment = |line: &str| {
            let rest = line.strip_prefix("# ").filter(|rest| rest.starts_with('[') || rest.contains(" = "));
            rest.unwrap_or(line).to_owned()
        };
        let text: Vec<String> = TEMPLATE.lines().map(uncomment).collect();
        let told = load(&text.join("\n"));
        assert_eq!(told.http.contact.as_deref(), Some("you@example.org"));
        assert_eq!(told.domains.len(), 1);
    }
}
