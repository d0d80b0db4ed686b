//! The command line: commands, flags and their help. What a command does with them is in `commands`.

mod domains;
mod fetch;
mod jobs;
mod parse_errors;
mod proxy;
mod request;
mod run;
mod shell;
mod sources;
mod store;
mod upkeep;
pub(crate) mod urls;
mod wiki;

#[cfg(test)]
mod documented;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args as Group, Parser, Subcommand};

pub(crate) use domains::{Domains, DomainsSet};
pub(crate) use fetch::{Fetch, Format};
pub(crate) use jobs::{EndState, Jobs, JobsRemove, RowFormat, TaskState};
pub(crate) use parse_errors::{UsageError, parse, to_json as parse_error_json, wants_json, wants_json_log};
pub(crate) use proxy::{ExecCommand, Proxy, ProxyCommand, ProxyPacing};
pub(crate) use run::{Exec, Run, Scrape, ScrapeOptions};
pub(crate) use shell::{Completions, Man};
pub(crate) use sources::{
    Cadence, ExportItems, ItemFormat, Items, ListFormat, Selection, Sources, SourcesAdd, SourcesImport,
    SourcesRemove, SourcesSet, Switch,
};

pub(crate) use store::{StoreCommand, StoreCopy};
pub(crate) use upkeep::{Backup, Prune};
pub(crate) use wiki::{Wiki, WikiArchive, WikiAssert, WikiExport};

/// A polite HTTP fetcher: paces requests per site, honors Retry-After and robots.txt, learns from 429s
#[derive(Debug, Parser)]
#[command(name = "comity", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  comity demo
  comity fetch https://example.org/ --out pages
  comity fetch --input urls.txt --job news      # after Ctrl-C, the same command resumes
  comity sources add https://example.org/ && comity run   # follow a site's feed
  comity wiki archive https://wiki.example/w/api.php   # a wiki with its full history
  comity exec -- wget -r http://example.org/    # any program, paced
  comity explain https://example.org/           # why would a request wait?
  comity serve                                  # other programs ask over HTTP before they fetch
  comity profiles standard                      # the default rules

Settings come from comity.toml (or --config FILE), COMITY_… variables and flags; later ones win.
Exit codes: 0 done, 1 finished with failures, 2 usage or configuration error, 3 store unavailable, 130 interrupted.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command accepts.
#[derive(Debug, Clone, Group)]
pub(crate) struct Global {
    /// Configuration file [default: comity.toml, if it exists]
    #[arg(long, global = true, help_heading = "Global Options", value_name = "FILE", env = "COMITY_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where to save state: sqlite:PATH, postgres://HOST/DATABASE or memory: [default: sqlite:comity.db]
    #[arg(long, global = true, help_heading = "Global Options", value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Base rules for all sites: standard, collector, crawler or archiver [default: standard]
    #[arg(long, global = true, help_heading = "Global Options", value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// error, warn, info, debug or trace; overrides -v and -q [default: info, or warn with a live view]
    #[arg(long, global = true, help_heading = "Global Options", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Log format: text or json [default: text]
    #[arg(long, global = true, help_heading = "Global Options", value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Print errors only, and a list of what failed at the end
    #[arg(long, short, global = true, help_heading = "Global Options")]
    pub(crate) quiet: bool,
    /// Log more: -v for changes and retries, -vv for every wait and response
    #[arg(long, short, global = true, help_heading = "Global Options", action = ArgAction::Count)]
    #[arg(conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Print the result as JSON on stdout; the last line is one object
    #[arg(long, global = true, help_heading = "Global Options")]
    pub(crate) json: bool,
}

/// The number of a source.
fn source_number(text: &str) -> Result<i64, &'static str> {
    text.trim().parse().map_err(|_| "no such source; comity sources list shows their numbers")
}

/// The number of an item.
fn item_number(text: &str) -> Result<i64, &'static str> {
    text.trim().parse().map_err(|_| "no such item; comity items list shows their numbers")
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch URLs politely, as a job that survives restarts
    Fetch(Box<Fetch>),
    /// Fetch the sources that are due, and scrape their new items
    Run(Run),
    /// Scrape items on demand
    Scrape(Scrape),
    /// Manage the sources you follow: feeds, pages, sitemaps, URL lists
    #[command(
        subcommand,
        after_help = "Examples:
  comity sources add https://example.org/ --cadence 8h
  comity sources list --failing"
    )]
    Sources(Sources),
    /// List, show and export the items found via sources
    #[command(
        subcommand,
        after_help = "Examples:
  comity items list --source 3
  comity items show 120 --text
  comity items export --since 2d > items.jsonl"
    )]
    Items(Items),
    /// Archive MediaWiki wikis with their full history
    #[command(
        subcommand,
        after_help = "Examples:
  comity wiki archive https://wiki.example/w/api.php --dry-run
  comity wiki status https://wiki.example/w/api.php"
    )]
    Wiki(Wiki),
    /// Run the decision service: programs ask over HTTP before they fetch, and report the outcome
    Serve(Serve),
    /// Run a proxy that paces the requests of any program
    Proxy(Proxy),
    /// Run a command whose requests are paced, behind a proxy of its own
    Exec(ExecCommand),
    /// See it work: fetch from rate-limited sites on loopback (takes a minute)
    Demo(Demo),
    /// Start test sites on loopback: strict, slow, flaky, or with a hidden limit
    Playground(Playground),
    /// Show what is running on the store: progress, and what delays it
    Top(Top),
    /// List, show, export and manage jobs
    #[command(
        subcommand,
        after_help = "Examples:
  comity jobs list
  comity jobs retry news"
    )]
    Jobs(Jobs),
    /// Show what is known about sites, and adjust it
    #[command(
        subcommand,
        after_help = "Examples:
  comity domains list
  comity domains set example.org --pause 1h"
    )]
    Domains(Domains),
    /// Delete old data from the store
    Prune(Prune),
    /// Back up the store while it is in use
    Backup(Backup),
    /// Move a store to another kind of database
    #[command(
        subcommand,
        after_help = "Example:
  comity store copy sqlite:comity.db postgres://comity@db.example/comity"
    )]
    Store(StoreCommand),
    /// Ask whether a request may be sent now (exit 0: yes, the slot is reserved; exit 1: wait)
    Check(Check),
    /// Report the outcome of a request
    Record(Record),
    /// Show everything that delays the next request to a URL, and why
    Explain(Explain),
    /// Create, check and document the configuration
    #[command(
        subcommand,
        after_help = "Examples:
  comity config init                            # a comity.toml to start from
  comity config check"
    )]
    Config(ConfigCommand),
    /// List the profiles, or print one as configuration to copy
    #[command(after_help = "Examples:
  comity profiles
  comity profiles collector > rules.toml          # to change, and use with --config rules.toml")]
    Profiles {
        /// Profile to print [default: list all of them]
        name: Option<String>,
    },
    /// Print a shell completion script
    Completions(Completions),
    /// Write manual pages, one per command
    Man(Man),
}

/// See it work: fetch from rate-limited sites on loopback (takes a minute)
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity demo
  comity demo --stay              # keeps the dashboard up until Ctrl-C
  comity demo --keep              # keeps the store and the pages, to look around

Prints the address of a dashboard first; open it in a browser. Needs no network and leaves nothing behind. The sites count requests that arrive too early: there are none.")]
pub(crate) struct Demo {
    /// Keep the store and the pages, and print where they are
    #[arg(long)]
    pub(crate) keep: bool,
    /// Keep the dashboard up after the demo, until Ctrl-C
    #[arg(long)]
    pub(crate) stay: bool,
}

/// Start test sites on loopback: strict, slow, flaky, or with a hidden limit
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity playground                                        # in one terminal
  comity fetch http://strict.localhost:7979/page/{1..30}   # in another
  comity sources add http://harbour.localhost:7979/        # a front page that links to a feed
  comity fetch --sitemap http://garden.localhost:7979/sitemap.xml --job garden
  comity fetch --job garden --refresh                      # pages have ETags: 304
  curl -i http://127.0.0.1:7980/page/1                     # each site also has its own port

Use the ports with programs that can't resolve names such as strict.localhost. http://127.0.0.1:7979/ lists the sites
and their request counts. Ctrl-C stops the sites and prints the counts.")]
pub(crate) struct Playground {
    /// Address to listen on, loopback only; the sites' own ports are the ones above it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7979")]
    pub(crate) listen: SocketAddr,
}

/// Show what is running on the store: progress, and what delays it
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity top                      # in a second terminal; q or Ctrl-C quits
  comity top --once
  comity top --json | jq '.processes[].status.held_back'")]
pub(crate) struct Top {
    /// Print it once and exit; the default when stderr is not a terminal
    #[arg(long)]
    pub(crate) once: bool,
}

/// Run the decision service: programs ask over HTTP before they fetch, and report the outcome
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity serve
  curl -s localhost:7878/v1/check -H 'Content-Type: application/json' -d '{\"domain\": \"example.org\"}'
  comity serve --make-token use        # creates a token for programs; add the printed line to [serve] tokens
  comity serve --make-token use --tokens-file tokens   # adds it to a file instead, for serve.tokens_file
  comity serve --listen 0.0.0.0:7878   # requires tokens

Without tokens it listens on loopback only, and everyone on this machine may use it. SIGHUP reloads the configuration.
docs/service.md explains how to use it; /openapi.json describes every path.")]
pub(crate) struct Serve {
    /// Address to listen on [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Allow listening beyond loopback without tokens: anyone who can reach it may use it
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Create a token for this role, print it and its configuration, and exit
    #[arg(long, value_name = "ROLE", value_parser = ["view", "use", "admin"])]
    pub(crate) make_token: Option<String>,
    /// Append the token's line to this file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE", requires = "make_token")]
    pub(crate) tokens_file: Option<PathBuf>,
}

/// The service to ask instead of the store.
#[derive(Debug, Clone, Group)]
pub(crate) struct Server {
    /// Ask this service instead of the store, with the token in COMITY_TOKEN
    #[arg(long, value_name = "URL", env = "COMITY_SERVER")]
    pub(crate) server: Option<String>,
}

/// Ask whether a request may be sent now (exit 0: yes, the slot is reserved; exit 1: wait)
#[derive(Debug, Clone, Group)]
#[command(after_help = "Example:
  comity check --wait https://example.org/ &&
      comity record example.org \"$(curl -so page -w '%{http_code}' https://example.org/)\"

\"proceed\" reserves the slot, so record the outcome of the request. Until then the request counts as in flight, for as
long as its lease lasts; record \"abandoned\" to give the permit back. Instead of the site you can pass the permit
that --json prints; with a token that has the role use, you have to.")]
pub(crate) struct Check {
    /// URL or site, such as https://example.org/page or example.org
    pub(crate) url: String,
    /// What the request is for: fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    /// Wait in line until the request may be sent, however long that takes
    #[arg(long, conflicts_with = "peek")]
    pub(crate) wait: bool,
    /// Don't reserve the slot
    #[arg(long)]
    pub(crate) peek: bool,
    /// How long the permit counts as in flight if its outcome is never recorded, up to 10m [default: 60s]
    #[arg(long, value_name = "DURATION", conflicts_with = "peek")]
    pub(crate) lease: Option<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Report the outcome of a request
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity record example.org success
  comity record example.org rate_limited --retry-after 120
  comity record example.org 503
  comity record p1.AAAAA… success         # the permit that comity check --json printed

Outcomes: success, answered, rate_limited, blocked, unavailable, server_error, timeout, network_error. A status is
mapped to one of them; 000, which curl prints when there was no response, is a network_error. \"abandoned\" gives back a
permit whose request was not sent or was given up.")]
pub(crate) struct Record {
    /// Site, URL, or the permit that comity check printed
    pub(crate) domain: String,
    /// An outcome such as success or rate_limited, an HTTP status such as 429, or abandoned
    pub(crate) outcome: String,
    /// What the request was for: fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    /// The response's Retry-After header, unchanged
    #[arg(long, value_name = "VALUE")]
    pub(crate) retry_after: Option<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Show everything that delays the next request to a URL, and why
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity explain https://example.org/
  comity explain example.org --intent search --json")]
pub(crate) struct Explain {
    /// URL or site, such as https://example.org/page or example.org
    pub(crate) url: String,
    /// What the request is for: fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Create, check and document the configuration
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Write a commented comity.toml to start from
    #[command(after_help = "Examples:
  comity config init
  comity --config /etc/comity/comity.toml config init")]
    Init {
        /// Overwrite an existing file
        #[arg(long)]
        force: bool,
    },
    /// Check the configuration and report every problem
    #[command(after_help = "Examples:
  comity config check
  comity --config other.toml config check")]
    Check,
    /// Print every key with its default and meaning
    #[command(after_help = "Examples:
  comity config reference                       # every key, each commented out
  comity config reference --markdown            # docs/config.md")]
    Reference {
        /// Print docs/config.md, with each key's allowed values and environment variable
        #[arg(long)]
        markdown: bool,
    },
}
