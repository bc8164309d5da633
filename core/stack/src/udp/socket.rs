//! A datagram socket: UDP, or ICMP echo.

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

/// A UDP socket, or an echo socket, whose ident takes the place of the port.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub echo: bool,
    /// The connected peer.
    pub peer: Option<Flow>,
    /// Neighbours in the list of sockets with the same peer.
    pub alike: Alike,
    pub hops: HopLimits,
    pub classes: Classes,
    /// SO_BINDTODEVICE: takes from and sends to this interface only.
    pub device: Option<IfaceId>,
    /// For a bind that the program does not ask for.
    pub binding: BindOptions,
    /// IP_MULTICAST_TTL; 0: groups are reached on this host only.
    pub multicast_ttl: u8,
    /// IPV6_MULTICAST_HOPS, likewise.
    pub multicast_hops: u8,
    /// How it sends to IPv4 groups.
    pub multicast_v4: MulticastOut,
    /// How it sends to IPv6 groups.
    pub multicast_v6: MulticastOut,
    /// IP_MULTICAST_ALL: take datagrams to IPv4 groups that other sockets joined.
    pub multicast_all: bool,
    /// IPV6_MULTICAST_ALL, likewise.
    pub multicast_all_v6: bool,
    /// May send to broadcast addresses.
    pub broadcast: bool,
    /// SO_NO_CHECK.
    pub no_checksum: bool,
    /// IP_RECVERR: the socket gets errors about its IPv4 datagrams.
    pub recv_errors: bool,
    /// IPV6_RECVERR: the same of its IPv6 datagrams.
    pub recv_errors_v6: bool,
    /// Length limits of its datagrams, and treatment of longer ones.
    pub lengths: DatagramLengths,
    pub memberships: Vec<GroupMembership>,
    /// SO_ATTACH_FILTER.
    pub filter: Option<Arc<Program>>,
    /// Shard of the socket that this shadow represents.
    pub shadow_of: Option<ShardId>,
    /// Where the last datagram went; None again when something changes that it was worked out from.
    pub last_target: Option<LastTarget>,
    /// So many in a row went elsewhere than [`Self::last_target`] says; it may begin again.
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
            // Linux's ping sockets share idents by default (INET_PROTOSW_REUSE).
            binding: BindOptions { reuse_addr: echo, ..BindOptions::default() },
            multicast_ttl: MULTICAST_TTL_DEFAULT,
            multicast_hops: MULTICAST_TTL_DEFAULT,
            multicast_v4: MulticastOut::default(),
            multicast_v6: MulticastOut::default(),
            // As in inet6_create: an AF_INET6 socket begins without it.
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

    /// Whether a datagram to `group` (or a broadcast address) is for this socket, if bound so.
    pub(crate) fn takes_group(&self, meta: &DatagramMeta) -> bool {
        let group = meta.local.ip();
        if !group.is_multicast() {
            return true;
        }
        let mut joined = self.memberships.iter().filter(|membership| membership.group == group);
        // As on Linux, IPv4 alone asks for the interface. A member of an IPv6 group takes datagrams
        // from every interface on which a socket joined the group.
        let any = joined.clone().next().filter(|_| group.is_ipv6());
        match joined.find(|membership| membership.iface == meta.iface).or(any) {
            Some(membership) => membership.takes(meta.remote.ip()),
            None if group.is_ipv4() => self.multicast_all,
            None => self.multicast_all_v6,
        }
    }

    /// TTL or hop limit towards `remote` of messages that name none; `None`: the default.
    pub(crate) fn ttl_towards(&self, remote: IpAddr) -> Option<u8> {
        match remote {
            IpAddr::V4(group) if group.is_multicast() => Some(self.multicast_ttl),
            IpAddr::V6(group) if group.is_multicast() => Some(self.multicast_hops),
            host => self.hops.towards(host),
        }
    }

    /// How it sends to groups of `remote`'s family.
    pub(crate) fn multicast_towards(&self, remote: IpAddr) -> &MulticastOut {
        if remote.is_ipv4() { &self.multicast_v4 } else { &self.multicast_v6 }
    }

    /// The interface that datagrams to `remote` leave by when neither the message nor a scope id
    /// names one.
    pub(crate) fn way_to(&self, remote: IpAddr) -> Option<IfaceId> {
        let iface = self.multicast_towards(remote).iface;
        self.device.or(iface.filter(|_| remote.is_multicast()))
    }

    /// The source address for a group that IP_MULTICAST_IF named; otherwise the route chooses one.
    pub(crate) fn source_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        self.multicast_towards(remote).source.filter(|_| remote.is_multicast())
    }

    /// Whether IP_RECVERR, or IPV6_RECVERR for an IPv6 `remote`, is set.
    pub(crate) fn hears_errors_of(&self, remote: IpAddr) -> bool {
        if remote.is_ipv4() { self.recv_errors } else { self.recv_errors_v6 }
    }
}

/// The neighbours of a socket in the list of those that are found by the same peer.
#[derive(Debug)]
pub(crate) struct Alike {
    /// The one that was connected next after it; [`NONE`]: it is the newest.
    pub newer: u32,
    /// The one before it, likewise.
    pub older: u32,
}

impl Default for Alike {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

/// A multicast group joined on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub group: IpAddr,
    pub iface: IfaceId,
    /// Datagrams from these only (IP_ADD_SOURCE_MEMBERSHIP); None: from all.
    pub sources: Option<Vec<IpAddr>>,
}

impl GroupMembership {
    /// Whether datagrams from `source` are wanted.
    pub fn takes(&self, source: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|sources| sources.contains(&source))
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramTarget {
    pub flow: Flow,
    pub route: Route,
    pub ip: Ip,
    /// Whether sockets of this host are members of the group or broadcast address, and get a copy.
    pub looped: bool,
    /// Whether UDP's checksum is computed. Over IPv6 it always is (RFC 8200 §8.1).
    pub checksum: bool,
}

/// A target, and the arguments that it was worked out for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastTarget {
    pub remote: Option<SocketAddr>,
    pub local: Option<IpAddr>,
    pub iface: Option<IfaceId>,
    /// Generation of the path MTUs when it was found.
    pub mtus: u64,
    /// With the socket's own TTL and class.
    pub target: DatagramTarget,
}
/// How a socket sends to groups of one family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastOut {
    /// IP_MULTICAST_IF, IPV6_MULTICAST_IF: where; `None`: as the route says.
    pub iface: Option<IfaceId>,
    /// The address that IP_MULTICAST_IF named the interface by.
    pub source: Option<IpAddr>,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP: members on this host are reached too.
    pub looped: bool,
}

impl Default for MulticastOut {
    fn default() -> Self {
        Self { iface: None, source: None, looped: true }
    }
}
