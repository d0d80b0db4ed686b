//! Arguments of `comity sources` and `comity items`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as Group, Subcommand, ValueEnum};
use comity::store::items::ItemState;
use comity::store::sources::Kind;

use super::{item_number, source_number};

/// Manage the sources you follow: feeds, pages, sitemaps, URL lists
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Sources {
    /// Follow a feed, page, sitemap or URL list
    Add(SourcesAdd),
    /// List sources: last fetch, next due, state
    #[command(after_help = "Examples:
  comity sources list
  comity sources list news --kind feed
  comity sources list --failing --json")]
    List {
        /// Only sources whose name or URL contains this
        #[arg(value_name = "MATCH", default_value = "")]
        like: String,
        /// Only sources of this kind
        #[arg(long, value_parser = kinds(), value_name = "KIND")]
        kind: Option<Kind>,
        /// Only sources that are failing or misconfigured
        #[arg(long)]
        failing: bool,
    },
    /// Show a source and its latest fetches
    #[command(after_help = "Example:
  comity sources show 3")]
    Show {
        /// Number of the source, from comity sources list
        #[arg(value_name = "ID", value_parser = source_number)]
        id: i64,
    },
    /// Change a source
    Set(SourcesSet),
    /// Remove sources with their items and logs
    Remove(SourcesRemove),
    /// Import sources from OPML (as feed readers export it), CSV, or a list with one URL per line
    Import(SourcesImport),
    /// Export all sources as OPML, for feed readers and comity sources import
    ///
    /// Folders, feed home pages, cadences and minimum intervals are included; passwords in URLs are not.
    #[command(after_help = "Examples:
  comity sources export > sources.opml
  comity sources export --out sources.opml")]
    Export {
        /// File to write; an existing file is replaced once the export is complete [default: stdout]
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Set how often sources are fetched, one or many at once
    #[command(
        subcommand,
        after_help = "Examples:
  comity sources cadence set 8h --kind feed --dry-run
  comity sources cadence clear 3"
    )]
    Cadence(Cadence),
}

/// Follow a feed, page, sitemap or URL list
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources add https://example.org/               # finds the page's feed
  comity sources add https://example.org/feed.xml --cadence 8h
  comity sources add https://example.org/sitemap.xml --kind sitemap --min-interval 2.5 --no-scrape

Without --kind, the URL is fetched once, politely, to detect what it is.")]
pub(crate) struct SourcesAdd {
    /// URL of the source, or of a page that links to a feed
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Kind of source; skips detection
    #[arg(long, value_parser = kinds(), value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// Name to show [default: its title, or its host and path]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How often to fetch it, such as 8h, 90m or 2d [default: in every run]
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true)]
    pub(crate) cadence: Option<String>,
    /// Minimum seconds between scrapes of its items, such as 2.5; 0 for none [default: scrape.min_interval]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) min_interval: Option<String>,
    /// List its items; fetch their pages only on demand, with comity scrape
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
    /// Number of the source, from comity sources list
    #[arg(value_name = "ID", value_parser = source_number)]
    pub(crate) id: i64,
    /// Set its name
    #[arg(long, group = "change")]
    pub(crate) name: Option<String>,
    /// Set its URL, and forget what is known from the last fetch
    #[arg(long, group = "change")]
    pub(crate) url: Option<String>,
    /// Set its kind
    #[arg(long, value_parser = kinds(), value_name = "KIND", group = "change")]
    pub(crate) kind: Option<Kind>,
    /// Whether runs fetch it; on also clears its failures
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) enabled: Option<Switch>,
    /// Whether its items may be scraped at all
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) scrape: Option<Switch>,
    /// Whether runs scrape its items automatically
    #[arg(long, value_name = "ON|OFF", group = "change")]
    pub(crate) auto_scrape: Option<Switch>,
    /// Minimum seconds between scrapes, such as 2.5; 0 for none, default for scrape.min_interval
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, group = "change")]
    pub(crate) min_interval: Option<String>,
    /// How often to fetch it, such as 8h, 90m or 2d; none for every run
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true, group = "change")]
    pub(crate) cadence: Option<String>,
}

/// Remove sources with their items and logs
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources remove 3 4
  comity sources remove --failing --dry-run
  comity sources remove --match 'https://example.org/*'")]
#[command(override_usage = "comity sources remove [OPTIONS] <ID...|--failing|--match GLOB>")]
#[command(group = ArgGroup::new("removed").required(true).multiple(true))]
pub(crate) struct SourcesRemove {
    /// Numbers of the sources, from comity sources list
    #[arg(value_name = "ID", value_parser = source_number)]
    #[arg(group = "removed", conflicts_with_all = ["failing", "matching"])]
    pub(crate) ids: Vec<i64>,
    /// Sources that are failing or misconfigured
    #[arg(long, group = "removed")]
    pub(crate) failing: bool,
    /// Sources whose name or URL matches this pattern; * matches anything, ? one character
    #[arg(id = "matching", long = "match", value_name = "GLOB", group = "removed")]
    pub(crate) matching: Option<String>,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Import sources from OPML (as feed readers export it), CSV, or a list with one URL per line
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity sources import subscriptions.opml --cadence 8h
  comity sources import sources.csv --dry-run
  comity sources import urls.txt --kind page
  curl -s https://example.org/blogroll.opml | comity sources import -

The first line of a CSV names its columns: url, and optionally name, kind, cadence, min_interval. Sources you already
follow are skipped. Nothing is fetched.")]
pub(crate) struct SourcesImport {
    /// File to import, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Format of the file [default: detected]
    #[arg(long, value_enum)]
    pub(crate) format: Option<ListFormat>,
    /// Kind of sources that have none in the file [default: feed]
    #[arg(long, value_parser = kinds(), value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// Cadence of sources that have none in the file
    #[arg(long, value_name = "EVERY", allow_negative_numbers = true)]
    pub(crate) cadence: Option<String>,
    /// Show what would be added, and add nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Set how often sources are fetched, one or many at once
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Cadence {
    /// Set a cadence
    #[command(
        override_usage = "comity sources cadence set [OPTIONS] EVERY <ID...|--all|--kind KIND|--match TEXT>"
    )]
    #[command(after_help = "Examples:
  comity sources cadence set 8h 3 4
  comity sources cadence set 90m --kind feed --match news --dry-run
  comity sources cadence set 2d --all")]
    Set {
        /// How often to fetch, such as 8h, 90m or 2d
        #[arg(value_name = "EVERY", allow_negative_numbers = true)]
        every: String,
        #[command(flatten)]
        selection: Selection,
    },
    /// Clear the cadence: the sources are due in every run
    #[command(
        override_usage = "comity sources cadence clear [OPTIONS] <ID...|--all|--kind KIND|--match TEXT>"
    )]
    #[command(after_help = "Examples:
  comity sources cadence clear 3
  comity sources cadence clear --all --dry-run")]
    Clear {
        #[command(flatten)]
        selection: Selection,
    },
}

/// Which sources to change
#[derive(Debug, Clone, Group)]
#[command(group = ArgGroup::new("which").required(true).multiple(true))]
pub(crate) struct Selection {
    /// Numbers of the sources, from comity sources list
    #[arg(value_name = "ID", value_parser = source_number)]
    #[arg(group = "which", conflicts_with_all = ["all", "kind", "like"])]
    pub(crate) ids: Vec<i64>,
    /// All sources
    #[arg(long, group = "which", conflicts_with_all = ["kind", "like"])]
    pub(crate) all: bool,
    /// Sources of this kind
    #[arg(long, value_parser = kinds(), value_name = "KIND", group = "which")]
    pub(crate) kind: Option<Kind>,
    /// Sources whose name or URL contains this; combined with --kind, both must match
    #[arg(id = "like", long = "match", value_name = "TEXT", group = "which")]
    pub(crate) like: Option<String>,
    /// Show old and new cadences, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// List, show and export the items found via sources
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Items {
    /// List items, newest first
    #[command(after_help = "Examples:
  comity items list --source 3
  comity items list --state failed
  comity items list --after 0 --limit 1000 --json       # all items in pages, oldest first")]
    List {
        /// Only items of this source
        #[arg(long, value_name = "ID", value_parser = source_number)]
        source: Option<i64>,
        /// Only items in this state
        #[arg(long, value_parser = states(), value_name = "STATE")]
        state: Option<ItemState>,
        /// Maximum number of items to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// List the items after this one, oldest first
        #[arg(long, value_name = "ID", value_parser = item_number)]
        after: Option<i64>,
    },
    /// Export items as JSON Lines or CSV, oldest first
    #[command(after_help = "Examples:
  comity items export > items.jsonl
  comity items export --since 2d --format jsonl | jq -r .url
  comity items export --source 3 --since 2026-01-05 --format csv > items.csv
  comity items export --state done --text | jq -r .text

Each row has what the feed provided (author, categories, enclosures, summary, content) and the result of the scrape;
file is the absolute path of its page, because items may have been saved to different folders. JSON Lines
has one object per line. CSV is plain RFC 4180: lists are JSON, and values are not altered, so import it as text if you
open it in a spreadsheet (a title may start with =).")]
    Export(ExportItems),
    /// Show an item: details, latest scrapes, text
    #[command(after_help = "Examples:
  comity items show 120
  comity items show 120 --text | less")]
    Show {
        /// Number of the item, from comity items list
        #[arg(value_name = "ID", value_parser = item_number)]
        id: i64,
        /// Print only the main text of its page
        #[arg(long)]
        text: bool,
    },
}

/// Export items as JSON Lines or CSV, oldest first
#[derive(Debug, Clone, Group)]
pub(crate) struct ExportItems {
    /// Only items first seen since this time (RFC 3339), date (UTC) or age, such as 2d or 12h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only items of this source
    #[arg(long, value_name = "ID", value_parser = source_number)]
    pub(crate) source: Option<i64>,
    /// Only items in this state
    #[arg(long, value_parser = states(), value_name = "STATE")]
    pub(crate) state: Option<ItemState>,
    /// Output format
    #[arg(long, value_enum, default_value = "jsonl")]
    pub(crate) format: ItemFormat,
    /// Add the readable text of the scraped page, or of the feed if there is no page
    #[arg(long)]
    pub(crate) text: bool,
}

/// Output formats of `items export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ItemFormat {
    /// One JSON object per line
    Jsonl,
    /// CSV with a header row
    Csv,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Formats of a list of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// OPML, as feed readers export it
    Opml,
    /// CSV with a header row
    Csv,
    /// One URL per line
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
