//! Messages about routes.

use std::net::IpAddr;

use crate::attributes::{attributes, ip, u16_at, u32_at};

/// Route, with all its next hops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteMessage {
    /// Network of the destinations.
    pub network: IpAddr,
    /// Prefix length of the network.
    pub prefix_len: u8,
    /// Routing table.
    pub table: u32,
    /// Number of the routing protocol (`rtm_protocol`).
    pub protocol: u8,
    /// Type of the route (`RTN_UNICAST` and others).
    pub kind: u8,
    /// Metric of the route.
    pub metric: u32,
    /// MTU of the route in bytes.
    pub mtu: Option<u32>,
    /// Whether the route applies to a class of service or a source network only, or is a cached
    /// copy of another route.
    pub is_partial: bool,
    /// Identifier of a next-hop object.
    pub next_hop_id: Option<u32>,
    /// Next hops; may be empty if there is a next-hop object.
    pub hops: Vec<HopMessage>,
}

/// Next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopMessage {
    /// Interface index.
    pub link: u32,
    /// Router; `None` if the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// Weight, 1 to 256.
    pub weight: u16,
    /// Whether the kernel does not use the next hop, because the interface is down.
    pub is_dead: bool,
    /// Whether packets are encapsulated, or the router has another address family.
    pub is_special: bool,
}

/// The table `main`.
pub const TABLE_MAIN: u32 = 254;

// From linux/rtnetlink.h.
pub(crate) const RTMSG_LEN: usize = 12;
pub(crate) const RTA_TABLE: u16 = 15;
const RTNEXTHOP_LEN: usize = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;
const RTAX_MTU: u16 = 2;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_DEAD: u32 = 1;

impl RouteMessage {
    /// Parses a `struct rtmsg` with its attributes.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let &[family, prefix_len, source_len, tos, table, protocol, _, kind, ..] = body else {
            return None;
        };
        let flags = u32_at(body, 8)?;
        let network = match i32::from(family) {
            libc::AF_INET if prefix_len <= 32 => IpAddr::from([0; 4]),
            libc::AF_INET6 if prefix_len <= 128 => IpAddr::from([0; 16]),
            _ => return None,
        };
        let is_partial = source_len != 0 || tos != 0 || flags & RTM_F_CLONED != 0;
        let (metric, mtu, next_hop_id, hops) = (0, None, None, Vec::new());
        let mut found = Self {
            network,
            prefix_len,
            table: table.into(),
            protocol,
            kind,
            metric,
            mtu,
            is_partial,
            next_hop_id,
            hops,
        };
        let (mut single, mut has_network) = (HopBuilder::new(flags), prefix_len == 0);
        for (kind, value) in attributes(body.get(RTMSG_LEN..)?) {
            match kind {
                RTA_DST => (found.network, has_network) = (ip(value)?, true),
                RTA_TABLE => found.table = u32_at(value, 0)?,
                RTA_PRIORITY => found.metric = u32_at(value, 0)?,
                RTA_NH_ID => found.next_hop_id = u32_at(value, 0),
                RTA_METRICS => {
                    let mtu = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                    found.mtu = mtu.and_then(|(_, value)| u32_at(value, 0));
                }
                RTA_OIF => single.link = u32_at(value, 0),
                RTA_MULTIPATH => found.hops = hops_in(value),
                _ => single.set(kind, value),
            }
        }
        found.hops.extend(single.finish());
        has_network.then_some(found)
    }
}

/// Next hop of a route while its attributes are being parsed.
struct HopBuilder {
    link: Option<u32>,
    gateway: Option<IpAddr>,
    weight: u16,
    is_dead: bool,
    is_special: bool,
}

impl HopBuilder {
    fn new(flags: u32) -> Self {
        let is_dead = flags & RTNH_F_DEAD != 0;
        Self { link: None, gateway: None, weight: 1, is_dead, is_special: false }
    }

    fn set(&mut self, kind: u16, value: &[u8]) {
        match kind {
            RTA_GATEWAY => self.gateway = ip(value),
            RTA_VIA | RTA_ENCAP => self.is_special = true,
            _ => {}
        }
    }

    fn finish(self) -> Option<HopMessage> {
        let Self { link, gateway, weight, is_dead, is_special } = self;
        Some(HopMessage { link: link?, gateway, weight, is_dead, is_special })
    }
}

/// Parses a list of `struct rtnexthop` with their attributes.
fn hops_in(mut list: &[u8]) -> Vec<HopMessage> {
    let mut hops = Vec::new();
    while let (Some(len), Some(&[.., flags, weight])) = (u16_at(list, 0), list.get(..4)) {
        let len = usize::from(len);
        let Some((link, rest)) = u32_at(list, 4).zip(list.get(RTNEXTHOP_LEN..len)) else { break };
        let mut hop = HopBuilder::new(flags.into());
        // The kernel stores the weight minus one.
        (hop.link, hop.weight) = (Some(link), u16::from(weight) + 1);
        attributes(rest).for_each(|(kind, value)| hop.set(kind, value));
        hops.extend(hop.finish());
        list = list.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}
