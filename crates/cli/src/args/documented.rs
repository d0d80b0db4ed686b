//! Tests: every command and flag that the help and the documentation mention can be typed.

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
        assert!(after.contains(name), "{name}: the examples in its help are for another command");
    }
}

#[test]
fn every_example_in_the_help_parses() {
    let mut seen = 0;
    for command in tree() {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = after.split("\n\n").next().unwrap_or_default();
        for words in line::commands(examples) {
            let parsed = Args::try_parse_from(&words).map(|_| ());
            assert!(parsed.is_ok(), "{}: {words:?}: {}", command.get_name(), parsed.unwrap_err());
            seen += 1;
        }
    }
    assert!(seen > 60, "only {seen} examples were found");
}

/// Whole commands in code blocks of the documentation, whether the tests run them or not.
#[test]
fn every_command_in_a_code_block_parses() {
    let mut seen = 0;
    for page in Page::all() {
        for block in page.blocks.iter().filter(|block| SHELLS.contains(&block.language.as_str())) {
            for words in line::commands(&block.text) {
                let error = Args::try_parse_from(&words).err().filter(|error| error.use_stderr());
                if let Some(error) = error {
                    panic!("{}:{}: {words:?}: {error}", page.name, block.line);
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "only {seen} commands were found");
}

/// Commands and flags in backticks exist and accept the arguments shown with them.
#[test]
fn every_command_and_flag_in_prose_exists() {
    let mut wrong = Vec::new();
    let flags: Vec<String> = tree().iter().flat_map(flags_of).collect();
    for page in Page::all() {
        for (line, text) in &page.prose {
            // Every second part is between backticks.
            for span in text.split('`').skip(1).step_by(2) {
                let broken = if span.starts_with("--") {
                    let flag = span.split([' ', '=', '[']).next().unwrap_or_default();
                    (!flags.iter().any(|known| known == flag)).then(|| "no command has this flag".to_owned())
                } else {
                    line::alternatives(span).iter().find_map(|words| refusal(words))
                };
                wrong.extend(broken.map(|why| format!("{}:{line}: `{span}`: {why}", page.name)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Why a command mentioned in prose doesn't parse. Missing arguments are fine: prose often names just the command.
fn refusal(words: &[String]) -> Option<String> {
    if words.first().is_none_or(|word| word != "comity") {
        return None;
    }
    let error = Args::try_parse_from(words).err()?;
    let missing = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    (!missing && error.use_stderr()).then(|| error.to_string())
}

/// All commands, the top-level one first.
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

/// The languages of code blocks that contain commands.
const SHELLS: [&str; 4] = ["sh", "console", "cron", "ini"];
