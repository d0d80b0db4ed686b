//! What can be typed.

mod domains;
mod fetch;
mod jobs;
mod mistakes;
mod request;
mod run;
mod shell;
mod sources;
mod upkeep;
pub(crate) mod urls;
mod wiki;

#[cfg(test)]
mod told;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args as Group, Parser, Subcommand};

pub(crate) use domains::{Domains, DomainsSet};
pub(crate) use fetch::{Fetch, Format};
pub(crate) use jobs::{Jobs, RowFormat, TaskState};
pub(crate) use mistakes::{object as mistake, parse, wants_json};
pub(crate) use run::{Exec, Keep, Run, Scrape};
pub(crate) use shell::{Completions, Man};
pub(crate) use sources::{
    Cadence, ExportItems, Items, ListFormat, Sources, SourcesAdd, SourcesImport, SourcesSet, Switch, Table,
    Which,
};

pub(crate) use upkeep::{Backup, Prune};
pub(crate) use wiki::{Wiki, WikiArchive, WikiAssert, WikiExport};

/// Polite fetching: decides for every fetcher you run when the next request to a site may leave, learns from each
/// answer, remembers across restarts, and says why a request waits.
#[derive(Debug, Parser)]
#[command(name = "comity", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  comity demo
  comity fetch https://example.org/ --out pages
  comity fetch --input urls.txt --job news      # Ctrl-C, then again: resumes where it stopped
  comity sources add https://example.org/ && comity run   # follow a site's feed
  comity wiki archive https://wiki.example/w/api.php   # a wiki with its whole history
  comity explain https://example.org/           # why would a request wait?
  comity serve                                  # other programs ask over HTTP before they fetch
  comity profiles standard                      # the rules a domain starts from

Settings come from comity.toml (or --config FILE), COMITY_… variables and flags; later ones win.
Exit codes: 0 done, 1 finished with failures, 2 usage or configuration, 3 store unavailable, 130 interrupted.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Group)]
pub(crate) struct Global {
    /// Configuration file [default: comity.toml, if there is one]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "FILE", env = "COMITY_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where state is kept: sqlite:PATH or memory: [default: sqlite:comity.db]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The rules that domains start from: standard, collector, crawler, archiver [default: standard]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// error, warn, info, debug or trace; wins over -v and --quiet [default: warn beside a live view, else info]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// text or json [default: text]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Print errors only; at the end, what failed
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// Log more: -v what changes and what is retried, -vv every wait and answer
    #[arg(long, short, global = true, help_heading = "Everywhere", action = ArgAction::Count)]
    #[arg(conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// The result as JSON on stdout, its last line one object
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch URLs politely, as a job that survives restarts
    Fetch(Box<Fetch>),
    /// One ingest run: ask the sources that are due, and scrape what they lead to
    Run(Run),
    /// Scrape items by hand
    Scrape(Scrape),
    /// Manage the sources that are followed: feeds, pages, sitemaps, URL lists
    #[command(
        subcommand,
        after_help = "Examples:
  comity sources add https://example.org/ --cadence 8h
  comity sources list --failing"
    )]
    Sources(Sources),
    /// Look at the items that sources led to
    #[command(
        subcommand,
        after_help = "Examples:
  comity items list --source 3
  comity items show 120 --text
  comity items export --since 2d > items.jsonl"
    )]
    Items(Items),
    /// Archive MediaWiki wikis with their whole history
    #[command(
        subcommand,
        after_help = "Examples:
  comity wiki archive https://wiki.example/w/api.php --dry-run
  comity wiki status https://wiki.example/w/api.php"
    )]
    Wiki(Wiki),
    /// The decision service: any program asks over HTTP before it fetches, and tells what happened
    Serve(Serve),
    /// See it at work: sites on loopback that say 429, a job and an ingest run that fetch all of them (a minute)
    Demo(Demo),
    /// Sites on loopback to try things on: strict, slow, flaky, with a limit that nobody tells
    Playground(Playground),
    /// What runs on the store: how far it is, and what holds it back
    Top(Top),
    /// Look at jobs and steer them
    #[command(
        subcommand,
        after_help = "Examples:
  comity jobs list
  comity jobs retry news"
    )]
    Jobs(Jobs),
    /// Look at what is known of domains, and steer it
    #[command(
        subcommand,
        after_help = "Examples:
  comity domains list
  comity domains set example.org --pause 1h"
    )]
    Domains(Domains),
    /// Remove what is old from the store
    Prune(Prune),
    /// Copy the store to a file, while others work on it
    Backup(Backup),
    /// May a request leave now? Reserves the slot when it may (exit 0), says how long to wait when not (exit 1)
    Check(Check),
    /// Report the outcome of a request
    Record(Record),
    /// Show everything that delays the next request to a URL, and why
    Explain(Explain),
    /// The configuration
    #[command(
        subcommand,
        after_help = "Examples:
  comity config init                            # a comity.toml to start from
  comity config check"
    )]
    Config(ConfigCommand),
    /// The profiles, or one of them as configuration to copy
    #[command(after_help = "Examples:
  comity profiles
  comity profiles standard >> comity.toml")]
    Profiles {
        /// Which one; all names when left out
        name: Option<String>,
    },
    /// Completions for a shell, on stdout
    Completions(Completions),
    /// Write manual pages, one a command
    Man(Man),
}

/// See it at work
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity demo
  comity demo --keep              # keeps what it fetched and learnt, to look at

Needs no network and leaves nothing behind. The sites count requests that come too early: there are none.")]
pub(crate) struct Demo {
    /// Keep the store and the pages, and say where they are
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Sites on loopback to try things on
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity playground                                        # in one terminal
  comity fetch http://strict.localhost:7979/page/{1..30}   # in another
  curl -i http://127.0.0.1:7980/page/1                     # each site has a port of its own too

Programs that do not know names such as strict.localhost use the ports. The list of sites, with what they counted, is at
http://127.0.0.1:7979/. Ctrl-C ends it, and tells the counts.")]
pub(crate) struct Playground {
    /// Where to listen; each site has one of the ports above it too. Loopback only
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7979")]
    pub(crate) listen: SocketAddr,
}

/// What runs on the store
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity top                      # in another terminal than the one that fetches; Ctrl-C ends it
  comity top --once
  comity top --json | jq '.processes[].status.held_back'")]
pub(crate) struct Top {
    /// Tell it once and end, as without a terminal
    #[arg(long)]
    pub(crate) once: bool,
}

/// The decision service
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity serve
  curl -s localhost:7878/v1/check -H 'Content-Type: application/json' -d '{\"domain\": \"example.org\"}'
  comity serve --make-token use        # a token for programs; put the line it prints under [serve] tokens
  comity serve --make-token use --tokens-file tokens   # the same into a file, for serve.tokens_file
  comity serve --listen 0.0.0.0:7878   # needs a token

Without tokens everybody on this machine may use it, and nobody else: it listens on loopback only. SIGHUP reads the
configuration again. docs/service.md tells the whole of it; /openapi.json describes every path.")]
pub(crate) struct Serve {
    /// Where to listen [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Listen beyond loopback although everybody who reaches it may then use it
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Make a token for this role, print it and the line that stands for it, and end
    #[arg(long, value_name = "ROLE", value_parser = ["use", "admin"])]
    pub(crate) make_token: Option<String>,
    /// Add the line of that token to this file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE", requires = "make_token")]
    pub(crate) tokens_file: Option<PathBuf>,
}

/// A service that is asked instead of the store.
#[derive(Debug, Clone, Group)]
pub(crate) struct Server {
    /// Ask the service there, instead of the store; COMITY_TOKEN holds the token
    #[arg(long, value_name = "URL", env = "COMITY_SERVER")]
    pub(crate) server: Option<String>,
}

/// May a request leave now?
#[derive(Debug, Clone, Group)]
#[command(after_help = "Example:
  comity check --wait https://example.org/ &&
      comity record example.org \"$(curl -so page -w '%{http_code}' https://example.org/)\"

A check that says proceed has taken the slot: record the outcome of the request. Where only so many requests may be in
flight, a permit that nobody records keeps its place until its lease ends; \"abandoned\" gives it back. The permit that
--json prints can be recorded instead of the domain; with a token of the role use it has to be.")]
pub(crate) struct Check {
    /// The URL, or a domain
    pub(crate) url: String,
    /// fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    /// Wait in line until it may leave, however long that takes
    #[arg(long, conflicts_with = "peek")]
    pub(crate) wait: bool,
    /// Reserve nothing
    #[arg(long)]
    pub(crate) peek: bool,
    /// How long the permit keeps its place if nobody records it, up to 10m [default: 60s]
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
  comity record p1.AAAAA… success         # the permit that comity check --json printed")]
pub(crate) struct Record {
    /// The domain, a URL, or the permit of a check
    pub(crate) domain: String,
    /// success, answered, rate_limited, blocked, unavailable, server_error, timeout, network_error; a status (000 is
    /// no answer); or abandoned, with a permit: it was not sent, or given up
    pub(crate) outcome: String,
    /// fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    /// The Retry-After of the answer, as it came
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
    /// The URL, or a domain
    pub(crate) url: String,
    /// fetch, search or api
    #[arg(long, default_value = "fetch")]
    pub(crate) intent: String,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// The configuration
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Write a commented comity.toml to start from
    #[command(after_help = "Examples:
  comity config init
  comity --config /etc/comity/comity.toml config init")]
    Init {
        /// Replace a file that is there already
        #[arg(long)]
        force: bool,
    },
    /// Read the configuration and report everything that is wrong with it
    #[command(after_help = "Examples:
  comity config check
  comity --config other.toml config check")]
    Check,
    /// Every key with its default and what it means
    #[command(after_help = "Examples:
  comity config reference                       # every key, each commented out
  comity config reference --markdown            # docs/config.md")]
    Reference {
        /// As the page docs/config.md, with what each key allows and the variable that sets it
        #[arg(long)]
        markdown: bool,
    },
}
