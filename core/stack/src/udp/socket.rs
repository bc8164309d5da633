//! Datagram sockets: UDP sockets and ICMP echo sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use towpath_cbpf::Program;

use crate::host::{BindOptions, DatagramMeta, Family};
use crate::net::{IfaceId, Ip, Route};
use crate::ports::bind_addr::PortProtocol;
use crate::settings::{Classes, HopLimits};
use crate::shards::ShardId;
use crate::tables::flow::Flow;
use crate::tables::slab::NONE;
use crate::udp::lengths::DatagramLengths;

//= https://www.rfc-editor.org/rfc/rfc1112#section-6.1
//# If the
//# upper-layer protocol chooses not to specify a time-to-live, it should
//# default to 1 for all multicast IP datagrams, so that an explicit
//# choice is required to multicast beyond a single network.
const MULTICAST_TTL_DEFAULT: u8 = 1;

/// A UDP socket, or an ICMP echo socket, which has an echo identifier instead of a port.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub echo: bool,
    /// Addresses and ports of the socket and its peer; `None` if the socket is not connected.
    pub peer: Option<Flow>,
    /// Links to the connected sockets with the same addresses and ports.
    pub alike: Alike,
    pub hops: HopLimits,
    pub classes: Classes,
    /// SO_BINDTODEVICE: interface to which sending and receiving are restricted.
    pub device: Option<IfaceId>,
    /// Options that apply if connect or send bind the socket implicitly.
    pub binding: BindOptions,
    /// IP_MULTICAST_TTL: TTL of IPv4 multicast datagrams. With 0 they are not sent to other hosts.
    pub multicast_ttl: u8,
    /// IPV6_MULTICAST_HOPS: hop limit of IPv6 multicast datagrams.
    pub multicast_hops: u8,
    /// Settings for sending IPv4 multicast datagrams.
    pub multicast_v4: MulticastOut,
    /// Settings for sending IPv6 multicast datagrams.
    pub multicast_v6: MulticastOut,
    /// IP_MULTICAST_ALL: whether the socket also receives datagrams to IPv4 multicast groups that
    /// other sockets joined.
    pub multicast_all: bool,
    /// IPV6_MULTICAST_ALL: whether the socket also receives datagrams to IPv6 multicast groups that
    /// other sockets joined.
    pub multicast_all_v6: bool,
    /// SO_BROADCAST: whether the socket may send to broadcast addresses.
    pub broadcast: bool,
    /// SO_NO_CHECK: whether IPv4 datagrams are sent without a checksum.
    pub no_checksum: bool,
    /// IP_RECVERR: whether the socket receives ICMP errors about its IPv4 datagrams.
    pub recv_errors: bool,
    /// IPV6_RECVERR: whether the socket receives ICMP errors about its IPv6 datagrams.
    pub recv_errors_v6: bool,
    /// Maximum lengths of datagrams, and what happens to longer ones.
    pub lengths: DatagramLengths,
    pub memberships: Vec<GroupMembership>,
    /// SO_ATTACH_FILTER: filter program that is applied to received datagrams.
    pub filter: Option<Arc<Program>>,
    /// Shard (stack) of the socket that this entry represents; `None` if the socket is in this
    /// shard.
    pub shadow_of: Option<ShardId>,
    /// Cached route and header fields of the last datagram. `None` after a change of an option or
    /// address on which they depend.
    pub last_target: Option<LastTarget>,
    /// Number of consecutive datagrams that did not match [`Self::last_target`]. The number wraps
    /// around.
    pub went_elsewhere: u8,
}

impl DatagramSocket {
    pub(crate) fn new(echo: bool, family: Family) -> Self {
        Self {
            echo,
            peer: None,
            alike: Alike::default(),
            hops: HopLimits::default(),
            classes: Classes::default(),
            device: None,
            // Linux's ICMP echo sockets share identifiers by default (`INET_PROTOSW_REUSE`).
            binding: BindOptions { reuse_addr: echo, ..BindOptions::default() },
            multicast_ttl: MULTICAST_TTL_DEFAULT,
            multicast_hops: MULTICAST_TTL_DEFAULT,
            multicast_v4: MulticastOut::default(),
            multicast_v6: MulticastOut::default(),
            // As in Linux's `inet6_create`, IP_MULTICAST_ALL is disabled for AF_INET6 sockets by
            // default.
            multicast_all: family == Family::V4,
            multicast_all_v6: true,
            broadcast: false,
            no_checksum: false,
            recv_errors: false,
            recv_errors_v6: false,
            lengths: DatagramLengths::default(),
            memberships: Vec::new(),
            filter: None,
            shadow_of: None,
            last_target: None,
            went_elsewhere: 0,
        }
    }

    pub(crate) fn table(&self) -> PortProtocol {
        if self.echo { PortProtocol::Echo } else { PortProtocol::Udp }
    }

    /// Returns whether the socket receives a datagram to a multicast group or broadcast address.
    /// The caller has checked that the bound address and port match.
    pub(crate) fn takes_group(&self, meta: &DatagramMeta) -> bool {
        let group = meta.local.ip();
        if !group.is_multicast() {
            return true;
        }
        let mut joined = self.memberships.iter().filter(|membership| membership.group == group);
        // As on Linux, the interface matters only for IPv4. A member of an IPv6 group receives
        // datagrams from every interface on which any socket has joined the group.
        let any = joined.clone().next().filter(|_| group.is_ipv6());
        match joined.find(|membership| membership.iface == meta.iface).or(any) {
            Some(membership) => membership.takes(meta.remote.ip()),
            None if group.is_ipv4() => self.multicast_all,
            None => self.multicast_all_v6,
        }
    }

    /// Returns the TTL or hop limit of datagrams to `remote`, unless a datagram specifies its own.
    /// Returns `None` for the default.
    pub(crate) fn ttl_towards(&self, remote: IpAddr) -> Option<u8> {
        match remote {
            IpAddr::V4(group) if group.is_multicast() => Some(self.multicast_ttl),
            IpAddr::V6(group) if group.is_multicast() => Some(self.multicast_hops),
            host => self.hops.towards(host),
        }
    }

    /// Returns the settings for sending multicast datagrams with the IP version of `remote`.
    pub(crate) fn multicast_towards(&self, remote: IpAddr) -> &MulticastOut {
        if remote.is_ipv4() { &self.multicast_v4 } else { &self.multicast_v6 }
    }

    /// Returns the outgoing interface of datagrams to `remote`, if neither the datagram nor a scope
    /// id specifies one. Returns `None` if the route determines it.
    pub(crate) fn way_to(&self, remote: IpAddr) -> Option<IfaceId> {
        let iface = self.multicast_towards(remote).iface;
        self.device.or(iface.filter(|_| remote.is_multicast()))
    }

    /// Returns the source address of multicast datagrams that IP_MULTICAST_IF has set; `None` if
    /// the route determines it.
    pub(crate) fn source_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        self.multicast_towards(remote).source.filter(|_| remote.is_multicast())
    }

    /// Returns whether IP_RECVERR is set, or IPV6_RECVERR if `remote` is an IPv6 address.
    pub(crate) fn hears_errors_of(&self, remote: IpAddr) -> bool {
        if remote.is_ipv4() { self.recv_errors } else { self.recv_errors_v6 }
    }
}

/// Links between connected datagram sockets with the same key (addresses, ports and interface),
/// from the oldest to the newest socket.
#[derive(Debug)]
pub(crate) struct Alike {
    /// Index of the socket with the same key that was connected next after this socket; [`NONE`] if
    /// this is the newest socket.
    pub newer: u32,
    /// Index of the socket with the same key that was connected last before this socket; [`NONE`]
    /// if this is the oldest socket.
    pub older: u32,
}

impl Default for Alike {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

/// A socket's membership in a multicast group on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub group: IpAddr,
    pub iface: IfaceId,
    /// Senders whose datagrams are received (IP_ADD_SOURCE_MEMBERSHIP); `None` for all senders.
    pub sources: Option<Vec<IpAddr>>,
}

impl GroupMembership {
    /// Returns whether the membership accepts datagrams from the sender `source`.
    pub fn takes(&self, source: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|sources| sources.contains(&source))
    }
}

/// Data that is needed to send a datagram: addresses, route and IP header fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramTarget {
    pub flow: Flow,
    pub route: Route,
    pub ip: Ip,
    /// Whether sockets on this host receive a copy of the datagram, if they are members of the
    /// group or use the broadcast address.
    pub looped: bool,
    /// Whether the UDP checksum is computed. For IPv6 it always is (RFC 8200 §8.1).
    pub checksum: bool,
}

/// The cached target of the last datagram, and the arguments from which it was computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastTarget {
    pub remote: Option<SocketAddr>,
    pub local: Option<IpAddr>,
    pub iface: Option<IfaceId>,
    /// Generation number of the path MTUs when the target was computed.
    pub mtus: u64,
    /// The cached target. The target contains the socket's own TTL and traffic class.
    pub target: DatagramTarget,
}
/// Settings for sending multicast datagrams of one IP version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastOut {
    /// Outgoing interface (IP_MULTICAST_IF, IPV6_MULTICAST_IF); `None` if the route determines it.
    pub iface: Option<IfaceId>,
    /// Source address, if IP_MULTICAST_IF specified the interface by an address.
    pub source: Option<IpAddr>,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP: whether group members on this host also receive the
    /// datagrams.
    pub looped: bool,
}

impl Default for MulticastOut {
    fn default() -> Self {
        Self { iface: None, source: None, looped: true }
    }
}
