//! The request options of a job, which come from flags and are stored with the job. Secrets are not stored, only the
//! name of the variable or file they come from, or that there was one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use comity_core::time::Span;
use http::HeaderName;
use serde_json::{Map, Value, json};

use super::header;
use super::site::{Auth, Scheme, SecretSource, has_password};
use super::template::{Template, is_name};
use crate::transport::PROXY_EXPECTED;

/// The request options of a job. Literal secrets are only available in this run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRequest {
    pub(super) headers: Vec<NamedValue>,
    pub(super) cookies: Vec<NamedValue>,
    pub(super) cookies_file: Option<PathBuf>,
    pub(super) cookie_jar: Option<PathBuf>,
    pub(super) auth: Option<Auth>,
    pub(super) timeout: Option<Span>,
    /// `Some(None)` is a proxy that has to be given again, because its password was not stored.
    pub(super) proxy: Option<Option<Template>>,
    pub(super) insecure: Vec<String>,
}

/// A header or cookie. Without a value, it has to be given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedValue {
    pub(super) name: String,
    pub(super) value: Option<Template>,
}

/// Request options as they were typed. There is no `Debug` because they may contain secrets.
#[derive(Clone, Default)]
pub struct RequestFlags {
    /// `-H`
    pub headers: Vec<String>,
    /// `--cookie`
    pub cookies: Vec<String>,
    /// `--cookies`
    pub cookies_file: Option<PathBuf>,
    /// `--cookie-jar`
    pub cookie_jar: Option<PathBuf>,
    /// `--auth-basic-env`
    pub basic_env: Option<String>,
    /// `--auth-basic-file`
    pub basic_file: Option<PathBuf>,
    /// `--auth-bearer-env`
    pub bearer_env: Option<String>,
    /// `--auth-bearer-file`
    pub bearer_file: Option<PathBuf>,
    /// `--user-agent`
    pub user_agent: Option<String>,
    /// `--timeout`
    pub timeout: Option<String>,
    /// `--proxy`
    pub proxy: Option<String>,
    /// `--insecure`
    pub insecure: Vec<String>,
}

impl JobRequest {
    /// The options of the flags, which override those stored with the job. All problems are reported, without secrets.
    pub fn new(flags: &RequestFlags, saved: &Value) -> Result<Self, Vec<String>> {
        let mut request = Self::saved(saved);
        let mut problems = Vec::new();
        let user_agent = flags.user_agent.as_ref().map(|agent| format!("User-Agent: {agent}"));
        let lines = flags.headers.iter().map(|line| ("-H", line));
        let mut names = HashSet::new();
        for (flag, line) in lines.chain(user_agent.iter().map(|line| ("--user-agent", line))) {
            match header::split(line) {
                Ok((name, value)) if name == http::header::COOKIE => {
                    request.add_cookies("-H", value, &mut problems)
                }
                Ok((name, _)) if !names.insert(name.clone()) => problems.push(format!(
                    "{flag}: the header {name} is given twice; give it once, with both values separated by a comma"
                )),
                Ok((name, value)) => match literal(value) {
                    Ok(value) => put(&mut request.headers, name.as_str(), value.absolute()),
                    Err(why) if flag == "-H" => problems.push(format!("-H {name}: {why}")),
                    Err(why) => problems.push(format!("{flag}: {why}")),
                },
                // The text before the colon is not secret; without a colon, all of it may be.
                Err(why) => match line.split_once(':') {
                    Some((name, _)) => problems.push(format!("-H {:?}: {why}", crate::redact::text(name))),
                    None => problems.push(format!("-H: {why}")),
                },
            }
        }
        for text in &flags.cookies {
            request.add_cookies("--cookie", text, &mut problems);
        }
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        request.cookies_file = flags.cookies_file.as_ref().map(absolute).or(request.cookies_file);
        request.cookie_jar = flags.cookie_jar.as_ref().map(absolute).or(request.cookie_jar);
        request.auth = flags.auth(&mut problems).or(request.auth);
        if let Some(text) = &flags.timeout {
            match Span::parse(text).ok().filter(|span| !span.is_zero() && *span <= Span::from_hours(24)) {
                Some(span) => request.timeout = Some(span),
                None => problems.push(format!(
                    "--timeout = {text:?}: expected a duration above zero and of at most 24h, such as \"20s\""
                )),
            }
        }
        if let Some(text) = &flags.proxy {
            // A variable may contain the scheme.
            if text != "none" && !text.contains("://") && !text.contains("${") {
                problems.push(format!("--proxy: expected {PROXY_EXPECTED}, or \"none\""));
            }
            request.proxy = Some(Some(Template::new(text.clone()).absolute()));
        }
        for text in &flags.insecure {
            match host(text) {
                Some(host) if !request.insecure.contains(&host) => request.insecure.push(host),
                Some(_) => {}
                None => problems.push(format!(
                    "--insecure = {text:?}: expected a single host such as \"staging.example.org\", optionally with a \
                     port; the certificates of all other hosts are still checked"
                )),
            }
        }
        if problems.is_empty() { Ok(request) } else { Err(problems) }
    }

    /// What is stored with the job.
    pub fn to_json(&self) -> Value {
        let mut stored = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                stored.insert(key.to_owned(), value);
            }
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| json!(path.display().to_string()));
        let list = |named: &[NamedValue], storable: fn(&NamedValue) -> bool| {
            let one = |named: &NamedValue| match named.value.as_ref().filter(|_| storable(named)) {
                Some(value) => json!({ "name": named.name, "value": value.as_written() }),
                None => json!({ "name": named.name }),
            };
            (!named.is_empty()).then(|| named.iter().map(one).collect())
        };
        put("headers", list(&self.headers, |named| named.has_references() || named.is_harmless()));
        put("cookies", list(&self.cookies, NamedValue::has_references));
        put("cookies_file", path(&self.cookies_file));
        put("cookie_jar", path(&self.cookie_jar));
        put(
            "auth",
            self.auth.as_ref().map(|auth| match &auth.from {
                SecretSource::Env(name) => json!({ "by": auth.key(), "name": name }),
                SecretSource::File(path) => json!({ "by": auth.key(), "name": path.display().to_string() }),
            }),
        );
        put("timeout", self.timeout.map(|timeout| json!(timeout.to_string())));
        put(
            "proxy",
            self.proxy.as_ref().map(|proxy| match proxy {
                Some(text) if text.has_references() || !has_password(text.as_written()) => {
                    json!(text.as_written())
                }
                _ => Value::Null,
            }),
        );
        put("insecure", (!self.insecure.is_empty()).then(|| json!(self.insecure)));
        Value::Object(stored)
    }

    /// The hosts whose certificates are not checked.
    pub fn insecure(&self) -> &[String] {
        &self.insecure
    }

    /// The files that contain its secrets.
    pub fn files(&self) -> Vec<&Path> {
        let auth = self.auth.as_ref().and_then(|auth| match &auth.from {
            SecretSource::File(path) => Some(path.as_path()),
            SecretSource::Env(_) => None,
        });
        [self.cookies_file.as_deref(), auth].into_iter().flatten().collect()
    }

    /// The user agent, if the job sets one.
    pub fn agent(&self) -> Option<&str> {
        let agent = self.headers.iter().find(|header| header.name == "user-agent");
        agent.and_then(|agent| agent.value.as_ref()).map(Template::as_written)
    }

    fn saved(saved: &Value) -> Self {
        let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
        let list = |key: &str| {
            let named = saved[key].as_array().into_iter().flatten();
            let one = |value: &Value| {
                Some(NamedValue {
                    name: text(value, "name")?,
                    value: text(value, "value").map(Template::new),
                })
            };
            named.filter_map(one).collect()
        };
        let auth = || {
            let (by, name) = (text(&saved["auth"], "by")?, text(&saved["auth"], "name")?);
            let (scheme, from) = match by.as_str() {
                "basic_env" => (Scheme::Basic, SecretSource::Env(name)),
                "basic_file" => (Scheme::Basic, SecretSource::File(name.into())),
                "bearer_env" => (Scheme::Bearer, SecretSource::Env(name)),
                _ => (Scheme::Bearer, SecretSource::File(name.into())),
            };
            Some(Auth { scheme, from })
        };
        Self {
            headers: list("headers"),
            cookies: list("cookies"),
            cookies_file: text(saved, "cookies_file").map(PathBuf::from),
            cookie_jar: text(saved, "cookie_jar").map(PathBuf::from),
            auth: auth(),
            timeout: text(saved, "timeout").and_then(|text| Span::parse(&text).ok()),
            proxy: saved.get("proxy").map(|proxy| proxy.as_str().map(Template::new)),
            insecure: saved["insecure"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|host| host.as_str().map(str::to_owned))
                .collect(),
        }
    }

    /// Adds the cookies in `a=b; c=d`.
    fn add_cookies(&mut self, flag: &str, text: &str, problems: &mut Vec<String>) {
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                problems.push(format!(
                    "{flag}: expected NAME=VALUE; use --cookies FILE to read cookies from a file"
                ));
                continue;
            };
            let fits = HeaderName::try_from(name.trim()).is_ok();
            match literal(value.trim()) {
                Ok(value) if fits => put(&mut self.cookies, name.trim(), value.absolute()),
                Ok(_) => {
                    problems.push(format!("{flag}: expected NAME=VALUE, with a name of letters and digits"))
                }
                Err(why) => problems.push(format!("{flag} {}: {why}", crate::redact::text(name))),
            }
        }
    }
}

impl RequestFlags {
    fn auth(&self, problems: &mut Vec<String>) -> Option<Auth> {
        let by_env =
            [("basic", Scheme::Basic, &self.basic_env), ("bearer", Scheme::Bearer, &self.bearer_env)];
        for (word, scheme, name) in by_env {
            let Some(name) = name else { continue };
            if is_name(name) {
                return Some(Auth { scheme, from: SecretSource::Env(name.clone()) });
            }
            problems.push(format!(
                "--auth-{word}-env: expected the name of a variable such as API_TOKEN, not the secret itself"
            ));
        }
        let by_file = [(Scheme::Basic, &self.basic_file), (Scheme::Bearer, &self.bearer_file)];
        by_file.into_iter().find_map(|(scheme, path)| {
            let path = std::path::absolute(path.as_ref()?).ok()?;
            Some(Auth { scheme, from: SecretSource::File(path) })
        })
    }
}

impl NamedValue {
    fn has_references(&self) -> bool {
        self.value.as_ref().is_some_and(Template::has_references)
    }

    fn is_harmless(&self) -> bool {
        HeaderName::try_from(&self.name).is_ok_and(|name| header::is_harmless(&name))
    }
}

/// A value as it was typed, checked as far as possible before its references are resolved.
fn literal(text: &str) -> Result<Template, &'static str> {
    header::value(text).map(|_| Template::new(text))
}

/// Sets a header or cookie, replacing the one with the same name.
fn put(named: &mut Vec<NamedValue>, name: &str, value: Template) {
    named.retain(|known| known.name != name);
    named.push(NamedValue { name: name.to_owned(), value: Some(value) });
}

/// A single host as in a URL, optionally with a port; patterns are not allowed.
fn host(text: &str) -> Option<String> {
    let plain = !text.contains(['*', '/', '@', '?', '#']) && !text.trim().is_empty();
    let url = url::Url::parse(&format!("https://{}/", text.trim())).ok().filter(|_| plain)?;
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host);
    let port = text.trim().rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    // The parser drops the default port of https, so the port is taken from the text.
    Some(port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(headers: &[&str], cookies: &[&str]) -> RequestFlags {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        RequestFlags { headers: owned(headers), cookies: owned(cookies), ..RequestFlags::default() }
    }

    /// B75
    #[test]
    fn names_are_stored_with_a_job_but_no_secrets() {
        let flags = RequestFlags {
            proxy: Some("http://me:hunter2@proxy:3128".to_owned()),
            bearer_env: Some("TOKEN".to_owned()),
            timeout: Some("20s".to_owned()),
            insecure: vec!["Staging.example.org:8443".to_owned()],
            ..flags(
                &["Accept-Language: de", "X-Key: hunter2", "X-Other: a ${KEY}", "Cookie: a=hunter2"],
                &["b=hunter2; c=${C}"],
            )
        };
        let request = JobRequest::new(&flags, &Value::Null).unwrap();
        let stored = request.to_json();
        assert!(!stored.to_string().contains("hunter2"), "{stored}");
        assert_eq!(
            stored,
            json!({
                "headers": [
                    { "name": "accept-language", "value": "de" },
                    { "name": "x-key" },
                    { "name": "x-other", "value": "a ${KEY}" },
                ],
                "cookies": [{ "name": "a" }, { "name": "b" }, { "name": "c", "value": "${C}" }],
                "auth": { "by": "bearer_env", "name": "TOKEN" },
                "timeout": "20s",
                "proxy": null,
                "insecure": ["staging.example.org:8443"],
            })
        );
        assert!(!format!("{request:?}").contains("hunter2"));
        let again = JobRequest::new(&RequestFlags::default(), &stored).unwrap();
        assert_eq!(again.to_json(), stored);
        let given = JobRequest::new(&self::flags(&["X-Key: ${K}"], &[]), &stored).unwrap();
        assert_eq!(
            given.headers[2],
            NamedValue { name: "x-key".to_owned(), value: Some(Template::new("${K}")) }
        );
    }

    #[test]
    fn all_problems_are_reported_at_once_without_secrets() {
        let flags = RequestFlags {
            bearer_env: Some("eyJ.hunter2".to_owned()),
            timeout: Some("soon".to_owned()),
            insecure: vec!["*.example.org".to_owned(), "".to_owned()],
            ..flags(&["Host: a", "X-Key", "X-Key: a\r\nb: hunter2", "X-Key: "], &["hunter2"])
        };
        let wrong = JobRequest::new(&flags, &Value::Null).unwrap_err();
        assert_eq!(wrong.len(), 9, "{wrong:#?}");
        let text = wrong.join("\n");
        assert!(!text.contains("hunter2") && text.contains("Host is derived from the URL"), "{text}");
    }
}
