//! The configured request options of a site: `[domains."X".request]` on top of `[default.request]`. They refer to
//! secrets by where they come from, unless somebody wrote a secret into the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use comity_core::domain::{Domain, Pattern};
use comity_core::rule::Rows;
use comity_core::time::Span;
use http::HeaderName;

use super::header;
use super::template::Template;

/// The request options of one site, or of all sites. `None` inherits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteRequest {
    /// Headers by name, in lower case.
    pub headers: BTreeMap<String, Template>,
    /// Cookies by name.
    pub cookies: BTreeMap<String, Template>,
    /// The `Authorization` header.
    pub auth: Option<Auth>,
    /// The user agent.
    pub user_agent: Option<String>,
    /// Time limit for connecting.
    pub connect_timeout: Option<Span>,
    /// Time limit for the first byte of a response.
    pub first_byte_timeout: Option<Span>,
    /// Time limit for a whole request.
    pub total_timeout: Option<Span>,
    /// The URL of the proxy, or `none`.
    pub proxy: Option<Template>,
    /// Whether to skip checking the certificate.
    pub insecure: Option<bool>,
    /// Whether requests for robots.txt get credentials too.
    pub robots_credentials: Option<bool>,
    /// Whether the key was written with `www.`; then only that host gets credentials.
    pub www: bool,
}

/// An authentication scheme, and where its secret comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// The scheme.
    pub scheme: Scheme,
    /// Where the secret comes from.
    pub from: SecretSource,
}

/// An HTTP authentication scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `user:password`.
    Basic,
    /// A bearer token.
    Bearer,
}

/// Where a secret comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file.
    File(PathBuf),
}

impl SiteRequest {
    /// These options, with `below` for those that are not set.
    pub fn over(&self, below: &Self) -> Self {
        let merged = |above: &BTreeMap<String, Template>, below: &BTreeMap<String, Template>| {
            let mut merged = below.clone();
            merged.extend(above.iter().map(|(name, value)| (name.clone(), value.clone())));
            merged
        };
        Self {
            headers: merged(&self.headers, &below.headers),
            cookies: merged(&self.cookies, &below.cookies),
            auth: self.auth.clone().or_else(|| below.auth.clone()),
            user_agent: self.user_agent.clone().or_else(|| below.user_agent.clone()),
            connect_timeout: self.connect_timeout.or(below.connect_timeout),
            first_byte_timeout: self.first_byte_timeout.or(below.first_byte_timeout),
            total_timeout: self.total_timeout.or(below.total_timeout),
            proxy: self.proxy.clone().or_else(|| below.proxy.clone()),
            insecure: self.insecure.or(below.insecure),
            robots_credentials: self.robots_credentials.or(below.robots_credentials),
            www: self.www,
        }
    }

    /// Whether it contains a literal secret.
    pub fn has_literal_secret(&self) -> bool {
        let plain = |name: &String| HeaderName::try_from(name).is_ok_and(|name| header::is_harmless(&name));
        let header = self.headers.iter().any(|(name, value)| !plain(name) && !value.has_references());
        let cookie = self.cookies.values().any(|value| !value.has_references());
        let proxy = self
            .proxy
            .as_ref()
            .is_some_and(|proxy| !proxy.has_references() && has_password(proxy.as_written()));
        header || cookie || proxy
    }
}

/// Whether the URL of a proxy contains a password.
pub(super) fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// The request options of all sites.
#[derive(Debug, Clone, Default)]
pub struct RequestTable {
    pub(super) default: SiteRequest,
    pub(super) sites: Vec<(Pattern, SiteRequest)>,
    pub(super) rows: Rows,
}

impl RequestTable {
    /// A table with the options of all sites, and one row per pattern. Rows match like those of rules.
    pub fn new(default: SiteRequest, sites: Vec<(Pattern, SiteRequest)>) -> Self {
        let rows = Rows::new(sites.iter().map(|(pattern, _)| pattern));
        Self { default, sites, rows }
    }

    /// The user agent for a host, if one is configured for it or for all.
    pub fn user_agent(&self, host: &Domain) -> Option<&str> {
        let site = self.rows.row(host).and_then(|nth| self.sites.get(nth));
        let own = site.and_then(|(_, site)| site.user_agent.as_deref());
        own.or(self.default.user_agent.as_deref())
    }

    /// The hosts whose certificates are not checked.
    pub fn insecure(&self) -> Vec<String> {
        let insecure = self.sites.iter().filter(|(_, site)| site.insecure == Some(true));
        insecure.map(|(pattern, _)| pattern.to_string()).collect()
    }

    /// Whether no options are set.
    pub fn is_empty(&self) -> bool {
        let plain = SiteRequest::default();
        self.default == plain && self.sites.iter().all(|(_, site)| *site == plain)
    }
}
