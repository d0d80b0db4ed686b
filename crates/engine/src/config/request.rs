//! Reads `[default.request]` and `[domains."X".request]`. Problems are reported with key and value, except for values
//! that may be secrets.

use serde_json::{Map, Value};

use comity_core::problem::Problem;
use comity_core::time::Span;

use super::file;
use super::value::{self, Expected};
use crate::request::{Auth, Scheme, SecretSource, SiteRequest, Template, header, is_name};
use crate::transport::PROXY_EXPECTED;

/// Which hosts a table applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// All hosts.
    All,
    /// The subdomains of a name.
    Wildcard,
    /// One host.
    Host,
}

/// A key with an invalid value.
pub(super) struct InvalidKey {
    pub(super) key: String,
    /// The value as JSON, or asterisks if it may be a secret.
    pub(super) value: String,
    pub(super) expected: Expected,
}

/// Reads a table into `site`, overriding what was read before.
pub(super) fn read(site: &mut SiteRequest, table: &Value, scope: Scope) -> Vec<InvalidKey> {
    let Value::Object(table) = table else {
        return vec![InvalidKey {
            key: String::new(),
            value: HIDDEN.to_owned(),
            expected: "a table".to_owned(),
        }];
    };
    let mut invalid = Vec::new();
    for (key, value) in table {
        match key.as_str() {
            "headers" | "cookies" => named(site, key, value, scope, &mut invalid),
            _ => {
                if let Err(expected) = set(site, key, value, scope) {
                    let shown =
                        if SHOWN.contains(&key.as_str()) { value.to_string() } else { HIDDEN.to_owned() };
                    invalid.push(InvalidKey { key: key.clone(), value: shown, expected });
                }
            }
        }
    }
    let methods = ["basic_env", "basic_file", "bearer_env", "bearer_file"];
    let present: Vec<&str> = methods.into_iter().filter(|key| table.contains_key(*key)).collect();
    if present.len() > 1 {
        let expected = format!("only one of {}", present.join(", "));
        invalid.push(InvalidKey { key: present[1].to_owned(), value: HIDDEN.to_owned(), expected });
    }
    invalid
}

/// What a key expects instead of `value`, for the reference; `None` if the value is accepted.
pub(super) fn expected(key: &str, value: &Value) -> Option<Expected> {
    match key {
        "headers" => {
            Some("names and values such as { \"Accept-Language\" = \"de\" }, without secrets".to_owned())
        }
        _ => set(&mut SiteRequest::default(), key, value, Scope::Host).err(),
    }
}

fn set(site: &mut SiteRequest, key: &str, value: &Value, scope: Scope) -> Result<(), Expected> {
    let inherits = value.as_str() == Some("");
    match key {
        "user_agent" => site.user_agent = if inherits { None } else { Some(value::agent(value)?) },
        "connect_timeout" => site.connect_timeout = period(value)?,
        "first_byte_timeout" => site.first_byte_timeout = period(value)?,
        "total_timeout" => site.total_timeout = period(value)?,
        "proxy" => site.proxy = if inherits { None } else { Some(proxy(value)?) },
        "basic_env" => site.auth = Some(auth(Scheme::Basic, env(value, scope)?)),
        "basic_file" => site.auth = Some(auth(Scheme::Basic, path(value, scope)?)),
        "bearer_env" => site.auth = Some(auth(Scheme::Bearer, env(value, scope)?)),
        "bearer_file" => site.auth = Some(auth(Scheme::Bearer, path(value, scope)?)),
        "insecure" if scope == Scope::Host => site.insecure = Some(boolean(value)?),
        "insecure" => return Err(ONE_HOST.to_owned()),
        "robots_credentials" => site.robots_credentials = Some(boolean(value)?),
        _ => return Err(Problem::unknown_key(key, &Value::Null, &KEYS).expected),
    }
    Ok(())
}

/// Reads a table of headers or cookies.
fn named(site: &mut SiteRequest, key: &str, value: &Value, scope: Scope, invalid: &mut Vec<InvalidKey>) {
    let is_header = key == "headers";
    let mut fault = |key: String, expected: String| {
        invalid.push(InvalidKey { key, value: HIDDEN.to_owned(), expected });
    };
    let Some(table) = table(value) else {
        let example =
            if is_header { "{ \"X-Api-Key\" = \"${API_KEY}\" }" } else { "{ session = \"${SESSION}\" }" };
        return fault(key.to_owned(), format!("names and values such as {example}"));
    };
    for (name, value) in table {
        let at = format!("{key}.{}", super::error::quoted(&name));
        let Some(text) = value.as_str() else {
            fault(at, "text".to_owned());
            continue;
        };
        if let Err(why) = header::value(text) {
            fault(at, format!("a valid header value: {why}"));
            continue;
        }
        let template = Template::new(text);
        if !is_header {
            match header::name(&name) {
                Ok(_) if scope != Scope::All => _ = site.cookies.insert(name, template),
                Ok(_) => fault(at, NOT_FOR_ALL.to_owned()),
                Err(_) => fault(at, "the name of a cookie".to_owned()),
            }
            continue;
        }
        match header::name(&name) {
            Err(why) => fault(at, format!("another header: {why}")),
            Ok(name) if name == "user-agent" => fault(at, "the key user_agent instead".to_owned()),
            Ok(name) if name == "cookie" => fault(at, "cookies = { NAME = \"value\" } instead".to_owned()),
            Ok(name) if scope == Scope::All && !header::is_harmless(&name) => {
                fault(at, NOT_FOR_ALL.to_owned());
            }
            Ok(name) => _ = site.headers.insert(name.to_string(), template),
        }
    }
}

/// A table, or the text of one, which is how a variable contains it.
fn table(value: &Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(table) => Some(table.clone()),
        Value::String(text) => match text.trim() {
            "" => Some(Map::new()),
            text => file::json(text.parse().ok()?).as_object().cloned(),
        },
        _ => None,
    }
}

fn auth(scheme: Scheme, from: SecretSource) -> Auth {
    Auth { scheme, from }
}

fn env(value: &Value, scope: Scope) -> Result<SecretSource, Expected> {
    not_for_all(scope)?;
    let name = value.as_str().filter(|name| is_name(name));
    let name = name.map(|name| SecretSource::Env(name.to_owned()));
    name.ok_or_else(|| "the name of a variable such as \"API_TOKEN\", not the secret itself".to_owned())
}

fn path(value: &Value, scope: Scope) -> Result<SecretSource, Expected> {
    not_for_all(scope)?;
    let path = value::file(value).ok().flatten();
    path.map(SecretSource::File).ok_or_else(|| "the path of a file".to_owned())
}

fn not_for_all(scope: Scope) -> Result<(), Expected> {
    if scope == Scope::All { Err(NOT_FOR_ALL.to_owned()) } else { Ok(()) }
}

fn period(value: &Value) -> Result<Option<Span>, Expected> {
    if value.as_str() == Some("") {
        return Ok(None);
    }
    value::positive_duration(value, Span::from_hours(24)).map(Some)
}

fn proxy(value: &Value) -> Result<Template, Expected> {
    let expected = || format!("{PROXY_EXPECTED}, or \"none\"");
    let text = value.as_str().ok_or_else(expected)?;
    let template = Template::new(text);
    let reads = template.has_references() || text == "none" || crate::transport::Proxy::read(text).is_some();
    reads.then_some(template).ok_or_else(expected)
}

fn boolean(value: &Value) -> Result<bool, Expected> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_bool().or(text).ok_or_else(|| "true or false".to_owned())
}

const NOT_FOR_ALL: &str = "credentials only under [domains.\"HOST\".request], so that no other host gets them; only headers without secrets \
     can be set for all hosts";
const ONE_HOST: &str = "this only for a single host, under [domains.\"HOST\".request]";
/// Shown instead of a value that may be a secret.
const HIDDEN: &str = "\"***\"";
/// Keys whose values are not secrets.
const SHOWN: [&str; 6] = [
    "user_agent",
    "connect_timeout",
    "first_byte_timeout",
    "total_timeout",
    "insecure",
    "robots_credentials",
];
pub(super) const KEYS: [&str; 13] = [
    "headers",
    "cookies",
    "basic_env",
    "basic_file",
    "bearer_env",
    "bearer_file",
    "user_agent",
    "connect_timeout",
    "first_byte_timeout",
    "total_timeout",
    "proxy",
    "insecure",
    "robots_credentials",
];
