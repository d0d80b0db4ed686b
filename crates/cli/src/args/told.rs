//! What is told about the command, in its own help and in the documentation, can be typed.

mod line;
#[path = "../../tests/it/documents/page.rs"]
mod page;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use self::page::Page;
use super::Args;

#[test]
fn every_command_has_an_example_in_its_help() {
    for command in tree() {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(after.starts_with("Example"), "comity {}: its help has no example", command.get_name());
        let name = command.get_bin_name().unwrap_or_default();
        assert!(after.contains(name), "{name}: the examples in its help are of another command");
    }
}

/// Help cannot lie: what it says can be typed is taken.
#[test]
fn every_example_in_a_help_is_understood() {
    let mut seen = 0;
    for command in tree() {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = after.split("\n\n").next().unwrap_or_default();
        for typed in line::commands(examples) {
            let told = Args::try_parse_from(&typed).map(|_| ());
            assert!(told.is_ok(), "{}: {typed:?}: {}", command.get_name(), told.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen > 60, "only {seen} examples were found");
}

/// Whole commands in the blocks of the documentation, run or not.
#[test]
fn every_command_in_a_block_is_understood() {
    let mut seen = 0;
    for page in Page::all() {
        for block in page.blocks.iter().filter(|block| SHELLS.contains(&block.language.as_str())) {
            for typed in line::commands(&block.text) {
                let told = Args::try_parse_from(&typed).err().filter(|error| error.use_stderr());
                if let Some(told) = told {
                    panic!("{}:{}: {typed:?}: {told}", page.name, block.line);
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "only {seen} commands were found");
}

/// Commands and flags that are named in a sentence exist, with the arguments that are named with them.
#[test]
fn every_command_and_flag_in_a_sentence_exists() {
    let mut wrong = Vec::new();
    let flags: Vec<String> = tree().iter().flat_map(flags_of).collect();
    for page in Page::all() {
        for (line, text) in &page.prose {
            // Between backticks is every second part.
            for span in text.split('`').skip(1).step_by(2) {
                let broken = if span.starts_with("--") {
                    let flag = span.split([' ', '=', '[']).next().unwrap_or_default();
                    (!flags.iter().any(|known| known == flag)).then(|| "no command has this flag".to_owned())
                } else {
                    line::alternatives(span).iter().find_map(|typed| refusal(typed))
                };
                wrong.extend(broken.map(|why| format!("{}:{line}: `{span}`: {why}", page.name)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Why a command that is named cannot be typed so. What is missing may be missing: a name is no whole command.
fn refusal(typed: &[String]) -> Option<String> {
    if typed.first().is_none_or(|word| word != "comity") {
        return None;
    }
    let error = Args::try_parse_from(typed).err()?;
    let missing = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    (!missing && error.use_stderr()).then(|| error.to_string())
}

/// All commands, the command itself first.
fn tree() -> Vec<clap::Command> {
    let mut root = Args::command().disable_help_subcommand(true);
    root.build();
    let mut all = vec![root];
    let mut nth = 0;
    while let Some(command) = all.get(nth) {
        all.extend(command.get_subcommands().cloned().collect::<Vec<_>>());
        nth += 1;
    }
    all
}

fn flags_of(command: &clap::Command) -> Vec<String> {
    command.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
}

/// The languages of blocks that hold commands.
const SHELLS: [&str; 4] = ["sh", "console", "cron", "ini"];
