//! Arguments of `comity domains`.

use clap::{Args as Group, Subcommand};

/// Show what is known about domains, and adjust it
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Domains {
    /// List domains: learned delay, holder, waiting tasks
    #[command(after_help = "Examples:
  comity domains list
  comity domains list example --limit 10")]
    List {
        /// Only domains whose name contains this
        #[arg(default_value = "")]
        like: String,
        /// Maximum number of domains to list
        #[arg(long, default_value_t = 100)]
        limit: u32,
    },
    /// Show one domain
    #[command(after_help = "Example:
  comity domains show example.org")]
    Show {
        /// Domain to show
        domain: String,
    },
    /// Set or pin the learned delay, or pause the domain
    #[command(after_help = "Examples:
  comity domains set example.org --delay 5s --floor 2s
  comity domains set example.org --pin
  comity domains set example.org --pause 1h      # or --pause forever, --resume")]
    Set(DomainsSet),
    /// Release permits that were never recorded; learned delays are kept
    #[command(after_help = "Example:
  comity domains release example.org")]
    Release {
        /// Domain whose permits to release
        domain: String,
    },
    /// Forget the learned delay and backoff; waits the server asked for stay
    #[command(after_help = "Examples:
  comity domains reset example.org
  comity domains reset example.org --deadline    # the site asked for a day by mistake")]
    Reset {
        /// Domain to reset
        domain: String,
        /// Also drop a deadline the server stated, such as Retry-After; the server may still refuse
        #[arg(long)]
        deadline: bool,
    },
}

/// Set or pin the learned delay, or pause the domain
#[derive(Debug, Clone, Group)]
pub(crate) struct DomainsSet {
    /// Domain to change
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
