//! Messages about objects of the kernel.

use std::net::IpAddr;

use crate::attributes::{RawMessage, attributes, ip, u16_at, u32_at};
use crate::route::RouteMessage;

/// KernelMessage about an object: in a dump, or about a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMessage {
    /// Change of the object.
    pub action: MessageAction,
    /// The object.
    pub object: KernelObject,
}

/// Change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageAction {
    /// The object exists. In a change notification, it was added or modified.
    Set,
    /// The object has replaced another one (NLM_F_REPLACE).
    Replace,
    /// The object was deleted.
    Delete,
}

/// KernelObject of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelObject {
    /// Interface.
    Link(LinkMessage),
    /// Address of an interface.
    Address(AddressMessage),
    /// Route.
    Route(RouteMessage),
    /// Next-hop object, to which routes may refer.
    NextHop(NextHopMessage),
    /// Entry of ARP or neighbour discovery.
    Neighbor(NeighborMessage),
}

/// Interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkMessage {
    /// Interface index.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Whether the interface is administratively up.
    pub is_up: bool,
}

/// Address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressMessage {
    /// Interface index.
    pub link: u32,
    /// Address of this host.
    pub address: IpAddr,
    /// Prefix length of the network of `address`.
    pub prefix_len: u8,
}

/// Next-hop object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHopMessage {
    /// Identifier.
    pub id: u32,
    /// Interface index; `None` for a group or a blackhole.
    pub link: Option<u32>,
    /// Router; `None` if the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// Identifiers and weights of a group's members.
    pub group: Vec<(u32, u16)>,
    /// Whether packets are dropped.
    pub is_blackhole: bool,
    /// Whether packets are encapsulated, for example with MPLS labels.
    pub is_encapsulated: bool,
}

/// Entry of ARP or neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborMessage {
    /// Interface index.
    pub link: u32,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Ethernet address of the neighbour; `None` if unknown.
    pub mac: Option<[u8; 6]>,
    /// Whether the administrator has configured the entry.
    pub is_permanent: bool,
}

// Types of messages and attributes, and flags, from linux/rtnetlink.h and the headers it includes.
pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
const NLM_F_REPLACE: u16 = 0x100;
const IFINFOMSG_LEN: usize = 16;
const IFADDRMSG_LEN: usize = 8;
const NDMSG_LEN: usize = 12;
const NHMSG_LEN: usize = 8;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
/// Length of `struct nexthop_grp` in bytes.
const NEXTHOP_GRP_LEN: usize = 8;

impl KernelMessage {
    /// Parses a message. Returns `None` if it is truncated or describes another kind of object.
    pub(crate) fn parse(raw: &RawMessage<'_>) -> Option<Self> {
        // A deletion has the number of the addition plus one.
        let (new, is_deletion) = (raw.kind & !3, raw.kind & 3 == 1);
        if raw.kind & 2 != 0 {
            return None;
        }
        let action = match is_deletion {
            true => MessageAction::Delete,
            false if raw.flags & NLM_F_REPLACE != 0 => MessageAction::Replace,
            false => MessageAction::Set,
        };
        let object = match new {
            RTM_NEWLINK => KernelObject::Link(link(raw.body)?),
            RTM_NEWADDR => KernelObject::Address(address(raw.body)?),
            RTM_NEWROUTE => KernelObject::Route(RouteMessage::parse(raw.body)?),
            RTM_NEWNEIGH => KernelObject::Neighbor(neighbor(raw.body)?),
            RTM_NEWNEXTHOP => KernelObject::NextHop(next_hop(raw.body)?),
            _ => return None,
        };
        Some(Self { action, object })
    }
}

/// Parses a `struct ifinfomsg` with its attributes.
fn link(body: &[u8]) -> Option<LinkMessage> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let mut list = attributes(body.get(IFINFOMSG_LEN..)?);
    let (_, name) = list.find(|(kind, _)| *kind == IFLA_IFNAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    let name = String::from_utf8_lossy(name).into_owned();
    Some(LinkMessage { index, name, is_up: flags & IFF_UP != 0 })
}

/// Parses a `struct ifaddrmsg` with its attributes.
fn address(body: &[u8]) -> Option<AddressMessage> {
    let (prefix_len, link) = (*body.get(1)?, u32_at(body, 4)?);
    let (mut local, mut shown) = (None, None);
    for (kind, value) in attributes(body.get(IFADDRMSG_LEN..)?) {
        match kind {
            IFA_LOCAL => local = ip(value),
            // IFA_ADDRESS is the peer's address on a point-to-point link, otherwise the address of
            // this host.
            IFA_ADDRESS => shown = ip(value),
            _ => {}
        }
    }
    let address = local.or(shown)?;
    // On a point-to-point link, the prefix length belongs to the peer's address. The host then has
    // a single address.
    let prefix_len = match address {
        _ if shown.is_none_or(|shown| shown == address) => prefix_len,
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    Some(AddressMessage { link, address, prefix_len })
}

/// Parses a `struct ndmsg` with its attributes.
fn neighbor(body: &[u8]) -> Option<NeighborMessage> {
    // Entries of a forwarding table of a bridge or VXLAN have the family AF_BRIDGE.
    if !matches!(i32::from(*body.first()?), libc::AF_INET | libc::AF_INET6) {
        return None;
    }
    let (link, state) = (u32_at(body, 4)?, u16_at(body, 8)?);
    let (mut address, mut mac) = (None, None);
    for (kind, value) in attributes(body.get(NDMSG_LEN..)?) {
        match kind {
            NDA_DST => address = ip(value),
            NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    let is_permanent = state & NUD_PERMANENT != 0;
    Some(NeighborMessage { link, address: address?, mac, is_permanent })
}

/// Parses a `struct nhmsg` with its attributes.
fn next_hop(body: &[u8]) -> Option<NextHopMessage> {
    let mut found = NextHopMessage {
        id: 0,
        link: None,
        gateway: None,
        group: Vec::new(),
        is_blackhole: false,
        is_encapsulated: false,
    };
    for (kind, value) in attributes(body.get(NHMSG_LEN..)?) {
        match kind {
            NHA_ID => found.id = u32_at(value, 0)?,
            NHA_OIF => found.link = u32_at(value, 0),
            NHA_GATEWAY => found.gateway = ip(value),
            NHA_BLACKHOLE => found.is_blackhole = true,
            NHA_ENCAP => found.is_encapsulated = true,
            NHA_GROUP => {
                let (members, _) = value.as_chunks::<NEXTHOP_GRP_LEN>();
                // The kernel stores the weight minus one.
                let member =
                    |it: &[u8; NEXTHOP_GRP_LEN]| Some((u32_at(it, 0)?, u16::from(it[4]) + 1));
                found.group = members.iter().filter_map(member).collect();
            }
            _ => {}
        }
    }
    Some(found)
}
