//! Host sockets of published ports, which refuse clients while the program does not listen.
//!
//! A host socket is "open" while the program listens, and "shut" otherwise. The socket stays bound
//! in both states, so that no other process gets the port. While it is shut, the host's kernel
//! refuses clients:
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

/// Binds the host socket of a published port, which refuses clients at first. Returns the socket
/// and its address. For port 0, the host chooses the port.
///
/// The socket serves one address family only. A user who names an IPv4 address, even 0.0.0.0, may
/// rely on IPv4 firewall rules.
pub(crate) fn reserve(
    addr: SocketAddr,
    protocol: ForwardProtocol,
) -> Result<(Fd, SocketAddr), Errno> {
    let (mut socket, mut bound) = bound(addr, protocol)?;
    if addr.port() == 0 {
        // Bind a second socket to the port by number while the first one is still bound. Otherwise
        // Linux would release a port that it has chosen itself when the first socket stops
        // listening or is disconnected (SOCK_BINDPORT_LOCK).
        if protocol == ForwardProtocol::Udp {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        (socket, bound) = named(bound, protocol)?;
    }
    match protocol {
        // Listen once to reserve the port. With SO_REUSEADDR, bind(2) succeeds even if another
        // socket with this option is bound to the port, but listen(2) then fails. After listen(2),
        // no other socket can bind the port.
        ForwardProtocol::Tcp => listen(&socket, BACKLOG)?,
        ForwardProtocol::Udp => {
            // Allow UDP flows of the program to share this port. Set the option only after bind(2).
            // Otherwise bind(2) would succeed even if another process of this user uses the port.
            sockopt::set_socket_reuseport(&socket, true)?;
            sys::enable_packet_info(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_details(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_gro(socket.as_fd());
        }
    }
    shut(&socket, bound, protocol);
    Ok((socket, bound))
}

/// Starts to accept clients on the socket.
pub(crate) fn open(socket: &Fd, protocol: ForwardProtocol) -> Result<(), Errno> {
    match protocol {
        ForwardProtocol::Tcp => {
            // Set SO_REUSEADDR, because connections of earlier clients may still be bound to the
            // port.
            sockopt::set_socket_reuseaddr(socket, true)?;
            listen(socket, BACKLOG)
        }
        ForwardProtocol::Udp => connect_unspec(socket),
    }
}

/// Makes the host's kernel refuse clients and reset connections that were not accepted yet.
pub(crate) fn shut(socket: &Fd, host: SocketAddr, protocol: ForwardProtocol) {
    match protocol {
        ForwardProtocol::Tcp => {
            // Call shutdown(2) only on a listening socket. Otherwise connections that are accepted
            // later would inherit the shutdown.
            if sockopt::socket_acceptconn(socket) != Ok(false) {
                let _ = shutdown(socket, Shutdown::Both);
            }
            // Clear SO_REUSEADDR, so that no other socket can bind the port.
            let _ = sockopt::set_socket_reuseaddr(socket, false);
        }
        ForwardProtocol::Udp => {
            let ip = match host.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                ip => ip,
            };
            // Ignore errors: without a loopback interface the socket stays open, and clients wait.
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

/// Creates an additional socket that is bound to the same port as a socket of [`bound`].
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
        // Set these options on the listener, because accepted connections inherit them.
        dialer::prepare(&socket);
    }
    Ok(socket)
}
