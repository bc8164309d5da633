//! Types of the control protocol for the TCP settings of a run.

use serde::{Deserialize, Serialize};

use crate::sockets::Word;

/// TCP setting of a run, which new connections use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSetting {
    /// Name of the setting: `sack`, `ecn`, `rmem-max`.
    pub name: Word,
    /// Name of Linux's sysctl below `net.ipv4`: `tcp_sack`.
    pub sysctl: Word,
    /// Current value; `None` if the run chose a random one that it does not reveal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Description of the valid values, for users.
    pub values: String,
    /// Description of the setting's effect, for users.
    pub help: String,
}

/// Change to a TCP setting of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpSettingChange {
    /// Name of the setting, or of Linux's sysctl.
    pub name: Word,
    /// New value.
    pub value: String,
}
