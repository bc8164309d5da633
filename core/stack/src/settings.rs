//! Settings of sockets that their packets and connections follow.

use std::net::IpAddr;
use std::num::NonZeroU8;

use towpath_tcp::{Config, Instant};

use crate::host::BindOptions;
use crate::net::{IfaceId, Net};
use crate::tables::flow::Flow;

/// Settings of a stream socket before it has a connection; children inherit them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamSettings {
    pub tcp: Config,
    pub packet: PacketSettings,
    /// SO_BINDTODEVICE.
    pub device: Option<IfaceId>,
    /// For a bind that the program does not ask for.
    pub binding: BindOptions,
    /// TCP_FASTOPEN: children that a SYN's bytes may make before the handshake ends; 0: none.
    pub fast_open_queue: u32,
    /// TCP_SAVE_SYN.
    pub save_syn: bool,
}

impl StreamSettings {
    /// Settings of a socket on which nothing was set.
    pub fn new(tcp: Config) -> Self {
        Self {
            tcp,
            packet: PacketSettings::default(),
            device: None,
            binding: BindOptions::default(),
            fast_open_queue: 0,
            save_syn: false,
        }
    }

    /// The settings of a connection, with segment sizes for its path.
    pub fn for_flow(&self, now: Instant, flow: &Flow, iface: Option<IfaceId>, net: &Net) -> Config {
        let route = net.route(now, Some(flow.local), flow.remote, iface);
        // `route.mtu` follows reports about datagrams, which are easily forged. A connection learns
        // its path MTU from reports about its own segments alone (RFC 5927 §4), and begins with the
        // link's.
        let (mtu_send, mtu_recv) = match route {
            Ok(route) => {
                let interface = net.interfaces().get(route.iface.index());
                // As on Linux the MTU of a route holds for both directions; one that routers of the
                // link advertise does not.
                let wider = interface.filter(|link| link.mtu_for(flow.remote) <= route.link_mtu);
                (route.link_mtu, wider.map_or(route.link_mtu, |link| link.mtu()))
            }
            // There is no route now. Every IPv4 host takes 576 bytes (RFC 1122 §3.3.2), and an
            // Ethernet 1500.
            Err(_) => (576, 1500),
        };
        let packet = self.packet.towards(flow.remote);
        Config {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
            //# The MSS value to be sent in an MSS Option must be less than or equal to: MMS_R - 20
            //# where MMS_R is the maximum size for a transport-layer message that can be received
            //# (and reassembled at the IP layer) (MUST-67).
            mss_recv: packet.limit(flow.mss_for(mtu_recv)),
            mss_send_max: packet.limit(flow.mss_for(mtu_send)),
            mss_default: if flow.local.is_ipv4() { 536 } else { 1220 },
            ..self.tcp
        }
    }
}

/// Settings that every packet needs. In contrast, [`Settings::tcp`] is copied into a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketSettings {
    pub hops: HopLimits,
    pub classes: Classes,
    /// TCP_MAXSEG: 0 leaves it to the route.
    pub mss_max: u16,
    pub hops_min: HopsMin,
}

/// Least TTL or hop limit of received packets, with a value for each family as [`HopLimits`]. Peers
/// on the link that send with 255 cannot be imitated from further away (RFC 5082).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopsMin {
    /// IP_MINTTL.
    pub v4: u8,
    /// IPV6_MINHOPCOUNT.
    pub v6: u8,
}

impl HopsMin {
    pub fn from(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// How far unicast packets may go. A socket of both families has a limit for each, as on Linux.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopLimits {
    /// IP_TTL; `None`: the default.
    pub v4: Option<NonZeroU8>,
    /// IPV6_UNICAST_HOPS; `None`: the value of the link's routers, or the default.
    pub v6: Option<u8>,
}

impl HopLimits {
    pub fn towards(&self, remote: IpAddr) -> Option<u8> {
        if remote.is_ipv4() { self.v4.map(NonZeroU8::get) } else { self.v6 }
    }
}

/// Class of service, with a value for each family as [`HopLimits`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes {
    /// IP_TOS.
    pub v4: u8,
    /// IPV6_TCLASS.
    pub v6: u8,
}

impl Classes {
    pub fn towards(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl PacketSettings {
    /// The settings that apply to packets to `remote`.
    pub fn towards(&self, remote: IpAddr) -> FlowSettings {
        FlowSettings {
            ttl: self.hops.towards(remote),
            class: self.classes.towards(remote),
            mss_max: self.mss_max,
            hops_min: self.hops_min.from(remote),
        }
    }
}

/// [`PacketSettings`] of a connection, whose peer is of one family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowSettings {
    pub ttl: Option<u8>,
    pub class: u8,
    /// TCP_MAXSEG: 0 leaves it to the route.
    pub mss_max: u16,
    /// See [`HopsMin`].
    pub hops_min: u8,
}

impl FlowSettings {
    /// Applies the change of a socket option. Values for the other address family are ignored.
    pub fn change<T>(
        &mut self,
        remote: IpAddr,
        change: impl FnOnce(&mut PacketSettings) -> T,
    ) -> T {
        let FlowSettings { ttl, class, mss_max, hops_min } = *self;
        let hops = HopLimits { v4: ttl.and_then(NonZeroU8::new), v6: ttl };
        let classes = Classes { v4: class, v6: class };
        let hops_min = HopsMin { v4: hops_min, v6: hops_min };
        let mut settings = PacketSettings { hops, classes, mss_max, hops_min };
        let result = change(&mut settings);
        *self = settings.towards(remote);
        result
    }

    /// The segment size that `mss` bytes of path and the program's own limit allow.
    pub fn limit(&self, mss: u16) -> u16 {
        if self.mss_max == 0 { mss } else { mss.min(self.mss_max) }
    }
}
