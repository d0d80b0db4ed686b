//! Blocks forbidden addresses: does the DNS lookups, and returns only addresses that may be connected to.
//!
//! Names are not looked up a second time, so DNS rebinding between check and connection does not help an attacker.
//! Which ranges are public is defined in [`crate::address`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::lookup_host;

use super::Lead;
use super::error::{Refusal, TransportError};
use super::origin::Origin;
use crate::address::{is_metadata, is_metadata_host, is_public};
use crate::descriptors;

/// Which hosts and addresses the operator allows although they are not public, or are cloud metadata endpoints.
pub trait Allowance: Send + Sync {
    /// Whether this host is allowed, whatever its addresses.
    fn allows_host(&self, host: &str) -> bool;
    /// Whether this address is allowed, whatever its name.
    fn allows_address(&self, address: IpAddr) -> bool;
}

/// Allows no exceptions.
pub struct AllowNone;

/// The addresses of `origin` that may be connected to; at least one.
pub(super) async fn addresses(
    origin: &Origin,
    allowance: &dyn Allowance,
) -> Result<Vec<SocketAddr>, TransportError> {
    let mut found = resolve(origin, allowance).await?;
    let mut first = None;
    found.retain(|address| {
        let refusal = refuse(origin, address.ip(), allowance);
        first = first.or(refusal);
        refusal.is_none()
    });
    match first {
        Some(refusal) if found.is_empty() => Err(refused(origin, refusal)),
        _ => Ok(found),
    }
}

/// Checks an origin that a proxy will look up itself. As the proxy may pick any address, all of them must be allowed.
pub(super) async fn check_for_proxy(
    origin: &Origin,
    allowance: &dyn Allowance,
) -> Result<(), TransportError> {
    // A listed name may be known to the proxy only.
    if origin.lead == Lead::Listed && origin.literal().is_none() {
        return check_name(origin, allowance);
    }
    let found = resolve(origin, allowance).await?;
    let mut refusals = found.iter().filter_map(|address| refuse(origin, address.ip(), allowance));
    refusals.next().map_or(Ok(()), |refusal| Err(refused(origin, refusal)))
}

/// The addresses of a host, unchecked.
pub(super) async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, TransportError> {
    if is_below_localhost(host) {
        let here: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        return Ok(here.map(|address| SocketAddr::new(address, port)).to_vec());
    }
    let wrong = |source| TransportError::Resolve { host: host.to_owned(), source };
    let found = lookup_host((host, port)).await.map_err(|error| {
        // Without a free descriptor, resolvers report arbitrary errors, including that the name doesn't exist.
        let is_ours = crate::shortage::ran_out(&error) || descriptors::are_short();
        if is_ours { TransportError::Exhausted { source: Some(error) } } else { wrong(error) }
    });
    let found: Vec<_> = found?.collect();
    if found.is_empty() { Err(wrong(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// Whether a name is a subdomain of `localhost`, which means this machine and needs no DNS lookup (RFC 6761).
fn is_below_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).as_bytes();
    host.len() > LOCALHOST.len() && host[host.len() - LOCALHOST.len()..].eq_ignore_ascii_case(LOCALHOST)
}

async fn resolve(origin: &Origin, allowance: &dyn Allowance) -> Result<Vec<SocketAddr>, TransportError> {
    check_name(origin, allowance)?;
    match origin.literal() {
        Some(address) => Ok(vec![SocketAddr::new(address, origin.port)]),
        None => lookup(&origin.host, origin.port).await,
    }
}

fn check_name(origin: &Origin, allowance: &dyn Allowance) -> Result<(), TransportError> {
    let host = origin.bare_host();
    if is_metadata_host(host) && !allowance.allows_host(host) {
        return Err(refused(origin, Refusal::Metadata));
    }
    Ok(())
}

fn refuse(origin: &Origin, address: IpAddr, allowance: &dyn Allowance) -> Option<Refusal> {
    let refusal = if is_metadata(address) {
        Refusal::Metadata
    } else if origin.lead == Lead::Remote && !is_public(address) {
        Refusal::NotPublic(address)
    } else {
        return None;
    };
    let allowed = allowance.allows_host(origin.bare_host()) || allowance.allows_address(address);
    (!allowed).then_some(refusal)
}

fn refused(origin: &Origin, refusal: Refusal) -> TransportError {
    TransportError::Refused { host: origin.host.clone(), refusal }
}

impl Allowance for AllowNone {
    fn allows_host(&self, _: &str) -> bool {
        false
    }

    fn allows_address(&self, _: IpAddr) -> bool {
        false
    }
}

const LOCALHOST: &[u8] = b".localhost";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn subdomains_of_localhost_are_this_machine() {
        for name in ["strict.localhost", "a.b.LOCALHOST.", "x.localhost."] {
            let found = lookup(name, 7979).await.unwrap();
            assert_eq!(found[0], "127.0.0.1:7979".parse().unwrap(), "{name}");
        }
        for name in ["localhost", ".localhost.example", "notlocalhost", ""] {
            assert!(!is_below_localhost(name), "{name}");
        }
    }
}
