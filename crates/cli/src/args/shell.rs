//! Arguments of `comity completions` and `comity man`.

use std::path::PathBuf;

use clap::Args as Group;
use clap_complete::Shell;

/// Print a shell completion script
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity completions bash > ~/.local/share/bash-completion/completions/comity
  comity completions fish > ~/.config/fish/completions/comity.fish
  comity completions zsh > ~/.zfunc/_comity     # a folder in your fpath")]
pub(crate) struct Completions {
    /// Shell to generate completions for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Write manual pages, one per command
#[derive(Debug, Clone, Group)]
#[command(after_help = "Examples:
  comity man ~/.local/share/man/man1            # then: man comity-fetch
  comity man pages")]
pub(crate) struct Man {
    /// Folder to write to; created if it doesn't exist
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
