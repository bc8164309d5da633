//! State of a TCP connection in the connection tracker, with the windows of both ends.
//!
//! A router sees the segments that both ends send, but does not know which of them arrive. Bounds
//! of the numbers that an end may send follow van Rooij, "Real Stateful TCP Packet Filtering in IP
//! Filter" (2001):
//!
//! ```text
//!   seq       at most what the receiver has permitted (its highest ack + window)
//!   seq + len at least the sender's highest end less the receiver's largest window
//!   ack       at most the receiver's highest end, at least that less a window
//! ```

use towpath_wire::tcp::{self, Flags};

use crate::tuple::FlowDirection;

/// Minimum distance in bytes by which an ACK may lag behind. The distance covers the largest window
/// without scaling plus some segments, because an end may repeat an old ACK.
const ACK_WINDOW_MIN: u32 = 66_000;

/// Maximum shift count of the window scale option (RFC 7323 section 2.3).
const SHIFT_MAX: u8 = 14;

/// Phase of a TCP connection, which determines how long it is remembered without packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpPhase {
    /// The TCP handshake is not complete.
    Opening,
    /// Both ends of the connection have acknowledged the SYN of the opposite end.
    Established,
    /// Both ends of the connection have sent a FIN, or one end has sent a reset.
    Closing,
}

/// Fields of a TCP segment that the tracker checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpSegment {
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub flags: Flags,
    /// Length of the segment in sequence numbers; SYN and FIN count one each.
    pub len: u32,
    /// Shift count of the segment's window scale option, if present.
    pub scale: Option<u8>,
    /// Whether the segment is in the first fragment of a packet. Its length is then unknown, and
    /// `len` is the maximum.
    pub is_fragment: bool,
}

impl TcpSegment {
    /// Parses the TCP header at the start of `transport`. `len` is the length of header and payload
    /// in bytes.
    pub(crate) fn parse(transport: &[u8], len: usize) -> Option<Self> {
        let head = transport.first_chunk::<{ tcp::HEADER_LEN_MIN }>()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let header_len = usize::from(head[12] >> 4) * 4;
        if header_len < tcp::HEADER_LEN_MIN {
            return None;
        }
        let payload = len.checked_sub(header_len)? as u32;
        let flags = Flags(u16::from(head[13]));
        let controls = [Flags::SYN, Flags::FIN].map(|flag| u32::from(flags.contains(flag)));
        let scale = match flags.contains(Flags::SYN) {
            true => tcp::Header::parse(transport).ok()?.options.window_scale,
            false => None,
        };
        Some(Self {
            seq: word(4),
            ack: word(8),
            window: u16::from_be_bytes([head[14], head[15]]),
            flags,
            len: payload + controls[0] + controls[1],
            scale: scale.map(|shift| shift.min(SHIFT_MAX)),
            is_fragment: false,
        })
    }

    fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }

    fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }

    /// Returns whether this is the first segment of a connection: a SYN without ACK or RST.
    pub(crate) fn is_opening(&self) -> bool {
        self.has(Flags::SYN) && !self.has(Flags::ACK) && !self.has(Flags::RST)
    }
}

/// Returns whether sequence number `a` follows `b`; the two must be less than half of the sequence
/// space apart.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Sequence numbers and window of one end of a TCP connection.
#[derive(Debug, Clone, Copy, Default)]
struct TcpSide {
    /// Highest sequence number that this end has sent, plus one.
    end: u32,
    /// Highest sequence number that the opposite end permits this end to send, plus one.
    limit: u32,
    /// Largest window in bytes that this end has advertised.
    window_max: u32,
    scale: u8,
    marks: u8,
}

/// Flag: this end has sent a SYN.
const SYN_SENT: u8 = 1;
/// Flag: this end has sent a window scale option.
const SCALES: u8 = 2;
/// Flag: this end has sent a FIN.
const FIN_SENT: u8 = 4;
/// Flag: this end has sent a fragmented segment. Its length was unknown, so the recorded highest
/// sequence number may be too high.
const FRAGMENTS: u8 = 8;

/// Maximum difference between the recorded `end` of a sender with fragmented segments and the
/// sequence numbers that it has really sent.
const FRAGMENT_ERROR: u32 = 65_535;

/// State of a tracked TCP connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcpTrack {
    sides: [TcpSide; 2],
    /// Whether the client has acknowledged the server's SYN.
    is_open: bool,
    is_reset: bool,
}

impl TcpTrack {
    /// Creates the state of a connection from its first segment.
    pub(crate) fn open(first: &TcpSegment) -> Self {
        let mut track = Self::default();
        track.sides[0].on_syn(first);
        track
    }

    /// Checks a segment against the state, and updates the state. Returns `None` if neither end can
    /// have sent the segment now.
    pub(crate) fn on_segment(
        &mut self,
        way: FlowDirection,
        segment: &TcpSegment,
    ) -> Option<TcpPhase> {
        if segment.is_opening() && self.on_reopening(way, segment) {
            return Some(self.phase());
        }
        let [first, second] = &mut self.sides;
        let (sender, receiver) = match way {
            FlowDirection::Original => (first, second),
            FlowDirection::Reply => (second, first),
        };
        if sender.marks & SYN_SENT == 0 && !sender.on_first(segment, receiver) {
            return None;
        }
        if segment.has(Flags::SYN) && sender.marks & receiver.marks & SCALES == 0 {
            (sender.scale, receiver.scale) = (0, 0);
        }
        if !sender.may_send(segment, receiver) {
            return None;
        }
        sender.on_sent(segment, receiver);
        let is_answered = receiver.marks & SYN_SENT != 0;
        self.is_open |= is_answered && way == FlowDirection::Original && segment.has(Flags::ACK);
        // Clear the flag `is_reset` if another segment follows a reset. The receiver has not
        // accepted the reset, for example because it was forged.
        self.is_reset = segment.has(Flags::RST);
        Some(self.phase())
    }

    /// Handles a SYN without ACK on a known connection. Returns whether no further check is needed.
    fn on_reopening(&mut self, way: FlowDirection, segment: &TcpSegment) -> bool {
        match (way, self.phase()) {
            // The client opens a new connection from the port of a closed one.
            (FlowDirection::Original, TcpPhase::Closing) => {
                *self = Self::open(segment);
                true
            }
            // The client starts again with another sequence number, for example after a restart,
            // and the server has not answered yet.
            (FlowDirection::Original, TcpPhase::Opening)
                if self.sides[1].marks & SYN_SENT == 0
                    && is_after(segment.seq, self.sides[0].limit) =>
            {
                *self = Self::open(segment);
                true
            }
            //= https://www.rfc-editor.org/rfc/rfc5961#section-4.2
            //# If the SYN bit is set, irrespective of the sequence number, TCP
            //# MUST send an ACK (also referred to as challenge ACK) to the remote
            //# peer
            // Pass the SYN on unchanged. The receiver answers with a challenge ACK and keeps the
            // connection (RFC 5961).
            (_, TcpPhase::Established) => true,
            _ => false,
        }
    }

    pub(crate) fn phase(&self) -> TcpPhase {
        let is_finished = self.sides.iter().all(|side| side.marks & FIN_SENT != 0);
        match self.is_reset || is_finished {
            true => TcpPhase::Closing,
            false if self.is_open => TcpPhase::Established,
            false => TcpPhase::Opening,
        }
    }
}

impl TcpSide {
    /// Handles the first segment from this end: a SYN, or a reset that refuses the connection.
    fn on_first(&mut self, segment: &TcpSegment, peer: &Self) -> bool {
        let answers = segment.has(Flags::ACK) && segment.ack == peer.end;
        if segment.has(Flags::SYN) && (answers || !segment.has(Flags::ACK)) {
            self.on_syn(segment);
            return true;
        }
        if segment.has(Flags::RST) && answers {
            (self.end, self.limit, self.window_max) = (segment.seq, segment.seq, 1);
            return true;
        }
        false
    }

    fn on_syn(&mut self, segment: &TcpSegment) {
        self.end = segment.end();
        self.limit = segment.end();
        self.window_max = u32::from(segment.window).max(1);
        self.scale = segment.scale.unwrap_or(0);
        self.marks = SYN_SENT | if segment.scale.is_some() { SCALES } else { 0 };
    }

    /// Returns the maximum difference between the recorded `end` and the sequence numbers that were
    /// really sent.
    fn error(&self) -> u32 {
        if self.marks & FRAGMENTS == 0 { 0 } else { FRAGMENT_ERROR }
    }

    /// Returns whether the sequence number and the ACK of the segment are within the windows. If
    /// not, this end cannot have sent the segment.
    fn may_send(&self, segment: &TcpSegment, receiver: &Self) -> bool {
        let window = receiver.window_max.max(1) + self.error();
        let is_in_window = !is_after(segment.seq, self.limit)
            && !is_after(self.end.wrapping_sub(window), segment.end());
        if !segment.has(Flags::ACK) {
            return is_in_window;
        }
        let old = self.window_max.max(ACK_WINDOW_MIN) + receiver.error();
        is_in_window
            && !is_after(segment.ack, receiver.end)
            && !is_after(receiver.end.wrapping_sub(old), segment.ack)
    }

    fn on_sent(&mut self, segment: &TcpSegment, receiver: &mut Self) {
        let shift = if segment.has(Flags::SYN) { 0 } else { self.scale };
        let window = u32::from(segment.window) << shift;
        self.window_max = self.window_max.max(window);
        if is_after(segment.end(), self.end) {
            self.end = segment.end();
        }
        if segment.has(Flags::FIN) {
            self.marks |= FIN_SENT;
        }
        if segment.is_fragment {
            self.marks |= FRAGMENTS;
        }
        // Permit one byte beyond a window of 0, because the sender probes a zero window with one
        // byte.
        let limit = segment.ack.wrapping_add(window.max(1));
        if segment.has(Flags::ACK) && is_after(limit, receiver.limit) {
            receiver.limit = limit;
        }
    }
}
