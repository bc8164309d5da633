//! Maps UDP ports of the program to ports of the host, like a NAT.
//!
//! The first flow from a port of the program uses the same port number on the host if it is free.
//! Otherwise the host chooses a port. Further flows from this port of the program share the host
//! port, so that all peers see the program at one port. If several clients use the gateway through
//! a device, the same port of two clients maps to two host ports.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::{bind, getsockname, sockopt};

/// Mapped ports. Each mapping has at least one flow, so the limit on flows also limits the
/// mappings.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    map: HashMap<SocketAddr, Mapping>,
}

/// UDP port of the program, for IPv4 or for IPv6. The versions are separate, because the host's
/// ports are separate for each version, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Port {
    pub(crate) v6: bool,
    pub(crate) number: u16,
}

#[derive(Debug)]
struct Mapping {
    host_port: u16,
    flows: usize,
}

impl Mappings {
    /// Binds the socket of a new flow of `program`. `forwarded` is the host port that is forwarded
    /// to the program's port, if any. Returns false if no port could be bound; the host then
    /// chooses one in connect(2).
    //= https://www.rfc-editor.org/rfc/rfc4787#section-4.1
    //# REQ-1:  A NAT MUST have an "Endpoint-Independent Mapping" behavior.
    pub(crate) fn bind(&mut self, host: &Fd, program: SocketAddr, forwarded: Option<u16>) -> bool {
        let port = Port { v6: program.is_ipv6(), number: program.port() };
        let known = self.map.get(&program).map(|mapping| mapping.host_port).or(forwarded);
        let bound = match known {
            Some(host_port) => share(host, port.v6, host_port),
            None => take(host, port),
        };
        let Ok(host_port) = bound else { return false };
        self.map.entry(program).or_insert(Mapping { host_port, flows: 0 }).flows += 1;
        true
    }

    /// Removes a flow from its mapping. The last flow removes the mapping.
    pub(crate) fn release(&mut self, program: SocketAddr) {
        if let Some(mapping) = self.map.get_mut(&program) {
            mapping.flows -= 1;
            if mapping.flows == 0 {
                self.map.remove(&program);
            }
        }
    }
}

/// Binds a socket to the host port to which the socket `other` is bound.
pub(crate) fn bind_beside(host: &Fd, other: &Fd, v6: bool) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(other)?).map_err(|_| Errno::AFNOSUPPORT)?;
    share(host, v6, bound.port()).map(drop)
}

/// Binds a socket to a host port that other sockets of this gateway use. SO_REUSEPORT allows
/// sockets of one user to share a port.
fn share(host: &Fd, v6: bool, host_port: u16) -> Result<u16, Errno> {
    sockopt::set_socket_reuseport(host, true)?;
    bind_any(host, v6, host_port)?;
    Ok(host_port)
}

/// Binds a socket to a free host port, and returns the port. Prefers the program's port number.
fn take(host: &Fd, port: Port) -> Result<u16, Errno> {
    // Try the program's port number first (port preservation, RFC 4787 §4.2.1). The bind fails if
    // the port is in use or privileged.
    bind_any(host, port.v6, port.number).or_else(|_| bind_any(host, port.v6, 0))?;
    // Set SO_REUSEPORT after the bind. Otherwise the bind could succeed on a port of another
    // gateway of this user, and one of the two would receive the other's answers.
    sockopt::set_socket_reuseport(host, true)?;
    let bound = SocketAddr::try_from(getsockname(host)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok(bound.port())
}

fn bind_any(host: &Fd, v6: bool, port: u16) -> Result<(), Errno> {
    let any: IpAddr = if v6 {
        sockopt::set_ipv6_v6only(host, true)?;
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    bind(host, &SocketAddr::new(any, port))
}
