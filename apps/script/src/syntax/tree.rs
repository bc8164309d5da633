//! Syntax tree of a script.

use super::value::Value;
use crate::wire::TcpOption;

/// Script after it was parsed.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Option lines at the start of the script. The dashes are removed.
    pub options: Vec<OptionLine>,
    /// Events of the script in the order of the file.
    pub events: Vec<ScriptEvent>,
}

/// Option line of a script, for example `--ip_version=ipv6`.
#[derive(Debug, Clone)]
pub struct OptionLine {
    pub line: usize,
    pub name: String,
    pub value: String,
}

/// Action of a script, and the time at which it occurs.
#[derive(Debug, Clone)]
pub struct ScriptEvent {
    pub line: usize,
    pub time: EventTime,
    pub action: EventAction,
}

/// Time of an event in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTime {
    /// Any time (`*`). Also the time of commands that have none.
    Any,
    /// Time since the start of the script.
    At(i64),
    /// Time since the previous event.
    After(i64),
    /// Interval since the start of the script in which a packet is sent (`1~2`).
    Between(i64, i64),
    /// Interval since the previous event in which a packet is sent (`+1~+2`).
    Within(i64, i64),
    /// Start and end of a blocking call, since the start of the script (`1...2`).
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

/// System call of a script, with its expected result.
#[derive(Debug, Clone)]
pub struct CallSpec {
    pub name: String,
    pub args: Vec<Value>,
    pub result: Value,
    /// Name of the expected error. `None` if no error is expected.
    pub errno: Option<String>,
}

#[derive(Debug, Clone)]
pub enum PacketSpec {
    Tcp(TcpSpec),
    Icmp(IcmpSpec),
}

/// TCP segment in a script. Its sequence numbers are those of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSpec {
    pub ecn: EcnSpec,
    pub flags: u16,
    pub seq: u32,
    pub len: u32,
    pub ack: Option<u32>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    /// TCP options in their order. `None` if the script contains `<...>`.
    pub options: Option<Vec<TcpOption>>,
}

/// ECN field of the IP header (RFC 3168 §5) that is expected or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EcnSpec {
    /// Any value is accepted, and 0 is sent.
    Any,
    /// Codepoint: 0 for not-ECT, 1 for ECT(1), 2 for ECT(0), 3 for CE.
    Codepoint(u8),
    /// Either ECT(0) or ECT(1).
    Ect,
}

/// ICMP error that refers to a segment of the stack.
#[derive(Debug, Clone)]
pub struct IcmpSpec {
    pub kind: IcmpKind,
    pub mtu: u32,
    /// Sequence number and length of the segment that the message quotes.
    pub quoted: (u32, u32),
}

/// Type and code of an ICMP message for each IP version. `None` if the IP version has no such
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpKind {
    pub v4: Option<(u8, u8)>,
    pub v6: Option<(u8, u8)>,
}
