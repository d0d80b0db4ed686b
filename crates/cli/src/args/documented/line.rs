//! Finds `comity` commands in shell lines and in prose. Understands only as much shell syntax as our own pages use.

/// The words of every `comity …` command in a shell script, without redirections and surrounding commands.
pub(super) fn commands(text: &str) -> Vec<Vec<String>> {
    let mut text = text.replace("\\\n", " ");
    // Optional arguments, ${name:+…}, are left out.
    while let Some(start) = text.find("${").filter(|start| text[*start..].contains(":+")) {
        let end = text[start..].find('}').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    let lines = text.lines().map(|line| line.trim_start_matches("$ "));
    let words = lines.flat_map(|line| {
        // A systemd unit's ExecStart is a command like any other.
        let line = line.strip_prefix("ExecStart=").unwrap_or(line);
        split(line).into_iter().map(start_at_comity)
    });
    words.filter(|words| !words.is_empty()).collect()
}

/// The commands that a span of prose stands for: `comity jobs list|show` is two. Placeholders in capitals are replaced
/// by valid values.
pub(super) fn alternatives(span: &str) -> Vec<Vec<String>> {
    let words = split(&span.replace("\\|", "|").replace('|', "\u{1}"));
    let mut all = vec![Vec::new()];
    for word in words.first().into_iter().flatten().filter(|word| *word != "…") {
        let values: Vec<String> = word.split('\u{1}').map(placeholder_value).collect();
        all = values
            .iter()
            .flat_map(|word| {
                all.iter()
                    .map(|before| [&before[..], std::slice::from_ref(word)].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    all
}

/// A valid value for a placeholder in capitals.
fn placeholder_value(word: &str) -> String {
    let word = word.trim_matches(['[', ']', '…']);
    let (before, name) = word.split_once('=').map_or(("", word), |(flag, name)| (flag, name));
    let value = match name {
        "ID" | "ITEM" | "N" => "1",
        "COMMAND" => "fetch",
        "ROLE" => "use",
        "KIND" => "feed",
        "SHELL" => "bash",
        "STATE" => "failed",
        _ => name,
    };
    if before.is_empty() { value.to_owned() } else { format!("{before}={value}") }
}

fn start_at_comity(words: Vec<String>) -> Vec<String> {
    let start = words.iter().position(|word| word == "comity" || word.ends_with("/comity"));
    // After another command it is an argument; only assignments, cron times and keywords may come before it.
    let before = |words: &[String]| {
        words.iter().all(|word| word.contains('=') || KEYWORDS.contains(&word.as_str()) || is_time(word))
    };
    match start {
        Some(start) if before(&words[..start]) => [&["comity".to_owned()], &words[start + 1..]].concat(),
        _ => Vec::new(),
    }
}

fn is_time(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit() || "*/,-".contains(c))
}

/// The commands of a line, each as its words.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::<String>::new(), None::<String>);
    let mut quote = None;
    let mut depth = 0;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end && depth == 0 => quote = None,
            (Some(_), c) => {
                // Quotes inside "$(…)" belong to another command.
                depth += i32::from(c == '(') - i32::from(c == ')');
                word.get_or_insert_default().push(c);
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, '|' | '&' | ';') if !(c == '&' && word.as_deref() == Some(">")) => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all.into_iter().map(without_redirections).filter(|words: &Vec<String>| !words.is_empty()).collect()
}

fn without_redirections(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let target = word.trim_start_matches(|c: char| c.is_ascii_digit());
        if matches!(target, ">" | ">>" | "<" | "2>") {
            words.next();
        } else if !target.starts_with(['>', '<']) || target.starts_with("<(") {
            kept.push(word);
        }
    }
    kept
}

/// Keywords that may come before a command.
const KEYWORDS: [&str; 9] = ["if", "while", "until", "do", "then", "!", "time", "sudo", "exec"];

#[test]
fn commands_are_found_within_shell_lines() {
    let found =
        |line: &str| commands(line).into_iter().map(|words| words.join(" ")).collect::<Vec<_>>().join(" / ");
    assert_eq!(found("comity fetch a # comity b"), "comity fetch a");
    assert_eq!(found("A=1 comity x 'a b' && comity y > f | less"), "comity x a b / comity y");
    assert_eq!(found("if ! comity check --wait u; then"), "comity check --wait u");
    assert_eq!(found("7 * * * *  cd /srv && comity run --quiet"), "comity run --quiet");
    assert_eq!(found("ExecStart=/usr/local/bin/comity --store x serve"), "comity --store x serve");
    assert_eq!(
        found("comity record h \"$(curl -w '%{http_code}' u)\""),
        "comity record h $(curl -w '%{http_code}' u)"
    );
    assert_eq!(found("man comity-fetch; cd comity"), "");
    assert_eq!(found("comity record h 200 ${wait:+--retry-after \"$wait\"}"), "comity record h 200");
    assert_eq!(alternatives("comity jobs list\\|show NAME").len(), 2);
}
