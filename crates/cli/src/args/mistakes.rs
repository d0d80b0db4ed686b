//! What was typed and is not understood: shorter, with better tips than the parser's own, and for machines.
//!
//! What the parser finds, it says well. Added here is what people bring from other tools (`--output`, `--threads`), flags
//! that another command has, and a URL where a command belongs.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use comity::shown;
use serde_json::{Value, json};

use super::Args;
use crate::{exit, output};

/// What was typed; what is wrong with it as a message to print.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    Args::try_parse().map_err(|error| explained(error, &typed()))
}

/// Whether results are wanted as JSON, although what was typed is not understood.
pub(crate) fn wants_json() -> bool {
    typed().iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// A mistake for a machine: what is wrong, what to do instead, and the exit code.
pub(crate) fn object(error: &clap::Error) -> Value {
    let text = error.render().to_string();
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a command is missing; --help lists them".to_owned()
        }
        _ => {
            let said = lines()
                .take_while(|line| !["tip:", "Usage:", "For more"].iter().any(|end| line.starts_with(end)));
            let said: Vec<&str> = said.map(|line| line.trim_start_matches("error: ")).collect();
            said.join(" ")
        }
    };
    let tips: Vec<&str> = lines().filter_map(|line| line.strip_prefix("tip: ")).collect();
    json!({ "error": message, "tips": tips, "code": exit::USAGE })
}

fn typed() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The same error, short and with tips.
fn explained(mut error: clap::Error, typed: &[String]) -> clap::Error {
    let tips = tips(&error, typed);
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(value)) = error.get(kind)
            && let short = brief(value)
            && short != *value
        {
            error.insert(kind, ContextValue::String(short));
        }
    }
    if !tips.is_empty() {
        // One good tip beats one of a similar name.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = tips.iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// A value as it is repeated: without secrets, on one line, and not longer than a line.
fn brief(value: &str) -> String {
    match value.contains("://") || value.len() > VALUE_MAX {
        true => shown::text(value),
        false => output::legible(value),
    }
}

fn tips(error: &clap::Error, typed: &[String]) -> Vec<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(value)) => Some(value.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let root = built();
            let here = command_of(&root, typed);
            let flag = context(ContextKind::InvalidArg).filter(|flag| flag.starts_with('-'));
            let similar = context(ContextKind::SuggestedArg).is_some();
            flag.and_then(|flag| flag_tip(&root, here, flag, similar)).into_iter().collect()
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            command_tip(word).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// What to type instead of a flag that this command does not have.
fn flag_tip(root: &Command, here: &Command, flag: &str, similar: bool) -> Option<String> {
    let flag = flag.split('=').next().unwrap_or(flag);
    let elsewhere = |flag: &str| {
        let name = |command: &&Command| has_flag(command, flag) && !command.has_subcommands();
        let names = leaves(root).into_iter().filter(name).filter_map(Command::get_bin_name);
        names.take(COMMANDS_SHOWN).map(str::to_owned).collect::<Vec<_>>()
    };
    if let Some((_, instead)) = FROM_OTHER_TOOLS.iter().find(|(known, _)| known.contains(&flag)) {
        // A flag of this very command first, then what can be set in the configuration.
        let fits = instead.iter().find(|one| one.starts_with('-') && has_flag(here, one));
        if let Some(fits) = fits {
            return Some(format!("this command has {fits}"));
        }
        if let Some(other) = instead.iter().find(|one| !one.starts_with('-')) {
            return Some((*other).to_owned());
        }
        let other = instead.iter().find_map(|one| Some((one, elsewhere(one).into_iter().next()?)));
        if let Some((one, command)) = other {
            return Some(format!("{command} has {one}"));
        }
    }
    if similar {
        return None;
    }
    let commands = elsewhere(flag);
    (!commands.is_empty()).then(|| format!("{flag} is a flag of {}", commands.join(", ")))
}

/// What to type instead of a command that does not exist.
fn command_tip(word: &str) -> Option<String> {
    if word.contains("://") {
        return Some(format!("to fetch it: comity fetch {}", shown::text(word)));
    }
    let known = COMMANDS_OF_OTHER_TOOLS.iter().find(|(known, _)| known.contains(&word));
    known.map(|(_, instead)| format!("there is {instead}"))
}

fn built() -> Command {
    let mut root = Args::command();
    root.build();
    root
}

/// The command that was meant by the words that were typed.
fn command_of<'a>(root: &'a Command, typed: &[String]) -> &'a Command {
    typed.iter().fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// Every command below this one.
fn leaves(command: &Command) -> Vec<&Command> {
    command.get_subcommands().flat_map(|sub| std::iter::once(sub).chain(leaves(sub))).collect()
}

fn has_flag(command: &Command, flag: &str) -> bool {
    command.get_arguments().any(|argument| match flag.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| flag == format!("-{short}")),
    })
}

/// Flags of other tools, and what does the same here: a flag, or words for what is no flag.
const FROM_OTHER_TOOLS: [(&[&str], &[&str]); 18] = [
    (&["--output", "--output-dir", "--dir", "--directory-prefix", "--dest", "-P", "-O"], &["--out"]),
    (&["--file", "--list", "--urls", "--url-file", "--input-file", "--from-file", "-f"], &["--input"]),
    (&["--name", "--resume", "--continue", "--job-name"], &["--job"]),
    (&["--threads", "--workers", "--parallel", "--max-concurrent", "-t"], &["--concurrency"]),
    (&["--wait", "--sleep", "--interval", "--min-delay", "-w"], &["--delay"]),
    (&["--rate", "--rps", "--rate-limit", "--limit-rate", "--throttle"], &["--delay"]),
    (&["--retries", "--retry", "--tries"], &["--max-retries"]),
    (&["--silent", "-s"], &["--quiet"]),
    (&["--debug"], &["use -vv to see every wait and decision"]),
    (&["--ignore-robots", "--no-robots"], &["--robots"]),
    (&["--db", "--database"], &["--store"]),
    (&["--log", "--loglevel"], &["--log-level"]),
    (&["--user-agent", "--agent", "-A"], &["--user-agent", "set http.user_agent in comity.toml"]),
    (
        &["--timeout", "--max-time", "--connect-timeout"],
        &["--timeout", "set http.total_timeout in comity.toml"],
    ),
    (&["--email", "--from", "--contact"], &["set http.contact in comity.toml, or COMITY_HTTP_CONTACT"]),
    (&["--location", "--follow", "-L"], &["redirects are followed already, up to http.redirects_max"]),
    (
        &["--recursive", "--mirror", "--depth", "-r"],
        &["Comity fetches the URLs it is given; it doesn't follow links"],
    ),
    (&["--dry-run", "--check"], &["comity explain URL shows what a request would wait for"]),
];
/// Commands of other tools, and what does the same here.
const COMMANDS_OF_OTHER_TOOLS: [(&[&str], &str); 5] = [
    (&["get", "download", "crawl", "wget", "curl"], "comity fetch"),
    (&["status", "ps"], "comity top"),
    (&["init", "configure"], "comity config init"),
    (&["ls", "list"], "comity jobs list"),
    (&["feeds", "feed", "subscribe", "follow"], "comity sources"),
];
/// Commands that are named in one tip.
const COMMANDS_SHOWN: usize = 3;
/// Longer values are cut.
const VALUE_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> clap::Error {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Args::try_parse_from(&words).expect_err(line);
        explained(error, &words[1..])
    }

    #[test]
    fn a_flag_that_does_not_exist_leads_to_what_does() {
        for (line, tip) in [
            ("comity fetch --output x", "this command has --out"),
            ("comity fetch --threads=4", "this command has --concurrency"),
            ("comity fetch --deley 1s", "a similar argument exists: '--delay'"),
            ("comity fetch --debug", "use -vv"),
            ("comity jobs list --concurrency 3", "--concurrency is a flag of comity fetch"),
            ("comity fetch --window-end now", "--window-end is a flag of comity run"),
            ("comity domains list --threads 3", "comity fetch has --concurrency"),
            ("comity https://me:secret@example.org/a", "to fetch it: comity fetch https://example.org/a"),
            ("comity download x", "there is comity fetch"),
            ("comity fetsh x", "'fetch'"),
        ] {
            let error = told(line).to_string();
            assert!(error.contains(tip), "{line}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// Tips cannot lie: what they name exists.
    #[test]
    fn every_tip_names_flags_keys_and_commands_that_exist() {
        let root = built();
        for (known, instead) in FROM_OTHER_TOOLS {
            for one in instead.iter().filter(|one| one.starts_with("--")) {
                let exists = leaves(&root).into_iter().any(|command| has_flag(command, one));
                assert!(exists || instead.len() > 1, "{known:?}: no command has {one}");
            }
            for word in instead.iter().flat_map(|one| one.split([' ', ','])) {
                if word.starts_with("http.") {
                    assert!(comity::config::KEYS.iter().any(|key| key.path == word), "{word}");
                }
            }
        }
        for (_, instead) in COMMANDS_OF_OTHER_TOOLS {
            let words: Vec<String> = instead.split(' ').skip(1).map(str::to_owned).collect();
            assert_eq!(command_of(&root, &words).get_bin_name(), Some(instead));
        }
    }

    /// B71
    #[test]
    fn a_mistake_is_an_object_for_machines() {
        let object = object(&told("comity --json fetch --output x"));
        assert_eq!(object["error"], "unexpected argument '--output' found");
        assert_eq!((&object["tips"][0], &object["code"]), (&json!("this command has --out"), &json!(2)));
        let object = super::object(&told("comity --json"));
        assert!(object["error"].as_str().unwrap().starts_with("a command is missing"), "{object}");
        let object = super::object(&told("comity check"));
        assert!(object["error"].as_str().unwrap().contains("<URL>"), "{object}");
    }

    #[test]
    fn a_value_is_repeated_in_short_and_without_what_a_terminal_acts_on() {
        let long = format!("comity fetch --format {}", "x".repeat(100_000));
        assert!(told(&long).to_string().len() < 500);
        let odd = told("comity fetch --format a\u{1b}[2Jb").to_string();
        assert!(!odd.contains('\u{1b}'), "{odd:?}");
    }
}
