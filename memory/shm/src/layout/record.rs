//! Addresses, accepted connections and datagrams, as stored in slots, FIFOs and requests.

use crate::atomic::{AtomicU64, Ordering};

/// A struct that can be stored in shared memory: `repr(C)`, without padding, and valid for every
/// bit pattern.
///
/// # Safety
/// The type must be `repr(C)`, without padding, and consist only of integers or such structs.
pub unsafe trait Plain: Copy + Default {
    /// Returns the bytes of which the value consists.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the type has no padding, by the contract of the trait, so every byte is
        // initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Creates a value from bytes. Missing bytes are taken as zeros, and excess bytes are ignored.
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut out = Self::default();
        let n = bytes.len().min(size_of::<Self>());
        // SAFETY: every bit pattern is valid, by the contract of the trait. `n` exceeds neither
        // length.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut out).cast(), n);
        }
        out
    }
}

/// An IP address and port, as stored in shared memory. The family is 0 if it is not set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawAddr {
    /// Address family: AF_INET (2), AF_INET6 (10), or 0 if the address is not set.
    pub family: u16,
    /// Port number in host byte order.
    pub port: u16,
    /// Scope id of an IPv6 address (interface index).
    pub scope: u32,
    /// IP address in network byte order. An IPv4 address is in the first four bytes.
    pub ip: [u8; 16],
}

/// A [`RawAddr`] in three atomic words, which can be read while another process writes it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SharedAddr {
    words: [AtomicU64; 3],
}

impl SharedAddr {
    /// Reads the address. The result can be a mixture of two addresses only while the engine is
    /// writing. At that time, the socket is not yet in a state in which the address is used.
    pub fn load(&self) -> RawAddr {
        let mut bytes = [0; 24];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        RawAddr::from_bytes(&bytes)
    }

    /// Returns the port; 0 if the address is not set.
    #[inline]
    pub fn port(&self) -> u16 {
        let bytes = self.words[0].load(Ordering::Acquire).to_ne_bytes();
        u16::from_ne_bytes([bytes[2], bytes[3]])
    }

    /// Writes the address to the three words.
    pub fn store(&self, addr: &RawAddr) {
        let bytes = addr.to_bytes();
        for (chunk, word) in bytes.chunks_exact(8).zip(&self.words) {
            let value = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            word.store(value, Ordering::Release);
        }
    }
}

impl RawAddr {
    /// Converts a socket address. IPv4-mapped IPv6 addresses remain IPv6 addresses.
    pub fn new(addr: std::net::SocketAddr) -> Self {
        let mut ip = [0; 16];
        match addr {
            std::net::SocketAddr::V4(a) => {
                ip[..4].copy_from_slice(&a.ip().octets());
                Self { family: 2, port: a.port(), scope: 0, ip }
            }
            std::net::SocketAddr::V6(a) => {
                Self { family: 10, port: a.port(), scope: a.scope_id(), ip: a.ip().octets() }
            }
        }
    }

    /// Converts to a socket address; `None` if the family is neither AF_INET nor AF_INET6.
    pub fn to_socket_addr(&self) -> Option<std::net::SocketAddr> {
        use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
        match self.family {
            2 => {
                let [a, b, c, d, ..] = self.ip;
                Some(SocketAddr::from((Ipv4Addr::new(a, b, c, d), self.port)))
            }
            10 => Some(SocketAddrV6::new(Ipv6Addr::from(self.ip), self.port, 0, self.scope).into()),
            _ => None,
        }
    }

    fn to_bytes(self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..2].copy_from_slice(&self.family.to_ne_bytes());
        out[2..4].copy_from_slice(&self.port.to_ne_bytes());
        out[4..8].copy_from_slice(&self.scope.to_ne_bytes());
        out[8..].copy_from_slice(&self.ip);
        out
    }

    fn from_bytes(b: &[u8; 24]) -> Self {
        let mut ip = [0; 16];
        ip.copy_from_slice(&b[8..]);
        Self {
            family: u16::from_ne_bytes([b[0], b[1]]),
            port: u16::from_ne_bytes([b[2], b[3]]),
            scope: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            ip,
        }
    }
}

/// A connection to be accepted, as stored in the receive FIFO of a listener: 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptRecord {
    /// Slot (number) of the accepted connection's socket.
    pub slot: u32,
    /// Generation of the accepted connection's slot.
    pub generation: u32,
    /// Address of the connection's peer.
    pub remote: RawAddr,
    /// Local address of the connection.
    pub local: RawAddr,
    /// Reserved; always 0. Pads the record to 64 bytes.
    pub reserved: u64,
}

/// Header of a datagram in a FIFO. The header is followed by `len` bytes of payload, padded to a
/// multiple of 8.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramHeader {
    /// Number of payload bytes after this header, at most 65535.
    pub len: u32,
    /// Index of the interface that received the datagram or should send it; 0 for any interface.
    pub ifindex: u32,
    /// For a received datagram, its source. For a datagram to be sent, its destination; family 0
    /// selects the connected address.
    pub remote: RawAddr,
    /// For a received datagram, its destination. For a datagram to be sent, its source; family 0
    /// selects the socket's address.
    pub local: RawAddr,
    /// Arrival time, as Unix time in nanoseconds.
    pub time_ns: u64,
    /// Type of service or traffic class. In a datagram to be sent, [`Self::DEFAULT`] selects the
    /// setting of the socket.
    pub tos: u16,
    /// TTL or hop limit. In a datagram to be sent, [`Self::DEFAULT`] selects the setting of the
    /// socket.
    pub ttl: u16,
    /// Segment size (UDP_SEGMENT): if it is not 0, the payload consists of several datagrams of
    /// this size; the last may be shorter.
    pub segment_size: u16,
    /// Reserved; always 0.
    pub reserved: u16,
    /// Number of datagrams dropped so far because the socket's queue was full (SO_RXQ_OVFL); 0 in a
    /// datagram to be sent.
    pub drops: u64,
}

impl DatagramHeader {
    /// Value of `tos` and `ttl` that selects the setting of the socket.
    pub const DEFAULT: u16 = 0xffff;
}

// SAFETY: the struct consists of integers; the sizes asserted in `mod.rs` show that there is no
// padding.
unsafe impl Plain for RawAddr {}
// SAFETY: the struct consists of integers; the sizes asserted in `mod.rs` show that there is no
// padding.
unsafe impl Plain for AcceptRecord {}
// SAFETY: the struct consists of integers; the sizes asserted in `mod.rs` show that there is no
// padding.
unsafe impl Plain for DatagramHeader {}
