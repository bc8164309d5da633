//! Sockets of forwarded ports, on which the host listens for the program.

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

/// Host sockets of all forwarded ports. All gateways of a host have the same list, and each polls
/// some of the sockets. The index of a socket is part of its epoll token.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    list: Vec<ForwardedListener>,
}

/// State that one gateway keeps about a forwarded port.
#[derive(Debug)]
pub(crate) struct ForwardedListener {
    /// Host socket of the port. All gateways of the host send datagrams from it.
    pub(crate) socket: Arc<Fd>,
    /// Port of the program to which clients are forwarded.
    pub(crate) port: u16,
    pub(crate) protocol: ForwardProtocol,
    /// Address and port of the host on which the gateway listens.
    pub(crate) host: SocketAddr,
    /// Whether connections or datagrams may be pending in the host socket.
    pub(crate) ready: bool,
    /// Whether the listener is in one of the lists `due`, `paused` and `waiting` of
    /// [`crate::forward`].
    pub(crate) listed: bool,
    /// Whether error reports about sent datagrams are pending in the host socket's error queue.
    pub(crate) failed: bool,
    /// Accepted connections that are not handed to a gateway yet. Always empty if there is only one
    /// gateway.
    pub(crate) held: VecDeque<Accepted>,
    pub(crate) order: Order,
    /// Whether another process has created and passed the socket. Accepted connections then do not
    /// inherit our socket options.
    pub(crate) is_passed: bool,
}

/// Host socket that is bound for a forwarded port. Clients are refused until [`Bound::open`] or
/// [`PublishWatch`](crate::PublishWatch) opens the port. The socket may have been bound by another
/// process.
#[derive(Debug)]
pub struct Bound {
    /// Forwarded port.
    pub which: Forward,
    /// Bound socket.
    pub socket: Arc<Fd>,
    /// Bound host address, with the port that the kernel chose if port 0 was requested.
    pub host: SocketAddr,
    /// Switch that determines whether clients are accepted, for a socket passed by another process;
    /// otherwise `None`.
    pub(crate) gate: Option<Gate>,
}

impl Bound {
    /// Binds a socket for each of `forwards`. If one fails, binds none.
    ///
    /// # Errors
    /// Returns the first port that could not be bound, and the cause.
    pub fn all(forwards: &[Forward]) -> Result<Vec<Self>, ForwardError> {
        let bind = |which: &Forward| {
            let reserved = listener_mirror::reserve(which.host, which.protocol);
            let bound = |(socket, host)| Self::reserved(*which, socket, host);
            reserved.map(bound).map_err(failed(*which))
        };
        forwards.iter().map(bind).collect()
    }

    /// Wraps a socket that [`Self::all`] bound in another process.
    pub fn reserved(which: Forward, socket: Fd, host: SocketAddr) -> Self {
        Self { which, socket: Arc::new(socket), host, gate: None }
    }

    /// Wraps a socket that another process has bound to the host address in `which`: a TCP listener
    /// or an unconnected UDP socket. Clients wait in its queue while the program does not listen.
    ///
    /// # Errors
    /// Returns an error for other kinds of sockets.
    pub fn passed(which: Forward, socket: Fd) -> Result<Self, ForwardError> {
        let host = which.host;
        let gate = Gate::new(&socket, which.protocol, host.is_ipv6()).map_err(failed(which))?;
        Ok(Self { which, socket: Arc::new(socket), host, gate: Some(gate) })
    }

    /// Starts to accept clients on the socket.
    ///
    /// # Errors
    /// Returns an error if the host cannot listen because of insufficient memory.
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

/// The parts of [`Bound`] that all gateways of a host share.
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
    /// Adds all listeners in `opened`, and polls those for which this gateway accepts clients. If
    /// polling a socket fails, adds none.
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

    /// Returns the number of listeners.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Removes the listeners from index `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// Returns the socket of a forwarded port.
    pub(crate) fn fd(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.list.get(index as usize).map(|listener| listener.socket.as_fd())
    }

    /// Returns the host address and port of a forwarded port.
    pub(crate) fn host(&self, index: u32) -> Option<SocketAddr> {
        self.list.get(index as usize).map(|listener| listener.host)
    }

    /// Returns the host port that forwards to a UDP port of the program.
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
