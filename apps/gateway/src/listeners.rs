//! The sockets of forwarded ports, on which the host listens for the program.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use towpath_shm::Fd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};

use crate::config::{Forward, ForwardError, ForwardProtocol};
use crate::events::{Events, Interest, Token, family};
use crate::flow;
use crate::limits::BACKLOG;
use crate::mapping::Port;
use crate::order::Order;
use crate::siblings::{Accepted, Place};
use crate::sys;

/// All sockets of forwarded ports; a token's key is the index. The gateways of one host have the same list, and each
/// watches some of them.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
}

/// One forwarded port.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Datagrams leave from it by way of every gateway.
    pub(crate) socket: Arc<Fd>,
    /// The program's.
    pub(crate) port: u16,
    pub(crate) protocol: ForwardProtocol,
    /// Where the host listens.
    pub(crate) host: SocketAddr,
    /// Has connections or datagrams that nobody has taken yet.
    pub(crate) ready: bool,
    /// Is among those that [`crate::forward`] has due, paused or waiting.
    pub(crate) listed: bool,
    /// Has reports about datagrams that were sent, and that nobody has read yet.
    pub(crate) failed: bool,
    /// Connections that are accepted and that no gateway has been given, of several gateways.
    pub(crate) held: VecDeque<Accepted>,
    pub(crate) order: Order,
}

/// The host's socket of a forwarded port. A process may bind it for a gateway in another one.
#[derive(Debug)]
pub struct Bound {
    /// What it is for.
    pub which: Forward,
    /// The socket, which listens if that is for connections.
    pub socket: Fd,
    /// Where: with the port that was chosen where 0 was asked for.
    pub host: SocketAddr,
}

impl Bound {
    /// Binds a socket for each of `forwards`, or none.
    ///
    /// # Errors
    /// The first that cannot be had, and why.
    pub fn all(forwards: &[Forward]) -> Result<Vec<Self>, ForwardError> {
        let bind = |which: &Forward| {
            let opened = open(which.host, which.protocol);
            let failed = |error| ForwardError { which: *which, source: io::Error::from(error) };
            opened.map(|(socket, host)| Self { which: *which, socket, host }).map_err(failed)
        };
        forwards.iter().map(bind).collect()
    }
}

/// The same on its way to the gateways of one host, which share it.
#[derive(Debug)]
pub(crate) struct Opened {
    socket: Arc<Fd>,
    which: Forward,
    host: SocketAddr,
}

impl From<Bound> for Opened {
    fn from(bound: Bound) -> Self {
        let Bound { which, socket, host } = bound;
        Self { socket: Arc::new(socket), which, host }
    }
}

impl Listeners {
    /// Adds what was opened, and watches those that are this gateway's. None is added when one cannot be watched.
    pub(crate) fn add(
        &mut self,
        events: &Events,
        place: &Place,
        opened: &[Opened],
    ) -> Result<(), ForwardError> {
        let before = self.list.len();
        for Opened { socket, which, host } in opened {
            let index = self.list.len();
            if place.listens(index)
                && let Err(error) =
                    events.watch(socket, Token::Listener(index as u32), Interest::Readable)
            {
                self.truncate(before);
                return Err(ForwardError { which: *which, source: error.into() });
            }
            self.list.push(Listener {
                socket: Arc::clone(socket),
                port: which.port,
                protocol: which.protocol,
                host: *host,
                ready: false,
                listed: false,
                failed: false,
                held: VecDeque::new(),
                order: Order::default(),
            });
        }
        Ok(())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Takes back what was added.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// The socket of a forwarded port.
    pub(crate) fn fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.list.get(index as usize).map(|listener| listener.socket.as_fd())
    }

    /// Where a forwarded port listens on the host.
    pub(crate) fn host(&self, index: u32) -> Option<SocketAddr> {
        self.list.get(index as usize).map(|listener| listener.host)
    }

    /// Which port of the host leads to a UDP port of the program.
    pub(crate) fn host_port(&self, port: Port) -> Option<u16> {
        let leads = |listener: &&Listener| {
            listener.protocol == ForwardProtocol::Udp
                && (listener.port, listener.host.is_ipv6()) == (port.number, port.v6)
        };
        self.list.iter().find(leads).map(|listener| listener.host.port())
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Listener> {
        self.list.get(index as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Listener> {
        self.list.get_mut(index as usize)
    }
}

/// The socket of a forwarded port, of one family: a user that names an IPv4 address, 0.0.0.0 too, may rely on
/// firewall rules for IPv4 alone.
fn open(addr: SocketAddr, protocol: ForwardProtocol) -> Result<(Fd, SocketAddr), Errno> {
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
        // What it accepts has them from the beginning.
        flow::prepare(&socket);
    }
    bind(&socket, &addr)?;
    match protocol {
        ForwardProtocol::Tcp => listen(&socket, BACKLOG)?,
        ForwardProtocol::Udp => {
            // Not before it is bound, which would let others of this user have the port as well: it is
            // for the flows of the program that leave from here.
            sockopt::set_socket_reuseport(&socket, true)?;
            sys::enable_packet_info(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_details(socket.as_fd(), addr.is_ipv6())?;
            sys::enable_gro(socket.as_fd());
        }
    }
    let bound = SocketAddr::try_from(getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound))
}
