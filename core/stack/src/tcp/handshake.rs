//! Connections that are not established yet: the SYN cache, and SYNs that wait for a decision of
//! the owner.
//!
//! Neither has buffers. Each listener has a list of its half-open connections, oldest first. A
//! listener may have as many as there are free places for all listeners. Beyond that, a SYN is
//! answered with a cookie (`passive/cookie`). A flood therefore takes no places from other
//! listeners, and clients of the flooded listener still connect.
//!
//! If cookies are off, or the peer cannot get one, the SYN replaces the oldest entry of its
//! listener. If the oldest entry had no time to answer
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

/// Half-open connection, an entry of the SYN cache.
#[derive(Debug)]
pub(crate) struct HalfOpenFlow {
    pub flow: Flow,
    pub half_open: HalfOpen,
    pub iface: IfaceId,
    /// Whether a place in the accept queue is reserved
    /// ([`ListeningSocket::promised`](crate::tcp::listener::ListeningSocket)).
    pub has_place: bool,
    /// Whether the SYN-ACK gives the peer a cookie (RFC 7413).
    pub gives_cookie: bool,
    /// Headers of the SYN (TCP_SAVE_SYN).
    pub saved_syn: Option<Box<[u8]>>,
    /// Arrival time of the first SYN. A retransmitted SYN does not change the position in the list.
    pub since: Instant,
    pub timer: TimerId,
    pub parent: HandshakeParent,
}

/// Socket that owns a half-open connection, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeParent {
    /// A listener; the connection becomes a child.
    Listener(u32),
    /// A socket that was accepted early, which becomes the connection.
    EarlyAccept(u32),
}

/// A SYN on an any-address interface that waits for a decision.
#[derive(Debug)]
pub(crate) struct UndecidedSyn {
    pub flow: Flow,
    pub syn: Segment,
    pub iface: IfaceId,
    pub expires: Instant,
    /// Highest sequence number used by an old connection between the same ports.
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
    /// Pending SYNs, by the arrival time of the latest copy. All wait equally long from then on, so
    /// the front expires first.
    pub pending_line: List,
    /// Headers of the SYNs of children (TCP_SAVED_SYN), by socket index.
    pub saved_syns: BTreeMap<u32, Box<[u8]>>,
}

impl Handshakes {
    /// Returns whether there is a place among `max` for another half-open connection of the
    /// listener, possibly by replacing one.
    pub fn has_place(&self, now: Instant, listener: &ListeningSocket, max: usize) -> bool {
        self.has_share(listener, max) || self.displaceable(now, listener).is_some()
    }

    /// Returns whether a listener has fewer half-open connections than there are free places for
    /// all listeners. As a result half of the cache stays free if one listener is flooded, and a
    /// third with two. See Choudhury and Hahne, "Dynamic queue length thresholds", 1998.
    pub fn has_share(&self, listener: &ListeningSocket, max: usize) -> bool {
        listener.half_open.len() < max.saturating_sub(self.half_open.len())
    }

    /// Returns the listener's oldest half-open connection, if its peer has had time to answer. A
    /// younger one may belong to a client with a long round-trip time, whose answer would find no
    /// connection. The new SYN is dropped instead, and its sender retransmits it.
    pub fn displaceable(&self, now: Instant, listener: &ListeningSocket) -> Option<u32> {
        let oldest = listener.half_open.front()?;
        let entry = self.half_open.get(oldest)?;
        (entry.since + HALF_OPEN_PATIENCE <= now).then_some(oldest)
    }
}

/// Headers of a packet, stored for quoting in an ICMP error.
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
    /// Copies the bytes from the IP header to the end of the transport header. `header_len` is the
    /// length of the transport header.
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

    /// Returns the headers, starting with the IP header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns fields of the IP header.
    pub fn fields(&self) -> ReceivedFields {
        ReceivedFields { ttl: self.ttl, tos: self.tos }
    }

    /// Recreates the packet as received, in the buffer of `packet`, which must be empty.
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
