//! Watches all host sockets of a gateway through one epoll descriptor.

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

/// Edge-triggered epoll set. After an event, the flow must read or write until EAGAIN; otherwise it
/// gets no further event.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: Arc<Fd>,
}

/// Identifies the owner of a watched descriptor: the table and key of a flow, or another object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Tcp(SlabKey),
    Udp(SlabKey),
    Echo(SlabKey),
    Dns(SlabKey),
    /// The eventfd of the thread that watches /etc/resolv.conf, signaled when the file has changed.
    Nameservers,
    /// The socket of a forwarded TCP or UDP port.
    Listener(u32),
    /// The eventfd that another shard's gateway signals when it has handed over a connection.
    Handed,
    /// The netlink socket that reports changes of the host's addresses.
    Addresses,
    /// The socket that receives datagrams from other ports of a flow's peer: see
    /// `udp::other_ports`.
    OtherPorts(SlabKey),
}

/// Kinds of readiness to report for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Readability only. Datagram sockets would report writability after every datagram sent.
    Readable,
    /// Readability, writability, the peer's FIN and urgent data.
    Both,
}

/// Readiness of a socket as reported by epoll.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Whether to read until EAGAIN even if a read returns less than requested, because a FIN, an
    /// error or urgent data may follow.
    pub(crate) drain: bool,
    /// Whether urgent data is available.
    pub(crate) urgent: bool,
    /// Whether the socket has a pending error.
    pub(crate) failed: bool,
}

/// Buffer for the events of one epoll_wait call.
pub(crate) type EventList = [MaybeUninit<Event>; EVENTS_MAX];

impl Events {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC)?.into()) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns a handle to the same epoll set for another thread.
    pub(crate) fn share(&self) -> Self {
        Self { epoll: Arc::clone(&self.epoll) }
    }

    /// Stops watching a socket.
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

    /// Returns pending epoll events without blocking. After EINTR, the next call returns them.
    pub(crate) fn take<'a>(
        &self,
        list: &'a mut EventList,
    ) -> Result<impl Iterator<Item = (Token, Readiness)> + use<'a>, Errno> {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let (taken, _) = epoll::wait(&*self.epoll, &mut list[..], Some(&now))?;
        Ok(taken.iter().filter_map(|event| {
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
        }))
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

/// Returns the address family of a socket that connects to `addr`.
pub(crate) fn family(addr: SocketAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Converts IPv4-mapped IPv6 addresses (RFC 4291, section 2.5.5.2) to IPv4.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip if ip == addr.ip() => addr,
        ip => SocketAddr::new(ip, addr.port()),
    }
}
