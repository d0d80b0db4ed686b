//! Arguments of `comity proxy` and `comity exec`.

use std::ffi::OsString;

use clap::{Args as Group, Subcommand};

/// Run a proxy that paces the requests of any program
#[derive(Debug, Clone, Group)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  comity proxy
  http_proxy=http://127.0.0.1:7879 curl -i http://example.org/
  curl -i http://127.0.0.1:7879/https://example.org/     # https without a CA: the gateway
  comity proxy ca && comity proxy --https decrypt        # paces every https request, too

Without tokens it listens on loopback only, and everyone on this machine may use it. docs/proxy.md has a recipe for each
client.")]
pub(crate) struct Proxy {
    #[command(subcommand)]
    pub(crate) command: Option<ProxyCommand>,
    /// Address to listen on [default: 127.0.0.1:7879]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// tunnel: pace https connections only; decrypt: pace every request, with a CA [default: tunnel]
    #[arg(long, value_name = "MODE")]
    pub(crate) https: Option<String>,
    #[command(flatten)]
    pub(crate) pacing: ProxyPacing,
}

/// What the proxy does with requests that have to wait, or fail.
#[derive(Debug, Clone, Group)]
pub(crate) struct ProxyPacing {
    /// How long a request waits for its turn before it gets 503 with Retry-After [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) wait_max: Option<String>,
    /// Answer 429 with Retry-After at once if a request would have to wait
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Retry 429s, 503s and failures here instead of passing them on, as often as job.max_retries
    #[arg(long)]
    pub(crate) retry: bool,
    /// Whether to obey or ignore robots.txt [default: ignore]
    #[arg(long, value_name = "POLICY", value_parser = ["obey", "ignore"])]
    pub(crate) robots: Option<String>,
}

/// What else `comity proxy` does.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ProxyCommand {
    /// Make the CA for decrypting https, in the folder proxy.ca
    #[command(after_help = "Examples:
  comity proxy ca
  comity proxy ca --domain example.org          # clients accept it for this host and its subdomains only

The key stays in the folder, readable only by you. docs/proxy.md shows how clients trust the certificate.")]
    Ca {
        /// Limit the CA to this host and its subdomains; may be repeated
        #[arg(long, value_name = "HOST")]
        domain: Vec<String>,
    },
}

/// Run a command whose requests are paced, behind a proxy of its own
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity exec -- wget -r -l 1 http://example.org/
  comity exec -- python3 crawl.py
  comity exec --robots obey -- sh -c 'curl -O https://example.org/a; curl -O https://example.org/b'

The proxy ends with the command. It decrypts https with a CA made for this run, and sets the variables that programs read
for proxies and certificates. Its exit code is that of the command. Requests to this machine bypass the proxy.")]
pub(crate) struct ExecCommand {
    /// decrypt: pace every https request; tunnel: pace connections only [default: decrypt]
    #[arg(long, value_name = "MODE", value_parser = ["decrypt", "tunnel"])]
    pub(crate) https: Option<String>,
    #[command(flatten)]
    pub(crate) pacing: ProxyPacing,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
