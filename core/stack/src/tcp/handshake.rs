//! Connections that are not established yet: half-open ones in the SYN cache, and SYNs that the
//! owner of the stack must accept or refuse.
//!
//! Neither has buffers. Each listener has a list of its half-open connections, oldest first. A
//! listener may have as many as there are free places for all listeners. Beyond that, a SYN is
//! answered with a cookie (`passive/cookie`). A flood of SYNs therefore takes no places from other
//! listeners, and clients of the flooded listener can still connect.
//!
//! If SYN cookies are disabled, or cannot be used for a peer, the SYN replaces the oldest entry of
//! its listener. If the peer of the oldest entry had no time to answer
//! ([`HALF_OPEN_PATIENCE`](crate::limits::HALF_OPEN_PATIENCE)), the SYN is dropped.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::{HalfOpen, Instant, Segment, SeqNum};

use crate::limits::HALF_OPEN_PATIENCE;
use crate::net::{IfaceId, Local};
use crate::received::ReceivedFields;
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};
use crate::tables::timer::TimerId;
use crate::tcp::listener::ListeningSocket;

/// A half-open connection, which is an entry of the SYN cache.
#[derive(Debug)]
pub(crate) struct HalfOpenFlow {
    pub flow: Flow,
    pub half_open: HalfOpen,
    pub iface: IfaceId,
    /// Whether a place in the listener's accept queue is reserved for the connection
    /// ([`ListeningSocket::promised`](crate::tcp::listener::ListeningSocket)).
    pub has_place: bool,
    /// Whether the SYN-ACK contains a Fast Open cookie for the peer (RFC 7413).
    pub gives_cookie: bool,
    /// Headers of the SYN; `None` unless the listener has TCP_SAVE_SYN.
    pub saved_syn: Option<Box<[u8]>>,
    /// Time at which the first SYN arrived. A retransmitted SYN does not change the entry's
    /// position in the list.
    pub since: Instant,
    pub timer: TimerId,
    pub parent: HandshakeParent,
}

/// The socket to which a half-open connection belongs, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeParent {
    /// A listener, which accepts the connection after the handshake.
    Listener(u32),
    /// A socket that already exists for the connection, because its owner accepted the SYN before
    /// the handshake.
    EarlyAccept(u32),
}

/// A SYN that waits until the owner of the stack accepts or refuses it. The SYN arrived on an
/// interface that accepts packets to any address.
#[derive(Debug)]
pub(crate) struct UndecidedSyn {
    pub flow: Flow,
    pub syn: Segment,
    pub iface: IfaceId,
    pub expires: Instant,
    /// Highest sequence number that an earlier connection with the same addresses and ports has
    /// used.
    pub iss_min: Option<SeqNum>,
    pub quote: Quote,
}

/// Tables of connections whose handshake is not complete.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    pub half_open: Queue<HalfOpenFlow>,
    /// Half-open connections whose SYN the owner of the stack has accepted. Each of them already
    /// has a socket.
    pub early: List,
    pub pending: Queue<UndecidedSyn>,
    /// SYNs that the owner of the stack has neither accepted nor refused, in the order in which
    /// their last copy arrived. All have the same timeout from that time on, so the first SYN in
    /// the list expires first.
    pub pending_line: List,
    /// Headers of the SYNs of accepted connections (TCP_SAVED_SYN), by the index of the socket.
    pub saved_syns: BTreeMap<u32, Box<[u8]>>,
}

impl Handshakes {
    /// Returns whether the SYN cache has a place for another half-open connection of the listener.
    /// If the cache is full, a place can be made by evicting an older connection. `max` is the size
    /// of the cache.
    pub fn has_place(&self, now: Instant, listener: &ListeningSocket, max: usize) -> bool {
        self.has_share(listener, max) || self.displaceable(now, listener).is_some()
    }

    /// Returns whether a listener has fewer half-open connections than there are free places in the
    /// SYN cache. If one listener is flooded, half of the cache therefore remains free, and with
    /// two a third. See Choudhury and Hahne, "Dynamic queue length thresholds", 1998.
    pub fn has_share(&self, listener: &ListeningSocket, max: usize) -> bool {
        listener.half_open.len() < max.saturating_sub(self.half_open.len())
    }

    /// Returns the listener's oldest half-open connection, if its peer has had time to answer. A
    /// more recent one must not be evicted, because its client may have a long round-trip time. If
    /// this returns `None`, the new SYN is dropped, and its sender retransmits it.
    pub fn displaceable(&self, now: Instant, listener: &ListeningSocket) -> Option<u32> {
        let oldest = listener.half_open.front()?;
        let entry = self.half_open.get(oldest)?;
        (entry.since + HALF_OPEN_PATIENCE <= now).then_some(oldest)
    }
}

/// Headers of a received packet, which are stored to quote them in an ICMP error.
#[derive(Debug)]
pub(crate) struct Quote {
    bytes: Box<[u8]>,
    src: IpAddr,
    dst: IpAddr,
    iface: IfaceId,
    protocol: u8,
    ttl: u8,
    tos: u8,
    offset: usize,
}

impl Quote {
    /// Copies the headers of a packet, from the IP header to the end of the transport header.
    /// `header_len` is the length of the transport header in bytes.
    pub fn new(local: &Local, header_len: usize) -> Self {
        let end = local.offset + header_len;
        let bytes = local.packet.linear().get(local.ip_offset..end).unwrap_or(&[]);
        Self {
            bytes: bytes.into(),
            src: local.src,
            dst: local.dst,
            iface: local.iface,
            protocol: local.protocol,
            ttl: local.ttl,
            tos: local.tos,
            offset: local.offset - local.ip_offset,
        }
    }

    /// Returns the stored headers, beginning with the IP header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the TTL and the traffic class from the IP header.
    pub fn fields(&self) -> ReceivedFields {
        ReceivedFields { ttl: self.ttl, tos: self.tos }
    }

    /// Recreates the packet from the stored headers, in the buffer of `packet`, which must be
    /// empty.
    pub fn restore(&self, mut packet: Packet) -> Local {
        if let Some(to) = packet.push_back(self.bytes.len()) {
            to.copy_from_slice(&self.bytes);
        }
        Local {
            packet,
            iface: self.iface,
            src: self.src,
            dst: self.dst,
            protocol: self.protocol,
            ttl: self.ttl,
            tos: self.tos,
            ip_offset: 0,
            offset: self.offset,
            len: self.bytes.len() - self.offset,
            broadcast_or_multicast: false,
            looped: false,
        }
    }
}
