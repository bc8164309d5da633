//! Converts between the sequence numbers and timestamps of a script and those of the stack.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::syntax::{EcnSpec, TcpSpec};
use crate::wire::{PacketEnds, TcpOption, WireSegment, flag};

/// Connection of a script. Sequence numbers are relative: the number in the script plus an offset
/// is the number in the packet.
#[derive(Debug, Clone)]
pub struct ScriptFlow {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Offset for the sequence numbers of the stack.
    local_offset: u32,
    /// Offset that converts the script's sequence numbers of the peer in SYNs, and their
    /// acknowledgements. Scripts choose these numbers freely.
    syn_offset: u32,
    /// Offset that converts the script's sequence numbers of the peer in all other segments.
    /// Scripts write these numbers relative to the peer's first SYN.
    remote_offset: u32,
    /// Whether the peer has sent a SYN already.
    has_peer_isn: bool,
    clock: TimestampMap,
}

/// Mapping of the stack's timestamps, which scripts choose freely.
#[derive(Debug, Clone, Default)]
struct TimestampMap {
    /// Timestamps of the stack by the timestamps of the script.
    known: BTreeMap<u32, u32>,
    /// Difference between the stack's and the script's first timestamp. `None` before the first
    /// timestamp.
    offset: Option<u32>,
}

impl ScriptFlow {
    pub fn new(local: SocketAddr, remote: SocketAddr, remote_offset: u32) -> Self {
        let clock = TimestampMap::default();
        Self {
            local,
            remote,
            local_offset: 0,
            syn_offset: remote_offset,
            remote_offset,
            has_peer_isn: false,
            clock,
        }
    }

    /// Returns source and destination of a packet to the stack.
    pub fn inbound(&self) -> PacketEnds {
        PacketEnds { from: self.remote, to: self.local }
    }

    /// Returns whether a packet of the stack belongs to this connection.
    pub fn sends(&self, ends: PacketEnds) -> bool {
        ends.from == self.local && ends.to == self.remote
    }

    /// Determines the offsets from a SYN, or from the first segment with timestamps.
    pub fn learn(&mut self, expected: &TcpSpec, live: &WireSegment) {
        if live.has(flag::SYN) && expected.flags & flag::SYN != 0 {
            self.local_offset = live.seq.wrapping_sub(expected.seq);
        }
        let wanted = expected.options.as_deref().and_then(timestamps);
        if let (Some((wanted, _)), Some((value, _))) = (wanted, timestamps(&live.options)) {
            self.clock.known.insert(wanted, value);
            self.clock.offset.get_or_insert(value.wrapping_sub(wanted));
        }
    }

    /// Returns the number of ticks by which a timestamp of the stack differs from the expected one.
    pub fn clock_error(&self, wanted: u32, live: u32) -> u32 {
        let offset = self.clock.offset.unwrap_or(0);
        (live.wrapping_sub(offset).wrapping_sub(wanted) as i32).unsigned_abs()
    }

    /// Converts a segment of the script to the segment in the packet. In the script, sequence
    /// numbers of the peer after its first SYN are relative to this SYN.
    pub fn translate(&mut self, spec: &TcpSpec) -> WireSegment {
        let is_syn = spec.flags & flag::SYN != 0;
        if is_syn && !self.has_peer_isn {
            self.has_peer_isn = true;
            self.remote_offset = self.syn_offset.wrapping_add(spec.seq);
        }
        let offset = if is_syn { self.syn_offset } else { self.remote_offset };
        let translate = |option: &TcpOption| match option {
            TcpOption::Sack(blocks) => TcpOption::Sack(shift(blocks, self.local_offset)),
            TcpOption::Timestamps { value, echo } => {
                TcpOption::Timestamps { value: *value, echo: self.live_echo(*echo) }
            }
            option => option.clone(),
        };
        let options = spec.options.iter().flatten().map(translate).collect();
        WireSegment {
            ecn: match spec.ecn {
                EcnSpec::Codepoint(ecn) => ecn,
                EcnSpec::Ect => 2,
                EcnSpec::Any => 0,
            },
            flags: spec.flags,
            seq: spec.seq.wrapping_add(offset),
            ack: spec.ack.map_or(0, |ack| ack.wrapping_add(self.local_offset)),
            window: spec.window.unwrap_or(0),
            urgent: spec.urgent.unwrap_or(0),
            options,
            len: spec.len,
        }
    }

    fn live_echo(&self, echo: u32) -> u32 {
        if echo == 0 {
            return 0;
        }
        let known = self.clock.known.get(&echo).copied();
        known.unwrap_or_else(|| echo.wrapping_add(self.clock.offset.unwrap_or(0)))
    }

    /// Converts a segment of the stack to the numbers of the script. Timestamps are not converted.
    pub fn to_script(&self, live: &WireSegment) -> WireSegment {
        let negative = 0u32.wrapping_sub(self.remote_offset);
        let translate = |option: &TcpOption| match option {
            TcpOption::Sack(blocks) => TcpOption::Sack(shift(blocks, negative)),
            option => option.clone(),
        };
        let offset = if live.has(flag::SYN) { self.syn_offset } else { self.remote_offset };
        let ack = if live.has(flag::ACK) { live.ack.wrapping_sub(offset) } else { 0 };
        WireSegment {
            seq: live.seq.wrapping_sub(self.local_offset),
            ack,
            options: live.options.iter().map(translate).collect(),
            ..live.clone()
        }
    }

    /// Converts a sequence number of the stack in the script to the number in the packet.
    pub fn live_seq(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.local_offset)
    }
}

fn shift(blocks: &[(u32, u32)], by: u32) -> Vec<(u32, u32)> {
    blocks.iter().map(|block| (block.0.wrapping_add(by), block.1.wrapping_add(by))).collect()
}

/// Returns the value and the echo of the timestamps option. `None` if the segment has no such
/// option.
pub fn timestamps(options: &[TcpOption]) -> Option<(u32, u32)> {
    options.iter().find_map(|option| match option {
        TcpOption::Timestamps { value, echo } => Some((*value, *echo)),
        _ => None,
    })
}
