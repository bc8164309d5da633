//! [`Socket`], which identifies a socket, and the bits of its readiness (POLLIN and others).

/// Identifies a socket: the index of its slot in shared memory, and the generation of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket {
    /// Index of the socket's slot in shared memory.
    pub slot: u32,
    /// Generation of the slot when the socket was opened. The generation changes whenever the slot
    /// is reused.
    pub generation: u32,
}

/// Readiness of a socket, as bits of poll(2) and epoll(7).
pub mod ready {
    /// There are bytes to read: POLLIN and POLLRDNORM.
    pub const IN: u32 = 0x41;
    /// There is urgent data: POLLPRI.
    pub const PRI: u32 = 2;
    /// The socket is writable: POLLOUT and POLLWRNORM.
    pub const OUT: u32 = 0x104;
    /// POLLWRBAND. Datagram sockets report it together with POLLOUT.
    pub const WRBAND: u32 = 0x200;
    /// The socket has a pending error: POLLERR.
    pub const ERR: u32 = 8;
    /// Both directions are shut down: POLLHUP.
    pub const HUP: u32 = 16;
    /// The peer has shut down writing, or the socket was shut down for reading: POLLRDHUP.
    pub const RDHUP: u32 = 0x2000;
}
