//! Errors on the command line: clap's errors in the words of all others (`--flag = VALUE: expected …`), with better
//! tips, and as JSON for scripts.
//!
//! The tips added here cover flags of other tools (`--output`, `--threads`), flags of another Comity command, and a URL
//! in place of a command. URLs that can't be fetched are checked in `urls`.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use comity::redact;
use serde_json::{Value, json};

use super::Args;
use crate::{exit, output};

/// Parses the command line.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    Args::try_parse().map_err(|error| with_tips(error, &words()))
}

/// Whether the command line contains `--json`, even if it could not be parsed.
pub(crate) fn wants_json() -> bool {
    words().iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Whether the command line asks for a JSON log, even if it could not be parsed.
pub(crate) fn wants_json_log() -> bool {
    let words = words();
    let words: Vec<_> = words.iter().take_while(|word| *word != "--").collect();
    let is_pair = |pair: &[_]| matches!(pair, [flag, format] if *flag == "--log-format" && *format == "json");
    words.iter().any(|word| *word == "--log-format=json") || words.windows(2).any(is_pair)
}

/// What is wrong with a command line.
pub(crate) struct UsageError {
    message: String,
    tips: Vec<String>,
    /// The command that was meant, such as `comity fetch`.
    command: String,
}

impl UsageError {
    /// What `error` says; `None` if it is the help or version that was asked for, or the help of a command without
    /// arguments.
    pub(crate) fn of(error: &clap::Error) -> Option<Self> {
        let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        (error.use_stderr() && !is_help).then(|| Self::new(error, &words()))
    }

    fn new(error: &clap::Error, words: &[String]) -> Self {
        let text = error.render().to_string();
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
        let message = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                "a command is missing; --help lists them".to_owned()
            }
            _ => invalid_value(error).unwrap_or_else(|| {
                let message = lines().take_while(|line| {
                    !["tip:", "Usage:", "For more"].iter().any(|end| line.starts_with(end))
                });
                let message: Vec<&str> = message.map(|line| line.trim_start_matches("error: ")).collect();
                message.join(" ")
            }),
        };
        let tips = lines().filter_map(|line| line.strip_prefix("tip: ")).map(str::to_owned).collect();
        let root = built();
        let command = command_of(&root, words).get_bin_name().unwrap_or("comity").to_owned();
        Self { message, tips, command }
    }

    /// The message, the tips, and where to read more, one per line.
    pub(crate) fn lines(&self) -> String {
        let tips = self.tips.iter().map(|tip| format!("\ntip: {tip}")).collect::<String>();
        format!("{}{tips}\ntip: {} --help shows how to use it", self.message, self.command)
    }
}

/// An error as JSON: the message, tips, and the exit code.
pub(crate) fn to_json(error: &clap::Error) -> Value {
    let UsageError { message, tips, .. } = UsageError::new(error, &words());
    json!({ "error": message, "tips": tips, "code": exit::USAGE })
}

/// An invalid value in the form that all other messages have; `None` for another error.
fn invalid_value(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (argument, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    // `--format <FORMAT>`, or `<ID>` and `[URL]...`.
    let name = argument.split(' ').next()?.trim_end_matches("...").trim_matches(['<', '>', '[', ']']);
    let expected = match (error.kind(), error.get(ContextKind::ValidValue)) {
        (ErrorKind::InvalidValue, _) if value.is_empty() => return None,
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(known))) => {
            let known: Vec<String> = known.iter().map(|one| format!("{one:?}")).collect();
            format!("expected one of {}", known.join(", "))
        }
        (ErrorKind::ValueValidation, _) => in_our_words(&std::error::Error::source(error)?.to_string()),
        _ => return None,
    };
    Some(format!("{name} = {value:?}: {expected}"))
}

/// What a parser of the standard library or of clap says about a value.
fn in_our_words(problem: &str) -> String {
    match problem.split_once(" is not in ") {
        Some((_, range)) => format!(
            "expected a whole number, {}",
            range.replacen("..=", " to ", 1).replacen("..", " or more", 1)
        ),
        None if NOT_A_NUMBER.iter().any(|start| problem.starts_with(start)) => {
            "expected a whole number".to_owned()
        }
        None if problem.starts_with("invalid socket address") => {
            "expected an address and a port such as 127.0.0.1:7979".to_owned()
        }
        None => problem.to_owned(),
    }
}

/// The words of the command line, without the program's name.
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Shortens the values that an error repeats, and adds tips.
fn with_tips(mut error: clap::Error, words: &[String]) -> clap::Error {
    let tips = tips(&error, words);
    if tips.is_empty() && is_value_with_dash(&error) {
        // It would be read as a value of nothing.
        error.remove(ContextKind::Suggested);
    }
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(value)) = error.get(kind)
            && let short = brief(value)
            && short != *value
        {
            error.insert(kind, ContextValue::String(short));
        }
    }
    if !tips.is_empty() {
        // A good tip replaces clap's guess at a similar name.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = tips.iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// A value as an error repeats it: without secrets, on one line, and not too long.
fn brief(value: &str) -> String {
    match value.contains("://") || value.len() > VALUE_MAX {
        true => redact::text(value),
        false => output::sanitized(value),
    }
}

fn tips(error: &clap::Error, words: &[String]) -> Vec<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(value)) => Some(value.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let root = built();
            let here = command_of(&root, words);
            let flag = context(ContextKind::InvalidArg).filter(|flag| flag.starts_with('-'));
            let similar = context(ContextKind::SuggestedArg).is_some();
            let value = flag.and_then(|value| before(words, value));
            match value {
                Some((flag, value)) if takes_value(here, flag) => {
                    vec![format!("to pass {value} as the value of {flag}: {flag}={value}")]
                }
                _ => flag.and_then(|flag| flag_tip(&root, here, flag, similar)).into_iter().collect(),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            match before(words, word) {
                Some(("help", _)) if word.starts_with('-') => {
                    vec!["comity help lists the commands".to_owned()]
                }
                _ => command_tip(word).into_iter().collect(),
            }
        }
        _ => Vec::new(),
    }
}

/// The word before this one on the command line, and all of this one: clap names only the first letter of a short flag.
fn before<'a>(words: &'a [String], word: &str) -> Option<(&'a str, &'a str)> {
    let at = words.iter().position(|one| one.starts_with(word))?;
    Some((words.get(at.checked_sub(1)?)?, &words[at]))
}

/// Whether a command has this flag, and it takes a value.
fn takes_value(command: &Command, flag: &str) -> bool {
    let mut arguments = command.get_arguments().filter(|argument| match flag.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| flag == format!("-{short}")),
    });
    arguments.any(|argument| argument.get_action().takes_values())
}

/// Whether clap suggests to pass something after `--` that looks like a flag.
fn is_value_with_dash(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::UnknownArgument
        && matches!(error.get(ContextKind::Suggested), Some(ContextValue::StyledStrs(_)))
}

/// A tip for a flag that this command doesn't have.
fn flag_tip(root: &Command, here: &Command, flag: &str, similar: bool) -> Option<String> {
    let flag = flag.split('=').next().unwrap_or(flag);
    let elsewhere = |flag: &str| {
        let name = |command: &&Command| has_flag(command, flag) && !command.has_subcommands();
        let names = leaves(root).into_iter().filter(name).filter_map(Command::get_bin_name);
        names.take(COMMANDS_SHOWN).map(str::to_owned).collect::<Vec<_>>()
    };
    if let Some((_, instead)) = FROM_OTHER_TOOLS.iter().find(|(known, _)| known.contains(&flag)) {
        // A flag of this command comes first, then a configuration key.
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

/// A tip for a command that doesn't exist.
fn command_tip(word: &str) -> Option<String> {
    if word.contains("://") {
        return Some(format!("to fetch it: comity fetch {}", redact::text(word)));
    }
    let known = COMMANDS_OF_OTHER_TOOLS.iter().find(|(known, _)| known.contains(&word));
    known.map(|(_, instead)| format!("try {instead}"))
}

fn built() -> Command {
    let mut root = Args::command();
    root.build();
    root
}

/// The command that these words name.
fn command_of<'a>(root: &'a Command, words: &[String]) -> &'a Command {
    words.iter().fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// Every subcommand, at any depth.
fn leaves(command: &Command) -> Vec<&Command> {
    command.get_subcommands().flat_map(|sub| std::iter::once(sub).chain(leaves(sub))).collect()
}

fn has_flag(command: &Command, flag: &str) -> bool {
    command.get_arguments().any(|argument| match flag.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| flag == format!("-{short}")),
    })
}

/// How the standard library's messages about numbers start.
const NOT_A_NUMBER: [&str; 3] = ["invalid digit", "number too", "cannot parse integer"];
/// Flags of other tools, and what to use instead: a flag, or a tip in words.
const FROM_OTHER_TOOLS: [(&[&str], &[&str]); 18] = [
    (&["--output", "--output-dir", "--dir", "--directory-prefix", "--dest", "-P", "-O"], &["--out"]),
    (&["--file", "--list", "--urls", "--url-file", "--input-file", "--from-file", "-f"], &["--input"]),
    (&["--name", "--resume", "--continue", "--job-name"], &["--job"]),
    (&["--threads", "--workers", "--parallel", "--max-concurrent", "-t"], &["--concurrency"]),
    (&["--wait", "--sleep", "--interval", "--min-delay", "-w"], &["--delay"]),
    (&["--rate", "--rps", "--rate-limit", "--limit-rate", "--throttle"], &["--delay"]),
    (&["--retries", "--retry", "--tries"], &["--max-retries"]),
    (&["--silent", "-s"], &["--quiet"]),
    (&["--debug"], &["use -vv to see every wait and response"]),
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
/// Commands of other tools, and what to use instead.
const COMMANDS_OF_OTHER_TOOLS: [(&[&str], &str); 8] = [
    (&["get", "download", "crawl", "wget", "curl"], "comity fetch"),
    (&["status", "ps"], "comity top"),
    (&["init", "configure"], "comity config init"),
    (&["ls", "list"], "comity jobs list"),
    (&["feeds", "feed", "subscribe", "follow"], "comity sources"),
    (&["resume", "continue", "start"], "comity fetch"),
    (&["retry", "rerun"], "comity jobs retry"),
    (&["export", "results"], "comity jobs export"),
];
/// Maximum number of commands that one tip names.
const COMMANDS_SHOWN: usize = 3;
/// Longer values are shortened, in bytes.
const VALUE_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(line: &str) -> clap::Error {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Args::try_parse_from(&words).expect_err(line);
        with_tips(error, &words[1..])
    }

    #[test]
    fn unknown_flags_and_commands_get_a_tip() {
        for (line, tip) in [
            ("comity fetch --output x", "this command has --out"),
            ("comity fetch --threads=4", "this command has --concurrency"),
            ("comity fetch --deley 1s", "a similar argument exists: '--delay'"),
            ("comity fetch --delay -1s", "--delay=-1s"),
            ("comity help --help", "comity help lists the commands"),
            ("comity fetch --debug", "use -vv"),
            ("comity fetch --headers x", "a similar argument exists: '--header'"),
            ("comity run --header x", "--header is a flag of comity fetch"),
            ("comity scrape -H x", "-H is a flag of comity fetch"),
            ("comity jobs list --concurrency 3", "--concurrency is a flag of comity fetch"),
            ("comity fetch --window-end now", "--window-end is a flag of comity run"),
            ("comity domains list --threads 3", "comity fetch has --concurrency"),
            ("comity https://me:secret@example.org/a", "to fetch it: comity fetch https://example.org/a"),
            ("comity download x", "try comity fetch"),
            ("comity resume", "try comity fetch"),
            ("comity retry x", "try comity jobs retry"),
            ("comity results x", "try comity jobs export"),
            ("comity fetsh x", "'fetch'"),
        ] {
            let error = error_for(line).to_string();
            assert!(error.contains(tip), "{line}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

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

    /// The messages of clap read like all others.
    #[test]
    fn invalid_values_are_reported_in_one_form() {
        for (line, message) in [
            (
                "comity fetch --format paper",
                "--format = \"paper\": expected one of \"files\", \"warc\", \"none\"",
            ),
            (
                "comity run --source no",
                "--source = \"no\": no such source; comity sources list shows their numbers",
            ),
            (
                "comity sources show no",
                "ID = \"no\": no such source; comity sources list shows their numbers",
            ),
            ("comity scrape no", "ITEM = \"no\": no such item; comity items list shows their numbers"),
            ("comity items list --limit many", "--limit = \"many\": expected a whole number"),
            ("comity run --exec x --exec-jobs 99", "--exec-jobs = \"99\": expected a whole number, 1 to 64"),
            (
                "comity playground --listen x",
                "--listen = \"x\": expected an address and a port such as 127.0.0.1:7979",
            ),
            ("comity fetch --format", "a value is required for '--format <FORMAT>' but none was supplied"),
            ("comity check", "the following required arguments were not provided: <URL>"),
        ] {
            let words: Vec<String> = line.split(' ').skip(1).map(str::to_owned).collect();
            let error = UsageError::new(&error_for(line), &words);
            assert!(error.message.starts_with(message), "{line}: {}", error.message);
            let command = line
                .split(' ')
                .take_while(|word| !word.starts_with('-') && *word != "no")
                .collect::<Vec<_>>();
            let help = format!("\ntip: {} --help shows how to use it", command.join(" "));
            assert!(error.lines().ends_with(&help), "{line}: {}", error.lines());
        }
    }

    /// B71
    #[test]
    fn parse_errors_are_json_objects_with_json() {
        let object = to_json(&error_for("comity --json fetch --output x"));
        assert_eq!(object["error"], "unexpected argument '--output' found");
        assert_eq!((&object["tips"][0], &object["code"]), (&json!("this command has --out"), &json!(2)));
        let object = to_json(&error_for("comity --json"));
        assert!(object["error"].as_str().unwrap().starts_with("a command is missing"), "{object}");
        let object = to_json(&error_for("comity check"));
        assert!(object["error"].as_str().unwrap().contains("<URL>"), "{object}");
    }

    #[test]
    fn repeated_values_are_short_and_without_control_characters() {
        let long = format!("comity fetch --format {}", "x".repeat(100_000));
        assert!(error_for(&long).to_string().len() < 500);
        let odd = error_for("comity fetch --format a\u{1b}[2Jb").to_string();
        assert!(!odd.contains('\u{1b}'), "{odd:?}");
    }
}
