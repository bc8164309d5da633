//! The sockets of forwarded ports, on which the host listens for the program.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use towpath_shm::Fd;

use rustix::io::Errno;

use crate::config::{Forward, ForwardError, ForwardProtocol};
use crate::door;
use crate::events::{Events, Interest, Token};
use crate::mapping::Port;
use crate::order::Order;
use crate::siblings::{Accepted, Place};

/// All sockets of forwarded ports; a token's key is the index. The gateways of one host have the
/// same list, and each watches some of them.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
}

/// A forwarded port.
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

/// The host's socket of a forwarded port, which refuses clients until [`Bound::open`] or
/// [`PublishWatch`](crate::PublishWatch). A process may bind it for a gateway in another one.
#[derive(Debug)]
pub struct Bound {
    /// The port to be forwarded.
    pub which: Forward,
    /// The socket.
    pub socket: Arc<Fd>,
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
            let reserved = door::reserve(which.host, which.protocol);
            let bound = |(socket, host)| Self { which: *which, socket: Arc::new(socket), host };
            reserved.map(bound).map_err(failed(*which))
        };
        forwards.iter().map(bind).collect()
    }

    /// Lets clients in, for good.
    ///
    /// # Errors
    /// The host refuses to listen, for want of memory.
    pub fn open(&self) -> Result<(), ForwardError> {
        door::open(&self.socket, self.which.protocol).map_err(failed(self.which))
    }
}

fn failed(which: Forward) -> impl Fn(Errno) -> ForwardError {
    move |error| ForwardError { which, source: io::Error::from(error) }
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
        Self { socket, which, host }
    }
}

impl Listeners {
    /// Adds what was opened, and watches those that are this gateway's. None is added when one
    /// cannot be watched.
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

    /// The port of the host that leads to a UDP port of the program.
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
