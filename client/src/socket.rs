//! Identification of a socket, and the bits of its readiness.

/// Identification of a socket: a slot of the run, and the number of uses of the slot so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket {
    /// Index of the slot.
    pub slot: u32,
    /// Generation of the slot when the socket was opened.
    pub generation: u32,
}

/// Readiness of a socket: the bits of poll(2) and epoll(7).
pub mod ready {
    /// POLLIN and POLLRDNORM.
    pub const IN: u32 = 0x41;
    /// POLLPRI: urgent data.
    pub const PRI: u32 = 2;
    /// POLLOUT and POLLWRNORM.
    pub const OUT: u32 = 0x104;
    /// POLLWRBAND, which datagram sockets report together with POLLOUT.
    pub const WRBAND: u32 = 0x200;
    /// POLLERR.
    pub const ERR: u32 = 8;
    /// POLLHUP.
    pub const HUP: u32 = 16;
    /// POLLRDHUP.
    pub const RDHUP: u32 = 0x2000;
}
