//! From which port of the host the datagrams of a program's port leave.
//!
//! The first flow of a port takes the same port of the host if nobody has it, and else one that the
//! host chooses. All further flows share it, so that every peer sees the program at one port.
//! Clients behind a device have an address each: the same port of two of them is two ports of the
//! host.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::{bind, getsockname, sockopt};

/// Ports in use. Each has at least one flow, so that the limit of flows bounds them too.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    map: HashMap<SocketAddr, Mapping>,
}

/// A UDP port of the program, for one IP version: the host's ports are apart by version as well.
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
    /// Binds the socket of a new flow of `program`. `forwarded` is the port of the host that leads
    /// there. False: none could be had, and the host chooses when the socket is connected.
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

    /// A flow that was bound ended.
    pub(crate) fn release(&mut self, program: SocketAddr) {
        if let Some(mapping) = self.map.get_mut(&program) {
            mapping.flows -= 1;
            if mapping.flows == 0 {
                self.map.remove(&program);
            }
        }
    }
}

/// Binds one more socket to the port of another one.
pub(crate) fn bind_beside(host: &Fd, other: &Fd, v6: bool) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(other)?).map_err(|_| Errno::AFNOSUPPORT)?;
    share(host, v6, bound.port()).map(drop)
}

/// Binds to a port that sockets of ours have. SO_REUSEPORT lets sockets of one user share it.
fn share(host: &Fd, v6: bool, host_port: u16) -> Result<u16, Errno> {
    sockopt::set_socket_reuseport(host, true)?;
    bind_any(host, v6, host_port)?;
    Ok(host_port)
}

/// Binds to a port that nobody has, the program's own number if possible, and returns its number.
fn take(host: &Fd, port: Port) -> Result<u16, Errno> {
    // RFC 4787 §4.2.1 calls it port preservation; not possible if the port is taken, or privileged.
    bind_any(host, port.v6, port.number).or_else(|_| bind_any(host, port.v6, 0))?;
    // SO_REUSEPORT is set after the bind. Before it, the bind would succeed on a port of another
    // gateway of this user, and one of the two would get the other's answers.
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
