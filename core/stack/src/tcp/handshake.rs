//! Connections that are not established yet: the SYN cache, and SYNs that wait for the owner's
//! decision.
//!
//! Neither has buffers. Half-open connections stand in the line of their listener, oldest first. A
//! listener may have as many as there are places left for all others. Beyond that a new SYN
//! displaces the oldest of its listener if that one had time to answer
//! ([`HALF_OPEN_PATIENCE`](crate::limits::HALF_OPEN_PATIENCE)), and is dropped if not.
//!
//! A flood therefore takes no places from other listeners. Clients of the flooded one fail only if
//! their round trip is longer than the flood needs to fill its places.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::{HalfOpen, Instant, Segment, SeqNum};

use crate::net::{IfaceId, Local};
use crate::tables::flow::Flow;
use crate::tables::slab::{List, Queue};
use crate::tables::timer::TimerId;

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

/// Connections that are not established, and what their children keep of them.
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
