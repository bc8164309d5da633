//! Addresses, connections and datagrams, as stored in slots, FIFOs and requests.

use crate::atomic::{AtomicU64, Ordering};

/// Plain structs in shared memory: `repr(C)`, without padding, and valid for every bit pattern.
///
/// # Safety
/// The type must be `repr(C)`, without padding, and consist only of integers or such structs.
pub unsafe trait Plain: Copy + Default {
    /// Returns the bytes of the value.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: no padding (the trait's contract), so every byte is initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Creates a value from bytes. Missing bytes are zero, and excess bytes are ignored.
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut out = Self::default();
        let n = bytes.len().min(size_of::<Self>());
        // SAFETY: every bit pattern is valid (the trait's contract); n does not exceed either side.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut out).cast(), n);
        }
        out
    }
}

/// An address and port in shared memory; family 0 if not set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawAddr {
    /// AF_INET (2), AF_INET6 (10), or 0.
    pub family: u16,
    /// Port in host byte order.
    pub port: u16,
    /// IPv6 scope id (interface index).
    pub scope: u32,
    /// Address in network byte order; IPv4 in the first four bytes.
    pub ip: [u8; 16],
}

/// A [`RawAddr`] that may be read while it is written, stored in three words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SharedAddr {
    words: [AtomicU64; 3],
}

impl SharedAddr {
    /// Reads the address. A torn read is only possible while the engine writes, before the socket
    /// reaches the state for which the address matters.
    pub fn load(&self) -> RawAddr {
        let mut bytes = [0; 24];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        RawAddr::from_bytes(&bytes)
    }

    /// Returns the port; 0 before it is set.
    #[inline]
    pub fn port(&self) -> u16 {
        let bytes = self.words[0].load(Ordering::Acquire).to_ne_bytes();
        u16::from_ne_bytes([bytes[2], bytes[3]])
    }

    /// Writes the address.
    pub fn store(&self, addr: &RawAddr) {
        let bytes = addr.to_bytes();
        for (chunk, word) in bytes.chunks_exact(8).zip(&self.words) {
            let value = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            word.store(value, Ordering::Release);
        }
    }
}

impl RawAddr {
    /// Converts a socket address. IPv4-mapped IPv6 addresses stay IPv6.
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

/// A completed connection in a listener's receive FIFO: 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptRecord {
    /// Slot of the new connection.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// Address of the peer.
    pub remote: RawAddr,
    /// Local address of the connection.
    pub local: RawAddr,
    /// Reserved, 0; pads the record to 64 bytes.
    pub reserved: u64,
}

/// A datagram in a FIFO: this header, then `len` bytes, padded to a multiple of 8.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramHeader {
    /// Payload bytes that follow, at most 65535.
    pub len: u32,
    /// Interface that received the datagram, or that should send it; 0 for any interface.
    pub ifindex: u32,
    /// Source of a received datagram. For transmission, the destination; family 0 for the connected
    /// address.
    pub remote: RawAddr,
    /// Destination of a received datagram. For transmission, the source; family 0 for the socket's
    /// address.
    pub local: RawAddr,
    /// Unix time of arrival in ns.
    pub time_ns: u64,
    /// TOS or traffic class. For transmission, [`Self::DEFAULT`] selects the socket's setting.
    pub tos: u16,
    /// TTL or hop limit. For transmission, [`Self::DEFAULT`] selects the socket's setting.
    pub ttl: u16,
    /// UDP_SEGMENT: if not 0, the payload consists of several datagrams of this size; the last may
    /// be shorter.
    pub segment_size: u16,
    /// Reserved, 0.
    pub reserved: u16,
    /// Number of datagrams dropped before this one because the socket's queue was full
    /// (SO_RXQ_OVFL); 0 in transmission.
    pub drops: u64,
}

impl DatagramHeader {
    /// Value of `tos` and `ttl` that selects the socket's setting.
    pub const DEFAULT: u16 = 0xffff;
}

// SAFETY: integers only; the sizes asserted in `mod.rs` leave no padding.
unsafe impl Plain for RawAddr {}
// SAFETY: integers only; the sizes asserted in `mod.rs` leave no padding.
unsafe impl Plain for AcceptRecord {}
// SAFETY: integers only; the sizes asserted in `mod.rs` leave no padding.
unsafe impl Plain for DatagramHeader {}
