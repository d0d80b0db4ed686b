//! What can be typed to get completions and manual pages.

use std::path::PathBuf;

use clap::Args as Group;
use clap_complete::Shell;

/// Completions for a shell, on stdout
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity completions bash > ~/.local/share/bash-completion/completions/comity
  comity completions fish > ~/.config/fish/completions/comity.fish
  comity completions zsh > ~/.zfunc/_comity     # a folder of your fpath")]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write manual pages, one a command
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity man ~/.local/share/man/man1            # then: man comity-fetch
  comity man pages")]
pub(crate) struct Man {
    /// The folder they are written into; it is made if it is not there
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
