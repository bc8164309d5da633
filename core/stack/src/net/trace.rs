//! Trace of dropped packets, and counters.

use super::iface::IfaceId;
use crate::drop::{DropReason, Drops};

/// A copy of a dropped packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedCopy {
    /// Where it came from or was to go.
    pub iface: IfaceId,
    /// Why it was dropped.
    pub reason: DropReason,
    /// When it arrived, ns; 0 for packets of our own.
    pub arrival_ns: u64,
    /// Its bytes from the first of the link header, or of the headers it had got so far.
    pub bytes: Vec<u8>,
}

/// Counters of the IP layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Counters of packets in and out.
    pub data: DataCounters,
    /// Counters of control messages on the links.
    pub control: ControlCounters,
}

impl NetCounters {
    /// Names and values in a fixed order, drops excepted.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.data.iter().chain(self.control.iter())
    }
}

/// Counters of the data part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataCounters {
    /// Packets handed to [`Net::receive`](super::Net::receive).
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Transport packets given to the sockets.
    pub delivered: u64,
    /// Packets to other hosts sent on, or kept until their neighbour is known.
    pub forwarded: u64,
    /// Bytes of them, from the IP header on.
    pub forwarded_bytes: u64,
    /// Packets put into an output or onto the loopback queue.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Packets not taken because their device's queue had as many bytes as it may.
    pub output_bytes_full: u64,
    /// Packets not taken because their device's queue had as many packets as it may.
    pub output_packets_full: u64,
    /// Packets of protocols, taken into the reserve of a full queue.
    pub output_reserve_used: u64,
    /// Packets of protocols, refused because the reserve was full, too.
    pub output_reserve_full: u64,
    /// Packets copied in the queue because too much memory was kept for them alone.
    pub output_copied: u64,
    /// Packets cut by software for a device that cannot.
    pub segmented: u64,
    /// Packets cut into fragments.
    pub fragmented: u64,
    /// Fragments received.
    pub fragments_received: u64,
    /// Packets put together from fragments.
    pub reassembled: u64,
    /// Datagrams in reassembly given up because their source had its share.
    pub reassembly_source_full: u64,
    /// Datagrams in reassembly given up because all sources together had too much.
    pub reassembly_full: u64,
    /// Datagrams in reassembly lost because they were cut into too many fragments.
    pub fragments_too_many: u64,
    /// ICMP errors sent.
    pub icmp_errors_sent: u64,
    /// ICMP errors not sent because of the rate limit.
    pub icmp_errors_limited: u64,
    /// Reports of a path MTU not sent because of their rate limit.
    pub icmp_too_big_limited: u64,
    /// ICMP errors not sent because one host, or link, had its share.
    pub icmp_errors_limited_host: u64,
    /// Hosts told of a better first hop on their link, a time each.
    pub redirects_sent: u64,
    /// Redirects not sent because the host was told already.
    pub redirects_limited: u64,
    /// ICMP errors received about packets of ours.
    pub icmp_errors_received: u64,
    /// Echo requests answered.
    pub echoes_answered: u64,
    /// Next hops whose link header is ready no longer, because others needed their place.
    pub next_hops_displaced: u64,
    /// Notices of neighbours' use and path MTUs for which the first shard had no room.
    pub neighbor_notices_full: u64,
    /// Path MTUs that were not passed on to other shards at once, because there were too many.
    pub path_mtus_untold: u64,
    /// Packets that a rule wanted logged, without room in the log.
    pub rules_unlogged: u64,
    /// Packets dropped, by reason.
    pub drops: Drops,
}

/// Lists counters by name. The pattern is exhaustive, so that a new field is named or excepted.
macro_rules! named_counters {
    ($counters:expr, { $($name:ident,)* } except { $($other:ident)? }) => {{
        let Self { $($name,)* $($other: _)? } = *$counters;
        [$((stringify!($name), $name)),*]
    }};
}

impl DataCounters {
    /// Names and values in a fixed order, drops excepted.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named_counters!(self, {
            received,
            received_bytes,
            delivered,
            forwarded,
            forwarded_bytes,
            sent,
            sent_bytes,
            output_bytes_full,
            output_packets_full,
            output_reserve_used,
            output_reserve_full,
            output_copied,
            segmented,
            fragmented,
            fragments_received,
            reassembled,
            reassembly_source_full,
            reassembly_full,
            fragments_too_many,
            icmp_errors_sent,
            icmp_errors_limited,
            icmp_errors_limited_host,
            icmp_too_big_limited,
            redirects_sent,
            redirects_limited,
            icmp_errors_received,
            echoes_answered,
            next_hops_displaced,
            neighbor_notices_full,
            path_mtus_untold,
            rules_unlogged,
        } except { drops })
        .into_iter()
    }
}

/// Traffic of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets that its device gave, each as one if it was merged of several.
    pub rx_packets: u64,
    /// Bytes of them, with their link headers.
    pub rx_bytes: u64,
    /// Packets that were dropped after they came in.
    pub rx_dropped: u64,
    /// Packets that its device took, as they are on the wire.
    pub tx_packets: u64,
    /// Bytes of them, with their link headers.
    pub tx_bytes: u64,
    /// Packets that were dropped on their way out.
    pub tx_dropped: u64,
}

impl core::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.rx_dropped += other.rx_dropped;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.tx_dropped += other.tx_dropped;
    }
}

/// Counters of the control part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// ARP requests and neighbour solicitations sent.
    pub solicits_sent: u64,
    /// Neighbours that did not answer.
    pub neighbors_failed: u64,
    /// Neighbours forgotten to make room for others.
    pub neighbors_displaced: u64,
    /// Addresses given up because someone else has them.
    pub duplicate_addresses: u64,
    /// Claims of another host to an IPv4 address of this one.
    pub address_conflicts: u64,
    /// Addresses not made of an advertised prefix: the interface has as many as it may.
    pub addresses_refused: u64,
    /// Routers forgotten to make room for others that advertise themselves.
    pub routers_displaced: u64,
    /// Advertised routes not taken: their router has as many as it may.
    pub router_routes_refused: u64,
    /// Advertised prefixes forgotten to make room for others.
    pub prefixes_displaced: u64,
    /// Changes of groups that were not reported one by one, because there were too many.
    pub group_reports_full: u64,
}

impl ControlCounters {
    /// Names and values in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named_counters!(self, {
            solicits_sent,
            neighbors_failed,
            neighbors_displaced,
            duplicate_addresses,
            address_conflicts,
            addresses_refused,
            routers_displaced,
            router_routes_refused,
            prefixes_displaced,
            group_reports_full,
        } except {})
        .into_iter()
    }
}
