//! What the requests of one job are sent with: typed as flags, and kept with the job. Of secrets only the name of the
//! variable or file is kept, or that there was one.

use std::path::{Path, PathBuf};

use comity_core::time::Span;
use http::HeaderName;
use serde_json::{Map, Value, json};

use super::header;
use super::site::{Auth, Place, Scheme, has_password};
use super::text::{Template, is_name};

/// What the requests of a job are sent with. Values typed literally are there for this run only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRequest {
    pub(super) headers: Vec<Named>,
    pub(super) cookies: Vec<Named>,
    pub(super) cookies_file: Option<PathBuf>,
    pub(super) cookie_jar: Option<PathBuf>,
    pub(super) auth: Option<Auth>,
    pub(super) timeout: Option<Span>,
    /// Inside there is none when its password was not kept.
    pub(super) proxy: Option<Option<Template>>,
    pub(super) insecure: Vec<String>,
}

/// A header or a cookie; without a value when it has to be given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) value: Option<Template>,
}

/// What was typed, as it was. It has no `Debug`: secrets may be in it.
#[derive(Clone, Default)]
pub struct Typed {
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
    /// What was typed, over what the job had. Every problem is told, and none repeats a secret.
    pub fn new(typed: &Typed, saved: &Value) -> Result<Self, Vec<String>> {
        let mut request = Self::saved(saved);
        let mut wrong = Vec::new();
        let user_agent = typed.user_agent.as_ref().map(|agent| format!("User-Agent: {agent}"));
        for line in typed.headers.iter().chain(&user_agent) {
            match header::split(line) {
                Ok((name, value)) if name == http::header::COOKIE => {
                    request.add_cookies("-H", value, &mut wrong)
                }
                Ok((name, value)) => match literal(value) {
                    Ok(value) => put(&mut request.headers, name.as_str(), value.absolute()),
                    Err(why) => wrong.push(format!("-H {name}: {why}")),
                },
                // What comes before the colon is no secret; without one nobody knows.
                Err(why) => match line.split_once(':') {
                    Some((name, _)) => wrong.push(format!("-H {:?}: {why}", crate::shown::text(name))),
                    None => wrong.push(format!("-H: {why}")),
                },
            }
        }
        for text in &typed.cookies {
            request.add_cookies("--cookie", text, &mut wrong);
        }
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        request.cookies_file = typed.cookies_file.as_ref().map(absolute).or(request.cookies_file);
        request.cookie_jar = typed.cookie_jar.as_ref().map(absolute).or(request.cookie_jar);
        request.auth = typed.auth(&mut wrong).or(request.auth);
        if let Some(text) = &typed.timeout {
            match Span::parse(text).ok().filter(|span| !span.is_zero() && *span <= Span::from_hours(24)) {
                Some(span) => request.timeout = Some(span),
                None => wrong.push(format!(
                    "--timeout = {text:?}: expected a duration above zero and of at most 24h, such as \"20s\""
                )),
            }
        }
        if let Some(text) = &typed.proxy {
            request.proxy = Some(Some(Template::new(text.clone()).absolute()));
        }
        for text in &typed.insecure {
            match host(text) {
                Some(host) if !request.insecure.contains(&host) => request.insecure.push(host),
                Some(_) => {}
                None => wrong.push(format!(
                    "--insecure = {text:?}: expected the name of one host, such as \"staging.example.org\", or with a \
                     port; certificates of all other hosts are checked"
                )),
            }
        }
        if wrong.is_empty() { Ok(request) } else { Err(wrong) }
    }

    /// What is kept with the job.
    pub fn to_json(&self) -> Value {
        let mut kept = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                kept.insert(key.to_owned(), value);
            }
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| json!(path.display().to_string()));
        let list = |named: &[Named], storable: fn(&Named) -> bool| {
            let one = |named: &Named| match named.value.as_ref().filter(|_| storable(named)) {
                Some(value) => json!({ "name": named.name, "value": value.as_written() }),
                None => json!({ "name": named.name }),
            };
            (!named.is_empty()).then(|| named.iter().map(one).collect())
        };
        put("headers", list(&self.headers, |named| named.refers() || named.is_harmless()));
        put("cookies", list(&self.cookies, Named::refers));
        put("cookies_file", path(&self.cookies_file));
        put("cookie_jar", path(&self.cookie_jar));
        put(
            "auth",
            self.auth.as_ref().map(|auth| match &auth.from {
                Place::Env(name) => json!({ "by": auth.key(), "name": name }),
                Place::File(path) => json!({ "by": auth.key(), "name": path.display().to_string() }),
            }),
        );
        put("timeout", self.timeout.map(|timeout| json!(timeout.to_string())));
        put(
            "proxy",
            self.proxy.as_ref().map(|proxy| match proxy {
                Some(text) if text.refers() || !has_password(text.as_written()) => json!(text.as_written()),
                _ => Value::Null,
            }),
        );
        put("insecure", (!self.insecure.is_empty()).then(|| json!(self.insecure)));
        Value::Object(kept)
    }

    /// The hosts whose certificates are not checked.
    pub fn insecure(&self) -> &[String] {
        &self.insecure
    }

    /// The files that hold its secrets.
    pub fn files(&self) -> Vec<&Path> {
        let auth = self.auth.as_ref().and_then(|auth| match &auth.from {
            Place::File(path) => Some(path.as_path()),
            Place::Env(_) => None,
        });
        [self.cookies_file.as_deref(), auth].into_iter().flatten().collect()
    }

    /// What we call ourselves.
    pub fn agent(&self) -> Option<&str> {
        let agent = self.headers.iter().find(|header| header.name == "user-agent");
        agent.and_then(|agent| agent.value.as_ref()).map(Template::as_written)
    }

    fn saved(saved: &Value) -> Self {
        let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
        let list = |key: &str| {
            let named = saved[key].as_array().into_iter().flatten();
            let one = |value: &Value| {
                Some(Named { name: text(value, "name")?, value: text(value, "value").map(Template::new) })
            };
            named.filter_map(one).collect()
        };
        let auth = || {
            let (by, name) = (text(&saved["auth"], "by")?, text(&saved["auth"], "name")?);
            let (scheme, from) = match by.as_str() {
                "basic_env" => (Scheme::Basic, Place::Env(name)),
                "basic_file" => (Scheme::Basic, Place::File(name.into())),
                "bearer_env" => (Scheme::Bearer, Place::Env(name)),
                _ => (Scheme::Bearer, Place::File(name.into())),
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

    /// Takes `a=b; c=d`.
    fn add_cookies(&mut self, flag: &str, text: &str, wrong: &mut Vec<String>) {
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                wrong.push(format!(
                    "{flag}: expected NAME=VALUE; a file of cookies is given with --cookies FILE"
                ));
                continue;
            };
            let fits = HeaderName::try_from(name.trim()).is_ok();
            match literal(value.trim()) {
                Ok(value) if fits => put(&mut self.cookies, name.trim(), value.absolute()),
                Ok(_) => {
                    wrong.push(format!("{flag}: expected NAME=VALUE, with a name of letters and digits"))
                }
                Err(why) => wrong.push(format!("{flag} {}: {why}", crate::shown::text(name))),
            }
        }
    }
}

impl Typed {
    fn auth(&self, wrong: &mut Vec<String>) -> Option<Auth> {
        let by_env =
            [("basic", Scheme::Basic, &self.basic_env), ("bearer", Scheme::Bearer, &self.bearer_env)];
        for (word, scheme, name) in by_env {
            let Some(name) = name else { continue };
            if is_name(name) {
                return Some(Auth { scheme, from: Place::Env(name.clone()) });
            }
            wrong.push(format!(
                "--auth-{word}-env: expected the name of a variable, such as API_TOKEN, and not the secret itself"
            ));
        }
        let by_file = [(Scheme::Basic, &self.basic_file), (Scheme::Bearer, &self.bearer_file)];
        by_file.into_iter().find_map(|(scheme, path)| {
            let path = std::path::absolute(path.as_ref()?).ok()?;
            Some(Auth { scheme, from: Place::File(path) })
        })
    }
}

impl Named {
    fn refers(&self) -> bool {
        self.value.as_ref().is_some_and(Template::refers)
    }

    fn is_harmless(&self) -> bool {
        HeaderName::try_from(&self.name).is_ok_and(|name| header::is_harmless(&name))
    }
}

/// A value as it was typed. What can be told to be wrong before its references are looked up is told now.
fn literal(text: &str) -> Result<Template, &'static str> {
    header::value(text).map(|_| Template::new(text))
}

/// A header or cookie in the place of the one with its name.
fn put(named: &mut Vec<Named>, name: &str, value: Template) {
    named.retain(|known| known.name != name);
    named.push(Named { name: name.to_owned(), value: Some(value) });
}

/// One host as URLs write it, perhaps with a port; no pattern.
fn host(text: &str) -> Option<String> {
    let plain = !text.contains(['*', '/', '@', '?', '#']) && !text.trim().is_empty();
    let url = url::Url::parse(&format!("https://{}/", text.trim())).ok().filter(|_| plain)?;
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host);
    let port = text.trim().rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    // The parser drops the port that https has anyway.
    Some(port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(headers: &[&str], cookies: &[&str]) -> Typed {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Typed { headers: owned(headers), cookies: owned(cookies), ..Typed::default() }
    }

    /// B75
    #[test]
    fn a_job_keeps_names_and_no_secrets() {
        let typed = Typed {
            proxy: Some("http://me:hunter2@proxy:3128".to_owned()),
            bearer_env: Some("TOKEN".to_owned()),
            timeout: Some("20s".to_owned()),
            insecure: vec!["Staging.example.org:8443".to_owned()],
            ..typed(
                &["Accept-Language: de", "X-Key: hunter2", "X-Other: a ${KEY}", "Cookie: a=hunter2"],
                &["b=hunter2; c=${C}"],
            )
        };
        let request = JobRequest::new(&typed, &Value::Null).unwrap();
        let kept = request.to_json();
        assert!(!kept.to_string().contains("hunter2"), "{kept}");
        assert_eq!(
            kept,
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
        let again = JobRequest::new(&Typed::default(), &kept).unwrap();
        assert_eq!(again.to_json(), kept);
        let given = JobRequest::new(&self::typed(&["X-Key: ${K}"], &[]), &kept).unwrap();
        assert_eq!(given.headers[2], Named { name: "x-key".to_owned(), value: Some(Template::new("${K}")) });
    }

    #[test]
    fn everything_wrong_is_told_at_once_and_no_secret_with_it() {
        let typed = Typed {
            bearer_env: Some("eyJ.hunter2".to_owned()),
            timeout: Some("soon".to_owned()),
            insecure: vec!["*.example.org".to_owned(), "".to_owned()],
            ..typed(&["Host: a", "X-Key", "X-Key: a\r\nb: hunter2", "X-Key: "], &["hunter2"])
        };
        let wrong = JobRequest::new(&typed, &Value::Null).unwrap_err();
        assert_eq!(wrong.len(), 9, "{wrong:#?}");
        let text = wrong.join("\n");
        assert!(!text.contains("hunter2") && text.contains("Host is made of the URL"), "{text}");
    }
}
