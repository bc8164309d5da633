//! Messages between control and the data parts, in addition to snapshots. Shards other than the
//! first exchange them in batches.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::iface::IfaceId;
use super::received::Local;
use crate::drop::DropReason;

/// Key of a neighbour or next hop: interface and IP address.
pub(crate) type HopKey = (IfaceId, IpAddr);

/// Set of data parts of a host, with a bit for each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts(u16);

impl Parts {
    /// Data part of the first shard, which runs control and gets all updates.
    pub(crate) const FIRST: Self = Self(1);
    /// The empty set.
    pub(crate) const NONE: Self = Self(0);
    /// All data parts except that of the first shard.
    pub(crate) const OTHERS: Self = Self(!Self::FIRST.0);

    /// Returns the set with only the data part of shard `n`, which must be below 16.
    pub(crate) fn one(n: u8) -> Self {
        Self(1 << n)
    }

    /// Returns whether the set has the data part of shard `n`.
    pub(crate) fn has(self, n: usize) -> bool {
        self.0 >> n & 1 != 0
    }

    /// Returns the union of both sets.
    pub(crate) fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Returns the parts of `self` that are not in `less`.
    pub(crate) fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }
}

/// Report of a data part: about a next hop to control, or a path MTU to the first data part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataReport {
    /// A packet is sent to the neighbour.
    Used(HopKey),
    /// The transport made progress through the neighbour (RFC 4861 §7.3.1), while packets were sent
    /// to `mac`. Ignored if control has another MAC address meanwhile.
    Confirmed { key: HopKey, mac: MacAddr },
    /// A packet avoided this router, which failed and is due for a probe.
    Avoided(HopKey),
    /// A socket accepted an ICMP report that the path MTU of datagrams is `mtu`. `way` is interface
    /// and destination.
    TooBig { way: HopKey, mtu: u32 },
}

/// Received packet for control. If it is an IP packet, its addresses are valid.
#[derive(Debug)]
pub(crate) enum ControlPacket {
    /// ARP packet.
    Arp {
        /// Interface that the packet arrived on.
        iface: IfaceId,
        packet: Packet,
        at: usize,
    },
    /// Neighbour discovery message with a valid checksum.
    Discovery(Local),
    /// Multicast listener discovery message with a valid checksum.
    Listeners(Local),
    /// IGMP message.
    Igmp(Local),
}

impl ControlPacket {
    /// Returns the interface that the packet arrived on.
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

    /// Returns the interface that the packet arrived on, and the packet.
    pub(crate) fn into_packet(self) -> (IfaceId, Packet) {
        match self {
            Self::Arp { iface, packet, .. } => (iface, packet),
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => {
                (local.iface, local.packet)
            }
        }
    }
}

/// Command of control to the data parts.
#[derive(Debug)]
pub(super) enum DataCommand {
    /// Send a complete frame, with link header.
    Frame { iface: IfaceId, packet: Packet },
    /// Send an IP packet of at most `mtu` bytes to a group or a neighbour.
    Packet { to: HopKey, packet: Packet, mtu: u32 },
    /// Drop and count a received packet that control rejected.
    Drop { iface: IfaceId, packet: Packet, reason: DropReason },
    /// Pass an update to the data parts `to`, which use the neighbour.
    News { to: Parts, news: NeighborUpdate },
}

/// Update about a neighbour, or about a path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighborUpdate {
    /// The neighbour has the MAC address `mac`. Its next use at `tell_at` or later must be
    /// reported.
    Known { key: HopKey, mac: MacAddr, tell_at: Instant },
    /// The neighbour does not answer.
    Failed(HopKey),
    /// The neighbour's entry was evicted or removed, so the next packet needs a solicitation.
    Forgotten(HopKey),
    /// Updates were lost because a queue was full, so all MAC addresses are unknown again.
    AllForgotten,
    /// The path MTU of datagrams is `mtu`. `way` is interface and destination.
    TooBig { way: HopKey, mtu: u32 },
}

/// Message of another shard to the first shard: to control or to its data part.
#[derive(Debug)]
pub(crate) enum ToControl {
    Punt(Box<ControlPacket>),
    Notice(DataReport),
}
