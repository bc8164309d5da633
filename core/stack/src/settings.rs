//! Settings of sockets for their packets and connections.

use std::net::IpAddr;
use std::num::NonZeroU8;

use towpath_tcp::{Config, Instant};

use crate::host::BindOptions;
use crate::net::{IfaceId, Net};
use crate::tables::flow::Flow;

/// Settings of a stream socket that has no connection. Accepted connections inherit them from their
/// listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamSettings {
    /// Settings of the socket. [`StreamSettings::for_flow`] replaces those that a socket cannot set
    /// itself by the current ones of the host.
    pub tcp: Config,
    /// Whether the program has set TCP_CONGESTION. Otherwise connections use the algorithm that the
    /// host has when they are created.
    pub has_own_congestion: bool,
    pub packet: PacketSettings,
    /// SO_BINDTODEVICE: interface to which the socket is restricted.
    pub device: Option<IfaceId>,
    /// Options that apply if connect, send or listen bind the socket implicitly.
    pub binding: BindOptions,
    /// TCP_FASTOPEN: maximum number of Fast Open connections of a listener whose handshake is
    /// incomplete. 0 disables Fast Open.
    pub fast_open_queue: u32,
    /// TCP_SAVE_SYN: whether accepted connections keep the headers of their SYN.
    pub save_syn: bool,
}

impl StreamSettings {
    /// Creates default settings.
    pub fn new(tcp: Config) -> Self {
        Self {
            // `None` means the current keys of the host, until the program sets TCP_FASTOPEN_KEY.
            tcp: Config { fast_open_keys: None, ..tcp },
            has_own_congestion: false,
            packet: PacketSettings::default(),
            device: None,
            binding: BindOptions::default(),
            fast_open_queue: 0,
            save_syn: false,
        }
    }

    /// Returns the settings of a connection. Segment sizes depend on the path of `flow`. The
    /// settings that operators can change come from `host`, because they may have changed since the
    /// socket was opened.
    pub fn for_flow(
        &self,
        now: Instant,
        flow: &Flow,
        iface: Option<IfaceId>,
        net: &Net,
        host: &Config,
    ) -> Config {
        let route = net.route(now, Some(flow.local), flow.remote, iface);
        // Use the MTU of the link, and not `route.mtu`, which depends on easily forged reports
        // about datagrams. A connection accepts only reports about its own segments (RFC 5927 §4).
        let (mtu_send, mtu_recv) = match route {
            Ok(route) => {
                let interface = net.interface(route.iface);
                // As on Linux, the MTU of a route applies to sending and receiving, but an MTU that
                // routers advertise only to sending.
                let wider = interface.filter(|link| link.mtu_for(flow.remote) <= route.link_mtu);
                (route.link_mtu, wider.map_or(route.link_mtu, |link| link.mtu()))
            }
            // If there is no route, send 576 bytes, which every IPv4 host accepts (RFC 1122
            // §3.3.2), and receive the 1500 bytes of Ethernet.
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
            congestion: match self.has_own_congestion {
                true => self.tcp.congestion,
                false => host.congestion,
            },
            timestamps: host.timestamps,
            sack: host.sack,
            scaling: host.scaling,
            window_scale: host.window_scale,
            ecn: host.ecn,
            fast_open: host.fast_open,
            ..self.tcp
        }
    }
}

/// Settings that are used for each packet. [`Settings::tcp`], in contrast, is copied to a
/// connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketSettings {
    pub hops: HopLimits,
    pub classes: Classes,
    /// TCP_MAXSEG: maximum segment size in bytes; 0 for the value of the route.
    pub mss_max: u16,
    pub hops_min: HopsMin,
}

/// Minimum TTL or hop limit of received packets, for each IP version. Hosts beyond the link cannot
/// forge packets that arrive with a TTL of 255 (RFC 5082).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopsMin {
    /// IP_MINTTL: minimum TTL of received IPv4 packets.
    pub v4: u8,
    /// IPV6_MINHOPCOUNT: minimum hop limit of received IPv6 packets.
    pub v6: u8,
}

impl HopsMin {
    pub fn from(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// TTL and hop limit of unicast packets. As on Linux, a dual-stack socket has both.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HopLimits {
    /// IP_TTL: TTL of sent IPv4 packets; `None` for the default.
    pub v4: Option<NonZeroU8>,
    /// IPV6_UNICAST_HOPS: hop limit of sent IPv6 packets. `None` for the value that routers
    /// advertise, or the default.
    pub v6: Option<u8>,
}

impl HopLimits {
    pub fn towards(&self, remote: IpAddr) -> Option<u8> {
        if remote.is_ipv4() { self.v4.map(NonZeroU8::get) } else { self.v6 }
    }
}

/// Type of service and traffic class of sent packets. As on Linux, a dual-stack socket has both.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Classes {
    /// IP_TOS: octet with DSCP and ECN of sent IPv4 packets.
    pub v4: u8,
    /// IPV6_TCLASS: octet with DSCP and ECN of sent IPv6 packets.
    pub v6: u8,
}

impl Classes {
    pub fn towards(&self, remote: IpAddr) -> u8 {
        if remote.is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl PacketSettings {
    /// Returns the settings for packets to `remote`, which depend on its IP version.
    pub fn towards(&self, remote: IpAddr) -> FlowSettings {
        FlowSettings {
            ttl: self.hops.towards(remote),
            class: self.classes.towards(remote),
            mss_max: self.mss_max,
            hops_min: self.hops_min.from(remote),
        }
    }
}

/// [`PacketSettings`] of a connection, for the IP version of its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowSettings {
    pub ttl: Option<u8>,
    pub class: u8,
    /// TCP_MAXSEG: maximum segment size in bytes; 0 for the value of the route.
    pub mss_max: u16,
    /// Minimum TTL or hop limit of received segments, see [`HopsMin`].
    pub hops_min: u8,
}

impl FlowSettings {
    /// Changes the settings of a connection to `remote` by a socket option. A value for the other
    /// IP version is ignored.
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

    /// Returns the segment size in bytes: the smaller of the path's `mss` and TCP_MAXSEG, if that
    /// is set.
    pub fn limit(&self, mss: u16) -> u16 {
        if self.mss_max == 0 { mss } else { mss.min(self.mss_max) }
    }
}
