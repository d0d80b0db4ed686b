//! What people read, word by word: pages, help texts, and the comments and string literals of sources. Not a parser of Markdown, Rust or
//! Python: just enough to tell prose from code.

use std::path::Path;

use super::super::page::Page;

/// A text that people read.
pub(super) struct Text {
    /// Its file, from the root of the repository, or the command that prints it.
    pub(super) name: String,
    pub(super) words: Vec<Word>,
}

/// A word in lower case, or [`END`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Stands where a sentence, a cell of a table or a string literal ends.
pub(super) const END: &str = ".";

/// The words of plain text or Markdown.
pub(super) fn words(text: &str, first_line: usize) -> Vec<Word> {
    let mut words = Vec::new();
    for (line, text) in (first_line..).zip(text.lines()) {
        add_line(text, line, &mut words);
    }
    end(first_line, &mut words);
    words
}

/// The words of a page, without its code blocks, code font, link targets and comments.
pub(super) fn prose(page: &Page) -> Vec<Word> {
    let mut words = Vec::new();
    let mut next = 1;
    for (line, text) in page.prose.iter().filter(|(_, text)| !text.starts_with("<!--")) {
        if *line != next {
            end(*line, &mut words);
        }
        next = line + 1;
        let parts: Vec<&str> = text.split('`').collect();
        assert!(parts.len() % 2 == 1, "{}:{line}: code font must end on the line it begins on", page.name);
        let plain: String =
            parts.iter().enumerate().map(|(nth, part)| if nth % 2 == 0 { part } else { CODE }).collect();
        let mut links = plain.split("](");
        let mut plain = links.next().unwrap_or_default().to_owned();
        plain.extend(links.map(|link| link.split_once(')').map_or("", |(_, after)| after)));
        add_line(&plain, *line, &mut words);
    }
    end(next, &mut words);
    words
}

/// Stands where code stood, as a word of its sentence.
const CODE: &str = "_";

fn add_line(text: &str, line: usize, words: &mut Vec<Word>) {
    let item = text.trim_start();
    if item.is_empty() || item.starts_with("- ") || item.starts_with('#') || item.starts_with("```") {
        end(line, words);
    }
    add_words(text, line, words);
}

fn add_words(text: &str, line: usize, words: &mut Vec<Word>) {
    let letters: Vec<char> = text.chars().collect();
    let mut word = String::new();
    for (nth, &c) in letters.iter().enumerate() {
        let next = letters.get(nth + 1).copied().unwrap_or(' ');
        let joins = matches!(c, '.' | ':' | ',') && !word.is_empty() && next.is_alphanumeric();
        if c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '\'') || joins {
            word.extend(c.to_lowercase());
            continue;
        }
        add(&word, line, words);
        word.clear();
        // Emphasis and code stand inside a sentence.
        if !c.is_whitespace() && !matches!(c, '*' | '`') {
            end(line, words);
        }
    }
    add(&word, line, words);
}

fn add(word: &str, line: usize, words: &mut Vec<Word>) {
    let word = word.trim_matches(['\'', '/']);
    if !word.is_empty() {
        words.push(Word { line, text: word.to_owned() });
    }
}

fn end(line: usize, words: &mut Vec<Word>) {
    if words.last().is_some_and(|last| last.text != END) {
        words.push(Word { line, text: END.to_owned() });
    }
}

/// The prose of a Rust source: its comments, and its string literals.
#[derive(Default)]
pub(super) struct Prose {
    pub(super) comments: Vec<Word>,
    pub(super) literals: Vec<Word>,
}

impl Prose {
    pub(super) fn of(source: &str) -> Self {
        let letters: Vec<char> = source.chars().collect();
        let mut prose = Self::default();
        let (mut at, mut line) = (0, 1);
        while let Some(&c) = letters.get(at) {
            let rest = &letters[at..];
            let taken = match c {
                '/' if rest.starts_with(&['/', '/']) => prose.comment(rest, line),
                '"' => prose.literal(rest, 1, 0, line),
                'r' if let Some(hashes) = raw(rest) => prose.literal(rest, hashes + 2, hashes, line),
                '\'' => quoted(rest),
                _ => {
                    if !c.is_whitespace() {
                        end(line, &mut prose.comments);
                    }
                    1
                }
            };
            line += rest[..taken].iter().filter(|c| **c == '\n').count();
            at += taken;
        }
        prose
    }

    /// A comment to the end of its line; the next line may continue it.
    fn comment(&mut self, rest: &[char], line: usize) -> usize {
        let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
        let text: String = rest[..length].iter().collect();
        let text = text.trim_start_matches('/').trim_start_matches('!').trim();
        if text.is_empty() || text.starts_with("- ") || text.starts_with('#') {
            end(line, &mut self.comments);
        }
        add_words(text, line, &mut self.comments);
        length
    }

    /// A literal whose text begins after `head` letters and ends with a quote and so many `hashes`.
    fn literal(&mut self, rest: &[char], head: usize, hashes: usize, line: usize) -> usize {
        end(line, &mut self.comments);
        let is_raw = head > 1;
        let (mut at, mut text) = (head, String::new());
        while let Some(&c) = rest.get(at) {
            let closes = c == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
            if closes {
                break;
            }
            // An escape is a space to a reader, but a quote is a quote.
            if c == '\\' && !is_raw {
                let escaped = rest.get(at + 1).copied().unwrap_or(' ');
                text.push(if matches!(escaped, '"' | '\'' | '\n') { escaped } else { ' ' });
                at += 2;
            } else {
                text.push(c);
                at += 1;
            }
        }
        self.literals.extend(words(&text, line));
        (at + 1 + hashes).min(rest.len())
    }
}

/// How many hashes a raw string has, if one begins here.
fn raw(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    (rest.get(hashes + 1) == Some(&'"')).then_some(hashes)
}

/// The length of a character literal, or of the quote of a lifetime.
fn quoted(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, more @ ..] => {
            more.iter().position(|c| *c == '\'').map_or(rest.len(), |closing| closing + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// The prose of a Python source: its comments, docstrings and other string literals.
pub(super) fn python(source: &str) -> Vec<Word> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(at) = rest.find(['#', '"', '\'']) {
        line += rest[..at].matches('\n').count();
        let quote = ["\"\"\"", "'''", "\"", "'", "#"]
            .into_iter()
            .find(|quote| rest[at..].starts_with(quote))
            .unwrap_or("#");
        let text = &rest[at + quote.len()..];
        let length = match quote {
            "#" => text.find('\n').unwrap_or(text.len()),
            quote => closing(text, quote),
        };
        found.extend(words(&text[..length], line));
        line += text[..length].matches('\n').count();
        rest = text[length..].strip_prefix(quote).unwrap_or(&text[length..]);
    }
    found
}

/// Where a literal ends; an escaped quote does not end it.
fn closing(text: &str, quote: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find(quote) {
        let at = from + at;
        let escapes = text[..at].chars().rev().take_while(|c| *c == '\\').count();
        if escapes % 2 == 0 {
            return at;
        }
        from = at + 1;
    }
    text.len()
}

/// The files below a folder with this ending, sorted.
pub(super) fn files(folder: &Path, ending: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn docstrings_are_prose_and_python_is_not() {
    let found = python("\"\"\"One\ntwo.\"\"\"\nthree = 'it\\'s' # four\nfive()\n");
    let shown: Vec<_> =
        found.iter().filter(|word| word.text != END).map(|word| (word.line, word.text.as_str())).collect();
    assert_eq!(shown, [(1, "one"), (2, "two"), (3, "it"), (3, "s"), (3, "four")]);
}

#[test]
fn comments_and_literals_are_prose_and_code_is_not() {
    let prose = Prose::of(
        "//! One\n//! two.\nfn code<'a>() { let x = '\"'; /// three\n say(\"four \\\"five\\\"\\n six\", r#\"seven \"8\"\"#); }",
    );
    let shown = |words: &[Word]| {
        words.iter().map(|word| format!("{}{}", word.text, word.line)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&prose.comments), "one1 two2 .2 three3 .4");
    assert_eq!(shown(&prose.literals), "four4 .4 five4 .4 six4 .4 seven4 .4 84 .4");
}
