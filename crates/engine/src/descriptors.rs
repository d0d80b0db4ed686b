//! File descriptors of this process: how many may be open, and how to recognize that they have run out.
//!
//! Running out of descriptors is our own problem and says nothing about a site. How to react is decided where they are
//! used, for connections in [`crate::transport`].

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::shortage::ran_out;

/// Raises the limit on open files as far as this process may, and returns the limit in force.
#[cfg(unix)]
pub fn raise_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Some systems report a maximum, or no limit at all, that they don't actually grant.
    for wanted in [maximum, Some(FALLBACK_LIMIT)] {
        let is_more = current.is_some_and(|current| wanted.is_none_or(|wanted| wanted > current));
        if is_more && setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).is_ok() {
            break;
        }
    }
    limit()
}

/// Raises the limit on open files as far as this process may, and returns the limit in force.
#[cfg(not(unix))]
pub fn raise_limit() -> u64 {
    limit()
}

/// How many files this process may have open at once.
#[cfg(unix)]
pub fn limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many files this process may have open at once.
#[cfg(not(unix))]
pub fn limit() -> u64 {
    u64::MAX
}

/// How many connections may be open at once under the current limit. Each may need two more descriptors (for a DNS
/// lookup and for the page being saved), and some are reserved for the store, the terminal and the runtime.
pub fn connections_max() -> usize {
    let fit = limit().saturating_sub(RESERVED) / 3;
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// Whether connecting to `address` failed because descriptors or local ports ran out.
pub(crate) fn ran_out_connecting(error: &io::Error, address: SocketAddr) -> bool {
    let no_port = error.kind() == io::ErrorKind::AddrNotAvailable && error.raw_os_error().is_some();
    ran_out(error) || no_port && has_source(address)
}

/// Whether descriptors are exhausted right now. Resolvers report many different errors in that case, so this tries to
/// open a few.
pub(crate) fn are_short() -> bool {
    let opened: Vec<io::Result<UdpSocket>> = (0..NEEDED_BY_LOOKUP).map(|_| UdpSocket::bind(ANY_V4)).collect();
    opened.iter().any(|opened| opened.as_ref().is_err_and(ran_out))
}

/// Whether this machine has a local address that can reach `address`. If not (such as an IPv6 address on a machine
/// without IPv6), waiting for a free port doesn't help. Sends nothing.
fn has_source(address: SocketAddr) -> bool {
    let any = if address.is_ipv4() { ANY_V4 } else { ANY_V6 };
    let connected = UdpSocket::bind(any).and_then(|socket| socket.connect(address));
    connected.as_ref().map_or_else(ran_out, |()| true)
}

const ANY_V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const ANY_V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// The limit that macOS grants, whatever it reports.
#[cfg(unix)]
const FALLBACK_LIMIT: u64 = 10_240;
/// Descriptors reserved for everything other than connections.
const RESERVED: u64 = 64;
/// The minimum number of connections; with fewer, nothing would get done at all.
const CONNECTIONS_MIN: usize = 4;
/// More connections than this are never useful.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Descriptors that one DNS lookup may need at once.
const NEEDED_BY_LOOKUP: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn running_out_is_distinguished_from_what_a_site_does() {
        use rustix::io::Errno;
        let address = "127.0.0.1:80".parse().unwrap();
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            assert!(ran_out_connecting(&errno.into(), address), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::TIMEDOUT, Errno::NETUNREACH, Errno::ACCESS] {
            assert!(!ran_out_connecting(&errno.into(), address), "{errno}");
        }
        assert!(!ran_out_connecting(&io::ErrorKind::AddrNotAvailable.into(), address));
        assert!(!are_short());
    }

    /// A machine without an address of that family doesn't get one by waiting.
    #[cfg(unix)]
    #[test]
    fn an_address_that_is_unreachable_from_here_is_not_a_shortage() {
        // No local address can reach the broadcast address.
        let nowhere: SocketAddr = "255.255.255.255:80".parse().unwrap();
        assert!(!ran_out_connecting(&rustix::io::Errno::ADDRNOTAVAIL.into(), nowhere));
    }

    #[test]
    fn connections_stay_below_the_open_file_limit() {
        let raised = raise_limit();
        assert_eq!((raised, raise_limit()), (limit(), limit()));
        assert!(connections_max() as u64 * 3 <= limit().max(CONNECTIONS_MIN as u64 * 3));
    }
}
