//! Connects through a SOCKS5 proxy (RFC 1928), with or without user and password (RFC 1929).
//!
//! Whether the proxy gets the name or an address is decided in [`super::dial`], which checks it first.

use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::error::TransportError;
use super::proxy::Proxy;

/// Where the proxy should connect to.
pub(super) enum Target {
    /// A name, which the proxy resolves.
    Name(String),
    /// An address that was checked.
    Address(IpAddr),
}

/// Asks the proxy at the other end of `stream` to connect to the target.
pub(super) async fn tunnel(
    stream: &mut TcpStream,
    proxy: &Proxy,
    target: Target,
    port: u16,
) -> Result<(), TransportError> {
    match talk(stream, proxy, target, port).await {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(TransportError::Socks { proxy: proxy.to_string(), what }),
        Err(source) => Err(TransportError::Connect { host: proxy.host.clone(), source }),
    }
}

/// The SOCKS5 handshake. Returns why the proxy refused, if it did.
async fn talk(
    stream: &mut TcpStream,
    proxy: &Proxy,
    target: Target,
    port: u16,
) -> io::Result<Option<&'static str>> {
    let methods: &[u8] = if proxy.user.is_some() { &[NO_AUTH, PASSWORD] } else { &[NO_AUTH] };
    stream.write_all(&[&[VERSION, methods.len() as u8], methods].concat()).await?;
    let chosen = read::<2>(stream).await?;
    match (chosen, &proxy.user) {
        ([VERSION, NO_AUTH], _) => {}
        ([VERSION, PASSWORD], Some((user, password))) => {
            let (Ok(user_len), Ok(password_len)) = (u8::try_from(user.len()), u8::try_from(password.len()))
            else {
                return Ok(Some("SOCKS user names and passwords are limited to 255 bytes"));
            };
            stream.write_all(&[&[1, user_len], &user[..], &[password_len], password].concat()).await?;
            if read::<2>(stream).await?[1] != 0 {
                return Ok(Some("refused the user name or password"));
            }
        }
        ([VERSION, _], Some(_)) => return Ok(Some("accepts none of our authentication methods")),
        ([VERSION, _], None) => return Ok(Some("requires a user name and password")),
        _ => return Ok(Some("doesn't speak SOCKS5")),
    }
    let mut ask = vec![VERSION, CONNECT, 0];
    match target {
        Target::Address(IpAddr::V4(address)) => {
            ask.push(IPV4);
            ask.extend(address.octets());
        }
        Target::Address(IpAddr::V6(address)) => {
            ask.push(IPV6);
            ask.extend(address.octets());
        }
        Target::Name(name) => {
            let Ok(length) = u8::try_from(name.len()) else {
                return Ok(Some("cannot take a host name longer than 255 bytes"));
            };
            ask.extend([NAME, length]);
            ask.extend(name.as_bytes());
        }
    }
    ask.extend(port.to_be_bytes());
    stream.write_all(&ask).await?;
    let [version, reply, _, kind] = read::<4>(stream).await?;
    if version != VERSION {
        return Ok(Some("doesn't speak SOCKS5"));
    }
    if reply != 0 {
        return Ok(Some(refusal(reply)));
    }
    // The proxy's own address doesn't matter, but it has to be read.
    let rest = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => usize::from(read::<1>(stream).await?[0]),
        _ => return Ok(Some("answered with an unknown kind of address")),
    };
    stream.read_exact(&mut vec![0; rest + 2]).await?;
    Ok(None)
}

async fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn refusal(reply: u8) -> &'static str {
    match reply {
        2 => "does not allow the connection",
        3 => "could not reach the network",
        4 => "could not reach the host",
        5 => "was refused by the host",
        6 => "got no answer in time",
        7 => "does not support connections",
        8 => "does not support this kind of address",
        _ => "could not connect",
    }
}

const VERSION: u8 = 5;
const NO_AUTH: u8 = 0;
const PASSWORD: u8 = 2;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
