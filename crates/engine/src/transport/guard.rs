//! Where we refuse to go (B76): names become addresses here, and only addresses that passed are connected to.
//!
//! Because nobody resolves the name a second time, an answer that changes between check and connection does not
//! help an attacker. Which ranges are public is known to [`crate::address`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::lookup_host;

use super::Lead;
use super::error::{Refusal, TransportError};
use super::origin::Origin;
use crate::address::{is_metadata, is_metadata_host, is_public};
use crate::descriptors;

/// Which places the operator allows although they are not public, or are a cloud's metadata endpoint.
pub trait Allowance: Send + Sync {
    /// Whether this host is allowed, whatever its addresses.
    fn allows_host(&self, host: &str) -> bool;
    /// Whether this address is allowed, whatever the name it was found by.
    fn allows_address(&self, address: IpAddr) -> bool;
}

/// Allows nothing beyond what is public or listed.
pub struct AllowNone;

/// The addresses of `origin` that may be connected to: at least one.
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

/// Checks an origin that a proxy will resolve by itself. As it may pick any address, each has to pass.
pub(super) async fn vouch(origin: &Origin, allowance: &dyn Allowance) -> Result<(), TransportError> {
    // A name that the operator listed may be known to the proxy only.
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
        // Resolvers without a descriptor report anything, also that there is no such name.
        let is_ours = descriptors::ran_out(&error) || descriptors::are_short();
        if is_ours { TransportError::Exhausted { source: Some(error) } } else { wrong(error) }
    });
    let found: Vec<_> = found?.collect();
    if found.is_empty() { Err(wrong(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// Names below `localhost` are this machine, and no resolver is asked (RFC 6761).
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
    async fn names_below_localhost_are_this_machine() {
        for name in ["strict.localhost", "a.b.LOCALHOST.", "x.localhost."] {
            let found = lookup(name, 7979).await.unwrap();
            assert_eq!(found[0], "127.0.0.1:7979".parse().unwrap(), "{name}");
        }
        for name in ["localhost", ".localhost.example", "notlocalhost", ""] {
            assert!(!is_below_localhost(name), "{name}");
        }
    }
}
