//! Arguments of `comity domains`.

use clap::{Args as Group, Subcommand};

/// Show what is known about sites, and adjust it
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Domains {
    /// List sites: learned delay, waiting URLs, the process in charge
    #[command(after_help = "Examples:
  comity domains list
  comity domains list example --limit 10")]
    List {
        /// Only sites whose name contains this
        #[arg(value_name = "MATCH", default_value = "")]
        like: String,
        /// Maximum number of sites to list
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// Show one site
    #[command(after_help = "Example:
  comity domains show example.org")]
    Show {
        /// Site to show, such as example.org
        domain: String,
    },
    /// Set or pin the learned delay, or pause the site
    #[command(after_help = "Examples:
  comity domains set example.org --delay 5s --floor 2s
  comity domains set example.org --pin
  comity domains set example.org --pause 1h      # or --pause forever, --resume")]
    Set(DomainsSet),
    /// Release permits whose outcome was never recorded; the learned delay stays
    #[command(after_help = "Example:
  comity domains release example.org")]
    Release {
        /// Site whose permits to release
        domain: String,
    },
    /// Forget the learned delay and backoff; deadlines the server stated still apply
    #[command(after_help = "Examples:
  comity domains reset example.org
  comity domains reset example.org --deadline    # the site asked for a day by mistake")]
    Reset {
        /// Site to reset
        domain: String,
        /// Also drop a deadline the server stated, such as Retry-After; the server may still answer 429
        #[arg(long)]
        deadline: bool,
    },
}

/// Set or pin the learned delay, or pause the site
#[derive(Debug, Clone, Group)]
pub(crate) struct DomainsSet {
    /// Site to change
    pub(crate) domain: String,
    /// Set the learned delay, such as 5s
    #[arg(long, value_name = "DURATION")]
    pub(crate) delay: Option<String>,
    /// Set the floor of the learned delay
    #[arg(long, value_name = "DURATION")]
    pub(crate) floor: Option<String>,
    /// Pin the learned delay: responses no longer change it
    #[arg(long, conflicts_with = "unpin")]
    pub(crate) pin: bool,
    /// Let responses change the learned delay again
    #[arg(long)]
    pub(crate) unpin: bool,
    /// Send nothing for this long, such as 1h, or forever
    #[arg(long, value_name = "DURATION", conflicts_with = "resume")]
    pub(crate) pause: Option<String>,
    /// End a pause
    #[arg(long)]
    pub(crate) resume: bool,
}
