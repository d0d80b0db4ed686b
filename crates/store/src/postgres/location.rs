//! The URL of a store in PostgreSQL: `postgres://user@host:port,host2/database?schema=comity&sslmode=verify-full`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use comity_core::decision::Outage;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::StoreError;

/// Where a store is, without its password.
#[derive(Debug, Clone)]
pub(super) struct Location {
    /// For people: no password, no options.
    shown: String,
    pub(super) schema: String,
    pub(super) tls: Tls,
    pub(super) config: Config,
}

/// How connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tls {
    pub(super) verify: Verify,
    /// Certificates to trust instead of the system's.
    pub(super) roots: Option<PathBuf>,
}

/// What is checked of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verify {
    /// Nothing, as in libpq unless `sslmode` asks for more: it protects from readers only.
    Nothing,
    /// Who issued it and for which host.
    Full,
}

impl Location {
    /// Reads a URL. Errors never repeat it, because it may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let refused =
            |expected: &'static str| StoreError::Unsupported { url: "postgres://…".to_owned(), expected };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut ssl_mode, mut roots, mut other) = (None, None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "schema" => schema = Some(value.to_owned()),
                "sslmode" => ssl_mode = Some(value.to_owned()),
                "sslrootcert" => roots = Some(PathBuf::from(value)),
                "target_session_attrs" if value != "read-write" => {
                    return Err(refused("target_session_attrs=read-write: Comity writes to its store"));
                }
                _ => other.push(pair),
            }
        }
        let schema = schema.unwrap_or_else(|| SCHEMA.to_owned());
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty()
            || schema.len() > 63
            || !schema.chars().all(is_name)
            || schema.starts_with(|c: char| c.is_ascii_digit() || c == '_')
        {
            return Err(refused("schema=NAME with lower-case letters, digits and _, at most 63 of them"));
        }
        let (mode, verify) = match ssl_mode.as_deref() {
            Some("disable") => (SslMode::Disable, Verify::Nothing),
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::Nothing),
            Some("require") if roots.is_none() => (SslMode::Require, Verify::Nothing),
            Some("require" | "verify-ca" | "verify-full") => (SslMode::Require, Verify::Full),
            Some(_) => return Err(refused("sslmode=disable, prefer, require, verify-ca or verify-full")),
        };
        let plain = if other.is_empty() { base.to_owned() } else { format!("{base}?{}", other.join("&")) };
        let mut config: Config = plain.parse().map_err(|_| {
            refused("postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&sslmode=MODE, as libpq has it")
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        config
            .ssl_mode(mode)
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(SILENCE)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(2))
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("comity");
        }
        let is_odd = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
        if config.get_hosts().iter().any(is_odd) {
            return Err(refused("an @ in a user name or password to be written as %40"));
        }
        let shown = shown(&config);
        Ok(Self { shown, schema, tls: Tls { verify, roots }, config })
    }

    /// The longest time until a server is found, if all but the last are switched off.
    pub(super) fn connect_max(&self) -> Duration {
        CONNECT_TIMEOUT * u32::try_from(self.config.get_hosts().len()).unwrap_or(1)
    }

    /// A problem that passes only if somebody does something about it.
    pub(super) fn unavailable(&self, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { location: self.to_string(), what: what.into(), outage: None }
    }

    /// A problem that may pass.
    pub(super) fn outage(&self, outage: Outage, what: impl Into<String>) -> StoreError {
        StoreError::Unavailable { location: self.to_string(), what: what.into(), outage: Some(outage) }
    }

    /// A request that cannot be carried out.
    pub(super) fn rejected(&self, what: impl Into<String>) -> StoreError {
        StoreError::Rejected { location: self.to_string(), what: what.into() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The address for people, from what the URL means: its text may contain a password where nobody expects one.
fn shown(config: &Config) -> String {
    let host = |(nth, host): (usize, &Host)| {
        let name = match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        };
        let ports = config.get_ports();
        match ports.get(nth).or(ports.first()) {
            Some(port) if *port != DEFAULT_PORT => format!("{name}:{port}"),
            _ => name,
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    let database = config.get_dbname().map(|name| format!("/{name}")).unwrap_or_default();
    format!("postgres://{user}{}{database}", hosts.join(","))
}

/// The schema unless the URL names another one.
const SCHEMA: &str = "comity";
/// How long opening one connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// After this long without an answer of the other machine, a connection is broken.
const SILENCE: Duration = Duration::from_secs(4);
/// PostgreSQL's port.
const DEFAULT_PORT: u16 = 5432;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_password_is_shown() {
        for (url, shown) in [
            ("postgres://h/d", "postgres://h/d"),
            ("postgresql://u@h:5433,h2/d?schema=x", "postgres://u@h:5433,h2/d"),
            ("postgres://u:hunter2@h/d", "postgres://u@h/d"),
            ("postgres://u:hun/hunter2@h/d", "postgres://u@h/d"),
            ("postgres://u@h/d?password=hunter2", "postgres://u@h/d"),
        ] {
            assert_eq!(Location::parse(url).unwrap().to_string(), shown);
        }
        for url in ["postgres://u:hun?hunter2@h/d", "postgres://u:p@hunter2@h/d"] {
            let text = match Location::parse(url) {
                Ok(location) => location.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(!text.contains("hun"), "{text}");
        }
    }
}
