//! Ports of a run, as serialized to JSON.

use serde::{Deserialize, Serialize};

use crate::net::Interface;
use crate::sockets::Word;

/// A port: a device, usually with an interface of the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port and its interface.
    pub name: Word,
    /// Kind of the device: `packet`, `tap`, `vlan`, `bridge`, `xdp`, `gateway`.
    pub driver: Word,
    /// Device of the host, or the ports below this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Word>,
    /// Whether the device has a link. None if the device does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
    /// Interface of the port. None if the port is only a member of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Counters of the device: names and values.
    pub counters: Vec<(Word, u64)>,
}
