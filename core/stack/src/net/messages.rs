//! Messages between the control part and the data parts of the IP layer, other than configuration
//! snapshots. Shards other than the first send and receive them in batches.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::iface::IfaceId;
use super::received::Local;
use crate::drop::DropReason;

/// Identifies a neighbour or next hop: interface and IP address.
pub(crate) type HopKey = (IfaceId, IpAddr);

/// Set of data parts of a host's IP layer, with a bit for each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts(u16);

impl Parts {
    /// Set with only the data part of the first shard, which runs the control part and gets all
    /// updates.
    pub(crate) const FIRST: Self = Self(1);
    /// The empty set.
    pub(crate) const NONE: Self = Self(0);
    /// The data parts of all shards except the first.
    pub(crate) const OTHERS: Self = Self(!Self::FIRST.0);

    /// Returns the set with only the data part of shard `n`, which must be below 16.
    pub(crate) fn one(n: u8) -> Self {
        Self(1 << n)
    }

    /// Returns whether the set contains the data part of shard `n`.
    pub(crate) fn has(self, n: usize) -> bool {
        self.0 >> n & 1 != 0
    }

    /// Returns the union of two sets.
    pub(crate) fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Returns the shards in `self` that are not in `less`.
    pub(crate) fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }
}

/// Report of a shard to the first shard: about a next hop for the control part of the IP layer, or
/// about a path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataReport {
    /// A packet was sent to this neighbour, so the neighbour is in use.
    Used(HopKey),
    /// TCP made progress through this neighbour (RFC 4861 §7.3.1), while packets were sent to the
    /// MAC address `mac`. The report is ignored if the control part of the IP layer now has a
    /// different MAC address.
    Confirmed { key: HopKey, mac: MacAddr },
    /// A packet used another route because this router has failed. The router must be probed now.
    Avoided(HopKey),
    /// A socket accepted an ICMP report that the path MTU for datagrams is `mtu` bytes. `way` is
    /// the path: interface and destination.
    TooBig { way: HopKey, mtu: u32 },
}

/// A received packet for the control part of the IP layer, such as ARP. If it is an IP packet, its
/// addresses are valid.
#[derive(Debug)]
pub(crate) enum ControlPacket {
    /// An ARP packet.
    Arp {
        /// Interface on which the packet arrived.
        iface: IfaceId,
        packet: Packet,
        at: usize,
    },
    /// A neighbour discovery message with a valid checksum.
    Discovery(Local),
    /// An MLD message with a valid checksum.
    Listeners(Local),
    /// An IGMP message.
    Igmp(Local),
}

impl ControlPacket {
    /// Returns the interface on which the packet arrived.
    pub(crate) fn iface(&self) -> IfaceId {
        match self {
            Self::Arp { iface, .. } => *iface,
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => local.iface,
        }
    }

    /// Returns the packet.
    pub(crate) fn packet(&self) -> &Packet {
        match self {
            Self::Arp { packet, .. } => packet,
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => &local.packet,
        }
    }

    /// Returns the packet for modification.
    pub(crate) fn packet_mut(&mut self) -> &mut Packet {
        match self {
            Self::Arp { packet, .. } => packet,
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => {
                &mut local.packet
            }
        }
    }

    /// Returns the packet, and the interface on which it arrived.
    pub(crate) fn into_packet(self) -> (IfaceId, Packet) {
        match self {
            Self::Arp { iface, packet, .. } => (iface, packet),
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => {
                (local.iface, local.packet)
            }
        }
    }
}

/// A command of the control part to the data parts.
#[derive(Debug)]
pub(super) enum DataCommand {
    /// Send a complete frame, which includes the link header.
    Frame { iface: IfaceId, packet: Packet },
    /// Send an IP packet of at most `mtu` bytes to a multicast group or to a neighbour.
    Packet { to: HopKey, packet: Packet, mtu: u32 },
    /// Drop and count this received packet, because the control part of the IP layer rejected it.
    Drop { iface: IfaceId, packet: Packet, reason: DropReason },
    /// Send an update about a neighbour to the data parts `to`, which use the neighbour.
    News { to: Parts, news: NeighborUpdate },
}

/// An update about a neighbour or a path MTU, for the data parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighborUpdate {
    /// The neighbour has the MAC address `mac`. The shard must report the first packet that it
    /// sends to the neighbour at `tell_at` or later.
    Known { key: HopKey, mac: MacAddr, tell_at: Instant },
    /// The neighbour does not answer.
    Failed(HopKey),
    /// The entry of the neighbour was evicted or removed, so the next packet to it needs a
    /// solicitation.
    Forgotten(HopKey),
    /// Updates were lost because a queue was full. All MAC addresses count as unknown again.
    AllForgotten,
    /// The path MTU for datagrams is `mtu` bytes. `way` is the path: interface and destination.
    TooBig { way: HopKey, mtu: u32 },
}

/// A message from another shard to the first shard, which runs the control part of the IP layer.
#[derive(Debug)]
pub(crate) enum ToControl {
    Punt(Box<ControlPacket>),
    Notice(DataReport),
}
