//! Datagram sockets: UDP, or ICMP echo.

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

/// A UDP socket, or an echo socket, which has an identifier instead of a port.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub echo: bool,
    /// Flow to the connected peer; `None` if the socket is not connected.
    pub peer: Option<Flow>,
    /// Links in the list of sockets with the same peer.
    pub alike: Alike,
    pub hops: HopLimits,
    pub classes: Classes,
    /// SO_BINDTODEVICE: the socket receives from and sends to this interface only.
    pub device: Option<IfaceId>,
    /// Options of an implicit bind by connect or send.
    pub binding: BindOptions,
    /// IP_MULTICAST_TTL; 0: datagrams to groups stay on this host.
    pub multicast_ttl: u8,
    /// IPV6_MULTICAST_HOPS: hop limit of IPv6 datagrams to groups.
    pub multicast_hops: u8,
    /// Settings for sending to IPv4 groups.
    pub multicast_v4: MulticastOut,
    /// Settings for sending to IPv6 groups.
    pub multicast_v6: MulticastOut,
    /// IP_MULTICAST_ALL: receive datagrams to IPv4 groups that other sockets joined.
    pub multicast_all: bool,
    /// IPV6_MULTICAST_ALL: also receive datagrams to IPv6 groups that other sockets joined.
    pub multicast_all_v6: bool,
    /// SO_BROADCAST: the socket may send to broadcast addresses.
    pub broadcast: bool,
    /// SO_NO_CHECK: send IPv4 datagrams without a checksum.
    pub no_checksum: bool,
    /// IP_RECVERR: the socket receives errors about its IPv4 datagrams.
    pub recv_errors: bool,
    /// IPV6_RECVERR: the socket receives errors about its IPv6 datagrams.
    pub recv_errors_v6: bool,
    /// Length limits of datagrams, and handling of longer ones.
    pub lengths: DatagramLengths,
    pub memberships: Vec<GroupMembership>,
    /// SO_ATTACH_FILTER: filter program for received datagrams.
    pub filter: Option<Arc<Program>>,
    /// Shard of the original socket, if this is a shadow: the representative of a socket of another
    /// shard.
    pub shadow_of: Option<ShardId>,
    /// Cached target of the last datagram; reset to `None` when an input of its lookup changes.
    pub last_target: Option<LastTarget>,
    /// Number of consecutive datagrams with another target than [`Self::last_target`]; may wrap.
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
            // Linux's ping sockets share identifiers by default (`INET_PROTOSW_REUSE`).
            binding: BindOptions { reuse_addr: echo, ..BindOptions::default() },
            multicast_ttl: MULTICAST_TTL_DEFAULT,
            multicast_hops: MULTICAST_TTL_DEFAULT,
            multicast_v4: MulticastOut::default(),
            multicast_v6: MulticastOut::default(),
            // As in Linux's `inet6_create`: AF_INET6 sockets start without the option.
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

    /// Returns whether the socket, if bound accordingly, receives a datagram to a group or
    /// broadcast address.
    pub(crate) fn takes_group(&self, meta: &DatagramMeta) -> bool {
        let group = meta.local.ip();
        if !group.is_multicast() {
            return true;
        }
        let mut joined = self.memberships.iter().filter(|membership| membership.group == group);
        // As on Linux, the interface matters only for IPv4. A member of an IPv6 group receives
        // datagrams from every interface on which a socket joined the group.
        let any = joined.clone().next().filter(|_| group.is_ipv6());
        match joined.find(|membership| membership.iface == meta.iface).or(any) {
            Some(membership) => membership.takes(meta.remote.ip()),
            None if group.is_ipv4() => self.multicast_all,
            None => self.multicast_all_v6,
        }
    }

    /// Returns the TTL or hop limit towards `remote` of messages that specify none; `None`: the
    /// default.
    pub(crate) fn ttl_towards(&self, remote: IpAddr) -> Option<u8> {
        match remote {
            IpAddr::V4(group) if group.is_multicast() => Some(self.multicast_ttl),
            IpAddr::V6(group) if group.is_multicast() => Some(self.multicast_hops),
            host => self.hops.towards(host),
        }
    }

    /// Returns the settings for sending to groups of `remote`'s family.
    pub(crate) fn multicast_towards(&self, remote: IpAddr) -> &MulticastOut {
        if remote.is_ipv4() { &self.multicast_v4 } else { &self.multicast_v6 }
    }

    /// Returns the outgoing interface of datagrams to `remote` if neither the message nor a scope
    /// id specifies one.
    pub(crate) fn way_to(&self, remote: IpAddr) -> Option<IfaceId> {
        let iface = self.multicast_towards(remote).iface;
        self.device.or(iface.filter(|_| remote.is_multicast()))
    }

    /// Returns the source address for a group, as set by IP_MULTICAST_IF; `None`: the route
    /// determines it.
    pub(crate) fn source_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        self.multicast_towards(remote).source.filter(|_| remote.is_multicast())
    }

    /// Returns whether IP_RECVERR, or IPV6_RECVERR for an IPv6 `remote`, is set.
    pub(crate) fn hears_errors_of(&self, remote: IpAddr) -> bool {
        if remote.is_ipv4() { self.recv_errors } else { self.recv_errors_v6 }
    }
}

/// Links of a socket in the list of sockets with the same key.
#[derive(Debug)]
pub(crate) struct Alike {
    /// The socket connected next after this one; [`NONE`]: this one is the newest.
    pub newer: u32,
    /// The socket connected before this one; [`NONE`]: this one is the oldest.
    pub older: u32,
}

impl Default for Alike {
    fn default() -> Self {
        Self { newer: NONE, older: NONE }
    }
}

/// Membership of a multicast group on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub group: IpAddr,
    pub iface: IfaceId,
    /// Accepted senders (IP_ADD_SOURCE_MEMBERSHIP); None: all.
    pub sources: Option<Vec<IpAddr>>,
}

impl GroupMembership {
    /// Returns whether the membership includes datagrams from `source`.
    pub fn takes(&self, source: IpAddr) -> bool {
        self.sources.as_ref().is_none_or(|sources| sources.contains(&source))
    }
}

/// Target of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramTarget {
    pub flow: Flow,
    pub route: Route,
    pub ip: Ip,
    /// Whether sockets of this host that are members of the group or use the broadcast address get
    /// a copy.
    pub looped: bool,
    /// Whether the UDP checksum is computed. Over IPv6 it always is (RFC 8200 §8.1).
    pub checksum: bool,
}

/// A target, and the arguments from which it was determined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastTarget {
    pub remote: Option<SocketAddr>,
    pub local: Option<IpAddr>,
    pub iface: Option<IfaceId>,
    /// Generation of the path MTUs when the target was determined.
    pub mtus: u64,
    /// Contains the socket's own TTL and class.
    pub target: DatagramTarget,
}
/// Settings for sending to groups of one family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastOut {
    /// Outgoing interface (IP_MULTICAST_IF, IPV6_MULTICAST_IF); `None`: determined by the route.
    pub iface: Option<IfaceId>,
    /// Address that specified the interface in IP_MULTICAST_IF.
    pub source: Option<IpAddr>,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP: members on this host also receive the datagrams.
    pub looped: bool,
}

impl Default for MulticastOut {
    fn default() -> Self {
        Self { iface: None, source: None, looped: true }
    }
}
