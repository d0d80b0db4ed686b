//! Arguments of `comity wiki`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};

/// Archive MediaWiki wikis with their full history
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Wiki {
    /// Archive a wiki: every page, every revision
    Archive(WikiArchive),
    /// Write an archive as a MediaWiki XML dump
    Export(WikiExport),
    /// Show how much of a wiki is archived, and how recent it is
    #[command(after_help = "Example:
  comity wiki status https://wiki.example/w/api.php")]
    Status {
        /// URL of the wiki's api.php
        #[arg(value_name = "API_URL")]
        api: String,
    },
}

/// Archive a wiki: every page, every revision
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity wiki archive https://wiki.example/w/api.php --dry-run    # how many pages, and how long it would take
  comity wiki archive https://wiki.example/w/api.php              # after Ctrl-C, the same command resumes
  comity wiki archive https://wiki.example/w/api.php --incremental
  comity wiki archive https://wiki.example/w/api.php -n 0 -n 4 -n 10
  comity wiki archive https://wiki.example/w/api.php --files=media   # with every version of every file

Sends one request per second (profile archiver) unless you choose another --profile. Wikis want to know who archives
them: set http.contact, or COMITY_HTTP_CONTACT, to an address where you can be reached. A wiki's Special:Version page
shows where its api.php is.")]
pub(crate) struct WikiArchive {
    /// URL of the wiki's api.php
    #[arg(value_name = "API_URL")]
    pub(crate) api: String,
    /// Fetch only what changed since the last archive
    #[arg(long)]
    pub(crate) incremental: bool,
    /// Count pages and estimate how long it would take; save nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Archive this namespace, by number; may be repeated [default: the wiki's content namespaces]
    #[arg(long, short, value_name = "N", value_parser = namespace)]
    pub(crate) namespace: Vec<i64>,
    /// Also download uploaded files, every version, to DIR [default: files]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "files")]
    pub(crate) files: Option<PathBuf>,
    /// Log in as this bot, such as You@archive (Special:BotPasswords); password in COMITY_WIKI_PASSWORD
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Wait while the wiki's database replicas lag by more than this many seconds; none never waits
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) maxlag: String,
    /// Stop unless the wiki sees you as this kind of user
    #[arg(long, value_enum)]
    pub(crate) assert: Option<WikiAssert>,
}

/// The kind of user that a wiki must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WikiAssert {
    /// Not logged in
    Anon,
    /// Logged in
    User,
    /// Logged in with the bot right
    Bot,
}

/// Write an archive as a MediaWiki XML dump
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity wiki export https://wiki.example/w/api.php --out wiki.xml
  comity wiki export https://wiki.example/w/api.php --out wiki.xml.zst   # or .gz
  comity wiki export https://wiki.example/w/api.php --out - | php maintenance/importDump.php")]
pub(crate) struct WikiExport {
    /// URL of the wiki's api.php
    #[arg(value_name = "API_URL")]
    pub(crate) api: String,
    /// File to write, compressed if its name ends in .gz or .zst; - for stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

fn namespace(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected a namespace number such as 0 or 4".to_owned())
}
