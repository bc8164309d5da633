//! What control and the data of a shard tell each other: all that passes between them, besides snapshots.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::iface::IfaceId;
use super::received::Local;
use crate::drop::DropReason;

/// A neighbour: its address on a link.
pub(super) type HopKey = (IfaceId, IpAddr);

/// What data tells control of next hops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// A packet goes to the neighbour.
    Used(HopKey),
    /// The transport heard from beyond it (RFC 4861 §7.3.1), while packets to it went to `mac`. Control may have heard
    /// of another one meanwhile, of which this says nothing.
    Confirmed { key: HopKey, mac: MacAddr },
    /// A packet went another way because it, a router, did not answer, and it is time to ask it again.
    Avoided(HopKey),
}

/// A packet that came in, with valid IP addresses if it is one of IP, and is for control.
#[derive(Debug)]
pub(super) enum Punt {
    /// A packet of ARP, which starts at `at`.
    Arp {
        /// Where it came in.
        iface: IfaceId,
        packet: Packet,
        at: usize,
    },
    /// Neighbour discovery, the checksum of which is right.
    Discovery(Local),
    /// Multicast listener discovery, likewise.
    Listeners(Local),
    /// IGMP.
    Igmp(Local),
}

/// What control tells data.
#[derive(Debug)]
pub(super) enum Order {
    /// Send a frame, link header and all.
    Frame { iface: IfaceId, packet: Packet },
    /// Send an IP packet of at most `mtu` bytes to a group or a neighbour.
    Packet { to: HopKey, packet: Packet, mtu: u32 },
    /// Throw a packet away: what came in was of no use.
    Drop { iface: IfaceId, packet: Packet, reason: DropReason },
    /// Hear of a neighbour.
    News(News),
}

/// What becomes of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It is there. Control wants to hear of the next use at `tell_at` or later.
    Known { key: HopKey, mac: MacAddr, tell_at: Instant },
    /// It does not answer.
    Failed(HopKey),
    /// It had to make room for another one: it has to be asked for again.
    Forgotten(HopKey),
}
