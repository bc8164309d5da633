//! Traces of a few connections as the sending host sees them, for time-sequence charts.

use crate::scenario::Plan;
use crate::traffic::flow_of;

/// Maximum number of connections that are traced.
const TRACED_MAX: usize = 6;
/// Maximum number of points in the trace of a connection. Later points are discarded.
const POINTS_MAX: usize = 400_000;

/// Segment with payload that the host sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentSegment {
    /// Time in ns at which the host passed the segment to its device.
    pub at_ns: u64,
    /// Stream offset of the first payload byte.
    pub from: u64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Whether at least one byte of the payload was sent before.
    pub is_again: bool,
}

/// Acknowledgement that the host received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckRecord {
    /// Time in ns at which the acknowledgement arrived.
    pub at_ns: u64,
    /// Total number of stream bytes that are acknowledged.
    pub to: u64,
}

/// Range of a selective acknowledgement (RFC 2018) that the host received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sacked {
    /// Time in ns at which the acknowledgement arrived.
    pub at_ns: u64,
    /// Stream offset of the first byte in the range, and of the first byte after it.
    pub range: (u64, u64),
}

/// Trace of one connection.
#[derive(Debug, Default)]
pub struct Trace {
    /// Index of the flow.
    pub flow: usize,
    /// Segments with payload that the host sent.
    pub sent: Vec<SentSegment>,
    /// Acknowledgements that the host received.
    pub acks: Vec<AckRecord>,
    /// SACK ranges that the host received.
    pub sacks: Vec<Sacked>,
    /// Sequence number of the first byte of the stream. `None` until it is known.
    first: Option<u32>,
    /// Number of stream bytes that were sent at least once.
    high: u64,
    /// Number of stream bytes that are acknowledged.
    una: u64,
}

/// Traces of all traced connections of a world.
#[derive(Debug, Default)]
pub struct Traces {
    /// Traces, in the order of the flows.
    pub traces: Vec<Trace>,
    /// Index in `traces` of each flow's trace. `None` if the flow is not traced.
    by_flow: Vec<Option<u8>>,
}

/// Fields of a segment that are recorded in a trace.
struct TracedSegment<'a> {
    ports: [u16; 2],
    seq: u32,
    ack: u32,
    is_syn: bool,
    has_ack: bool,
    options: &'a [u8],
    payload: u32,
}

impl Traces {
    /// Starts traces for the first flows of the plan that use TCP.
    pub fn new(plan: &Plan) -> Self {
        let mut all = Self::default();
        for (number, flow) in plan.flows.iter().enumerate() {
            let is_traced = flow.traffic.is_tcp() && all.traces.len() < TRACED_MAX;
            all.by_flow.push(is_traced.then_some(all.traces.len() as u8));
            if is_traced {
                all.traces.push(Trace { flow: number, ..Trace::default() });
            }
        }
        all
    }

    /// Returns whether no connection is being traced.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Records a frame that a host sends, or receives if `is_sent` is false.
    pub fn on_frame(&mut self, at_ns: u64, frame: &[u8], is_sent: bool) {
        let Some(segment) = parse(frame) else { return };
        let server = segment.ports[usize::from(is_sent)];
        let Some(flow) = flow_of(server) else { return };
        let Some(at) = self.by_flow.get(flow).copied().flatten() else { return };
        let Some(trace) = self.traces.get_mut(usize::from(at)) else { return };
        if is_sent {
            trace.on_sent(at_ns, &segment);
        } else {
            trace.on_received(at_ns, &segment);
        }
    }

    /// Returns the memory that the traces use, in bytes.
    pub fn bytes(&self) -> u64 {
        let of = |trace: &Trace| {
            trace.sent.len() * size_of::<SentSegment>()
                + trace.acks.len() * size_of::<AckRecord>()
                + trace.sacks.len() * size_of::<Sacked>()
        };
        self.traces.iter().map(of).sum::<usize>() as u64
    }
}

impl Trace {
    fn on_sent(&mut self, at_ns: u64, segment: &TracedSegment<'_>) {
        if segment.is_syn {
            self.first = Some(segment.seq.wrapping_add(1));
        }
        let Some(first) = self.first.filter(|_| segment.payload > 0) else { return };
        let from = near(self.high, segment.seq.wrapping_sub(first));
        let is_again = from < self.high;
        self.high = self.high.max(from + u64::from(segment.payload));
        if self.sent.len() < POINTS_MAX {
            self.sent.push(SentSegment { at_ns, from, len: segment.payload, is_again });
        }
    }

    fn on_received(&mut self, at_ns: u64, segment: &TracedSegment<'_>) {
        let Some(first) = self.first.filter(|_| segment.has_ack && !segment.is_syn) else { return };
        let to = near(self.una, segment.ack.wrapping_sub(first));
        if to > self.una && self.acks.len() < POINTS_MAX {
            self.acks.push(AckRecord { at_ns, to });
        }
        self.una = self.una.max(to);
        for (from, to) in sack_blocks(segment.options) {
            let range =
                (near(self.una, from.wrapping_sub(first)), near(self.una, to.wrapping_sub(first)));
            if range.0 >= self.una && range.0 < range.1 && self.sacks.len() < POINTS_MAX {
                self.sacks.push(Sacked { at_ns, range });
            }
        }
    }
}

/// Returns the stream offset that is nearest to `base` and has the lower 32 bits `low`.
fn near(base: u64, low: u32) -> u64 {
    let ahead = i64::from(low.wrapping_sub(base as u32) as i32);
    base.saturating_add_signed(ahead)
}

/// Parses the TCP segment in an Ethernet frame with IPv4. `None` if there is none.
fn parse(frame: &[u8]) -> Option<TracedSegment<'_>> {
    if frame.get(12..14)? != [0x08, 0x00] {
        return None;
    }
    let ip = frame.get(14..)?;
    let header_len = usize::from(ip.first()? & 15) * 4;
    let total_len = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    if *ip.get(9)? != 6 {
        return None;
    }
    let tcp = ip.get(header_len..total_len)?;
    let header = tcp.get(..20)?;
    let u16_at = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let u32_at = |at: usize| (u32::from(u16_at(at)) << 16) | u32::from(u16_at(at + 2));
    let options_end = usize::from(header[12] >> 4) * 4;
    Some(TracedSegment {
        ports: [u16_at(0), u16_at(2)],
        seq: u32_at(4),
        ack: u32_at(8),
        is_syn: header[13] & 2 != 0,
        has_ack: header[13] & 16 != 0,
        options: tcp.get(20..options_end)?,
        payload: (tcp.len() - options_end) as u32,
    })
}

/// Iterates over the ranges of a SACK option (RFC 2018 section 3).
fn sack_blocks(mut options: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let mut blocks: &[u8] = &[];
    while let Some((&kind, rest)) = options.split_first() {
        match kind {
            0 => break,
            1 => options = rest,
            kind => {
                let len = rest.first().map_or(0, |len| usize::from(*len));
                let Some(body) = options.get(2..len) else { break };
                if kind == 5 {
                    blocks = body;
                }
                options = options.get(len..).unwrap_or_default();
            }
        }
    }
    blocks.chunks_exact(8).map(|block| {
        let word = |at: usize| {
            u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
        };
        (word(0), word(4))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_stream_go_on_beyond_32_bits() {
        assert_eq!(near(0, 5), 5);
        assert_eq!(near(0xffff_fff0, 0x10), 0x1_0000_0010);
        assert_eq!(near(0x1_0000_0010, 0xffff_fff0), 0xffff_fff0);
    }

    #[test]
    fn sack_blocks_are_found_behind_other_options() {
        let mut options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10];
        options.extend([0, 0, 0, 7, 0, 0, 0, 9]);
        assert_eq!(sack_blocks(&options).collect::<Vec<_>>(), [(7, 9)]);
        for cut in 0..options.len() {
            assert!(sack_blocks(&options[..cut]).count() <= 1);
        }
    }
}
