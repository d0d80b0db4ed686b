//! Commands as people read them: lines of a shell, and names in a sentence. Knows as much of a shell as our own pages use.

/// The words of every `comity …` in a text of several lines, without redirections and what is around it.
pub(super) fn commands(text: &str) -> Vec<Vec<String>> {
    let mut text = text.replace("\\\n", " ");
    // What is there only sometimes is left out.
    while let Some(start) = text.find("${").filter(|start| text[*start..].contains(":+")) {
        let end = text[start..].find('}').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    let lines = text.lines().map(|line| line.trim_start_matches("$ "));
    let words = lines.flat_map(|line| {
        // What a unit starts is a command as any other, and so is what cron starts.
        let line = line.strip_prefix("ExecStart=").unwrap_or(line);
        split(line).into_iter().map(start_at_comity)
    });
    words.filter(|words| !words.is_empty()).collect()
}

/// The commands that a name in a sentence stands for: `comity jobs list|show` is two. Names in capitals stand for
/// something that can be typed there.
pub(super) fn alternatives(span: &str) -> Vec<Vec<String>> {
    let words = split(&span.replace("\\|", "|").replace('|', "\u{1}"));
    let mut all = vec![Vec::new()];
    for word in words.first().into_iter().flatten().filter(|word| *word != "…") {
        let meant: Vec<String> = word.split('\u{1}').map(stands_for).collect();
        all = meant
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

/// Something that can be typed for a name in capitals.
fn stands_for(word: &str) -> String {
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
    // Behind another command it is an argument, unless only settings, times and keywords stand before it.
    let before = |words: &[String]| {
        words.iter().all(|word| word.contains('=') || STEPS.contains(&word.as_str()) || is_time(word))
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
                // Inside "$(…)" quotes are those of another command.
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

/// What may stand before a command.
const STEPS: [&str; 9] = ["if", "while", "until", "do", "then", "!", "time", "sudo", "exec"];

#[test]
fn commands_are_found_in_what_is_around_them() {
    let told =
        |line: &str| commands(line).into_iter().map(|words| words.join(" ")).collect::<Vec<_>>().join(" / ");
    assert_eq!(told("comity fetch a # comity b"), "comity fetch a");
    assert_eq!(told("A=1 comity x 'a b' && comity y > f | less"), "comity x a b / comity y");
    assert_eq!(told("if ! comity check --wait u; then"), "comity check --wait u");
    assert_eq!(told("7 * * * *  cd /srv && comity run --quiet"), "comity run --quiet");
    assert_eq!(told("ExecStart=/usr/local/bin/comity --store x serve"), "comity --store x serve");
    assert_eq!(
        told("comity record h \"$(curl -w '%{http_code}' u)\""),
        "comity record h $(curl -w '%{http_code}' u)"
    );
    assert_eq!(told("man comity-fetch; cd comity"), "");
    assert_eq!(told("comity record h 200 ${wait:+--retry-after \"$wait\"}"), "comity record h 200");
    assert_eq!(alternatives("comity jobs list\\|show NAME").len(), 2);
}
