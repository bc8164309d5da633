//! The sockets of forwarded ports, on which the host listens for the program.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use towpath_shm::Fd;

use rustix::io::Errno;

use crate::config::{Forward, ForwardError, ForwardProtocol};
use crate::events::{Events, Interest, Token};
use crate::gate::Gate;
use crate::listener_mirror;
use crate::mapping::Port;
use crate::order::Order;
use crate::siblings::{Accepted, Place};

/// All sockets of forwarded ports; a token's key is the index. The gateways of one host have the
/// same list, and each watches some of them.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<ForwardedListener>,
}

/// A forwarded port.
#[derive(Debug)]
pub(crate) struct ForwardedListener {
    /// The host's socket; every gateway sends datagrams from it.
    pub(crate) socket: Arc<Fd>,
    /// The program's.
    pub(crate) port: u16,
    pub(crate) protocol: ForwardProtocol,
    /// Where the host listens.
    pub(crate) host: SocketAddr,
    /// Connections or datagrams wait that no gateway has taken yet.
    pub(crate) ready: bool,
    /// The listener is in a list of [`crate::forward`]: due, paused or waiting.
    pub(crate) listed: bool,
    /// Reports about sent datagrams wait that no gateway has read yet.
    pub(crate) failed: bool,
    /// Connections that are accepted and that no gateway has been given, of several gateways.
    pub(crate) held: VecDeque<Accepted>,
    pub(crate) order: Order,
    /// The socket was handed over by its owner: accepted connections inherit nothing of ours.
    pub(crate) is_passed: bool,
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
    /// Gate of a socket that was handed over.
    pub(crate) gate: Option<Gate>,
}

impl Bound {
    /// Binds a socket for each of `forwards`, or none.
    ///
    /// # Errors
    /// The first that cannot be had, and why.
    pub fn all(forwards: &[Forward]) -> Result<Vec<Self>, ForwardError> {
        let bind = |which: &Forward| {
            let reserved = listener_mirror::reserve(which.host, which.protocol);
            let bound = |(socket, host)| Self::reserved(*which, socket, host);
            reserved.map(bound).map_err(failed(*which))
        };
        forwards.iter().map(bind).collect()
    }

    /// A socket that [`Self::all`] has bound in another process.
    pub fn reserved(which: Forward, socket: Fd, host: SocketAddr) -> Self {
        Self { which, socket: Arc::new(socket), host, gate: None }
    }

    /// A socket that somebody else has bound, at the host's address in `which`: a TCP listener, or
    /// a UDP socket without a peer. Clients wait while the program does not listen.
    ///
    /// # Errors
    /// The socket is of another kind.
    pub fn passed(which: Forward, socket: Fd) -> Result<Self, ForwardError> {
        let host = which.host;
        let gate = Gate::new(&socket, which.protocol, host.is_ipv6()).map_err(failed(which))?;
        Ok(Self { which, socket: Arc::new(socket), host, gate: Some(gate) })
    }

    /// Lets clients in, for good.
    ///
    /// # Errors
    /// The host refuses to listen, for want of memory.
    pub fn open(&self) -> Result<(), ForwardError> {
        let opened = match &self.gate {
            Some(gate) => gate.set(&self.socket, true),
            None => listener_mirror::open(&self.socket, self.which.protocol),
        };
        opened.map_err(failed(self.which))
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
    gate: Option<Gate>,
}

impl From<Bound> for Opened {
    fn from(bound: Bound) -> Self {
        let Bound { which, socket, host, gate } = bound;
        Self { socket, which, host, gate }
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
        for Opened { socket, which, host, gate } in opened {
            let index = self.list.len();
            let token = Token::Listener(index as u32);
            let watch = || match gate {
                Some(gate) => gate.watch(socket, events, token),
                None => events.watch(socket, token, Interest::Readable),
            };
            if place.listens(index)
                && let Err(error) = watch()
            {
                self.truncate(before);
                return Err(ForwardError { which: *which, source: error.into() });
            }
            self.list.push(ForwardedListener {
                socket: Arc::clone(socket),
                port: which.port,
                protocol: which.protocol,
                host: *host,
                ready: false,
                listed: false,
                failed: false,
                held: VecDeque::new(),
                order: Order::default(),
                is_passed: gate.is_some(),
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
        let leads = |listener: &&ForwardedListener| {
            listener.protocol == ForwardProtocol::Udp
                && (listener.port, listener.host.is_ipv6()) == (port.number, port.v6)
        };
        self.list.iter().find(leads).map(|listener| listener.host.port())
    }

    pub(crate) fn get(&self, index: u32) -> Option<&ForwardedListener> {
        self.list.get(index as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut ForwardedListener> {
        self.list.get_mut(index as usize)
    }
}
