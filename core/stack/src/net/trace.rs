//! Copies of dropped packets, and the counters of the IP layer.

use super::iface::IfaceId;
use crate::drop::{DropReason, Drops};

/// A copy of a dropped packet, for captures of dropped packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedCopy {
    /// Interface on which the packet arrived, or by which it was to be sent.
    pub iface: IfaceId,
    /// Reason why the packet was dropped.
    pub reason: DropReason,
    /// Time at which the packet arrived, in nanoseconds of the stack's clock; 0 for a packet that
    /// this host sent.
    pub arrival_ns: u64,
    /// Bytes of the packet, from its first header on. For a packet that this host sent, the first
    /// header is the one that was added last before the drop.
    pub bytes: Vec<u8>,
}

/// Counters of the IP layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Counters of the data part: packets received, sent, forwarded and dropped.
    pub data: DataCounters,
    /// Counters of the control part: neighbours, addresses, routers and multicast groups.
    pub control: ControlCounters,
}

impl NetCounters {
    /// Returns the names and values of the counters in a fixed order. The numbers of dropped
    /// packets are not included.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.data.iter().chain(self.control.iter())
    }
}

/// Counters of the data part of the IP layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataCounters {
    /// Packets that were passed to [`Net::receive`](super::Net::receive).
    pub received: u64,
    /// Bytes of the packets in `received`.
    pub received_bytes: u64,
    /// Packets with a transport protocol that were passed to the sockets.
    pub delivered: u64,
    /// Packets to other hosts that were forwarded, or queued until the MAC address of the next hop
    /// is known.
    pub forwarded: u64,
    /// Bytes of the packets in `forwarded`, counted from the IP header on.
    pub forwarded_bytes: u64,
    /// Packets added to an interface's output queue or to the loopback queue.
    pub sent: u64,
    /// Bytes of the packets in `sent`.
    pub sent_bytes: u64,
    /// Packets that were dropped because the output queue of their interface had reached its limit
    /// of bytes.
    pub output_bytes_full: u64,
    /// Packets that were dropped because the output queue of their interface had reached its limit
    /// of packets.
    pub output_packets_full: u64,
    /// Control packets, such as acknowledgments and ARP, that used the reserve of an output queue,
    /// because the queue was full.
    pub output_reserve_used: u64,
    /// Control packets, such as acknowledgments and ARP, that were dropped because the reserve of
    /// the output queue was also full.
    pub output_reserve_full: u64,
    /// Queued packets that were copied, so that the send buffer of a closed socket could be freed.
    pub output_copied: u64,
    /// Packets that were segmented in software, because their device does not support segmentation.
    pub segmented: u64,
    /// Packets that were sent in fragments.
    pub fragmented: u64,
    /// Fragments of IP packets received.
    pub fragments_received: u64,
    /// Packets that were reassembled from fragments.
    pub reassembled: u64,
    /// Incomplete datagrams dropped because their source had reached its limit of memory or
    /// datagrams.
    pub reassembly_source_full: u64,
    /// Incomplete datagrams dropped because all sources together had reached the limit of memory or
    /// datagrams.
    pub reassembly_full: u64,
    /// Datagrams dropped because they had more fragments than
    /// [`FRAGMENTS_MAX`](super::limits::FRAGMENTS_MAX).
    pub fragments_too_many: u64,
    /// ICMP errors sent.
    pub icmp_errors_sent: u64,
    /// ICMP errors not sent because of the rate limit.
    pub icmp_errors_limited: u64,
    /// Path MTU reports (ICMP) not sent because of their separate rate limit.
    pub icmp_too_big_limited: u64,
    /// ICMP errors not sent because of the rate limit for one host or IPv6 link.
    pub icmp_errors_limited_host: u64,
    /// ICMP redirects sent.
    pub redirects_sent: u64,
    /// ICMP redirects that were not sent, because the same host had already received several.
    pub redirects_limited: u64,
    /// ICMP errors received about packets that this host sent.
    pub icmp_errors_received: u64,
    /// ICMP echo requests that this host answered.
    pub echoes_answered: u64,
    /// Next hops that were evicted with their link header because the next-hop table was full.
    pub next_hops_displaced: u64,
    /// Reports to the control part of the IP layer (next hops in use, path MTUs) that were lost
    /// because the queue was full.
    pub neighbor_notices_full: u64,
    /// Path MTUs that were not sent to the other shards (stacks) of this host because of the rate
    /// limit.
    pub path_mtus_untold: u64,
    /// Packets that a rule should have logged, but for which the log was full.
    pub rules_unlogged: u64,
    /// Numbers of dropped packets, by reason.
    pub drops: Drops,
}

/// Lists counters with their names. The pattern names all fields, so the compiler reports a new
/// field that is in neither list.
macro_rules! named_counters {
    ($counters:expr, { $($name:ident,)* } except { $($other:ident)? }) => {{
        let Self { $($name,)* $($other: _)? } = *$counters;
        [$((stringify!($name), $name)),*]
    }};
}

impl DataCounters {
    /// Returns the names and values of the counters in a fixed order, without `drops`.
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

/// Counters of the packets that an interface's device has received and sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets received from the device. A packet into which GRO merged several counts once.
    pub rx_packets: u64,
    /// Bytes of the packets in `rx_packets`, with their link headers.
    pub rx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets that the device has accepted for sending, counted as on the wire: each segment
    /// counts once.
    pub tx_packets: u64,
    /// Bytes of the packets in `tx_packets`, with their link headers.
    pub tx_bytes: u64,
    /// Packets that were dropped before the device accepted them.
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

/// Counters of the control part of the IP layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// ARP requests and neighbour solicitations sent.
    pub solicits_sent: u64,
    /// Neighbours that did not answer solicitations, and therefore count as unreachable.
    pub neighbors_failed: u64,
    /// Neighbours evicted because a neighbour table was full.
    pub neighbors_displaced: u64,
    /// Addresses that are not used, because duplicate address detection found another host with the
    /// same address.
    pub duplicate_addresses: u64,
    /// ARP packets in which another host claimed an IPv4 address of this host.
    pub address_conflicts: u64,
    /// Addresses that were not generated from an advertised prefix, because the interface had the
    /// maximum number of addresses.
    pub addresses_refused: u64,
    /// Routers evicted because the interface had learned the maximum number of routers.
    pub routers_displaced: u64,
    /// Advertised routes that were not added, because a limit of routes or routers was reached.
    pub router_routes_refused: u64,
    /// Advertised prefixes evicted because the interface had learned the maximum number of
    /// prefixes.
    pub prefixes_displaced: u64,
    /// Multicast group changes without a report of their own, because too many reports were
    /// scheduled. A single report about all groups replaced them.
    pub group_reports_full: u64,
}

impl ControlCounters {
    /// Returns the counters' names and values in a fixed order.
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
