//! What `comity domains` takes.

use clap::{Args as Group, Subcommand};

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
