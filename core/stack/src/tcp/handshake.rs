//! Connections that are not established yet: the SYN cache, and SYNs that wait for the owner's
//! decision.
//!
//! Neither has buffers. Half-open connections stand in the line of their listener, oldest first. A
//! listener may have as many as there are places left for all listeners. Beyond that a new SYN
//! displaces the oldest of its listener if that one had time to answer
//! ([`HALF_OPEN_PATIENCE`](crate::limits::HALF_OPEN_PATIENCE)), and is dropped if not.
//!
//! A flood therefore takes no places from other listeners. Clients of the flooded one fail only if
//! their round trip is longer than the flood needs to fill its places.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::{HalfOpen, Instant, Segment, SeqNum};

use crate::limits::HALF_OPEN_PATIENCE;
use crate::net::{IfaceId, Local};
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};
use crate::tables::timer::TimerId;
use crate::tcp::listener::ListeningSocket;

/// An entry of the SYN cache.
#[derive(Debug)]
pub(crate) struct HalfOpenFlow {
    pub flow: Flow,
    pub half_open: HalfOpen,
    pub iface: IfaceId,
    /// Whether a place in the accept queue is promised to it
    /// ([`Listener::promised`](crate::tcp::listener::Listener)).
    pub has_place: bool,
    /// The SYN-ACK gives the peer a cookie (RFC 7413).
    pub gives_cookie: bool,
    /// The headers of its SYN (TCP_SAVE_SYN).
    pub saved_syn: Option<Box<[u8]>>,
    /// When its SYN came. A repeated one keeps the place in the line.
    pub since: Instant,
    pub timer: TimerId,
    pub parent: HandshakeParent,
}

/// Socket for which a connection is half-open, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeParent {
    /// A listener's, which gets a child.
    Listener(u32),
    /// A socket that was accepted early, which becomes the connection itself.
    EarlyAccept(u32),
}

/// A SYN on an any-address interface.
#[derive(Debug)]
pub(crate) struct UndecidedSyn {
    pub flow: Flow,
    pub syn: Segment,
    pub iface: IfaceId,
    pub expires: Instant,
    /// An old connection between the same ports used sequence numbers up to there.
    pub iss_min: Option<SeqNum>,
    pub quote: Quote,
}

/// Tables of connections that are not established.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    pub half_open: Queue<HalfOpenFlow>,
    /// Half-open connections of sockets that were accepted early.
    pub early: List,
    pub pending: Queue<UndecidedSyn>,
    /// All pending ones, by when their SYN came last: all wait equally long from then on, so the
    /// front expires first.
    pub pending_line: List,
    /// Headers of the SYNs of children (TCP_SAVED_SYN), by the index of their sockets.
    pub saved_syns: BTreeMap<u32, Box<[u8]>>,
}

impl Handshakes {
    /// Whether one more half-open connection of the listener has a place among `max`, or may have
    /// another's.
    pub fn has_place(&self, now: Instant, listener: &ListeningSocket, max: usize) -> bool {
        self.has_share(listener, max) || self.displaceable(now, listener).is_some()
    }

    /// Whether a listener has fewer half-open connections than places are left for all listeners.
    /// Hence half of the cache is free when one listener is flooded, a third with two (Choudhury
    /// and Hahne, "Dynamic queue length thresholds", 1998).
    pub fn has_share(&self, listener: &ListeningSocket, max: usize) -> bool {
        listener.half_open.len() < max.saturating_sub(self.half_open.len())
    }

    /// The listener's oldest half-open connection, if its peer has had time for an answer. A
    /// younger one may be part of a flood, or a client's with a long round trip, whose answer would
    /// find no connection. The new SYN is dropped instead, and its sender repeats it.
    pub fn displaceable(&self, now: Instant, listener: &ListeningSocket) -> Option<u32> {
        let oldest = listener.half_open.front()?;
        let entry = self.half_open.get(oldest)?;
        (entry.since + HALF_OPEN_PATIENCE <= now).then_some(oldest)
    }
}

/// The headers of a packet, kept to be quoted in an ICMP error.
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
    /// From the IP header to the end of the transport header; `header_len` is that of the latter.
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

    /// The headers, from the IP header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As it was received, in the buffer of `packet`, which is empty.
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
