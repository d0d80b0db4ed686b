//! What `comity fetch` takes.

use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};

use super::request::Request;

/// Fetch URLs politely, as a job that survives restarts
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity fetch https://example.org/a https://example.org/b --out pages
  comity fetch --input urls.txt --job news --out news
  comity fetch --job news                       # resume after Ctrl-C or a crash, or join from another terminal
  comity fetch --input urls.txt --job news --out archive --format warc
  zcat urls.gz | comity fetch --input - --format none --json
  comity fetch --input urls.txt --out - | jq -r 'select(.state == \"failed\") | .url'
  comity fetch --job news --refresh             # fetch again what changed since
  comity fetch --sitemap https://example.org/ --job site --out site
  comity fetch --input urls.txt --auth-bearer-env API_TOKEN -H 'X-Client: ${CLIENT_ID}' --timeout 20s

A URL that is listed twice is fetched once. Pages end up in DIR/HOST/…, and DIR/index.jsonl has a row for each URL.
Credentials go to the hosts you list and to no other, whatever redirects say; docs/requests.md tells how to give them.
With --format warc, everything that was answered is in DIR/JOB-….warc.gz; docs/warc.md tells what.")]
pub(crate) struct Fetch {
    /// What to fetch
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// A file with one URL per line, or - for stdin
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// The name of the job; the same name resumes it, with the options it had
    #[arg(long, short, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// A sitemap whose pages to fetch, or the root of a site whose robots.txt names its sitemaps; may be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) sitemap: Vec<String>,
    /// Fetch again what the job has already fetched, if it changed since; a page that did not keeps its file
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Print one JSON object per finished URL on stdout while it runs, ready for jq
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Include response headers in these objects and in index.jsonl, without cookies and other secrets
    #[arg(long)]
    pub(crate) with_headers: bool,
    /// Where pages are kept; - keeps none and prints JSON objects like --jsonl [default: comity-pages]
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
    /// How delays are learned: linear or off
    #[arg(long, value_name = "RULE")]
    pub(crate) learning: Option<String>,
    /// obey or ignore [default: obey]
    #[arg(long, value_name = "POLICY")]
    pub(crate) robots: Option<String>,
    /// Maximum retries per URL
    #[arg(long, value_name = "N")]
    pub(crate) max_retries: Option<String>,
    /// Stop at the first line that isn't a URL, instead of skipping it
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) request: Request,
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
