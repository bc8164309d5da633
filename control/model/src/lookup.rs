//! Route lookups, as of `ip route get`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// Destination to look up, with conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteLookup {
    /// Destination address.
    pub to: IpAddr,
    /// Source address. Without it, the stack chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// Outgoing interface. Without it, the interface of the route is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<Word>,
}

/// Route of packets to a destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundRoute {
    /// Address of the router, unless the destination is on the link, or is this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// Outgoing interface.
    pub dev: Word,
    /// Source address of the packets.
    pub source: IpAddr,
    /// Maximum packet length in bytes on the path, as far as it is known.
    pub mtu: u32,
    /// Whether the MTU is less than that of the interface.
    pub mtu_is_lower: bool,
    /// Kind of the destination.
    pub kind: DestinationKind,
}

/// Kind of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationKind {
    /// Another host.
    Unicast,
    /// An address of this host.
    Local,
    /// Broadcast address of a link.
    Broadcast,
    /// A group.
    Multicast,
}
