//! What can be typed after `comity wiki`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};

/// Archive MediaWiki wikis with their whole history
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Wiki {
    /// Archive a wiki: every page, every revision
    Archive(WikiArchive),
    /// Write an archive as a MediaWiki XML dump
    Export(WikiExport),
    /// What is archived of a wiki, how complete, and when that was
    #[command(after_help = "Example:
  comity wiki status https://wiki.example/w/api.php")]
    Status {
        /// The address of its api.php
        #[arg(value_name = "API_URL")]
        api: String,
    },
}

/// Archive a wiki: every page, every revision
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity wiki archive https://wiki.example/w/api.php --dry-run    # how much, and how long it takes
  comity wiki archive https://wiki.example/w/api.php              # Ctrl-C, then again: goes on where it stopped
  comity wiki archive https://wiki.example/w/api.php --incremental
  comity wiki archive https://wiki.example/w/api.php -n 0 -n 4 -n 10
  comity wiki archive https://wiki.example/w/api.php --files=media   # with every version of every file

A request a second (profile archiver) unless another --profile is named. Wikis want to know who archives them: set
http.contact, or COMITY_HTTP_CONTACT, to an address where you can be reached. Special:Version of a wiki tells where its
api.php is.")]
pub(crate) struct WikiArchive {
    /// The address of its api.php
    #[arg(value_name = "API_URL")]
    pub(crate) api: String,
    /// Ask for what changed since the last time only
    #[arg(long)]
    pub(crate) incremental: bool,
    /// Count pages and tell how long it would take; keep nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A namespace by its number; may be given more than once [default: all that the wiki calls content]
    #[arg(long, short, value_name = "N", value_parser = namespace)]
    pub(crate) namespace: Vec<i64>,
    /// Fetch the files that were uploaded too, every version, into DIR [default: files]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "files")]
    pub(crate) files: Option<PathBuf>,
    /// Log in as this bot, such as You@archive (Special:BotPasswords); COMITY_WIKI_PASSWORD holds its password
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Ask later while the wiki's databases lag behind by more seconds than this; none asks anyway
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) maxlag: String,
    /// Refuse to go on unless the wiki takes us for this
    #[arg(long, value_enum)]
    pub(crate) assert: Option<WikiAssert>,
}

/// Whom a wiki must take us for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WikiAssert {
    /// Nobody in particular
    Anon,
    /// Somebody with an account
    User,
    /// A bot
    Bot,
}

/// Write an archive as a MediaWiki XML dump
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity wiki export https://wiki.example/w/api.php --out wiki.xml
  comity wiki export https://wiki.example/w/api.php --out wiki.xml.zst   # or .gz
  comity wiki export https://wiki.example/w/api.php --out - | php maintenance/importDump.php")]
pub(crate) struct WikiExport {
    /// The address of its api.php
    #[arg(value_name = "API_URL")]
    pub(crate) api: String,
    /// Where to write it, packed if the name ends with .gz or .zst; - for stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

fn namespace(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected the number of a namespace, such as 0 or 4".to_owned())
}
