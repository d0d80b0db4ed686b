//! Which IP addresses are public, and which are cloud metadata endpoints.
//!
//! Nothing here does DNS lookups or knows what the operator listed or allowed. The transport checks every address that
//! a name resolves to, and IP literals as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` is reachable by anybody on the internet.
///
/// Addresses in the IANA special-purpose registries are not public, including the few anycast services among them that
/// are routed, and neither is unallocated space. An IPv6 address that embeds an IPv4 address is as public as that
/// address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match carried(address) {
            Some((Carrier::Routed, inner)) => is_public_v4(inner),
            Some((Carrier::Local, _)) => false,
            None => {
                within_v6(address, GLOBAL_V6)
                    && !SPECIAL_V6.iter().any(|network| within_v6(address, *network))
            }
        },
    }
}

/// Whether `address` is a cloud metadata endpoint, which hands out a machine's credentials; also when embedded in IPv6.
pub fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            METADATA_V6.contains(&address)
                || carried(address).is_some_and(|(_, inner)| METADATA_V4.contains(&inner))
        }
    }
}

/// Whether `host` is the name of a cloud metadata endpoint, in any spelling. For addresses, use [`is_metadata`].
pub fn is_metadata_host(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    METADATA_HOSTS.iter().any(|name| host.eq_ignore_ascii_case(name))
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|(network, bits)| (address.to_bits() ^ network.to_bits()).leading_zeros() >= *bits)
}

fn within_v6(address: Ipv6Addr, (network, bits): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ network.to_bits()).leading_zeros() >= bits
}

/// How packets to an IPv6 address that embeds an IPv4 address are delivered.
enum Carrier {
    /// Translated or tunneled to the IPv4 address itself.
    Routed,
    /// By a translator in the local network, if at all.
    Local,
}

/// The IPv4 address embedded in an IPv6 address.
fn carried(address: Ipv6Addr) -> Option<(Carrier, Ipv4Addr)> {
    let last = Ipv4Addr::from_bits(address.to_bits() as u32);
    if within_v6(address, MAPPED) || within_v6(address, NAT64) {
        Some((Carrier::Routed, last))
    } else if within_v6(address, SIX_TO_FOUR) {
        Some((Carrier::Routed, Ipv4Addr::from_bits((address.to_bits() >> 80) as u32)))
    } else if within_v6(address, COMPATIBLE) || within_v6(address, NAT64_LOCAL) {
        Some((Carrier::Local, last))
    } else {
        None
    }
}

const fn v6(first: u16, second: u16, third: u16, bits: u32) -> (Ipv6Addr, u32) {
    (Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0), bits)
}

const SPECIAL_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),       // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // shared by a carrier's customers
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relays, gone
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),     // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),     // reserved
    (Ipv4Addr::BROADCAST, 32),
];

/// All IPv6 space that IANA has allocated. Loopback, unique local, link-local, site-local and multicast addresses, the
/// discard-only block and segment routing are outside of it.
const GLOBAL_V6: (Ipv6Addr, u32) = v6(0x2000, 0, 0, 3);
/// The ranges within [`GLOBAL_V6`] that aren't public.
const SPECIAL_V6: [(Ipv6Addr, u32); 3] = [
    v6(0x2001, 0, 0, 23),     // protocol assignments, with Teredo and benchmarks
    v6(0x2001, 0xdb8, 0, 32), // documentation
    v6(0x3fff, 0, 0, 20),     // documentation
];

const MAPPED: (Ipv6Addr, u32) = (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);
/// IPv4-compatible addresses: deprecated, and including `::` and `::1`.
const COMPATIBLE: (Ipv6Addr, u32) = v6(0, 0, 0, 96);
const NAT64: (Ipv6Addr, u32) = v6(0x64, 0xff9b, 0, 96);
const NAT64_LOCAL: (Ipv6Addr, u32) = v6(0x64, 0xff9b, 1, 48);
const SIX_TO_FOUR: (Ipv6Addr, u32) = v6(0x2002, 0, 0, 16);

const METADATA_V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(169, 254, 169, 254), // nearly every cloud
    Ipv4Addr::new(169, 254, 170, 2),   // Amazon ECS
    Ipv4Addr::new(169, 254, 170, 23),  // Amazon EKS
    Ipv4Addr::new(169, 254, 0, 23),    // Tencent
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(168, 63, 129, 16),   // Azure, in public address space
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
];
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // Amazon EC2
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // Amazon EKS
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // OpenStack
];
const METADATA_HOSTS: [&str; 6] = [
    "metadata.google.internal",
    "metadata.goog",
    "metadata",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.tencentyun.com",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn all(addresses: &str, judge: impl Fn(IpAddr) -> bool) {
        for text in addresses.split_whitespace() {
            assert!(judge(text.parse().unwrap()), "{text}");
        }
    }

    /// B76: the first and last address of every range, and those just outside.
    #[test]
    fn special_ipv4_ranges_are_not_public_and_their_neighbours_are() {
        for (outside, inside) in [
            ("1.0.0.0", "0.0.0.0 0.255.255.255"),
            ("9.255.255.255 11.0.0.0", "10.0.0.0 10.255.255.255"),
            ("100.63.255.255 100.128.0.0", "100.64.0.0 100.127.255.255"),
            ("126.255.255.255 128.0.0.0", "127.0.0.0 127.0.0.1 127.255.255.255"),
            ("169.253.255.255 169.255.0.0", "169.254.0.0 169.254.255.255"),
            ("172.15.255.255 172.32.0.0", "172.16.0.0 172.31.255.255"),
            ("191.255.255.255 192.0.1.0", "192.0.0.0 192.0.0.255"),
            ("192.0.1.255 192.0.3.0", "192.0.2.0 192.0.2.255"),
            ("192.88.98.255 192.88.100.0", "192.88.99.0 192.88.99.255"),
            ("192.167.255.255 192.169.0.0", "192.168.0.0 192.168.255.255"),
            ("198.17.255.255 198.20.0.0", "198.18.0.0 198.19.255.255"),
            ("198.51.99.255 198.51.101.0", "198.51.100.0 198.51.100.255"),
            ("203.0.112.255 203.0.114.0", "203.0.113.0 203.0.113.255"),
            ("223.255.255.255", "224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255"),
        ] {
            all(outside, is_public);
            all(inside, |address| !is_public(address));
        }
    }

    /// B76
    #[test]
    fn special_ipv6_ranges_are_not_public_and_their_neighbours_are() {
        const END: &str = "ffff:ffff:ffff:ffff:ffff:ffff";
        for (outside, first, last) in [
            ("", "::", "::ffff:ffff"),
            ("", "::1", "::1"),
            ("", "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("", "100::", "100::ffff:ffff:ffff:ffff"),
            ("2000:ffff:END 2001:200::", "2001::", "2001:1ff:END"),
            ("2001:db7:END 2001:db9::", "2001:db8::", "2001:db8:END"),
            ("3ffe:ffff:END 3fff:1000::", "3fff::", "3fff:fff:END"),
            ("2000:: 3fff:ffff:END", "4000::", "5eff:ffff:END"),
            ("", "5f00::", "5f00:ffff:END"),
            ("", "fc00::", "fdff:ffff:END"),
            ("", "fe80::", "febf:ffff:END"),
            ("", "fec0::", "feff:ffff:END"),
            ("", "ff00::", "ffff:ffff:END"),
        ] {
            all(&outside.replace("END", END), is_public);
            all(&format!("{first} {last}").replace("END", END), |address| !is_public(address));
        }
        all("2606:4700:4700::1111 2a00:1450:4001::1", is_public);
    }

    /// B76
    #[test]
    fn an_ipv6_address_is_as_public_as_the_ipv4_address_in_it() {
        for (public, inner) in [(true, "8.8.8.8"), (false, "127.0.0.1"), (false, "10.0.0.1")] {
            let [a, b, c, d] = inner.parse::<Ipv4Addr>().unwrap().octets();
            let six_to_four = format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1");
            let routed = format!("::ffff:{inner} 64:ff9b::{inner} {six_to_four}");
            all(&routed, |address| is_public(address) == public);
            all(&format!("::{inner} 64:ff9b:1::{inner}"), |address| !is_public(address));
        }
        all("64:ff9b::1:808:808 ::fffe:8.8.8.8 ::1:ffff:8.8.8.8", |address| !is_public(address));
    }

    /// B76
    #[test]
    fn metadata_endpoints_are_recognized_however_they_are_embedded() {
        all(
            "169.254.169.254 169.254.170.2 169.254.170.23 100.100.100.200 168.63.129.16 192.0.0.192
             fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fe80::a9fe:a9fe
             ::ffff:169.254.169.254 64:ff9b::169.254.169.254 64:ff9b:1::169.254.169.254
             ::169.254.169.254 2002:a9fe:a9fe:: 2002:a9fe:a9fe::1 ::ffff:168.63.129.16",
            is_metadata,
        );
        all(
            "169.254.169.253 169.254.169.255 169.254.170.3 100.100.100.201 168.63.129.15 8.8.8.8
             fd00:ec2::253 fd00:ec2:0:1::254 ::ffff:8.8.8.8 2002:a9fe:a9fd:: 2a00::a9fe:a9fe ::1",
            |address| !is_metadata(address),
        );
        for host in ["metadata.google.internal", "Metadata.GOOG.", "METADATA", "instance-data.EC2.internal"] {
            assert!(is_metadata_host(host), "{host}");
        }
        for host in ["", ".", "metadata.example.org", "my-metadata", "google.internal", "169.254.169.254"] {
            assert!(!is_metadata_host(host), "{host}");
        }
    }
}
