//! `comity completions` and `comity man`: both are generated from `args`, so they are always up to date.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use comity::archive::AtomicFile;
use serde_json::json;

use crate::args::{Args, Completions, Global, Man};
use crate::{exit, output};

/// Prints the completion script for a shell.
pub(crate) fn completions(args: &Completions) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "comity", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    exit::DONE
}

/// Writes one manual page per command.
pub(crate) fn man(global: &Global, args: &Man) -> anyhow::Result<u8> {
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let mut pages = Vec::new();
    for (name, text) in pages_of(&root())? {
        let path = args.dir.join(&name);
        write(&path, &text).with_context(|| path.display().to_string())?;
        pages.push(name);
    }
    if global.json {
        output::object(&json!({ "dir": args.dir, "pages": pages }));
    } else {
        output::line(&format!("Wrote {} pages to {}", pages.len(), args.dir.display()));
    }
    Ok(exit::DONE)
}

/// Writes a page atomically: all of it or none.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut page = AtomicFile::create(path)?;
    page.write_all(text)?;
    page.finish_synced()
}

fn root() -> clap::Command {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    command
}

/// The pages of a command and its subcommands, with their file names.
fn pages_of(command: &clap::Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let source = format!("comity {}", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command.clone()).source(source).manual("Comity");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_help() {
        after_help(&after.to_string()).to_writer(&mut text)?;
    }
    let mut pages = vec![(man.get_filename(), text)];
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        pages.extend(pages_of(subcommand)?);
    }
    Ok(pages)
}

/// The text after the options: examples keep their line breaks, the rest becomes paragraphs.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::new();
    for (nth, part) in text.split("\n\n").enumerate() {
        let (head, lines) = part.split_once('\n').unwrap_or((part, ""));
        if head.starts_with("Example") {
            roff.control("SH", ["EXAMPLES"]);
            roff.control("nf", []);
            lines.lines().for_each(|line| _ = roff.text(example(line)));
            roff.control("fi", []);
        } else {
            roff.control(if nth == 1 { "SH" } else { "PP" }, (nth == 1).then_some("NOTES"));
            part.lines().for_each(|line| _ = roff.text([roman(line)]));
        }
    }
    roff
}

/// A line of an example: the command in bold, its comment not.
fn example(line: &str) -> Vec<Inline> {
    let line = line.strip_prefix("  ").unwrap_or(line);
    match line.split_once("  #") {
        Some((command, comment)) => vec![bold(command), roman(format!("  #{comment}"))],
        None => vec![bold(line)],
    }
}
