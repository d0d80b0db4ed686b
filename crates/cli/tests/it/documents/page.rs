//! A page of the documentation: its code blocks and its prose. Parses only the Markdown that our own pages use.
//!
//! The unit tests of the command include this file too.

use std::path::{Path, PathBuf};

/// A page.
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    /// Its code blocks.
    pub(crate) blocks: Vec<Block>,
    /// The lines outside of code blocks, with their numbers.
    pub(crate) prose: Vec<(usize, String)>,
}

/// A fenced code block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The number of its first line.
    pub(crate) line: usize,
    /// The word after the fence.
    pub(crate) language: String,
    /// The comment right before the fence: how the block is run, or why it isn't.
    pub(crate) mark: String,
    pub(crate) text: String,
}

impl Page {
    /// The pages for users of the command.
    pub(crate) fn all() -> Vec<Self> {
        let mut names = vec!["README.md".to_owned(), "contrib/README.md".into()];
        names.extend(
            ["go", "node", "php", "python", "ruby"].map(|client| format!("clients/{client}/README.md")),
        );
        let folder = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
        let pages = folder.map(|name| format!("docs/{}", name.to_string_lossy()));
        names.extend(pages.filter(|name| name.ends_with(".md")));
        names.sort();
        names.iter().map(|name| Self::read(name)).collect()
    }

    pub(crate) fn read(name: &str) -> Self {
        let path = root().join(name);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(name, &text)
    }

    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut page = Self { name: name.to_owned(), blocks: Vec::new(), prose: Vec::new() };
        let mut lines = (1..).zip(text.lines());
        let mut mark = String::new();
        while let Some((line, text)) = lines.next() {
            if let Some(language) = text.strip_prefix("```") {
                let inner = lines.by_ref().map(|(_, text)| text).take_while(|text| *text != "```");
                let text = inner.map(|line| format!("{line}\n")).collect();
                let mark = std::mem::take(&mut mark);
                page.blocks.push(Block { line: line + 1, language: language.to_owned(), mark, text });
                continue;
            }
            let comment = text.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
            mark = comment.unwrap_or_default().to_owned();
            page.prose.push((line, text.to_owned()));
        }
        page
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn blocks_and_prose_are_separated() {
    let page = Page::parse(
        "a.md",
        "One\n\n<!-- not run: it installs -->\n```sh\ncargo install x\n\ny\n```\nTwo\n```text\nz\n```\n",
    );
    let blocks: Vec<_> =
        page.blocks.iter().map(|block| (block.line, block.mark.as_str(), block.text.as_str())).collect();
    assert_eq!(blocks, [(5, "not run: it installs", "cargo install x\n\ny\n"), (11, "", "z\n")]);
    assert_eq!(page.blocks[1].language, "text");
    assert_eq!(page.prose.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2, 3, 9]);
}
