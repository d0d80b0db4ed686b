//! Reading `[default.request]` and `[domains."X".request]`: what each key allows. What is wrong is told with key and value,
//! but for values that may be secrets.

use serde_json::{Map, Value};

use comity_core::problem::Problem;
use comity_core::time::Span;

use super::file;
use super::value::{self, Expected};
use crate::request::{Auth, Place, Scheme, SiteRequest, Template, header, is_name};
use crate::transport::PROXY_EXPECTED;

/// Whose table it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Every site's.
    Everybodys,
    /// That of the hosts below a name.
    Wildcards,
    /// One host's.
    Hosts,
}

/// What is wrong with a key.
pub(super) struct Wrong {
    pub(super) key: String,
    /// As JSON, or stars.
    pub(super) value: String,
    pub(super) expected: Expected,
}

/// Reads a table over what was read before.
pub(super) fn read(site: &mut SiteRequest, table: &Value, whose: Whose) -> Vec<Wrong> {
    let Value::Object(table) = table else {
        return vec![Wrong { key: String::new(), value: HIDDEN.to_owned(), expected: "a table".to_owned() }];
    };
    let mut wrong = Vec::new();
    for (key, value) in table {
        match key.as_str() {
            "headers" | "cookies" => named(site, key, value, whose, &mut wrong),
            _ => {
                if let Err(expected) = set(site, key, value, whose) {
                    let shown =
                        if SHOWN.contains(&key.as_str()) { value.to_string() } else { HIDDEN.to_owned() };
                    wrong.push(Wrong { key: key.clone(), value: shown, expected });
                }
            }
        }
    }
    let ways = ["basic_env", "basic_file", "bearer_env", "bearer_file"];
    let given: Vec<&str> = ways.into_iter().filter(|key| table.contains_key(*key)).collect();
    if given.len() > 1 {
        let expected = format!("one of {}", given.join(", "));
        wrong.push(Wrong { key: given[1].to_owned(), value: HIDDEN.to_owned(), expected });
    }
    wrong
}

/// What the code that reads a key would have understood, for the reference.
pub(super) fn allowed(key: &str) -> String {
    match key {
        "headers" => "names and values such as { \"Accept-Language\" = \"de\" }, without secrets".to_owned(),
        _ => set(&mut SiteRequest::default(), key, &Value::Null, Whose::Hosts).err().unwrap_or_default(),
    }
}

fn set(site: &mut SiteRequest, key: &str, value: &Value, whose: Whose) -> Result<(), Expected> {
    let inherits = value.as_str() == Some("");
    match key {
        "user_agent" => site.user_agent = if inherits { None } else { Some(value::agent(value)?) },
        "connect_timeout" => site.connect_timeout = period(value)?,
        "first_byte_timeout" => site.first_byte_timeout = period(value)?,
        "total_timeout" => site.total_timeout = period(value)?,
        "proxy" => site.proxy = if inherits { None } else { Some(proxy(value)?) },
        "basic_env" => site.auth = Some(auth(Scheme::Basic, env(value, whose)?)),
        "basic_file" => site.auth = Some(auth(Scheme::Basic, path(value, whose)?)),
        "bearer_env" => site.auth = Some(auth(Scheme::Bearer, env(value, whose)?)),
        "bearer_file" => site.auth = Some(auth(Scheme::Bearer, path(value, whose)?)),
        "insecure" if whose == Whose::Hosts => site.insecure = Some(boolean(value)?),
        "insecure" => return Err(ONE_HOST.to_owned()),
        "robots_credentials" => site.robots_credentials = Some(boolean(value)?),
        _ => return Err(Problem::unknown_key(key, &Value::Null, &KEYS).expected),
    }
    Ok(())
}

/// Reads a table of headers or cookies.
fn named(site: &mut SiteRequest, key: &str, value: &Value, whose: Whose, wrong: &mut Vec<Wrong>) {
    let is_header = key == "headers";
    let mut fault = |key: String, expected: String| {
        wrong.push(Wrong { key, value: HIDDEN.to_owned(), expected });
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
            fault(at, format!("a value that can be sent: {why}"));
            continue;
        }
        let template = Template::new(text);
        if !is_header {
            match header::name(&name) {
                Ok(_) if whose != Whose::Everybodys => _ = site.cookies.insert(name, template),
                Ok(_) => fault(at, NOT_FOR_ALL.to_owned()),
                Err(_) => fault(at, "the name of a cookie".to_owned()),
            }
            continue;
        }
        match header::name(&name) {
            Err(why) => fault(at, format!("another header: {why}")),
            Ok(name) if name == "user-agent" => fault(at, "user_agent for that".to_owned()),
            Ok(name) if name == "cookie" => fault(at, "cookies = { NAME = \"value\" } for that".to_owned()),
            Ok(name) if whose == Whose::Everybodys && !header::is_harmless(&name) => {
                fault(at, NOT_FOR_ALL.to_owned());
            }
            Ok(name) => _ = site.headers.insert(name.to_string(), template),
        }
    }
}

/// A table, also as the text of one, which is how a variable holds it.
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

fn auth(scheme: Scheme, from: Place) -> Auth {
    Auth { scheme, from }
}

fn env(value: &Value, whose: Whose) -> Result<Place, Expected> {
    for_a_host(whose)?;
    let name = value.as_str().filter(|name| is_name(name));
    let name = name.map(|name| Place::Env(name.to_owned()));
    name.ok_or_else(|| "the name of a variable such as \"API_TOKEN\", and not the secret itself".to_owned())
}

fn path(value: &Value, whose: Whose) -> Result<Place, Expected> {
    for_a_host(whose)?;
    let path = value::file(value).ok().flatten();
    path.map(Place::File).ok_or_else(|| "the path of a file".to_owned())
}

fn for_a_host(whose: Whose) -> Result<(), Expected> {
    if whose == Whose::Everybodys { Err(NOT_FOR_ALL.to_owned()) } else { Ok(()) }
}

fn period(value: &Value) -> Result<Option<Span>, Expected> {
    if value.as_str() == Some("") {
        return Ok(None);
    }
    value::period(value, Span::from_hours(24)).map(Some)
}

fn proxy(value: &Value) -> Result<Template, Expected> {
    let expected = || format!("{PROXY_EXPECTED}, or \"none\"");
    let text = value.as_str().ok_or_else(expected)?;
    let template = Template::new(text);
    let reads = template.refers() || text == "none" || crate::transport::Proxy::read(text).is_some();
    reads.then_some(template).ok_or_else(expected)
}

fn boolean(value: &Value) -> Result<bool, Expected> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_bool().or(text).ok_or_else(|| "true or false".to_owned())
}

const NOT_FOR_ALL: &str = "credentials under [domains.\"HOST\".request], so that no other host gets them; only headers that hold no secret are \
     for all";
const ONE_HOST: &str = "this for a single host, as [domains.\"HOST\".request], and never for all or many";
/// What stands for a value that may be a secret.
const HIDDEN: &str = "\"***\"";
/// Keys whose values are no secrets.
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
