//! Types of the control protocol for route lookups, as by `ip route get`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// Destination for which to look up a route, with optional conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteLookup {
    /// Destination address.
    pub to: IpAddr,
    /// Source address of the packets; `None` lets the stack choose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// Outgoing interface; `None` lets the route determine it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<Word>,
}

/// Route that packets to a destination take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundRoute {
    /// Address of the next router; `None` if the destination is on the link or is this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// Outgoing interface.
    pub dev: Word,
    /// Source address of the packets.
    pub source: IpAddr,
    /// Path MTU in bytes, as far as it is known.
    pub mtu: u32,
    /// Whether the path MTU is lower than the MTU of the interface.
    pub mtu_is_lower: bool,
    /// Kind of the destination.
    pub kind: DestinationKind,
}

/// Kind of a destination address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DestinationKind {
    /// The destination is another host.
    Unicast,
    /// An address of this host.
    Local,
    /// Broadcast address of a link.
    Broadcast,
    /// Address of a multicast group.
    Multicast,
}
