//! `http.allow_private`: the non-public hosts and networks that redirects and links may lead to.
//!
//! This module only parses and matches the operator's list. Which addresses are non-public is decided in
//! [`crate::address`], and the check itself happens after the DNS lookup, in [`crate::transport`].

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Host;

use crate::transport::Allowance;

/// Hosts, addresses and networks that redirects, feed items and sitemap entries may lead to although they are not
/// public. Empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrivateAllowance {
    hosts: BTreeSet<String>,
    networks: Vec<Network>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u32,
}

impl PrivateAllowance {
    /// Parses hosts, addresses and networks; the error is the first entry that is none of them.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let mut allowance = Self::default();
        for entry in entries {
            allowance.add(entry.trim()).ok_or(entry)?;
        }
        Ok(allowance)
    }

    /// Whether `host`, a name in any spelling or an address, is listed. A name does not include its subdomains.
    pub fn allows_host(&self, host: &str) -> bool {
        match read_host(host) {
            Some(Host::Domain(name)) => self.hosts.contains(&name),
            Some(Host::Ipv4(address)) => self.allows_address(address.into()),
            Some(Host::Ipv6(address)) => self.allows_address(address.into()),
            None => false,
        }
    }

    /// Whether `address` is listed, or in a listed network. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn allows_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.networks.is_empty()
    }

    fn add(&mut self, entry: &str) -> Option<()> {
        if entry.contains('/') {
            self.networks.push(Network::parse(entry)?);
            return Some(());
        }
        match read_host(entry)? {
            Host::Domain(name) => _ = self.hosts.insert(name),
            Host::Ipv4(address) => self.networks.push(Network::of(address.into())),
            Host::Ipv6(address) => self.networks.push(Network::of(address.into())),
        }
        Some(())
    }
}

impl Network {
    /// The network of a single address.
    fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix: bits(address) }
    }

    /// Parses `10.0.0.0/8`. An address with bits set after the prefix is rejected as a mistake.
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u32 = prefix.parse().ok().filter(|prefix| digits && *prefix <= bits(address))?;
        if masked(address, prefix) != address {
            return None;
        }
        let mapped = address.to_canonical();
        match (mapped == address, prefix.checked_sub(96)) {
            (true, _) => Some(Self { address, prefix }),
            (false, Some(prefix)) => Some(Self { address: mapped, prefix }),
            // Such a network is partly IPv4-mapped and partly not.
            (false, None) => None,
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

/// A host in canonical spelling: lower case, ASCII, no trailing dot. IPv6 is accepted with or without brackets.
fn read_host(text: &str) -> Option<Host> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(Host::Ipv6(address));
    }
    if text.contains(['%', '*']) {
        return None;
    }
    match Host::parse(text).ok()? {
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            let labels = name.split('.').all(|label| !label.is_empty());
            labels.then(|| Host::Domain(name.to_owned()))
        }
        address => Some(address),
    }
}

/// `address` with every bit after the prefix cleared.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Allowance for PrivateAllowance {
    fn allows_host(&self, host: &str) -> bool {
        Self::allows_host(self, host)
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        Self::allows_address(self, address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowance(entries: &[&'static str]) -> PrivateAllowance {
        PrivateAllowance::parse(entries.iter().copied()).unwrap()
    }

    /// B76
    #[test]
    fn networks_match_their_addresses_in_any_spelling() {
        let listed = allowance(&["10.0.0.0/8", "192.168.1.7", "fd00::/8", "::1", "::ffff:172.16.0.0/108"]);
        for inside in
            ["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3", "192.168.1.7", "fd12::1", "::1", "172.31.0.1"]
        {
            assert!(listed.allows_address(inside.parse().unwrap()), "{inside}");
            assert!(listed.allows_host(inside), "{inside}");
        }
        for outside in
            ["9.255.255.255", "11.0.0.0", "192.168.1.8", "fc00::1", "::2", "172.32.0.0", "64:ff9b::a00:1"]
        {
            assert!(!listed.allows_address(outside.parse().unwrap()), "{outside}");
        }
        assert!(listed.allows_host("[fd12::1]") && listed.allows_host("0x0a.1"));
        assert!(allowance(&["0.0.0.0/0"]).allows_address("169.254.169.254".parse().unwrap()));
        assert!(!allowance(&["0.0.0.0/0"]).allows_address("::1".parse().unwrap()));
    }

    /// B76
    #[test]
    fn a_host_name_does_not_include_its_subdomains() {
        let listed = allowance(&["Intranet.Example.", "münchen.example", "localhost"]);
        for host in ["intranet.example", "INTRANET.example.", "xn--mnchen-3ya.example", "localhost"] {
            assert!(listed.allows_host(host), "{host}");
        }
        for host in ["www.intranet.example", "example", "", ".", "127.0.0.1", "intranet.example:80", "a b"] {
            assert!(!listed.allows_host(host), "{host}");
        }
        assert!(PrivateAllowance::default().is_empty() && !listed.is_empty());
    }

    #[test]
    fn the_error_is_the_first_invalid_entry() {
        for wrong in [
            "",
            "*.example",
            "a b",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/129",
            "a/8",
            "http://a",
            "a:80",
            "::ffff:0:0/95",
            "a..b",
            "%61",
        ] {
            assert_eq!(PrivateAllowance::parse(["localhost", wrong]), Err(wrong), "{wrong:?}");
        }
    }
}
