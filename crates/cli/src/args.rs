//! What can be typed.

mod run;
mod shell;
mod sources;
mod wiki;

#[cfg(test)]
mod told;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};

pub(crate) use run::{Keep, Run, Scrape};
pub(crate) use shell::{Completions, Man};
pub(crate) use sources::{
    Cadence, Items, ListFormat, Sources, SourcesAdd, SourcesImport, SourcesSet, Switch, Which,
};

pub(crate) use wiki::{Wiki, WikiArchive, WikiAssert, WikiExport};

/// Polite fetching: decides for every fetcher you run when the next request to a site may leave, learns from each
/// answer, remembers across restarts, and says why a request waits.
#[derive(Debug, Parser)]
#[command(name = "comity", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  comity demo
  comity fetch https://example.org/ --out pages
  comity fetch --input urls.txt --job news      # Ctrl-C, then again: goes on where it stopped
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
    /// error, warn, info, debug or trace [default: info]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// text or json [default: text]
    #[arg(long, global = true, help_heading = "Everywhere", value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Neither progress nor logs but errors
    #[arg(long, short, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
    /// The result as JSON on stdout, its last line one object
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Fetch URLs politely, as a job that survives restarts
    Fetch(Fetch),
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
  comity items show 120 --text"
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
    /// May a request leave now? Reserves the slot when it may (exit 0), says how long to wait when not (exit 1)
    Check(Check),
    /// Tell what a request came to
    Record(Record),
    /// Every constraint on the next request to a URL: its number, where it came from, until when
    Explain(Explain),
    /// The configuration
    #[command(
        subcommand,
        after_help = "Examples:
  comity config check
  comity config reference > comity.toml         # every key, each commented out"
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

/// Fetch URLs politely, as a job that survives restarts
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity fetch https://example.org/a https://example.org/b --out pages
  comity fetch --input urls.txt --job news --out news
  comity fetch --job news                       # go on after Ctrl-C or a crash, or join from another terminal
  comity fetch --input urls.txt --job news --out archive --format warc
  zcat urls.gz | comity fetch --input - --format none --json

A URL that is listed twice is fetched once. Pages end up in DIR/HOST/…, DIR/index.jsonl says which is which.
With --format warc, everything that was answered is in DIR/JOB-….warc.gz; docs/warc.md tells what.")]
pub(crate) struct Fetch {
    /// What to fetch
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// A file with one URL a line, or - for stdin
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// The name of the job; the same name goes on with it, with the options it had
    #[arg(long, short, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Where pages are kept [default: comity-pages]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// How pages are kept [default: files]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Requests in flight at once, over all domains; sites that keep silent leave their place to others [default: 16]
    #[arg(long, short, value_name = "N")]
    pub(crate) concurrency: Option<String>,
    /// Minimum delay of every domain in this run, such as 2s or 250ms
    #[arg(long, short, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
    /// How delays are learnt: linear or off
    #[arg(long, value_name = "RULE")]
    pub(crate) learning: Option<String>,
    /// obey or ignore [default: obey]
    #[arg(long, value_name = "POLICY")]
    pub(crate) robots: Option<String>,
    /// Tries after the first one
    #[arg(long, value_name = "N")]
    pub(crate) max_retries: Option<String>,
    /// Stop at the first line that is no URL, instead of going on with the rest
    #[arg(long)]
    pub(crate) strict: bool,
}

/// How pages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One file a page, and an index
    Files,
    /// Everything that was answered, as it was on the wire, in WARC 1.1 files
    Warc,
    /// Not at all
    None,
}

/// Look at jobs and steer them
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Jobs {
    /// All jobs, the newest first
    #[command(after_help = "Example:
  comity jobs list")]
    List,
    /// One job: how far it is, its options, its last failures
    #[command(after_help = "Examples:
  comity jobs show news
  comity jobs show news --limit 100 --json")]
    Show {
        /// Its name
        name: String,
        /// Failed and skipped tasks to show
        #[arg(long, default_value_t = 10)]
        limit: u32,
    },
    /// End a job; what waits is skipped
    #[command(after_help = "Example:
  comity jobs cancel news")]
    Cancel {
        /// Its name
        name: String,
    },
    /// Reopen a job that ended: what failed, or was skipped with its end, waits again
    #[command(after_help = "Example:
  comity jobs retry news && comity fetch --job news")]
    Retry {
        /// Its name
        name: String,
    },
}

/// Look at what is known of domains, and steer it
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Domains {
    /// Domains with what was learnt, who holds them, and how many tasks wait
    #[command(after_help = "Examples:
  comity domains list
  comity domains list example --limit 10")]
    List {
        /// Only those whose name contains this
        #[arg(default_value = "")]
        like: String,
        /// How many
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// One domain
    #[command(after_help = "Example:
  comity domains show example.org")]
    Show {
        /// Its name
        domain: String,
    },
    /// Set the learned delay or its floor, pin it, pause the domain
    #[command(after_help = "Examples:
  comity domains set example.org --delay 5s --floor 2s
  comity domains set example.org --pin
  comity domains set example.org --pause 1h      # or --pause forever, --resume")]
    Set(DomainsSet),
    /// Release permits that were given out and never recorded; nothing that was learned is forgotten
    #[command(after_help = "Example:
  comity domains release example.org")]
    Release {
        /// Its name
        domain: String,
    },
    /// Forget what was learnt and our own guesses; what the server said stays
    #[command(after_help = "Example:
  comity domains reset example.org")]
    Reset {
        /// Its name
        domain: String,
    },
}

/// Set the learned delay or its floor, pin it, pause the domain
#[derive(Debug, Clone, Group)]
pub(crate) struct DomainsSet {
    /// Its name
    pub(crate) domain: String,
    /// The learned delay
    #[arg(long, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
    /// Its floor
    #[arg(long, value_name = "DURATION")]
    pub(crate) floor: Option<String>,
    /// Answers do not change it any more
    #[arg(long, conflicts_with = "unpin")]
    pub(crate) pin: bool,
    /// Answers change it again
    #[arg(long)]
    pub(crate) unpin: bool,
    /// Nothing is sent for this long, or forever
    #[arg(long, value_name = "DURATION", conflicts_with = "resume")]
    pub(crate) pause: Option<String>,
    /// Requests are sent again
    #[arg(long)]
    pub(crate) resume: bool,
}

/// The decision service
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity serve
  curl -s localhost:7878/v1/check -H 'Content-Type: application/json' -d '{\"domain\": \"example.org\"}'
  comity serve --make-token use        # a token for programs; put the line it prints under [serve] tokens
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

/// Tell what a request came to
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

/// Every constraint on the next request
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
    /// Read it, and tell everything that is wrong with it
    #[command(after_help = "Examples:
  comity config check
  comity --config other.toml config check")]
    Check,
    /// Every key with its default and what it means
    #[command(after_help = "Examples:
  comity config reference > comity.toml         # every key, each commented out
  comity config reference --markdown            # docs/config.md")]
    Reference {
        /// As the page docs/config.md, with what each key allows and the variable that sets it
        #[arg(long)]
        markdown: bool,
    },
}
