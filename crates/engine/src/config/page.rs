//! The reference as a page of the documentation (docs/config.md). What a key allows is not written down here: the code
//! that reads the key is asked, with values that no key takes.

use comity_core::rule::{Fields, Profile};
use serde_json::{Map, Value, json};

use super::Config;
use super::keys::{KEYS, Key};

/// The page.
pub(super) fn page() -> String {
    let mut text = HEAD.to_owned();
    let mut table = None;
    for key in &KEYS {
        let (of, name) = key.path.split_once('.').unwrap_or(("", key.path));
        if table != Some(of) {
            text.push_str(&section(of));
            table = Some(of);
        }
        text.push_str(&row(&[
            &format!("`{name}`"),
            &format!("`{}`", key.default),
            key.meaning,
            &allowed(key),
            &format!("`{}`", key.variable()),
        ]));
    }
    text + DOMAINS + &profiles() + TAIL
}

/// The heading of a table of the file, and the head of its table here.
fn section(table: &str) -> String {
    let (_, about) = SECTIONS.iter().find(|(name, _)| *name == table).unwrap_or(&("", ""));
    let heading = if table.is_empty() { "At the top".to_owned() } else { format!("`[{table}]`") };
    format!(
        "\n## {heading}\n\n{about}\n\n| key | default | what it means | what it allows | variable |\n|---|---|---|---|---|\n"
    )
}

/// What the code that reads the key would have understood.
fn allowed(key: &Key) -> String {
    let plain = expected(key, &Value::Null).unwrap_or_default();
    let Some(duration) = plain.strip_prefix(DURATION) else { return plain };
    // How long it may be is told only when it is too long, and that it may not be zero when it is.
    let limits = ["0s", "9000h"].map(|probe| expected(key, &json!(probe)));
    let limit = limits.into_iter().flatten().next().unwrap_or_default();
    let limit = limit.strip_prefix("a duration ").unwrap_or_default().to_owned();
    let limit = limit.split(',').next().unwrap_or_default();
    format!("{DURATION}, {limit}{duration}")
}

/// What is said to be expected instead of `value`; nothing if the value is taken.
fn expected(key: &Key, value: &Value) -> Option<String> {
    if key.path == "profile" {
        let names = Profile::NAMES.map(|name| format!("{name:?}")).join(", ");
        return Some(format!("one of {names}"));
    }
    let Some(rule) = key.path.strip_prefix("default.") else {
        return Config::default().set(key.path, value).err();
    };
    if let Some(request) = rule.strip_prefix("request.") {
        return Some(super::request::allowed(request));
    }
    // A key of a rule may lie in tables inside it.
    let table = rule.rsplit('.').fold(value.clone(), |inner, name| json!({ name: inner }));
    let table: Map<String, Value> = table.as_object().cloned().unwrap_or_default();
    let problems = Fields::read(&table).err()?;
    problems.0.into_iter().next().map(|problem| problem.expected)
}

/// What each profile sets for every domain, side by side.
fn profiles() -> String {
    let profiles: Vec<Profile> = Profile::NAMES.iter().filter_map(|name| Profile::named(name).ok()).collect();
    let mut text = PROFILES.to_owned();
    text.push_str(&row(&["", "`standard`", "`collector`", "`crawler`", "`archiver`"]));
    text.push_str("|---|---|---|---|---|\n");
    let set: Vec<String> = profiles.iter().map(|profile| profile.default.to_toml()).collect();
    for key in KEYS.iter().filter_map(|key| key.path.strip_prefix("default.")) {
        let value = |toml: &String| {
            let line = toml.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map_or_else(String::new, |value| format!("`{value}`"))
        };
        let values: Vec<String> = set.iter().map(value).collect();
        if values.iter().any(|value| !value.is_empty()) {
            let cells: Vec<&str> = values.iter().map(String::as_str).collect();
            text.push_str(&row(&[&[format!("`{key}`").as_str()], &cells[..]].concat()));
        }
    }
    let rows = profiles.iter().flat_map(|profile| profile.rows.iter().map(move |row| (profile.name, row)));
    for (profile, (pattern, fields)) in rows {
        let set = fields.to_toml().trim_end().replace('\n', ", ");
        text.push_str(&format!("\n`{profile}` has a row for `{pattern}`: `{set}`.\n"));
    }
    text
}

fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
}

const DURATION: &str = "a duration such as \"3s\" or \"250ms\"";

const HEAD: &str = "\
# Configuration

<!-- Written by `comity config reference --markdown > docs/config.md`; a test compares. -->

Settings come from a file (`comity.toml` in the current folder, or `--config FILE`), from variables and from flags. Flags come
before variables, variables before the file, the file before the profile. `comity config check` reads all of it and tells
everything that is wrong at once; `comity config reference` prints a file with every key commented out.

A duration is a number and a unit: `\"250ms\"`, `\"3s\"`, `\"10m\"`, `\"8h\"`, `\"7d\"`. In a variable, lists are separated by commas.
";

const SECTIONS: [(&str, &str); 7] = [
    ("", "Before the first `[table]` of the file."),
    (
        "default",
        "The rule of every domain. The defaults here are those of the profile `standard`. Each of these keys can also stand \
         in a row of its own for some domains, see [below](#domains); [rules.md](rules.md) shows them at work.",
    ),
    ("job", "For `comity fetch`, and for whatever else works on tasks."),
    ("scrape", "For `comity run` and `comity scrape`."),
    ("upkeep", "For `comity fetch`, `comity run`, `comity scrape` and `comity wiki`."),
    ("http", "How requests are sent."),
    ("serve", "For `comity serve`; [service.md](service.md) tells about it."),
];

const DOMAINS: &str = "
## Domains

Every key of `[default]` can be set for one host, for all hosts below a name, or with a port. A host means `www.` of it too.

```toml
[domains.\"reuters.com\"]
min_delay = \"3s\"
burst = 2

[domains.\"reuters.com\".intent.search]
min_delay = \"10s\"

[domains.\"*.example.org\"]        # not example.org itself; the longest that fits goes
group = \"example\"

[domains.\"example.net:8080\"]
in_flight = 2
```

A host may also have a table `request`, with what only this host gets; [requests.md](requests.md) tells how it is used:

| key | what it means |
|---|---|
| `headers` | headers by name; `${NAME}` in a value is a variable, `${file:PATH}` what a file holds |
| `cookies` | cookies by name, with the same references |
| `bearer_env`, `bearer_file` | the variable, or the file, with the token of `Authorization: Bearer` |
| `basic_env`, `basic_file` | the variable, or the file, with `user:password` |
| `robots_credentials` | `true`: its robots.txt is asked for with these headers and cookies, too |
| `insecure` | `true`: its certificate is not checked; for one host only |
| `user_agent`, `connect_timeout`, `first_byte_timeout`, `total_timeout`, `proxy` | as in `[default.request]` |

```toml
[domains.\"api.example.org\".request]
bearer_env = \"API_TOKEN\"
headers = { \"Accept-Language\" = \"de\" }
total_timeout = \"20s\"
```

The variable `COMITY_DOMAINS` holds such rows as one line of TOML, over those of the file, key by key:
`{ \"reuters.com\" = { min_delay = \"3s\" } }`.
";

const PROFILES: &str = "
## Profiles

What each profile sets for every domain. Blank cells inherit from `standard`.

";

const TAIL: &str = "
## Variables that are no keys

| variable | what it says |
|---|---|
| `COMITY_CONFIG` | which file to read, as `--config` |
| `COMITY_SERVER` | the service that `check`, `record` and `explain` ask, as `--server` |
| `COMITY_TOKEN` | the token for it |
| `COMITY_WIKI_PASSWORD` | the password of `comity wiki archive API_URL --user NAME` |
| `BBB_JOB_FAILURE_THRESHOLD` | an older name of `COMITY_JOB_FAILURE_THRESHOLD` |
| `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy` | the proxy that requests go through, and where none is used |
| `SSL_CERT_FILE`, `SSL_CERT_DIR` | the certificate authorities that are trusted instead of the system's |
| `NO_COLOR` | no colours on a terminal |
";
