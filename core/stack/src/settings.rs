//! Settings of sockets that apply to their packets and connections.

use std::net::IpAddr;
use std::num::NonZeroU8;

use towpath_tcp::{Config, Instant};

use crate::host::BindOptions;
use crate::net::{IfaceId, Net};
use crate::tables::flow::Flow;

/// Settings of a stream socket without a connection; inherited by children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamSettings {
    pub tcp: Config,
    pub packet: PacketSettings,
    /// SO_BINDTODEVICE: the interface that the socket is restricted to.
    pub device: Option<IfaceId>,
    /// Options of an implicit bind by connect, send or listen.
    pub binding: BindOptions,
    /// TCP_FASTOPEN: maximum number of Fast Open children with an incomplete handshake; 0 disables
    /// Fast Open.
    pub fast_open_queue: u32,
    /// TCP_SAVE_SYN: children keep the headers of their SYN.
    pub save_syn: bool,
}

impl StreamSettings {
    /// Creates default settings.
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

    /// Returns the settings of a connection, with segment sizes for its path.
    pub fn for_flow(&self, now: Instant, flow: &Flow, iface: Option<IfaceId>, net: &Net) -> Config {
        let route = net.route(now, Some(flow.local), flow.remote, iface);
        // `route.mtu` follows reports about datagrams, which are easily forged. Therefore a
        // connection starts with the link MTU and accepts only reports about its own segments (RFC
        // 5927 §4).
        let (mtu_send, mtu_recv) = match route {
            Ok(route) => {
                let interface = net.interface(route.iface);
                // As on Linux, the MTU of a route applies to both directions, but an MTU advertised
                // by routers only to sending.
                let wider = interface.filter(|link| link.mtu_for(flow.remote) <= route.link_mtu);
                (route.link_mtu, wider.map_or(route.link_mtu, |link| link.mtu()))
            }
            // Without a route: every IPv4 host accepts 576 bytes (RFC 1122 §3.3.2), and Ethernet
            // 1500.
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

/// Settings used for each packet. In contrast, [`Settings::tcp`] is copied to a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketSettings {
    pub hops: HopLimits,
    pub classes: Classes,
    /// TCP_MAXSEG in bytes; 0 uses the route's value.
    pub mss_max: u16,
    pub hops_min: HopsMin,
}

/// Minimum TTL or hop limit of received packets, by family as in [`HopLimits`]. Senders beyond the
/// link cannot forge packets with a TTL of 255 (RFC 5082).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopsMin {
    /// IP_MINTTL: minimum TTL of received IPv4 segments.
    pub v4: u8,
    /// IPV6_MINHOPCOUNT: minimum hop limit of received IPv6 segments.
    pub v6: u8,
}

impl HopsMin {
    pub fn from(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// Hop limits of unicast packets. As on Linux, dual-stack sockets have one for each family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopLimits {
    /// IP_TTL of sent IPv4 packets; `None` uses the default.
    pub v4: Option<NonZeroU8>,
    /// IPV6_UNICAST_HOPS; `None` uses the value advertised by routers, or the default.
    pub v6: Option<u8>,
}

impl HopLimits {
    pub fn towards(&self, remote: IpAddr) -> Option<u8> {
        if remote.is_ipv4() { self.v4.map(NonZeroU8::get) } else { self.v6 }
    }
}

/// Traffic class, by family as in [`HopLimits`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes {
    /// IP_TOS of sent IPv4 packets: DSCP and ECN.
    pub v4: u8,
    /// IPV6_TCLASS of sent IPv6 packets: DSCP and ECN.
    pub v6: u8,
}

impl Classes {
    pub fn towards(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl PacketSettings {
    /// Returns the settings for packets to `remote`.
    pub fn towards(&self, remote: IpAddr) -> FlowSettings {
        FlowSettings {
            ttl: self.hops.towards(remote),
            class: self.classes.towards(remote),
            mss_max: self.mss_max,
            hops_min: self.hops_min.from(remote),
        }
    }
}

/// [`PacketSettings`] of a connection for its peer's family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowSettings {
    pub ttl: Option<u8>,
    pub class: u8,
    /// TCP_MAXSEG in bytes; 0 uses the route's value.
    pub mss_max: u16,
    /// Minimum TTL or hop limit of received segments; see [`HopsMin`].
    pub hops_min: u8,
}

impl FlowSettings {
    /// Applies a socket option; values for the other address family are ignored.
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

    /// Returns the segment size, limited by the path's `mss` and TCP_MAXSEG.
    pub fn limit(&self, mss: u16) -> u16 {
        if self.mss_max == 0 { mss } else { mss.min(self.mss_max) }
    }
}
