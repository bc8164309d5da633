//! A hostile peer that knows the connection's ports, and sees all its segments.

use towpath_tcp::{Ecn, Flags, Instant, Options, SackBlocks, Segment, SeqNum, Timestamps};

use crate::input::Input;

/// Sequence numbers at which a receiver changes its decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edges {
    pub(crate) snd_una: SeqNum,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    /// Right edge of the receive window.
    pub(crate) rcv_adv: SeqNum,
    /// Usual length of a segment.
    pub(crate) mss: u32,
}

/// State that a peer keeps itself.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Last valid timestamp that the peer sent.
    pub(crate) stamp: u32,
    /// Last timestamp of the connection that the peer received.
    pub(crate) seen: u32,
}

/// Half of the sequence space, where the order of numbers is inverted.
const HALF: u32 = 1 << 31;

impl Edges {
    /// Returns any sequence number, more often one near an edge, or half of the space away from
    /// one.
    fn number(&self, input: &mut Input<'_>) -> SeqNum {
        let base = match input.u8() % 8 {
            0 => self.snd_una,
            1 => self.snd_nxt,
            2 => self.rcv_nxt,
            3 => self.rcv_adv,
            4 => self.snd_una + HALF,
            5 => self.snd_nxt + HALF,
            6 => self.rcv_nxt + HALF,
            _ => return SeqNum(input.u32()),
        };
        SeqNum(base.0.wrapping_add(self.near(input)))
    }

    /// Returns a small distance, positive or negative.
    fn near(&self, input: &mut Input<'_>) -> u32 {
        match input.u8() % 4 {
            0 => 0,
            1 => input.u8() as i8 as u32,
            2 => input.u16() as i16 as u32,
            _ => {
                self.mss.wrapping_mul(input.u8() as i8 as u32).wrapping_add(input.u8() as i8 as u32)
            }
        }
    }

    /// Returns a SACK block: with independent edges, small at any position, or repeating a part of
    /// `before` like a D-SACK (RFC 2883).
    fn block(&self, input: &mut Input<'_>, before: Option<(SeqNum, SeqNum)>) -> (SeqNum, SeqNum) {
        let flight = self.snd_nxt - self.snd_una;
        match (input.u8() % 5, before) {
            (0, _) => (self.number(input), self.number(input)),
            (1, Some((left, right))) => (left + self.near(input), right + self.near(input)),
            (1 | 2, _) => {
                let left = self.number(input);
                (left, left + self.near(input))
            }
            (3, _) => {
                let left = self.number(input);
                (left, left + flight + self.near(input))
            }
            // A block within the bytes in flight, whose numbers are plausible.
            _ => {
                let [a, b] = [input.u16(), input.u16()].map(|n| u32::from(n) % flight.max(1));
                (self.snd_una + a.min(b), self.snd_una + a.max(b) + 1)
            }
        }
    }

    fn blocks(&self, input: &mut Input<'_>) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        let mut before = None;
        for _ in 0..usize::from(input.u8()) % (SackBlocks::COUNT_MAX + 1) {
            let block = self.block(input, before);
            blocks.push(block.0, block.1);
            before = Some(block);
        }
        blocks
    }
}

impl Peer {
    /// Creates a segment whose fields are valid or invalid independently of each other.
    pub(crate) fn forge(&mut self, input: &mut Input<'_>, edges: &Edges, now: Instant) -> Segment {
        let flight = edges.snd_nxt - edges.snd_una;
        let seq = match input.u8() % 4 {
            0 | 1 => edges.rcv_nxt,
            2 => edges.rcv_nxt + u32::from(input.u16()),
            _ => edges.number(input),
        };
        let ack = match input.u8() % 4 {
            0 | 1 => edges.snd_una,
            2 => edges.snd_una + u32::from(input.u16()) % (flight + 1),
            _ => edges.number(input),
        };
        let window = match input.u8() % 4 {
            0 | 1 => u16::MAX,
            2 => u16::from(input.u8()) % 3,
            _ => input.u16(),
        };
        Segment {
            seq,
            ack,
            flags: flags(input),
            window,
            urgent: u16::from(input.u8()),
            options: self.options(input, edges),
            payload_len: payload_len(input, edges),
            arrival: now,
            ecn: if input.one_in(16) { Ecn::Ce } else { Ecn::Ect0 },
            segments: if input.one_in(8) { input.u16() } else { 1 },
        }
    }

    fn options(&mut self, input: &mut Input<'_>, edges: &Edges) -> Options {
        let mut options = Options { sack: edges.blocks(input), ..Options::default() };
        options.timestamps = match input.u8() % 8 {
            0 => None,
            1 => Some(Timestamps { value: input.u32(), echo: input.u32() }),
            2 => Some(Timestamps {
                value: self.stamp.wrapping_add(HALF).wrapping_add(edges.near(input)),
                echo: self.seen.wrapping_add(HALF).wrapping_add(edges.near(input)),
            }),
            _ => {
                self.stamp = self.stamp.wrapping_add(u32::from(input.u8() % 4));
                Some(Timestamps { value: self.stamp, echo: self.seen })
            }
        };
        if input.one_in(16) {
            options.mss = Some(input.u16());
            options.window_scale = Some(input.u8());
            options.sack_permitted = input.bool();
        }
        options
    }
}

/// Returns flags, mostly those of an established connection. RST and FIN are rare, because they
/// soon end the case.
fn flags(input: &mut Input<'_>) -> Flags {
    match input.u8() {
        0..200 => Flags::ACK,
        200..216 => Flags::ACK | Flags::PSH,
        216..224 => Flags::ACK | Flags::FIN,
        224..232 => Flags::ACK | Flags::SYN,
        232..236 => Flags::SYN,
        236..238 => Flags::RST,
        238..240 => Flags::RST | Flags::ACK,
        _ => Flags(u16::from(input.u8())),
    }
}

fn payload_len(input: &mut Input<'_>, edges: &Edges) -> u32 {
    match input.u8() % 8 {
        0..4 => 0,
        4 => 1 + u32::from(input.u8()),
        5 => edges.mss,
        6 => u32::from(input.u16() % 3000),
        _ => u32::from(input.u16()).min(60_000),
    }
}
