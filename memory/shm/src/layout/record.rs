//! Addresses, connections and datagrams as they lie in slots, FIFOs and requests.

use crate::atomic::{AtomicU64, Ordering};

/// Plain structs of shared memory: `repr(C)`, no padding, every bit pattern valid.
///
/// # Safety
/// As said: integers (or structs of them) only, no padding, `repr(C)`.
pub unsafe trait Plain: Copy + Default {
    /// Its bytes.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: no padding (the trait's contract), so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// From bytes; shorter input leaves the rest zero, longer input is ignored.
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut out = Self::default();
        let n = bytes.len().min(size_of::<Self>());
        // SAFETY: every bit pattern is valid (the trait's contract); n fits both.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut out).cast(), n);
        }
        out
    }
}

/// An address and port as it lies in shared memory. Family 0: not set.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawAddr {
    /// AF_INET (2), AF_INET6 (10), or 0.
    pub family: u16,
    /// Host byte order.
    pub port: u16,
    /// IPv6 scope (interface index).
    pub scope: u32,
    /// Network byte order; IPv4 in the first four.
    pub ip: [u8; 16],
}

/// A [`RawAddr`] that may be written while it is read: three words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SharedAddr {
    words: [AtomicU64; 3],
}

impl SharedAddr {
    /// Reads it. A torn read is possible only while the engine writes, which it does before the
    /// socket reaches the state that makes the address interesting.
    pub fn load(&self) -> RawAddr {
        let mut bytes = [0; 24];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        RawAddr::from_bytes(&bytes)
    }

    /// The port alone; 0 before it is set.
    #[inline]
    pub fn port(&self) -> u16 {
        let bytes = self.words[0].load(Ordering::Acquire).to_ne_bytes();
        u16::from_ne_bytes([bytes[2], bytes[3]])
    }

    /// Writes it.
    pub fn store(&self, addr: &RawAddr) {
        let bytes = addr.to_bytes();
        for (chunk, word) in bytes.chunks_exact(8).zip(&self.words) {
            let value = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
            word.store(value, Ordering::Release);
        }
    }
}

impl RawAddr {
    /// From a socket address. IPv4-mapped IPv6 stays IPv6: the socket's family decides elsewhere.
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

    /// As a socket address; None when the family is neither.
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

/// A finished connection, as it lies in a listener's receive FIFO: 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptRecord {
    /// Slot of the new connection.
    pub slot: u32,
    /// Its generation.
    pub generation: u32,
    /// Address of the client.
    pub remote: RawAddr,
    /// To which address.
    pub local: RawAddr,
    /// 0; it fills the record up to 64 bytes.
    pub reserved: u64,
}

/// A datagram in a FIFO: this header, `len` bytes, padded to a multiple of 8.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramHeader {
    /// Payload bytes that follow. At most 65535.
    pub len: u32,
    /// Received on / to be sent through this interface; 0: any.
    pub ifindex: u32,
    /// Received from / to be sent to (family 0: the connected address).
    pub remote: RawAddr,
    /// Received at / to be sent from (family 0: the socket's).
    pub local: RawAddr,
    /// Unix time of arrival in ns.
    pub time_ns: u64,
    /// TOS or traffic class; [`Self::DEFAULT`] in transmission: the socket's.
    pub tos: u16,
    /// TTL or hop limit; [`Self::DEFAULT`] in transmission: the socket's.
    pub ttl: u16,
    /// UDP_SEGMENT: the payload is several datagrams of this size (the last may be shorter);
    /// 0: one datagram.
    pub segment_size: u16,
    /// 0.
    pub reserved: u16,
    /// Datagrams that were lost before it because the socket's queue was full (SO_RXQ_OVFL); 0 in
    /// transmission.
    pub drops: u64,
}

impl DatagramHeader {
    /// Value of `tos` and `ttl` that asks for nothing.
    pub const DEFAULT: u16 = 0xffff;
}

// SAFETY: integers only, sizes asserted in `mod.rs` to leave no padding.
unsafe impl Plain for RawAddr {}
// SAFETY: as above.
unsafe impl Plain for AcceptRecord {}
// SAFETY: as above.
unsafe impl Plain for DatagramHeader {}
