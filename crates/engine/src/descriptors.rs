//! File descriptors of this process: how many there may be, and what running out of them looks like.
//!
//! Running out is our own trouble and never says anything about a site. What is done about it is decided where
//! descriptors are used: in [`crate::transport`] for connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Raises the limit on open files as far as this process may, and returns the limit in force.
#[cfg(unix)]
pub fn raise_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Some systems report a maximum, or none, that they do not grant.
    for wanted in [maximum, Some(MODEST)] {
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

/// How many connections may be open at once under the limit in force. Each may need two more files (a name being
/// looked up, a page being kept), and some are kept back for the store, the terminal and the runtime.
pub fn connections_max() -> usize {
    let fit = limit().saturating_sub(KEPT_BACK) / 3;
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// Whether this process or this machine had no descriptor, or no memory for one.
#[cfg(unix)]
pub(crate) fn ran_out(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(not(unix))]
pub(crate) fn ran_out(_: &io::Error) -> bool {
    false
}

/// Whether a connection to `address` failed for want of a descriptor or a local port.
pub(crate) fn ran_out_connecting(error: &io::Error, address: SocketAddr) -> bool {
    let no_port = error.kind() == io::ErrorKind::AddrNotAvailable && error.raw_os_error().is_some();
    ran_out(error) || no_port && has_source(address)
}

/// Whether descriptors are short right now. Resolvers report many things when they are, so it is tried.
pub(crate) fn are_short() -> bool {
    let opened: Vec<io::Result<UdpSocket>> = (0..NEEDED_BY_LOOKUP).map(|_| UdpSocket::bind(ANY_V4)).collect();
    opened.iter().any(|opened| opened.as_ref().is_err_and(ran_out))
}

/// Whether this machine has an address from which `address` can be reached. If it has none (an IPv6 address where
/// there is no IPv6), waiting for a port does not help. Nothing is sent.
fn has_source(address: SocketAddr) -> bool {
    let any = if address.is_ipv4() { ANY_V4 } else { ANY_V6 };
    let connected = UdpSocket::bind(any).and_then(|socket| socket.connect(address));
    connected.as_ref().map_or_else(ran_out, |()| true)
}

const ANY_V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const ANY_V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// What macOS grants, whatever it reports.
#[cfg(unix)]
const MODEST: u64 = 10_240;
/// Descriptors that connections leave to everything else.
const KEPT_BACK: u64 = 64;
/// With fewer, nothing gets done at all.
const CONNECTIONS_MIN: usize = 4;
/// More are never of use.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Descriptors that looking up a name may take at once.
const NEEDED_BY_LOOKUP: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn running_out_is_told_from_what_a_site_does() {
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

    /// A machine without an address of that kind does not get one by waiting.
    #[cfg(unix)]
    #[test]
    fn an_address_that_cannot_be_reached_from_here_is_not_a_shortage() {
        // Documentation addresses of another family than any that is up, or a broadcast: no source is found.
        let nowhere: SocketAddr = "255.255.255.255:80".parse().unwrap();
        assert!(!ran_out_connecting(&rustix::io::Errno::ADDRNOTAVAIL.into(), nowhere));
    }

    #[test]
    fn connections_fit_the_limit() {
        let raised = raise_limit();
        assert_eq!((raised, raise_limit()), (limit(), limit()));
        assert!(connections_max() as u64 * 3 <= limit().max(CONNECTIONS_MIN as u64 * 3));
    }
}
