//! The ports of a run, as they are written in JSON.

use serde::{Deserialize, Serialize};

use crate::net::Interface;
use crate::sockets::Word;

/// A port: a device, and mostly an interface of the stack on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name, which the interface has as well.
    pub name: Word,
    /// Kind of the device: `packet`, `tap`, `vlan`, `bridge`, `xdp`, `gateway`.
    pub driver: Word,
    /// The host's device, or the ports that this one stands on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Word>,
    /// Whether the device has a link; none where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<bool>,
    /// The interface; none of a port that is only a part of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Counters of the device, names and values.
    pub counters: Vec<(Word, u64)>,
}
