//! Whether what a command shows is what a page says it shows. Numbers and times differ from run to run: they are compared
//! as "a number"; `…` stands for anything.

/// Compares; what differs.
pub(super) fn same(expected: &str, shown: &str) -> Result<(), String> {
    let (told, found) = (shaped(expected), shaped(shown));
    let mut rest = found.iter();
    for line in &told {
        if !rest.by_ref().any(|found| fits(line, found)) {
            return Err(format!(
                "the page shows\n  {line}\nin this order, but what came was\n{shown}\nwhich is read as\n{}",
                found.join("\n")
            ));
        }
    }
    Ok(())
}

/// Lines, with numbers and spaces made alike.
fn shaped(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let words = line.split_whitespace().map(number);
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect()
}

/// A word in which every run of digits, and of what joins them in times and fractions, is `#`.
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
    shaped
}

/// `…` in a line that is told stands for anything.
fn fits(told: &str, found: &str) -> bool {
    let Some((before, last)) = told.rsplit_once('…') else { return told == found };
    let mut parts = before.split('…');
    let Some(mut rest) = parts.next().and_then(|first| found.strip_prefix(first)) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn numbers_and_dots_fit_what_they_stand_for() {
    assert_eq!(number("2026-11-16T01:08:19Z"), "#Z");
    assert_eq!(number("1.5s"), "#s");
    assert!(same("a  12 b\n", "x\na 3 b\ny\n").is_ok());
    assert!(same("a … b …\n", "a c d b e\n").is_ok());
    assert!(same("a (…b)\n", "a (c (d), b)\n").is_ok());
    assert!(same("a b\nc\n", "c\na b\n").is_err());
    assert!(same("a b\n", "a b c\n").is_err());
}
