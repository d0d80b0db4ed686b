//! Arguments of `comity fetch`.

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
  comity fetch --job news --max-wait 10m        # don't wait for a site that asks you to come back tomorrow
  comity fetch --job news --refresh             # fetch what has changed since
  comity fetch --sitemap https://example.org/ --job site --out site
  comity fetch --input urls.txt --auth-bearer-env API_TOKEN -H 'X-Client: ${CLIENT_ID}' --timeout 20s

A URL that is listed twice is fetched once, and so is one that the job has already. Pages are saved to DIR/HOST/…, and DIR/index.jsonl has a row for each finished
URL, and one more when it is retried or refreshed; the last one counts.
Credentials are sent only to the hosts you list, wherever redirects lead; see docs/requests.md. With --format warc, all
responses go to DIR/JOB-….warc.gz; see docs/warc.md.")]
pub(crate) struct Fetch {
    /// URLs to fetch
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// File with one URL per line, or - for stdin
    #[arg(long, short, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Name of the job; an existing job is resumed with the options it had
    #[arg(long, short, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Fetch the pages of a sitemap, or of a site whose robots.txt lists sitemaps; may be repeated
    #[arg(long, value_name = "URL")]
    pub(crate) sitemap: Vec<String>,
    /// Fetch the job's pages again if they have changed
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Print one JSON object per finished URL on stdout while it runs, ready for jq
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Include response headers in those objects and in index.jsonl, without cookies and other secrets
    #[arg(long)]
    pub(crate) with_headers: bool,
    /// Folder for pages fetched from now on; - saves none and prints JSON objects like --jsonl [default: comity-pages]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// How to save pages fetched from now on [default: files]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Maximum requests in flight, over all sites; requests to unresponsive sites don't count [default: 16]
    #[arg(long, short, value_name = "N")]
    pub(crate) concurrency: Option<String>,
    /// Minimum delay between requests to a site in this run, such as 2s or 250ms
    #[arg(long, short, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
    /// How delays are learned: linear, bracket or off
    #[arg(long, value_name = "RULE")]
    pub(crate) learning: Option<String>,
    /// Whether to obey or ignore robots.txt [default: obey]
    #[arg(long, value_name = "POLICY")]
    pub(crate) robots: Option<String>,
    /// Maximum retries per URL [default: 3]
    #[arg(long, value_name = "N")]
    pub(crate) max_retries: Option<String>,
    /// Stop if every remaining site has to wait longer than this, such as 10m; the rest stays waiting [default: no limit]
    #[arg(long, value_name = "DURATION")]
    pub(crate) max_wait: Option<String>,
    /// Reject a list with invalid lines before anything is sent, instead of skipping them; stdin is read up to the first
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) request: Request,
}

/// How pages are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One file per page, and an index
    Files,
    /// WARC 1.1 files with every response as it was on the wire
    Warc,
    /// Don't save pages
    None,
}
