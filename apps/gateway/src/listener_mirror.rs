//! Sockets of published ports, which refuse clients while the program does not listen.
//!
//! Either kind stays bound, so that nobody else gets the port, and the host's kernel refuses:
//!
//! ```text
//!        shut                                         open
//!  TCP   bound: a SYN is answered by a reset          listening
//!  UDP   connected to itself: a datagram of anybody   without a peer
//!        else is answered by "port unreachable"
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{
    Shutdown, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname, listen,
    shutdown, socket_with, sockopt,
};
use std::os::fd::AsFd;
use towpath_shm::Fd;

use crate::config::ForwardProtocol;
use crate::dialer;
use crate::events::family;
use crate::limits::BACKLOG;
use crate::sys;

/// The socket of a published port, shut, and its address with the port that the host chose for 0.
///
/// The socket is of one family: a user that names an IPv4 address, 0.0.0.0 too, may rely on
/// firewall rules for IPv4 alone.
pub(crate) fn reserve(
    addr: SocketAddr,
    protocol: ForwardProtocol,
) -> Result<(Fd, SocketAddr), Errno> {
    let (mut socket, mut bound) = bound(addr, protocol)?;
    if addr.port() == 0 {
        // Linux frees a port that it chose itself when the socket stops listening, or loses its
        // peer (SOCK_BINDPORT_LOCK). A second socket names the port while the first one has it.
        if protocol == ForwardProtocol::Udp {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        (socket, bound) = named(bound, protocol)?;
    }
    match protocol {
        // With SO_REUSEADDR bind(2) overlooks a port that others have bound with it, and listen(2)
        // does not. From now on they cannot bind the port with that option (`fastreuse`).
        ForwardProtocol::Tcp => listen(&socket, BACKLOG)?,
        ForwardProtocol::Udp => {
            // For the flows of the program that leave from here. Before its bind the option would
            // let others of this user have the port as well.
            sockopt::set_socket_reuseport(&socket, true)?;
            sys::enable_packet_info(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_details(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_gro(socket.as_fd());
        }
    }
    shut(&socket, bound, protocol);
    Ok((socket, bound))
}

/// Lets clients in.
pub(crate) fn open(socket: &Fd, protocol: ForwardProtocol) -> Result<(), Errno> {
    match protocol {
        ForwardProtocol::Tcp => {
            // Connections of earlier clients have the port as well, and this option.
            sockopt::set_socket_reuseaddr(socket, true)?;
            listen(socket, BACKLOG)
        }
        ForwardProtocol::Udp => connect_unspec(socket),
    }
}

/// Lets the host's kernel refuse clients. Connections that nobody has accepted are reset.
pub(crate) fn shut(socket: &Fd, host: SocketAddr, protocol: ForwardProtocol) {
    match protocol {
        ForwardProtocol::Tcp => {
            // A socket that does not listen would pass the shutdown on to its later connections.
            if sockopt::socket_acceptconn(socket) != Ok(false) {
                let _ = shutdown(socket, Shutdown::Both);
            }
            // The option of an open socket can be cleared.
            let _ = sockopt::set_socket_reuseaddr(socket, false);
        }
        ForwardProtocol::Udp => {
            let ip = match host.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                ip => ip,
            };
            // Where a host has no loopback interface the socket stays open, and clients wait.
            let _ = connect(socket, &SocketAddr::new(ip, host.port()));
        }
    }
}

fn bound(addr: SocketAddr, protocol: ForwardProtocol) -> Result<(Fd, SocketAddr), Errno> {
    let socket = unbound(addr, protocol)?;
    bind(&socket, &addr)?;
    let bound = SocketAddr::try_from(getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound))
}

/// A socket that shares its port with one of [`bound`].
fn named(addr: SocketAddr, protocol: ForwardProtocol) -> Result<(Fd, SocketAddr), Errno> {
    let socket = unbound(addr, protocol)?;
    if protocol == ForwardProtocol::Udp {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &addr)?;
    Ok((socket, addr))
}

fn unbound(addr: SocketAddr, protocol: ForwardProtocol) -> Result<Fd, Errno> {
    let kind = match protocol {
        ForwardProtocol::Tcp => SocketType::STREAM,
        ForwardProtocol::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = Fd::from(socket_with(family(addr), kind, flags, None)?);
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if protocol == ForwardProtocol::Tcp {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Accepted connections inherit these options.
        dialer::prepare(&socket);
    }
    Ok(socket)
}
