//! Messages between control and the data parts, besides snapshots. Shards other than the first
//! exchange theirs in batches.

use core::net::IpAddr;

use towpath_pool::Packet;
use towpath_tcp::Instant;
use towpath_wire::MacAddr;

use super::iface::IfaceId;
use super::received::Local;
use crate::drop::DropReason;

/// A neighbour: its address on a link.
pub(crate) type HopKey = (IfaceId, IpAddr);

/// Data parts of a host, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts(u16);

impl Parts {
    /// The part that runs control, which gets all updates.
    pub(crate) const FIRST: Self = Self(1);
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// All the others.
    pub(crate) const OTHERS: Self = Self(!Self::FIRST.0);

    /// The one of the shard `n`, of at most 16.
    pub(crate) fn one(n: u8) -> Self {
        Self(1 << n)
    }

    /// Whether that of the shard `n` is among them.
    pub(crate) fn has(self, n: usize) -> bool {
        self.0 >> n & 1 != 0
    }

    /// Union of both sets.
    pub(crate) fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The parts of `self` that are not in `less`.
    pub(crate) fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }
}

/// Event of a next hop for control, or a path MTU for the first data part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataReport {
    /// A packet goes to the neighbour.
    Used(HopKey),
    /// The transport made progress beyond it (RFC 4861 §7.3.1), while packets went to `mac`.
    /// Confirms nothing if control knows another MAC address by now.
    Confirmed { key: HopKey, mac: MacAddr },
    /// A packet went another way because it, a router, did not answer, and it is time to ask it
    /// again.
    Avoided(HopKey),
    /// Datagrams that leave by this way get through up to this MTU only, by a report that a socket
    /// believed.
    TooBig { way: HopKey, mtu: u32 },
}

/// A packet that came in, with valid IP addresses if it is one of IP, and is for control.
#[derive(Debug)]
pub(crate) enum ControlPacket {
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

impl ControlPacket {
    /// The packet.
    pub(crate) fn packet(&self) -> &Packet {
        match self {
            Self::Arp { packet, .. } => packet,
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => &local.packet,
        }
    }

    /// The same, to change it.
    pub(crate) fn packet_mut(&mut self) -> &mut Packet {
        match self {
            Self::Arp { packet, .. } => packet,
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => {
                &mut local.packet
            }
        }
    }

    /// The packet, and where it came in.
    pub(crate) fn into_packet(self) -> (IfaceId, Packet) {
        match self {
            Self::Arp { iface, packet, .. } => (iface, packet),
            Self::Discovery(local) | Self::Listeners(local) | Self::Igmp(local) => {
                (local.iface, local.packet)
            }
        }
    }
}

/// Order of control to the data parts.
#[derive(Debug)]
pub(super) enum DataCommand {
    /// Send a frame, link header and all.
    Frame { iface: IfaceId, packet: Packet },
    /// Send an IP packet of at most `mtu` bytes to a group or a neighbour.
    Packet { to: HopKey, packet: Packet, mtu: u32 },
    /// Drop a punted packet that was of no use.
    Drop { iface: IfaceId, packet: Packet, reason: DropReason },
    /// News of a neighbour for the parts `to`, its users.
    News { to: Parts, news: NeighborUpdate },
}

/// News about a neighbour, or about a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighborUpdate {
    /// The neighbour is at `mac`. Its next use at `tell_at` or later is to be reported.
    Known { key: HopKey, mac: MacAddr, tell_at: Instant },
    /// The neighbour does not answer.
    Failed(HopKey),
    /// The neighbour was displaced in its table, so the next packet has to ask for it again.
    Forgotten(HopKey),
    /// News were lost for want of room: every neighbour has to be asked for again.
    AllForgotten,
    /// Datagrams that leave by this way get through up to this MTU only.
    TooBig { way: HopKey, mtu: u32 },
}

/// Message of a shard other than the first to control, or to the first data part.
#[derive(Debug)]
pub(crate) enum ToControl {
    Punt(Box<ControlPacket>),
    Notice(DataReport),
}
