//! Resolves host names over the stack.

mod ask;
mod files;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use towpath_client::Error;
use towpath_dns::{A, AAAA, ADDRESSES_MAX, Conf, NameLookup, Policy, ResolveError, Routed, hosts};
use towpath_shm::control::{Request, call};

use self::files::ResolverFiles;
use super::address::{HostPort, ToSocketAddrs};
use crate::current::current;
use crate::error::io_error;
use crate::net::address::family_of;
use crate::net::handle::{OwnedSocket, UDP};
use crate::shared::SharedStack;
use crate::stack::Stack;

/// Resolves `host` over the current stack.
///
/// Addresses in /etc/hosts are used first. Otherwise the nameservers are asked for A and AAAA
/// records, with the search list, timeouts and options of /etc/resolv.conf. A stack behind the
/// gateway asks the gateway's nameserver if the file names only servers on this machine's loopback.
/// [`Builder::nameserver`](crate::Builder::nameserver) names another one. Answers are not cached.
///
/// # Cancel safety
/// Dropping the future ends the lookup.
///
/// # Errors
/// - `NotFound`: the name or its addresses do not exist.
/// - `TimedOut`: no nameserver answers.
/// - `InvalidInput`: the port is missing.
/// - `NetworkDown`: the stack has ended.
/// - `Other`: the call is outside of a Tokio runtime.
///
/// # Panics
/// If the runtime was built without I/O or time (`enable_all`) and the name is not in /etc/hosts.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stack = towpath::Stack::builder().rootless().start()?;
/// for addr in towpath::tokio::lookup_host_on(&stack, "localhost:80").await? {
///     assert!(addr.ip().is_loopback() && addr.port() == 80);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn lookup_host<T: ToSocketAddrs>(
    host: T,
) -> io::Result<impl Iterator<Item = SocketAddr> + use<T>> {
    addresses(&current()?, host).await
}

/// Resolves `host` over `stack`.
///
/// # Errors
/// As for [`lookup_host`].
pub async fn lookup_host_on<T: ToSocketAddrs>(
    stack: &Stack,
    host: T,
) -> io::Result<impl Iterator<Item = SocketAddr> + use<T>> {
    addresses(&stack.shared, host).await
}

/// Addresses to which a host resolves.
pub(super) enum ResolvedAddresses {
    One(std::option::IntoIter<SocketAddr>),
    Several(std::vec::IntoIter<SocketAddr>),
}

impl Iterator for ResolvedAddresses {
    type Item = SocketAddr;

    fn next(&mut self) -> Option<SocketAddr> {
        match self {
            Self::One(addr) => addr.next(),
            Self::Several(addrs) => addrs.next(),
        }
    }
}

/// Returns the addresses of `host`. Waits only if it is a host name, not an address.
pub(super) async fn addresses(
    shared: &Arc<SharedStack>,
    host: impl ToSocketAddrs,
) -> io::Result<ResolvedAddresses> {
    let addrs = match host.host_port()? {
        HostPort::Addr(addr) => return Ok(ResolvedAddresses::One(Some(addr).into_iter())),
        HostPort::Addrs(addrs) => addrs,
        HostPort::Name(name, port) => {
            let ips = resolve(shared, &name).await?;
            ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
        }
    };
    Ok(ResolvedAddresses::Several(addrs.into_iter()))
}

/// Calls `open` for each address of a host until a call succeeds.
pub(super) async fn each<T>(
    shared: &Arc<SharedStack>,
    host: impl ToSocketAddrs,
    mut open: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addresses(shared, host).await? {
        match open(addr) {
            Err(error) => last = Some(error),
            opened => return opened,
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// Returns the error of a host without addresses.
pub(super) fn no_address() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "could not resolve to any address")
}

async fn resolve(shared: &Arc<SharedStack>, name: &str) -> io::Result<Vec<IpAddr>> {
    let files = ResolverFiles::read().await?;
    let known = hosts::addresses(&files.hosts, name.trim_end_matches('.').as_bytes());
    if !known.is_empty() {
        return Ok(known);
    }
    if is_localhost(name) {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let mut conf = files.conf;
    if let Some((nameserver, only_loopback)) = nameserver(shared)? {
        conf.replace_servers(nameserver, only_loopback);
    }
    let mut lookup = NameLookup::new(&conf, conf.candidates(name), &[A, AAAA]);
    loop {
        let questions = lookup.next_questions().map_err(|error| failed(error, name, &conf))?;
        let answers = ask::ask(shared, &conf, &questions).await;
        // Check whether the stack has ended. Otherwise its end would be reported as a timeout of
        // the nameservers.
        if shared.client().is_dead() {
            return Err(io_error(Error::Dead));
        }
        if let Some(found) = lookup.on_answers(answers) {
            let found = found.map_err(|error| failed(error, name, &conf))?;
            return Ok(sorted(shared, &files.gai_conf, found.addresses));
        }
    }
}

/// Returns whether a host name always means the loopback address, and must not be sent to a
/// nameserver (RFC 6761 §6.3).
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Returns the stack's nameserver. If the second value is true, it is used only in place of
/// nameservers on the loopback.
fn nameserver(shared: &SharedStack) -> io::Result<Option<(IpAddr, bool)>> {
    let request = Request { call: call::RESOLVER, ..Request::default() };
    let reply = shared.client().call(&request).map_err(io_error)?;
    Ok(reply.addr.to_socket_addr().map(|addr| (addr.ip(), reply.a != 0)))
}

fn failed(error: ResolveError, name: &str, conf: &Conf) -> io::Error {
    let servers: Vec<_> = conf.servers.iter().map(|server| server.ip().to_string()).collect();
    let servers = servers.join(", ");
    let (kind, why) = match error {
        ResolveError::NotFound => (ErrorKind::NotFound, "the name does not exist".to_owned()),
        ResolveError::NoData => (ErrorKind::NotFound, "the name has no address".to_owned()),
        _ if servers.is_empty() => {
            let why = "no nameserver is configured: call Builder::nameserver";
            (ErrorKind::NotFound, why.to_owned())
        }
        _ => {
            let why = format!(
                "no answer from {servers} over the stack: name a nameserver that it reaches by \
                 Builder::nameserver"
            );
            (ErrorKind::TimedOut, why)
        }
    };
    io::Error::new(kind, format!("could not resolve {name:?}: {why}"))
}

/// Sorts addresses by the order in which to try them (RFC 6724).
fn sorted(shared: &Arc<SharedStack>, gai_conf: &str, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.len() < 2 || addresses.len() > ADDRESSES_MAX {
        return addresses;
    }
    let routed = addresses.iter().map(|&destination| Routed {
        destination,
        source: source(shared, destination),
        // The prefix length is not needed, because IPv4 addresses keep the nameserver's order.
        prefix_len: u32::BITS,
    });
    let order = Policy::new(gai_conf).sort(&routed.collect::<Vec<_>>());
    order.into_iter().map(|place| addresses[place]).collect()
}

/// Returns the source address that the stack uses for packets to `destination`.
fn source(shared: &Arc<SharedStack>, destination: IpAddr) -> Option<IpAddr> {
    // Connect a UDP socket: this sends no packet, but selects the source address. The port does not
    // matter, but must not be 0.
    let destination = SocketAddr::new(destination, 1);
    let socket = OwnedSocket::open(shared, family_of(&destination), UDP).ok()?;
    socket.start_connect(destination).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}
