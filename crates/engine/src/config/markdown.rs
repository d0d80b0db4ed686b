//! Renders the reference as a page of the documentation (docs/config.md). What a key allows is not repeated here: it is
//! taken from the error messages of the code that parses the key, by passing values that no key accepts.

use comity_core::rule::{Fields, Profile};
use serde_json::{Map, Value, json};

use super::Config;
use super::keys::{KEYS, Key};

/// The whole page.
pub(super) fn reference() -> String {
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

/// The heading for a table of the file, and the header row of its keys.
fn section(table: &str) -> String {
    let (_, about) = SECTIONS.iter().find(|(name, _)| *name == table).unwrap_or(&("", ""));
    let heading = if table.is_empty() { "At the top".to_owned() } else { format!("`[{table}]`") };
    format!(
        "\n## {heading}\n\n{about}\n\n| key | default | what it means | what it allows | variable |\n|---|---|---|---|---|\n"
    )
}

/// What the code that parses the key accepts.
fn allowed(key: &Key) -> String {
    let plain = expected(key, &Value::Null).unwrap_or_default();
    let Some(duration) = plain.strip_prefix(DURATION) else { return plain };
    // The limits are only mentioned when a duration is too long or zero.
    let limits = ["0s", "9000h"].map(|probe| expected(key, &json!(probe)));
    let limit = limits.into_iter().flatten().next().unwrap_or_default();
    let limit = limit.strip_prefix("a duration ").unwrap_or_default().to_owned();
    let limit = limit.split(',').next().unwrap_or_default();
    format!("{DURATION}, {limit}{duration}")
}

/// What is expected instead of `value`; `None` if the value is accepted.
fn expected(key: &Key, value: &Value) -> Option<String> {
    if key.path == "profile" {
        let names = Profile::NAMES.map(|name| format!("{name:?}")).join(", ");
        return Some(format!("one of {names}"));
    }
    let Some(rule) = key.path.strip_prefix("default.") else {
        return Config::default().set(key.path, value).err();
    };
    if let Some(request) = rule.strip_prefix("request.") {
        return super::request::expected(request, value);
    }
    // A key of a rule may be in nested tables.
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
        text.push_str(&format!("\n`{profile}` also sets, for `{pattern}`: `{set}`.\n"));
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

Settings come from a file (`comity.toml` in the current folder, or `--config FILE`), from environment variables and from flags.
Flags override variables, variables override the file, and the file overrides the profile. `comity config check` reads all of
them and reports all problems at once; `comity config reference` prints a file with every key commented out.

A duration is a number and a unit: `\"250ms\"`, `\"3s\"`, `\"10m\"`, `\"8h\"`, `\"7d\"`. In a variable, lists are separated by commas.
";

const SECTIONS: [(&str, &str); 9] = [
    ("", "Before the first `[table]` of the file."),
    (
        "default",
        "The rule for every site. The defaults are those of the profile `standard`. Each of these keys can also be set \
         for single sites, see [below](#domains); [rules.md](rules.md) has examples.",
    ),
    ("job", "For `comity fetch`, `comity run` and `comity scrape`."),
    ("scrape", "For `comity run` and `comity scrape`."),
    ("upkeep", "For `comity fetch`, `comity run`, `comity scrape` and `comity wiki`."),
    ("warc", "For `--format warc`, see [warc.md](warc.md)."),
    ("http", "How requests are sent."),
    ("serve", "For `comity serve`, see [service.md](service.md)."),
    ("proxy", "For `comity proxy`, see [proxy.md](proxy.md)."),
];

const DOMAINS: &str = "
## `[domains]`

Every key of `[default]` can be set for one host, for all subdomains of a name, or with a port. A host includes its `www.` host.

```toml
[domains.\"reuters.com\"]
min_delay = \"3s\"
burst = 2

[domains.\"reuters.com\".intent.search]
min_delay = \"10s\"

[domains.\"*.example.org\"]        # not example.org itself; the longest match wins
group = \"example\"

[domains.\"example.net:8080\"]
in_flight = 2
```

A host can also have a table `request` with options that only this host gets, see [requests.md](requests.md):

| key | what it means |
|---|---|
| `headers` | headers by name; in a value, `${NAME}` is replaced by an environment variable and `${file:PATH}` by the content of a file |
| `cookies` | cookies by name, with the same references |
| `bearer_env`, `bearer_file` | the variable, or the file, with the token for `Authorization: Bearer` |
| `basic_env`, `basic_file` | the variable, or the file, with `user:password` |
| `robots_credentials` | `true`: send these headers and cookies when fetching robots.txt, too |
| `insecure` | `true`: do not check the certificate; for a single host only |
| `user_agent`, `connect_timeout`, `first_byte_timeout`, `total_timeout`, `proxy` | as in `[default.request]` |

```toml
[domains.\"api.example.org\".request]
bearer_env = \"API_TOKEN\"
headers = { \"Accept-Language\" = \"de\" }
total_timeout = \"20s\"
```

The variable `COMITY_DOMAINS` contains such tables as one line of TOML; they override those of the file key by key:
`{ \"reuters.com\" = { min_delay = \"3s\" } }`.
";

const PROFILES: &str = "
## Profiles

What each profile sets for every site. Blank cells inherit from `standard`; where that cell is blank too, the default under `[default]` applies.

";

const TAIL: &str = "
## Other environment variables

| variable | meaning |
|---|---|
| `COMITY_CONFIG` | the file to read, like `--config` |
| `COMITY_SERVER` | the service that `check`, `record` and `explain` ask, like `--server` |
| `COMITY_TOKEN` | the token for that service |
| `COMITY_WIKI_PASSWORD` | the password for `comity wiki archive API_URL --user NAME` |
| `BBB_JOB_FAILURE_THRESHOLD` | an older name of `COMITY_JOB_FAILURE_THRESHOLD` |
| `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy` | the proxy for requests, and the hosts that don't use it |
| `SSL_CERT_FILE`, `SSL_CERT_DIR` | the certificate authorities to trust instead of the system's |
| `NO_COLOR` | no colors on a terminal |
";
