//! How a single site is asked, as it was configured: `[domains."X".request]` over `[default.request]`. Secrets are not in
//! here, only where they come from, unless somebody wrote them into the file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use comity_core::domain::{Domain, Pattern};
use comity_core::rule::Rows;
use comity_core::time::Span;
use http::HeaderName;

use super::header;
use super::text::Template;

/// The settings of one site, or of all. `None` leaves what goes for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteRequest {
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, Template>,
    /// Cookies by name.
    pub cookies: BTreeMap<String, Template>,
    /// Who is let in.
    pub auth: Option<Auth>,
    /// What we call ourselves there.
    pub user_agent: Option<String>,
    /// How long a connection may take to be made.
    pub connect_timeout: Option<Span>,
    /// How long an answer may take to begin.
    pub first_byte_timeout: Option<Span>,
    /// How long a request may take in all.
    pub total_timeout: Option<Span>,
    /// The proxy: its URL, or `none`.
    pub proxy: Option<Template>,
    /// Its certificate is not checked.
    pub insecure: Option<bool>,
    /// Its robots.txt is asked for with credentials too.
    pub robots_credentials: Option<bool>,
    /// The key was written with `www.`: credentials go to that very host.
    pub www: bool,
}

/// How we are let in, and where the secret for it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// How.
    pub scheme: Scheme,
    /// Where the secret comes from.
    pub from: Place,
}

/// How we are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// With `user:password`.
    Basic,
    /// With a token.
    Bearer,
}

/// Where a secret comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A variable of the environment.
    Env(String),
    /// A file.
    File(PathBuf),
}

impl SiteRequest {
    /// These settings over `below`.
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

    /// Whether a secret itself stands in it.
    pub fn has_literal_secret(&self) -> bool {
        let plain = |name: &String| HeaderName::try_from(name).is_ok_and(|name| header::is_harmless(&name));
        let header = self.headers.iter().any(|(name, value)| !plain(name) && !value.refers());
        let cookie = self.cookies.values().any(|value| !value.refers());
        let proxy =
            self.proxy.as_ref().is_some_and(|proxy| !proxy.refers() && has_password(proxy.as_written()));
        header || cookie || proxy
    }
}

/// Whether the URL of a proxy holds a password.
pub(super) fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// The settings of every site.
#[derive(Debug, Clone, Default)]
pub struct RequestTable {
    pub(super) default: SiteRequest,
    pub(super) sites: Vec<(Pattern, SiteRequest)>,
    pub(super) rows: Rows,
}

impl RequestTable {
    /// A table of what goes for all, and one row per pattern: the same rows, and the same matching, as rules have.
    pub fn new(default: SiteRequest, sites: Vec<(Pattern, SiteRequest)>) -> Self {
        let rows = Rows::new(sites.iter().map(|(pattern, _)| pattern));
        Self { default, sites, rows }
    }

    /// What a site is called by, where that is configured for it or for all.
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

    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        let plain = SiteRequest::default();
        self.default == plain && self.sites.iter().all(|(_, site)| *site == plain)
    }
}
