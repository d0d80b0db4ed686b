//! Resolves and merges the options of jobs and sites, and prepares the headers and options of each request.

use std::borrow::Cow;
use std::sync::Arc;

use comity_core::domain::{Domain, Pattern};
use comity_core::rule::Rows;
use comity_core::time::Timestamp;
use http::header::{AUTHORIZATION, COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::cookie::Cookie;
use super::jar::Jar;
use super::job::{JobRequest, NamedValue};
use super::site::{Auth, RequestTable, Scheme, SecretSource, SiteRequest};
use super::template::{Env, Template, file_content, variable};
use super::{RobotsLead, Trust, header};
use crate::config::Config;
use crate::transport::{Proxy, SiteOptions, TransportError, Verify, Via, basic_of};

/// The resolved options of all requests.
#[derive(Default)]
pub struct Requests {
    rows: Rows,
    sites: Vec<Site>,
    default: Site,
    job: Job,
    jar: Option<Jar>,
    /// Whether no options are set, so that requests need no preparation.
    is_plain: bool,
    /// Whether something is missing for the requests to some site.
    is_lacking: bool,
}

/// Options that can't be resolved or sent: one line per problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct RequestError(pub Vec<String>);

/// The resolved options of one site.
#[derive(Default)]
struct Site {
    /// Headers that every host gets.
    plain: Vec<(HeaderName, HeaderValue)>,
    /// Headers that only the host of this site gets.
    secret: Vec<(HeaderName, HeaderValue)>,
    cookies: Vec<(String, String)>,
    /// The host that gets credentials; `None` for a wildcard, which includes all subdomains.
    host: Option<String>,
    robots_credentials: bool,
    agent: Option<String>,
    options: Arc<SiteOptions>,
    /// The same options without checking certificates.
    unverified: Arc<SiteOptions>,
    /// What is missing for any request to the site: one line per problem.
    missing: Vec<String>,
    /// What is missing for requests that get credentials.
    missing_credentials: Vec<String>,
}

/// The resolved options of a job, for the hosts listed in it.
#[derive(Default)]
struct Job {
    plain: Vec<(HeaderName, HeaderValue)>,
    secret: Vec<(HeaderName, HeaderValue)>,
    cookies: Vec<(String, String)>,
    file: Vec<Cookie>,
    agent: Option<String>,
    insecure: Vec<String>,
}

/// The headers and options of one request.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) options: Option<Arc<SiteOptions>>,
}

impl Requests {
    /// Resolves the options of `config` and `job`, including every secret. A problem with the options of all sites or
    /// of the job is an error, and then all problems are reported at once. A problem with the options of one site only
    /// fails the requests that need them.
    pub fn open(config: &Config, job: &JobRequest, env: Env<'_>) -> Result<Self, RequestError> {
        let table: &RequestTable = &config.request;
        if table.is_empty() && *job == JobRequest::default() {
            return Ok(Self { is_plain: true, ..Self::default() });
        }
        let mut resolver = Resolver { env, config, job, job_proxy: None, problems: Vec::new() };
        resolver.job_proxy = resolver.proxy("--proxy", job.proxy.as_ref().and_then(Option::as_ref));
        let default = resolver.site(None, &table.default);
        let sites = table.sites.iter();
        let sites: Vec<Site> = sites
            .map(|(pattern, site)| resolver.site(Some((pattern, site)), &site.over(&table.default)))
            .collect();
        let resolved_job = resolver.job();
        let jar = job.cookie_jar.as_deref().and_then(|path| {
            let jar = Jar::open(path).map_err(|why| format!("--cookie-jar = {path:?}: {why}"));
            resolver.ok(jar)
        });
        let rows = table.rows.clone();
        let mut problems = default.problems();
        problems.append(&mut resolver.problems);
        let of_sites: Vec<String> = sites.iter().flat_map(Site::problems).collect();
        if !problems.is_empty() {
            problems.extend(of_sites);
            return Err(RequestError(problems));
        }
        let is_lacking = !of_sites.is_empty();
        Ok(Self { rows, sites, default, job: resolved_job, jar, is_plain: false, is_lacking })
    }

    /// The problems with the options of single sites, whose requests fail: one line per problem.
    pub fn site_problems(&self) -> Vec<String> {
        self.sites.iter().flat_map(Site::problems).collect()
    }

    /// An error if a variable or file is missing that a request for `url` needs.
    pub(crate) fn check(&self, url: &Url, trust: Trust) -> Result<(), TransportError> {
        if !self.is_lacking {
            return Ok(());
        }
        match self.site(url).missing_for(url, trust) {
            problems if problems.is_empty() => Ok(()),
            problems => Err(TransportError::Options(problems.join("; "))),
        }
    }

    /// The headers and options of a request for `url`. An error if something that it needs is missing.
    pub(crate) fn prepare(
        &self,
        url: &Url,
        trust: Trust,
        now: impl Fn() -> Timestamp,
    ) -> Result<Prepared, TransportError> {
        if self.is_plain {
            return Ok(Prepared::default());
        }
        let now = now();
        self.check(url, trust)?;
        let site = self.site(url);
        let options = match self.job.insecure.iter().any(|host| is_host_of(host, url)) {
            true => &site.unverified,
            false => &site.options,
        };
        if trust == Trust::Relayed {
            return Ok(Prepared { headers: Vec::new(), options: Some(options.clone()) });
        }
        let is_robots = matches!(trust, Trust::Robots(_));
        let mut headers = Vec::new();
        if !is_robots {
            put_all(&mut headers, &site.plain);
            put_all(&mut headers, &self.job.plain);
        }
        let mut cookies: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
        if site.gets_credentials(url, trust) {
            put_all(&mut headers, &site.secret);
            cookies.extend(site.cookies.iter().map(borrowed));
        }
        if trust == Trust::Listed {
            put_all(&mut headers, &self.job.secret);
            replace(&mut cookies, self.job.cookies.iter().map(borrowed).collect());
            let file = self.job.file.iter().filter(|cookie| cookie.matches(url, now));
            replace(
                &mut cookies,
                file.map(|cookie| ((&*cookie.name).into(), (&*cookie.value).into())).collect(),
            );
        }
        if let Some(jar) = self.jar.as_ref().filter(|_| !is_robots) {
            let stored = jar.cookies(url, now).into_iter();
            replace(&mut cookies, stored.map(|(name, value)| (name.into(), value.into())).collect());
        }
        let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if let Ok(mut value) = HeaderValue::from_str(&pairs.join("; "))
            && !pairs.is_empty()
        {
            value.set_sensitive(true);
            headers.push((COOKIE, value));
        }
        Ok(Prepared { headers, options: Some(options.clone()) })
    }

    /// Takes the cookies that a response sets, and writes them to the jar before returning.
    pub(crate) async fn store_cookies(self: &Arc<Self>, url: &Url, headers: &HeaderMap, now: Timestamp) {
        let changed = self.jar.as_ref().is_some_and(|jar| jar.update(url, headers, now));
        if !changed {
            return;
        }
        let requests = self.clone();
        let saved =
            tokio::task::spawn_blocking(move || requests.jar.as_ref().map_or(Ok(()), Jar::save)).await;
        if let (Ok(Err(error)), Some(jar)) = (saved, &self.jar) {
            tracing::warn!("could not write the cookie jar {}: {error}", jar.path().display());
        }
    }

    /// Removes the user and password from the URL of a robots.txt, unless its site is configured with
    /// `robots_credentials`: the transport would send those of the page.
    pub(crate) fn strip_robots_url(&self, url: &mut Url, lead: RobotsLead) {
        if self.is_plain || !self.site(url).gets_credentials(url, Trust::Robots(lead)) {
            let _ = (url.set_username(""), url.set_password(None));
        }
    }

    /// The user agent for a host, if it isn't the default.
    pub(crate) fn agent(&self, host: &Domain) -> Option<&str> {
        self.job.agent.as_deref().or(self.site_of(host).agent.as_deref())
    }

    /// The options for a host, if any are set.
    pub(crate) fn options(&self, host: &Domain) -> Option<&SiteOptions> {
        (!self.is_plain).then(|| &*self.site_of(host).options)
    }

    fn site(&self, url: &Url) -> &Site {
        Domain::of(url).map_or(&self.default, |host| self.site_of(&host))
    }

    fn site_of(&self, host: &Domain) -> &Site {
        self.rows.row(host).and_then(|nth| self.sites.get(nth)).unwrap_or(&self.default)
    }
}

impl Site {
    /// All problems with its options.
    fn problems(&self) -> Vec<String> {
        self.missing.iter().chain(&self.missing_credentials).cloned().collect()
    }

    /// What a request lacks. One that gets no credentials doesn't need those of the site.
    fn missing_for(&self, url: &Url, trust: Trust) -> Vec<&str> {
        let credentials = match self.gets_credentials(url, trust) {
            true => &self.missing_credentials[..],
            false => &[],
        };
        self.missing.iter().chain(credentials).map(String::as_str).collect()
    }

    /// Whether a request gets the credentials of this site.
    fn gets_credentials(&self, url: &Url, trust: Trust) -> bool {
        let host = url.host_str().map(|host| host.strip_suffix('.').unwrap_or(host));
        let is_own_host = self.host.as_deref().is_none_or(|own| host == Some(own));
        let secure = url.scheme() == "https";
        is_own_host
            && match trust {
                Trust::Listed => true,
                Trust::Remote => secure,
                Trust::Relayed => false,
                Trust::Robots(lead) => self.robots_credentials && (secure || lead == RobotsLead::Listed),
            }
    }
}

/// Resolves options, and collects the problems.
struct Resolver<'a> {
    env: Env<'a>,
    config: &'a Config,
    job: &'a JobRequest,
    /// The proxy of the job, which applies to all sites.
    job_proxy: Option<Via>,
    problems: Vec<String>,
}

impl Resolver<'_> {
    fn site(&mut self, row: Option<(&Pattern, &SiteRequest)>, merged: &SiteRequest) -> Site {
        let table = row.map_or("default".to_owned(), |(pattern, _)| format!("domains.\"{pattern}\""));
        let at = |key: &str| format!("{table}.request.{key}");
        let host = row.and_then(|(pattern, site)| {
            let www = if site.www { "www." } else { "" };
            (!pattern.is_wildcard()).then(|| format!("{www}{}", pattern.host()))
        });
        let before = std::mem::take(&mut self.problems);
        let mut site = Site { host, agent: merged.user_agent.clone(), ..Site::default() };
        let (plain, secret): (Vec<_>, Vec<_>) = merged
            .headers
            .iter()
            .filter_map(|(name, value)| Some((header::name(name).ok()?, value)))
            .partition(|(name, _)| header::is_harmless(name));
        for (name, value) in plain {
            let value = self.header(&at(&format!("headers.{name}")), value);
            site.plain.extend(value.map(|value| (name, value)));
        }
        let proxy = match self.job_proxy.clone() {
            Some(proxy) => Some(proxy),
            None => self.proxy(&at("proxy"), merged.proxy.as_ref()),
        };
        site.missing = std::mem::take(&mut self.problems);
        for (name, value) in secret {
            let value = self.header(&at(&format!("headers.{name}")), value);
            site.secret.extend(value.map(|value| (name, value)));
        }
        for (name, value) in &merged.cookies {
            let filled = self.text(&at(&format!("cookies.{name}")), value);
            site.cookies.extend(filled.map(|value| (name.clone(), value)));
        }
        if let Some(auth) = &merged.auth {
            let value = self.auth(&at(auth.key()), auth);
            site.secret.extend(value.map(|value| (AUTHORIZATION, value)));
        }
        site.missing_credentials = std::mem::replace(&mut self.problems, before);
        site.robots_credentials = merged.robots_credentials == Some(true);
        let agent = self.job.agent().or(merged.user_agent.as_deref());
        let agent = agent.map(|agent| self.config.with_contact(agent));
        let total = self.job.timeout.or(merged.total_timeout);
        let connect = merged.connect_timeout.unwrap_or(self.config.http.connect_timeout);
        let options = SiteOptions {
            user_agent: agent.and_then(|agent| HeaderValue::from_str(&agent).ok()),
            connect_timeout: Some(self.job.timeout.map_or(connect, |most| connect.min(most))),
            first_byte_timeout: self.job.timeout.or(merged.first_byte_timeout),
            total_timeout: total,
            proxy: proxy.unwrap_or_default(),
            verify: if merged.insecure == Some(true) { Verify::Nothing } else { Verify::Certificate },
        };
        site.unverified = Arc::new(SiteOptions { verify: Verify::Nothing, ..options.clone() });
        site.options = Arc::new(options);
        site
    }

    fn job(&mut self) -> Job {
        let given = self.job;
        let agent = given.agent().map(str::to_owned);
        let mut job = Job { agent, insecure: given.insecure.clone(), ..Job::default() };
        for NamedValue { name, value } in &given.headers {
            let Ok(name) = header::name(name) else { continue };
            if name == USER_AGENT {
                continue;
            }
            let Some(template) = value else {
                self.problems.push(format!(
                    "the header {name} has to be given again, because its value is not saved: add -H '{name}: …', or better \
                     -H '{name}: ${{NAME}}', which reads the variable NAME"
                ));
                continue;
            };
            if let Some(value) = self.header(&format!("-H {name}"), template) {
                let plain = header::is_harmless(&name);
                (if plain { &mut job.plain } else { &mut job.secret }).push((name, value));
            }
        }
        for NamedValue { name, value } in &given.cookies {
            match value {
                Some(value) => {
                    let filled = self.text(&format!("--cookie {name}"), value);
                    job.cookies.extend(filled.map(|value| (name.clone(), value)));
                }
                None => self.problems.push(format!(
                    "the cookie {name} has to be given again, because its value is not saved: add --cookie '{name}=…', or \
                     better --cookie '{name}=${{NAME}}', which reads the variable NAME"
                )),
            }
        }
        if let Some(auth) = &given.auth {
            let value = self.auth(&format!("--auth-{}", auth.key().replace('_', "-")), auth);
            job.secret.extend(value.map(|value| (AUTHORIZATION, value)));
        }
        if given.proxy == Some(None) {
            self.problems.push(
                "the proxy has to be given again, because its password is not saved: add --proxy URL, with \
                 ${NAME} for a password in the variable NAME"
                    .to_owned(),
            );
        }
        if let Some(path) = &given.cookies_file {
            let read = std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"));
            let read = read.and_then(|text| super::netscape::read(&text));
            let read = read.map_err(|why| format!("--cookies {}: {why}", path.display()));
            job.file = self.ok(read).unwrap_or_default();
        }
        job
    }

    fn text(&mut self, label: &str, template: &Template) -> Option<String> {
        let filled = template.fill(self.env).map_err(|missing| format!("{label}: {missing}"));
        let text = self.ok(filled)?;
        let checked = header::value(&text).map(|_| text).map_err(|why| format!("{label}: {why}"));
        self.ok(checked)
    }

    fn header(&mut self, label: &str, template: &Template) -> Option<HeaderValue> {
        let text = self.text(label, template)?;
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn auth(&mut self, label: &str, auth: &Auth) -> Option<HeaderValue> {
        let secret = match &auth.from {
            SecretSource::Env(name) => variable(name, self.env),
            SecretSource::File(path) => file_content(path),
        };
        let secret = secret.map_err(|missing| format!("{label}: {missing}"));
        let secret = self.ok(secret)?;
        let secret = secret.trim();
        let value = match auth.scheme {
            Scheme::Basic if !secret.contains(':') => Err("expected user:password"),
            Scheme::Basic => basic_of(secret.as_bytes()).ok_or("it can't be sent as a header"),
            Scheme::Bearer => header::value(&format!("Bearer {secret}")),
        };
        let mut value = self.ok(value.map_err(|why| format!("{label}: {why}")))?;
        value.set_sensitive(true);
        Some(value)
    }

    fn proxy(&mut self, label: &str, template: Option<&Template>) -> Option<Via> {
        let filled = template?.fill(self.env).map_err(|missing| format!("{label}: {missing}"));
        let text = self.ok(filled)?;
        if text == "none" {
            return Some(Via::Direct);
        }
        let expected = || format!("{label}: expected {}", crate::transport::PROXY_EXPECTED);
        let proxy = self.ok(Proxy::read(&text).ok_or_else(expected))?;
        Some(Via::Proxy(Arc::new(proxy)))
    }

    /// The value, if there is one; otherwise records the problem, once.
    fn ok<T>(&mut self, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problem) => {
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
                None
            }
        }
    }
}

/// Whether `host`, optionally with a port, is the host of `url`.
fn is_host_of(host: &str, url: &Url) -> bool {
    let Some(of_url) = url.host_str() else { return false };
    let of_url = of_url.strip_suffix('.').unwrap_or(of_url);
    match host.strip_prefix(of_url) {
        Some("") => true,
        Some(rest) => {
            rest.strip_prefix(':').and_then(|port| port.parse().ok()) == url.port_or_known_default()
        }
        None => false,
    }
}

fn borrowed(pair: &(String, String)) -> (Cow<'_, str>, Cow<'_, str>) {
    (pair.0.as_str().into(), pair.1.as_str().into())
}

/// Adds cookies, replacing those with the same names.
fn replace<'a>(cookies: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>, newer: Vec<(Cow<'a, str>, Cow<'a, str>)>) {
    cookies.retain(|(name, _)| newer.iter().all(|(newer, _)| newer != name));
    cookies.extend(newer);
}

/// Adds headers, replacing those with the same names.
fn put_all(headers: &mut Vec<(HeaderName, HeaderValue)>, more: &[(HeaderName, HeaderValue)]) {
    for (name, value) in more {
        headers.retain(|(known, _)| known != name);
        headers.push((name.clone(), value.clone()));
    }
}

impl Auth {
    /// The configuration key that sets it.
    pub(crate) fn key(&self) -> &'static str {
        match (self.scheme, &self.from) {
            (Scheme::Basic, SecretSource::Env(_)) => "basic_env",
            (Scheme::Basic, SecretSource::File(_)) => "basic_file",
            (Scheme::Bearer, SecretSource::Env(_)) => "bearer_env",
            (Scheme::Bearer, SecretSource::File(_)) => "bearer_file",
        }
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").field("sites", &self.sites.len()).finish_non_exhaustive()
    }
}
