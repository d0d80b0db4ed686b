//! The words people read: plain English, and one name for one thing.
//!
//! - `text`: what people read, word by word
//! - `phrase`: patterns of words
//! - `names`: one name per thing on the pages for users
//!
//! A phrase that is needed although it is in a table goes into the allow list next to it, with the reason.

mod names;
mod phrase;
mod text;

use std::collections::BTreeSet;

use self::phrase::Phrase;
use self::text::{Prose, Text, files, python, words};
use super::page::root;
use crate::comity::World;

/// Pages, help texts, comments and messages.
#[test]
fn everything_people_read_is_plain_english() {
    let mut texts = pages();
    texts.extend(helps());
    texts.extend(sources(|prose| prose.comments));
    texts.extend(sources(|prose| prose.literals));
    assert_free_of(PHRASES, ALLOWED, texts);
}

/// Pages, help texts and messages; comments may say what a site refuses.
#[test]
fn nothing_has_a_second_name() {
    let mut texts = pages();
    texts.extend(helps());
    texts.extend(sources(|prose| prose.literals).into_iter().filter(|text| !is_for_tests(&text.name)));
    assert_free_of(SYNONYMS, ALLOWED, texts);
}

/// The object that ends `fetch --json`, the counts in `/v1/jobs`, the printed summary and the live view.
#[test]
fn counts_have_the_same_names_everywhere() {
    let names: BTreeSet<&str> = COUNTS.iter().map(|(name, _)| *name).collect();
    // A job waits or is done; only items of sources are deferred.
    let keys: BTreeSet<&str> = COUNTS.iter().map(|(_, key)| *key).filter(|key| *key != "deferred").collect();
    let is_count = |key: &String| !NOT_COUNTS.contains(&key.as_str());

    let summary = function("crates/cli/src/commands/report.rs", "summary");
    let in_summary: BTreeSet<String> = json_keys(&summary).into_iter().filter(is_count).collect();
    assert_eq!(in_summary.iter().map(String::as_str).collect::<BTreeSet<_>>(), keys, "fetch --json");

    let job = item("crates/server/src/wire/jobs.rs", "pub(crate) struct JobResponse {");
    let in_api: BTreeSet<String> = counted_fields(&job).into_iter().filter(is_count).collect();
    assert_eq!(in_api.iter().map(String::as_str).collect::<BTreeSet<_>>(), keys, "/v1/jobs");

    let progress = function("crates/cli/src/commands/report.rs", "progress");
    let tally = function("crates/cli/src/live/draw.rs", "tally");
    for (place, source) in [("the printed summary", progress), ("the live view", tally)] {
        for name in counted_words(&source) {
            assert!(names.contains(name.as_str()), "{place} says {name:?}, expected one of {names:?}");
        }
    }

    let run = "crates/cli/src/commands/run/summary.rs";
    assert!(json_keys(&function(run, "object")).contains(&"deferred".to_owned()), "run --json");
    let scraped = counted_words(&function(run, "scraped"));
    assert!(scraped.iter().any(|words| words.starts_with("deferred")), "the summary of a run: {scraped:?}");
}

/// Ids of behaviours are for tests and for the page that lists them.
#[test]
fn only_one_page_names_the_ids_of_behaviours() {
    let is_id = |word: &str| {
        let number = word.strip_prefix('b').unwrap_or_default();
        (1..=2).contains(&number.len()) && number.chars().all(|c| c.is_ascii_digit())
    };
    for text in pages().iter().filter(|text| !WITH_IDS.contains(&text.name.as_str())) {
        let ids: Vec<_> = text.words.iter().filter(|word| is_id(&word.text)).collect();
        assert!(ids.is_empty(), "{}: {ids:?} belong in docs/behaviours.md", text.name);
    }
}

/// A promise is proved by the test that its link names.
#[test]
fn every_promise_links_to_a_test_that_names_it() {
    let page = std::fs::read_to_string(root().join("docs/behaviours.md")).unwrap();
    let (mut proved, mut wrong) = (0, Vec::new());
    for line in page.lines().filter(|line| line.starts_with("- **B")) {
        let id = line["- **".len()..].split("**").next().unwrap_or_default();
        let links: Vec<(&str, &str)> = line.split('[').skip(1).filter_map(link).collect();
        if links.is_empty() && !line.contains("(planned)") {
            wrong.push(format!("{id}: neither a test nor planned"));
        }
        for (test, file) in links {
            proved += 1;
            wrong.extend(unproved(id, test, file).map(|why| format!("{id}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "docs/behaviours.md:\n{}", wrong.join("\n"));
    assert!(proved > 80, "only {proved} promises were found");
}

/// The text and the target of a link, from behind its opening bracket.
fn link(rest: &str) -> Option<(&str, &str)> {
    let (text, rest) = rest.split_once("](../")?;
    Some((text, rest.split(')').next()?))
}

/// Why a test does not prove a promise: the file has no such test, or its doc comment does not name the promise.
fn unproved(id: &str, test: &str, file: &str) -> Option<String> {
    let Ok(source) = std::fs::read_to_string(root().join(file)) else {
        return Some(format!("there is no file {file}"));
    };
    let lines: Vec<&str> = source.lines().collect();
    let head = format!("fn {test}(");
    let Some(at) = lines.iter().position(|line| line.contains(&head)) else {
        return Some(format!("there is no test {test} in {file}"));
    };
    let before =
        lines[..at].iter().rev().take_while(|line| !line.trim().is_empty() && !line.starts_with('}'));
    let named = before.flat_map(|line| line.split(|c: char| !c.is_alphanumeric())).any(|word| word == id);
    (!named).then(|| format!("the doc comment of {test} in {file} does not name it"))
}

/// Fails if a phrase of the table occurs.
fn assert_free_of(table: &[(&str, &str)], allowed: &[(&str, &str, &str)], texts: Vec<Text>) {
    let found = found(table, allowed, texts);
    assert!(found.is_empty(), "{} phrases to reword:\n{}", found.len(), found.join("\n"));
}

/// The file, the line and the better wording of each phrase that occurs, and allowed phrases that don't occur any more.
fn found(table: &[(&str, &str)], allowed: &[(&str, &str, &str)], mut texts: Vec<Text>) -> Vec<String> {
    let mut found = Vec::new();
    for (file, pattern, _) in allowed {
        let phrase = Phrase::new(pattern);
        let here = texts.iter_mut().filter(|text| text.name.ends_with(file));
        if here.map(|text| phrase.hide(&mut text.words)).sum::<usize>() == 0 {
            found.push(format!("{file} no longer says {pattern:?}; remove it from the allow list"));
        }
    }
    for (pattern, better) in table {
        let phrase = Phrase::new(pattern);
        for text in &texts {
            for (line, shown) in phrase.find(&text.words) {
                found.push(format!("{}:{line}: {shown:?}; better: {better}", text.name));
            }
        }
    }
    found.sort();
    found
}

/// Everything that is written for readers, and the sources of the Python client.
fn pages() -> Vec<Text> {
    let mut paths: Vec<_> = TOP.iter().map(|name| root().join(name)).collect();
    for (folder, ending) in FOLDERS {
        paths.extend(files(&root().join(folder), ending));
    }
    let text = |path: std::path::PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let words = if name.ends_with(".py") { python(&text) } else { words(&text, 1) };
        Text { name, words }
    };
    paths.into_iter().map(text).collect()
}

/// What `--help` of every command prints.
fn helps() -> Vec<Text> {
    let world = World::new();
    let (mut texts, mut left) = (Vec::new(), vec![Vec::<String>::new()]);
    while let Some(command) = left.pop() {
        let typed = command.iter().map(String::as_str).chain(["--help"]).collect::<Vec<_>>();
        let shown = world.run(&typed).expect(0).stdout;
        let listed = shown.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
        let names = listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        left.extend(names.map(|name| [command.clone(), vec![name.to_owned()]].concat()));
        texts.push(Text { name: format!("comity {}", typed.join(" ")), words: words(&shown, 1) });
    }
    assert!(texts.len() > 40, "only {} commands were found", texts.len());
    texts
}

/// One part of the prose of every source of every crate.
fn sources(part: fn(Prose) -> Vec<text::Word>) -> Vec<Text> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().flatten();
    let paths = crates.flat_map(|entry| files(&entry.path().join("src"), ".rs"));
    let text = |path: std::path::PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        Text { name, words: part(Prose::of(&std::fs::read_to_string(path).unwrap())) }
    };
    paths.map(text).collect()
}

/// Whether a source belongs to a crate that only tests use.
fn is_for_tests(name: &str) -> bool {
    ["crates/conformance/", "crates/sim/"].iter().any(|folder| name.starts_with(folder))
}

/// The text of a function of a file.
fn function(file: &str, name: &str) -> String {
    item(file, &format!("fn {name}("))
}

/// The text of an item of a file, from `head` to the brace that closes it.
fn item(file: &str, head: &str) -> String {
    let source = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let start = source.find(head).unwrap_or_else(|| panic!("{file}: there is no `{head}`"));
    source[start..].split("\n}").next().unwrap_or_default().to_owned()
}

/// The keys of an object that is written with `json!`.
fn json_keys(source: &str) -> Vec<String> {
    let key = |line: &str| Some(line.trim().strip_prefix('"')?.split_once("\":")?.0.to_owned());
    source.lines().filter_map(key).collect()
}

/// The fields of a struct that are numbers.
fn counted_fields(source: &str) -> Vec<String> {
    let field =
        |line: &str| Some(line.trim().strip_prefix("pub(crate) ")?.strip_suffix(": u64,")?.to_owned());
    source.lines().filter_map(field).collect()
}

/// The words beside counts: literals without a placeholder that are longer than a separator. One retry is a "retry".
fn counted_words(source: &str) -> Vec<String> {
    let literals = source.split('"').skip(1).step_by(2);
    let words = literals.filter(|text| !text.contains('{') && text.chars().any(char::is_alphabetic));
    words.map(|word| if word == "retry" { "retries".to_owned() } else { word.to_owned() }).collect()
}

/// What is counted: the name that people see, and the key that programs see.
const COUNTS: [(&str, &str); 7] = [
    ("fetched", "fetched"),
    ("failed", "failed"),
    ("skipped", "skipped"),
    ("rate limited (429)", "rate_limited"),
    ("retries", "retries"),
    ("waiting", "waiting"),
    ("deferred", "deferred"),
];
/// Keys beside the counts.
const NOT_COUNTS: [&str; 5] = ["job", "state", "tasks", "elapsed_ms", "message"];

/// Pages at the root of the repository, and of the benchmarks.
const TOP: [&str; 11] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "README.md",
    "bench/RESULTS.md",
    "clients/go/README.md",
    "clients/node/README.md",
    "clients/php/README.md",
    "clients/python/README.md",
    "clients/ruby/README.md",
];
/// Folders, and how the names of the files end that people read there.
const FOLDERS: [(&str, &str); 3] = [("clients/python/src", ".py"), ("contrib", ""), ("docs", ".md")];
/// Pages that may name behaviours: the list of them, how tests name them, and versions of packages that look like one.
const WITH_IDS: [&str; 3] = ["CONTRIBUTING.md", "bench/RESULTS.md", "docs/behaviours.md"];

/// Phrases that read like a translation, and what a developer would write.
const PHRASES: &[(&str, &str)] = &[
    ("a|one|requests|request|pages|urls|revisions a second|minute|hour", "per second"),
    ("a second|minute|day and|or site|host|domain", "per second per site"),
    (
        "!in a|one folder|row|line|file|module|request|url|test|entry|member a host|site|domain|line|record|page|url|command|source|job|subject",
        "one … per …",
    ),
    ("a|one line|row each", "one line per …"),
    ("goes on", "continues, resumes"),
    ("job|jobs|work|run|runs|others|rest|command|commands|sites go|went on", "continue, resume"),
    ("how to go on", "how to resume"),
    ("tells how|what|why|which|whether|where|when|more|everything", "reports, prints, shows, describes"),
    ("is|are told in", "is described in"),
    ("slower|longer|longest|shorter|stricter|later|latest|earliest one goes $", "wins, applies"),
    ("slower|longer|longest|shorter|stricter|later|latest|earliest goes $", "wins, applies"),
    ("of this and _ goes $", "wins, applies"),
    ("by itself", "automatically, on its own"),
    (
        "!there is|are|was|were no url|urls|host|hosts|feed|json|date|number|2xx|key|keys|proxy|success",
        "isn't a …",
    ),
    ("what it|they|this|that came to", "outcome, result"),
    ("what a|an|the _ came to", "the outcome of …"),
    ("came of it|them|this|that", "outcome, result"),
    ("cannot|could|can be had", "could not be fetched"),
    ("not be had", "could not be fetched"),
    ("to be tried again", "will retry"),
    ("put|puts|putting off", "postpone, defer"),
    ("mend|mends|mended|mending", "fix"),
    ("learnt", "learned"),
    ("passed over", "skipped"),
    ("led to by", "found via"),
    ("counts as forbidden for now $", "name the cause: DNS lookup failed for …"),
    ("what it speaks is not", "TLS handshake failed: the server doesn't speak TLS on this port"),
    ("answer|answers led to an address", "blocked redirect to private address …"),
    ("are finished first", "… requests in flight; press Ctrl-C again to quit now"),
    ("1 tasks wait", "1 task waiting"),
    ("there is no such thing", "not found"),
    ("neither progress nor logs", "print errors only"),
    ("tries after the first", "retries"),
    ("where nothing stands", "blank cells inherit from …"),
    ("would not mind", "would allow the request"),
    ("went on asking", "kept hammering it"),
    ("has said 429", "answers 429"),
    ("honour|honours|honoured|honouring", "honor (American spelling)"),
    ("recognise|recognised|recognises", "recognize (American spelling)"),
    ("colour|colours|coloured", "color (American spelling)"),
];

/// Second names of things that have one.
const SYNONYMS: &[(&str, &str)] = &[
    ("refusals", "rate limited (429)"),
    ("told to slow down", "rate limited (429)"),
    ("throttled answers|responses|requests", "rate limited (429)"),
    ("slow-downs|slowdowns", "rate limited (429)"),
    ("re-tries|retrials", "retries"),
    ("tries left|more", "retries"),
    ("pages|urls|tasks got", "fetched"),
    ("left out urls|pages|tasks", "skipped"),
    ("time-out|time-outs", "timeout"),
    ("kill|die with -9", "kill -9"),
];

/// File, phrase, and why it stays.
const ALLOWED: &[(&str, &str, &str)] = &[];
