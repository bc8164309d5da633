//! The host's sockets as one descriptor that becomes readable when one of them has news.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use towpath_shm::Fd;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::AddressFamily;

use crate::limits::EVENTS_MAX;
use crate::slab::SlabKey;

/// Watches host sockets, edge-triggered: a flow that is told must read or write until EAGAIN.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: Arc<Fd>,
}

/// Owner of a socket: a key of the table of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Tcp(SlabKey),
    Udp(SlabKey),
    Echo(SlabKey),
    Dns(SlabKey),
    /// The thread that reads the host's resolv.conf has found a change.
    Nameservers,
    /// A forwarded port, TCP or UDP.
    Listener(u32),
    /// The gateway of another shard has handed a connection over.
    Handed,
    /// The host has other addresses.
    Addresses,
    /// A port of the program, open to all ports of its peers.
    OtherPorts(SlabKey),
}

/// Events to hear about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Something to read. A datagram socket would say "writable" after every datagram sent.
    Readable,
    /// The same, and room to write, the peer's FIN and urgent data.
    Both,
}

/// State that epoll reports of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// A short read need not be the last: a FIN, an error or urgent data may stand behind it.
    pub(crate) drain: bool,
    /// Urgent data.
    pub(crate) urgent: bool,
    /// The socket has an error.
    pub(crate) failed: bool,
}

/// Events taken at once.
pub(crate) type EventList = [MaybeUninit<Event>; EVENTS_MAX];

impl Events {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC)?.into()) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The same set of sockets, for another thread.
    pub(crate) fn share(&self) -> Self {
        Self { epoll: Arc::clone(&self.epoll) }
    }

    /// Watches a socket no more.
    pub(crate) fn forget(&self, fd: &Fd) -> Result<(), Errno> {
        epoll::delete(&*self.epoll, fd)
    }

    /// Watches a socket until it is closed.
    pub(crate) fn watch(&self, fd: &Fd, token: Token, what: Interest) -> Result<(), Errno> {
        let mut flags = EventFlags::IN | EventFlags::ET;
        if what == Interest::Both {
            flags |= EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI;
        }
        epoll::add(&*self.epoll, fd, EventData::new_u64(token.to_u64()), flags)
    }

    /// Events since the last call, without waiting.
    pub(crate) fn take<'a>(
        &self,
        list: &'a mut EventList,
    ) -> impl Iterator<Item = (Token, Readiness)> + use<'a> {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let taken = match epoll::wait(&*self.epoll, &mut list[..], Some(&now)) {
            Ok((events, _)) => &*events,
            // Interrupted: the next call finds the same.
            Err(_) => &[],
        };
        taken.iter().filter_map(|event| {
            let flags = event.flags;
            let has = |wanted: EventFlags| flags.intersects(wanted);
            let ready = Readiness {
                readable: has(EventFlags::IN),
                writable: has(EventFlags::OUT),
                drain: has(EventFlags::RDHUP | EventFlags::HUP | EventFlags::PRI),
                urgent: has(EventFlags::PRI),
                failed: has(EventFlags::ERR),
            };
            Some((Token::from_u64(event.data.u64())?, ready))
        })
    }
}

impl Token {
    fn to_u64(self) -> u64 {
        let (kind, key) = match self {
            Token::Tcp(key) => (0, key.to_bits()),
            Token::Udp(key) => (1, key.to_bits()),
            Token::Echo(key) => (2, key.to_bits()),
            Token::Listener(index) => (3, index.into()),
            Token::Dns(key) => (4, key.to_bits()),
            Token::Nameservers => (5, 0),
            Token::Handed => (6, 0),
            Token::Addresses => (7, 0),
            Token::OtherPorts(key) => (8, key.to_bits()),
        };
        kind << SlabKey::BITS | key
    }

    fn from_u64(raw: u64) -> Option<Self> {
        let key = SlabKey::from_bits(raw);
        match raw >> SlabKey::BITS {
            0 => Some(Token::Tcp(key)),
            1 => Some(Token::Udp(key)),
            2 => Some(Token::Echo(key)),
            3 => Some(Token::Listener(raw as u32)),
            4 => Some(Token::Dns(key)),
            5 => Some(Token::Nameservers),
            6 => Some(Token::Handed),
            7 => Some(Token::Addresses),
            8 => Some(Token::OtherPorts(key)),
            _ => None,
        }
    }
}

/// The family of a socket for `addr`.
pub(crate) fn family(addr: SocketAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// An address without the mapping of IPv4 into IPv6 (RFC 4291, section 2.5.5.2).
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip if ip == addr.ip() => addr,
        ip => SocketAddr::new(ip, addr.port()),
    }
}
