//! Compares the output of a command with the one on a page. Numbers and times differ from run to run, so they only have
//! to be numbers; `…` matches anything.

/// Compares, and returns the difference as an error.
pub(super) fn same(expected: &str, shown: &str) -> Result<(), String> {
    let (wanted, found) = (shaped(expected), shaped(shown));
    let mut rest = found.iter();
    for line in &wanted {
        if !rest.by_ref().any(|found| fits(line, found)) {
            return Err(format!(
                "the page shows\n  {line}\nin this order, but the output is\n{shown}\nwhich is compared as\n{}",
                found.join("\n")
            ));
        }
    }
    Ok(())
}

/// Lines with normalized numbers and spaces.
fn shaped(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let words = line.split_whitespace().map(number);
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect()
}

/// A word in which every number, including times and fractions, is replaced by `#`. A short duration may be in
/// milliseconds on one machine and in seconds on another.
fn number(word: &str) -> String {
    let mut shaped = String::new();
    for c in word.chars() {
        let joins = matches!(c, '.' | ':' | '-' | 'T') && shaped.ends_with('#');
        match c {
            '0'..='9' if !shaped.ends_with('#') => shaped.push('#'),
            '0'..='9' => {}
            _ if joins => {}
            c => shaped.push(c),
        }
    }
    if shaped.starts_with("#ms") { shaped.replacen("#ms", "#s", 1) } else { shaped }
}

/// Whether a line matches; `…` in the wanted line matches anything.
fn fits(wanted: &str, found: &str) -> bool {
    let Some((before, last)) = wanted.rsplit_once('…') else { return wanted == found };
    let mut parts = before.split('…');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn numbers_and_ellipses_match() {
    assert_eq!(number("2026-11-16T01:08:19Z"), "#Z");
    assert_eq!(number("1.5s"), "#s");
    assert_eq!(number("41ms:"), "#s:");
    assert!(same("a  12 b\n", "x\na 3 b\ny\n").is_ok());
    assert!(same("a … b …\n", "a c d b e\n").is_ok());
    assert!(same("a (…b)\n", "a (c (d), b)\n").is_ok());
    assert!(same("a b\nc\n", "c\na b\n").is_err());
    assert!(same("a b\n", "a b c\n").is_err());
}
