//! What can be typed about sources and items.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as Group, Subcommand, ValueEnum};
use comity::store::items::ItemState;
use comity::store::sources::Kind;

/// Manage the sources that are followed: feeds, pages, sitemaps, URL lists
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Sources {
    /// Follow a feed, a page, a sitemap or a URL list
    Add(SourcesAdd),
    /// Sources with when they were fetched, when they are due, and how they are
    #[command(after_help = "Examples:
  comity sources list
  comity sources list news --kind feed
  comity sources list --failing --json")]
    List {
        /// Only those whose name or URL contains this
        #[arg(value_name = "MATCH", default_value = "")]
        like: String,
        /// Only those of this kind
        #[arg(long, value_parser = kinds(), value_name = "KIND")]
        kind: Option<Kind>,
        /// Only those that failed, or cannot be fetched as they are
        #[arg(long)]
        failing: bool,
    },
    /// One source: everything about it, and its last fetches
    #[command(after_help = "Example:
  comity sources show 3")]
    Show {
        /// Its number, as comity sources list shows it
        #[arg(value_name = "ID")]
        id: i64,
    },
    /// Change a source
    Set(SourcesSet),
    /// Follow sources no longer; their items and logs go with them
    #[command(after_help = "Example:
  comity sources remove 3 4")]
    Remove {
        /// Their numbers
        #[arg(value_name = "ID", required = true)]
        ids: Vec<i64>,
    },
    /// Add the sources of a list: OPML as feed readers export it, CSV, or one URL a line
    Import(SourcesImport),
    /// Write all sources as OPML, which feed readers and comity sources import understand
    ///
    /// Folders, the pages of feeds, cadences and minimum intervals are kept; passwords in URLs are left out.
    #[command(after_help = "Examples:
  comity sources export > sources.opml
  comity sources export --out sources.opml")]
    Export {
        /// Into a file, which is replaced when all is written [default: stdout]
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// How often sources are worth asking, for one or many of them
    #[command(
        subcommand,
        after_help = "Examples:
  comity sources cadence set 8h --kind feed --dry-run
  comity sources cadence clear 3"
    )]
    Cadence(Cadence),
}

/// Follow a feed, a page, a sitemap or a URL list
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources add https://example.org/               # finds the feed that the page names
  comity sources add https://example.org/feed.xml --cadence 8h
  comity sources add https://example.org/sitemap.xml --kind sitemap --min-interval 2.5 --no-scrape

Without --kind the URL is asked once, politely, to see what it is.")]
pub(crate) struct SourcesAdd {
    /// Where it is
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// What it is; then nothing is asked
    #[arg(long, value_parser = kinds(), value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// What to call it [default: its title, or its host and path]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How often it is worth asking, such as 8h, 90m or 480 (minutes) [default: in every run]
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true)]
    pub(crate) cadence: Option<String>,
    /// The least time between two scrapes of its items in seconds, such as 2.5; 0 for none [default: the configured one]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) min_interval: Option<String>,
    /// Only note its items, do not fetch their pages
    #[arg(long)]
    pub(crate) no_scrape: bool,
}

/// Change a source
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources set 3 --name \"Daily news\" --cadence 8h
  comity sources set 3 --min-interval default           # back to scrape.min_interval
  comity sources set 3 --enabled off")]
#[command(override_usage = "comity sources set [OPTIONS] <ID> --KEY VALUE...")]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct SourcesSet {
    /// Its number, as comity sources list shows it
    #[arg(value_name = "ID")]
    pub(crate) id: i64,
    /// What to call it
    #[arg(long, group = "change")]
    pub(crate) name: Option<String>,
    /// Where it is; what is known of its last answer is forgotten
    #[arg(long, group = "change")]
    pub(crate) url: Option<String>,
    /// What it is
    #[arg(long, value_parser = kinds(), value_name = "KIND", group = "change")]
    pub(crate) kind: Option<Kind>,
    /// Whether runs fetch it; on also forgets that it failed
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) enabled: Option<Switch>,
    /// Whether its items may be scraped at all
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) scrape: Option<Switch>,
    /// Whether runs scrape its items by themselves
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) auto_scrape: Option<Switch>,
    /// The least time between two scrapes in seconds, such as 2.5; 0 for none, default for the configured one
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, group = "change")]
    pub(crate) min_interval: Option<String>,
    /// How often it is worth asking, such as 8h, 90m or 480 (minutes); none for every run
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true, group = "change")]
    pub(crate) cadence: Option<String>,
}

/// Add the sources of a list
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources import subscriptions.opml --cadence 8h
  comity sources import sources.csv --dry-run
  comity sources import urls.txt --kind page
  curl -s https://example.org/blogroll.opml | comity sources import -

A CSV names its columns in its first line: url, and perhaps name, kind, cadence, min_interval. What is followed
already is passed over. Nothing is fetched.")]
pub(crate) struct SourcesImport {
    /// The list, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// How it is written [default: its content tells]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ListFormat>,
    /// What those are that do not say [default: feed]
    #[arg(long, value_parser = kinds(), value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// How often those are worth asking that do not say
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true)]
    pub(crate) cadence: Option<String>,
    /// Only say what would be added
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How often sources are worth asking, for one or many of them
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Cadence {
    /// Set it
    #[command(
        override_usage = "comity sources cadence set [OPTIONS] EVERY <ID...|--all|--kind KIND|--match TEXT>"
    )]
    #[command(after_help = "Examples:
  comity sources cadence set 8h 3 4
  comity sources cadence set 90m --kind feed --match news --dry-run
  comity sources cadence set 480 --all                  # minutes")]
    Set {
        /// Such as 8h, 90m or 480 (minutes)
        #[arg(value_name = "EVERY", allow_negative_numbers = true)]
        every: String,
        #[command(flatten)]
        which: Which,
    },
    /// Take it away: they are due in every run
    #[command(
        override_usage = "comity sources cadence clear [OPTIONS] <ID...|--all|--kind KIND|--match TEXT>"
    )]
    #[command(after_help = "Examples:
  comity sources cadence clear 3
  comity sources cadence clear --all --dry-run")]
    Clear {
        #[command(flatten)]
        which: Which,
    },
}

/// Which sources
#[derive(Debug, Clone, Group)]
#[command(group = ArgGroup::new("which").required(true).multiple(true))]
pub(crate) struct Which {
    /// Their numbers
    #[arg(value_name = "ID", group = "which", conflicts_with_all = ["all", "kind", "like"])]
    pub(crate) ids: Vec<i64>,
    /// All of them
    #[arg(long, group = "which", conflicts_with_all = ["kind", "like"])]
    pub(crate) all: bool,
    /// Those of this kind
    #[arg(long, value_parser = kinds(), value_name = "KIND", group = "which")]
    pub(crate) kind: Option<Kind>,
    /// Those whose name or URL contains this; with --kind those that are both
    #[arg(id = "like", long = "match", value_name = "TEXT", group = "which")]
    pub(crate) like: Option<String>,
    /// Only show old and new
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Look at the items that sources led to
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Items {
    /// Items, the last seen first
    #[command(after_help = "Examples:
  comity items list --source 3
  comity items list --state failed
  comity items list --after 0 --limit 1000 --json       # all of them in pages, in the order they were seen")]
    List {
        /// Only those of this source
        #[arg(long, value_name = "ID")]
        source: Option<i64>,
        /// Only those in this state
        #[arg(long, value_parser = states(), value_name = "STATE")]
        state: Option<ItemState>,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Those that were seen after this one, in that order
        #[arg(long, value_name = "ID")]
        after: Option<i64>,
    },
    /// Write items as JSON Lines or CSV, in the order they were seen
    #[command(after_help = "Examples:
  comity items export > items.jsonl
  comity items export --since 2d --format jsonl | jq -r .url
  comity items export --source 3 --since 2026-01-05 --format csv > items.csv
  comity items export --state done --text | jq -r .text

Each row has what the feed gave (author, categories, enclosures, summary, content) and the result of the scrape. JSON Lines
has one object per line. CSV is plain RFC 4180: lists are JSON, and no value is changed, so import it as text if you open
it in a spreadsheet (a title may start with =).")]
    Export(ExportItems),
    /// One item: everything about it, its last scrapes, its text
    #[command(after_help = "Examples:
  comity items show 120
  comity items show 120 --text | less")]
    Show {
        /// Its number, as comity items list shows it
        #[arg(value_name = "ID")]
        id: i64,
        /// Only the main text of its page
        #[arg(long)]
        text: bool,
    },
}

/// Which items to export, and how
#[derive(Debug, Clone, Group)]
pub(crate) struct ExportItems {
    /// Only items first seen since then: a time (RFC 3339), a date (UTC), or an age such as 2d or 12h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only items of this source
    #[arg(long, value_name = "ID")]
    pub(crate) source: Option<i64>,
    /// Only items in this state
    #[arg(long, value_parser = states(), value_name = "STATE")]
    pub(crate) state: Option<ItemState>,
    /// How rows are written
    #[arg(long, value_enum, default_value = "jsonl")]
    pub(crate) format: Table,
    /// Add the readable text: of the scraped page, or else of what the feed gave
    #[arg(long)]
    pub(crate) text: bool,
}

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    /// One JSON object per line
    Jsonl,
    /// A table with a header
    Csv,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// As feed readers export it
    Opml,
    /// A table that names its columns
    Csv,
    /// One URL a line
    List,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::as_str))
        .try_map(|word| Kind::parse(&word).ok_or("no such kind"))
}

fn states() -> impl TypedValueParser<Value = ItemState> {
    PossibleValuesParser::new(ItemState::ALL.map(ItemState::as_str))
        .try_map(|word| ItemState::parse(&word).ok_or("no such state"))
}
