//! Syntax tree of a script.

use super::value::Value;
use crate::wire::TcpOption;

/// Parsed script.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Option lines at the start of the script, without the dashes.
    pub options: Vec<OptionLine>,
    /// Events in the order of the file.
    pub events: Vec<ScriptEvent>,
}

/// Option line, as `--ip_version=ipv6`.
#[derive(Debug, Clone)]
pub struct OptionLine {
    pub line: usize,
    pub name: String,
    pub value: String,
}

/// Action at a time.
#[derive(Debug, Clone)]
pub struct ScriptEvent {
    pub line: usize,
    pub time: EventTime,
    pub action: EventAction,
}

/// Time of an event in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTime {
    /// Any time (`*`), and commands without a time.
    Any,
    /// Point in time, since the start of the script.
    At(i64),
    /// Point in time, since the previous event.
    After(i64),
    /// Interval in which a packet is sent, since the start (`1~2`).
    Between(i64, i64),
    /// Interval in which a packet is sent, since the previous event (`+1~+2`).
    Within(i64, i64),
    /// Start and end of a blocking call, since the start (`1...2`).
    Lasting(i64, i64),
    /// Start and end of a blocking call, since the previous event (`+1...2`).
    LastingAfter(i64, i64),
}

#[derive(Debug, Clone)]
pub enum EventAction {
    Receive(PacketSpec),
    Expect(PacketSpec),
    Call(CallSpec),
    Code(String),
    Command(String),
}

/// System call with its expected result.
#[derive(Debug, Clone)]
pub struct CallSpec {
    pub name: String,
    pub args: Vec<Value>,
    pub result: Value,
    /// Symbol of the expected error.
    pub errno: Option<String>,
}

#[derive(Debug, Clone)]
pub enum PacketSpec {
    Tcp(TcpSpec),
    Icmp(IcmpSpec),
}

/// TCP segment of a script; numbers are those of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSpec {
    pub ecn: EcnSpec,
    pub flags: u16,
    pub seq: u32,
    pub len: u32,
    pub ack: Option<u32>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    /// Options in order; `None` for `<...>`.
    pub options: Option<Vec<TcpOption>>,
}

/// Expected or sent ECN field of the IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EcnSpec {
    /// Not compared; sent as 0.
    Any,
    /// Codepoint: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    Codepoint(u8),
    /// ECT(0) or ECT(1).
    Ect,
}

/// ICMP error about a segment of the stack.
#[derive(Debug, Clone)]
pub struct IcmpSpec {
    pub kind: IcmpKind,
    pub mtu: u32,
    /// Sequence number and length of the quoted segment.
    pub quoted: (u32, u32),
}

/// Type and code for each IP version; `None` if the version lacks the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpKind {
    pub v4: Option<(u8, u8)>,
    pub v6: Option<(u8, u8)>,
}
