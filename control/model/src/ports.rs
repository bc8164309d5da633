//! Types of the control protocol for the ports of a run.

use serde::{Deserialize, Serialize};

use crate::net::Interface;
use crate::sockets::Word;

/// A port: a network device, usually with an interface of the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Name of the port and of its interface.
    pub name: Word,
    /// Kind of the device: `packet`, `tap`, `vlan`, `bridge`, `xdp`, `gateway`.
    pub driver: Word,
    /// Name of the host's device, or names of the ports on which this port is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Word>,
    /// Whether the device has a link (carrier); `None` if the device does not report this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
    /// Interface of the stack on this port; `None` if the port is only a member of other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Names and values of the device's counters.
    pub counters: Vec<(Word, u64)>,
}
