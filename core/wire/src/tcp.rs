//! The TCP header, its options, and arithmetic on sequence numbers (RFC 9293 §3.1, RFC 7323, RFC
//! 2018).
//!
//! Only the header is read here: the checksum, which needs the addresses and the payload, is the
//! caller's, before `parse` and after `emit`.

use core::fmt;
use core::ops::{Add, AddAssign, BitOr, BitOrAssign, Sub};

use crate::bytes::be64_of;

/// Length of a header without options.
pub const HEADER_LEN_MIN: usize = 20;
/// Length of a header with all the options that the 4-bit data offset can describe.
pub const HEADER_LEN_MAX: usize = 60;
/// Where the checksum field starts in the header.
pub const CHECKSUM_OFFSET: usize = 16;

const OPTIONS_LEN_MAX: usize = HEADER_LEN_MAX - HEADER_LEN_MIN;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// A parsed TCP header.
///
/// ```
/// use towpath_wire::tcp::{Flags, Header, Options, SeqNum};
/// let syn = Header {
///     src_port: 40_000,
///     dst_port: 80,
///     seq: SeqNum(1000),
///     ack: SeqNum(0),
///     flags: Flags::SYN,
///     window: 65_535,
///     checksum: 0,
///     urgent: 0,
///     header_len: 28,
///     options: Options { mss: Some(1460), window_scale: Some(7), ..Options::default() },
/// };
/// let mut bytes = [0; 60];
/// let len = syn.emit(&mut bytes);
/// assert_eq!(len, 28);
/// assert_eq!(Header::parse(&bytes[..len]), Ok(syn));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Never 0 after `parse`.
    pub src_port: u16,
    /// Never 0 after `parse`.
    pub dst_port: u16,
    /// SEG.SEQ: the number of the first byte of the payload, or of the SYN.
    pub seq: SeqNum,
    /// Meaningful only with [`Flags::ACK`].
    pub ack: SeqNum,
    /// The control bits.
    pub flags: Flags,
    /// As on the wire: not scaled.
    pub window: u16,
    /// As on the wire; neither checked nor computed here.
    pub checksum: u16,
    /// Meaningful only with [`Flags::URG`].
    pub urgent: u16,
    /// Bytes from the start of the header to the payload. `emit` ignores it and writes what the
    /// options need.
    pub header_len: u8,
    /// The options understood; see [`Options::parse`].
    pub options: Options,
}

impl Header {
    /// Reads the header at the start of `bytes`, which may go on with the payload.
    ///
    /// A bad option ends the reading of options but does not cost the segment: what was understood
    /// before it counts.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, ParseError> {
        let Some((fixed, _)) = bytes.split_first_chunk::<HEADER_LEN_MIN>() else {
            return Err(ParseError::Truncated);
        };
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, bits, w0, w1, c0, c1, u0, u1] =
            *fixed;
        let header_len = usize::from(offset >> 4) * 4;
        if header_len < HEADER_LEN_MIN {
            return Err(ParseError::HeaderLength);
        }
        let Some(options) = bytes.get(HEADER_LEN_MIN..header_len) else {
            return Err(ParseError::Truncated);
        };
        let src_port = u16::from_be_bytes([s0, s1]);
        let dst_port = u16::from_be_bytes([d0, d1]);
        if src_port == 0 || dst_port == 0 {
            return Err(ParseError::PortZero);
        }
        Ok(Header {
            src_port,
            dst_port,
            seq: SeqNum(u32::from_be_bytes([q0, q1, q2, q3])),
            ack: SeqNum(u32::from_be_bytes([a0, a1, a2, a3])),
            flags: Flags(u16::from_be_bytes([offset & 0x0f, bits]) & Flags::MASK),
            window: u16::from_be_bytes([w0, w1]),
            checksum: u16::from_be_bytes([c0, c1]),
            urgent: u16::from_be_bytes([u0, u1]),
            header_len: header_len as u8,
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
            options: Options::parse(options),
        })
    }

    /// Writes header, options and padding to the start of `out` and returns their length.
    ///
    /// # Panics
    /// When `out` is shorter than [`emitted_len`](Self::emitted_len): the caller sized it.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.emitted_len();
        let (fixed, options) = out[..len]
            .split_first_chunk_mut::<HEADER_LEN_MIN>()
            .expect("emitted_len is at least the fixed header");
        let halves = |n: u32| [(n >> 16) as u16, n as u16];
        let ([q0, q1], [a0, a1]) = (halves(self.seq.0), halves(self.ack.0));
        let bits = (len as u16 / 4) << 12 | (self.flags.0 & Flags::MASK);
        // Few stores: the checksum may be computed next, by words, and a load that spans several
        // stores waits for them.
        fixed[..8].copy_from_slice(&be64_of([self.src_port, self.dst_port, q0, q1]));
        fixed[8..16].copy_from_slice(&be64_of([a0, a1, bits, self.window]));
        let last = u32::from(self.checksum) << 16 | u32::from(self.urgent);
        fixed[16..].copy_from_slice(&last.to_be_bytes());
        if !options.is_empty() {
            self.options.emit(options);
        }
        len
    }

    /// How many bytes `emit` writes: a multiple of 4 between 20 and 60.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        HEADER_LEN_MIN + self.options.emitted_len()
    }
}

/// Why bytes are not a TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the header says it has.
    Truncated,
    /// The data offset points into the fixed header.
    HeaderLength,
    /// Port 0 names nothing (RFC 6335 §6).
    PortZero,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseError::Truncated => "TCP header is truncated",
            ParseError::HeaderLength => "TCP data offset is less than 5 words",
            ParseError::PortZero => "TCP port is 0",
        })
    }
}

impl core::error::Error for ParseError {}

/// The options that the stack understands; unknown ones are skipped in reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest payload the sender of the option accepts (RFC 9293 §3.7.1); only in SYNs.
    pub mss: Option<u16>,
    /// Shift count of the sender's windows (RFC 7323 §2.2), as on the wire: a receiver caps it at
    /// 14.
    pub window_scale: Option<u8>,
    /// RFC 2018 §2; only in SYNs.
    pub sack_permitted: bool,
    /// RFC 7323 §3.2.
    pub timestamps: Option<Timestamps>,
    /// RFC 2018 §3; empty when there is no such option.
    pub sack: SackBlocks,
}

impl Options {
    /// Reads an option area, which need not be padded or well formed.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Options {
        // The layout of nearly all segments of a connection with timestamps (RFC 7323 appendix A).
        if let [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes {
            return Options {
                timestamps: Some(Timestamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                }),
                ..Options::default()
            };
        }
        match bytes {
            [] => Options::default(),
            _ => Options::parse_any(bytes),
        }
    }

    fn parse_any(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
        //# There is no guarantee that senders will use this option, so receivers MUST be prepared to
        //# process options even if they do not begin on a word boundary (MUST-64).
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                KIND_END => break,
                KIND_NOP => bytes = rest,
                _ => {
                    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
                    //# TCP implementations MUST be prepared to handle an illegal option length (e.g.,
                    //# zero); a suggested procedure is to reset the connection and log the error cause
                    //# (MUST-7).
                    let Some(&len) = rest.first() else { break };
                    let Some((option, after)) = bytes.split_at_checked(usize::from(len)) else {
                        break;
                    };
                    let Some((_, body)) = option.split_first_chunk::<2>() else { break };
                    options.read(kind, body);
                    bytes = after;
                }
            }
        }
        options
    }

    /// Notes one option; an unknown kind or a length that its kind never has is ignored.
    fn read(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //# the following options MUST be supported (MUST-4
            (KIND_MSS, &[m0, m1]) => self.mss = Some(u16::from_be_bytes([m0, m1])),
            (KIND_WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift),
            (KIND_SACK_PERMITTED, &[]) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                self.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                });
            }
            (KIND_SACK, blocks) if blocks.len().is_multiple_of(8) => {
                for block in blocks.chunks_exact(8) {
                    let &[l0, l1, l2, l3, r0, r1, r2, r3] = block else { break };
                    self.sack.push(
                        SeqNum(u32::from_be_bytes([l0, l1, l2, l3])),
                        SeqNum(u32::from_be_bytes([r0, r1, r2, r3])),
                    );
                }
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
            //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not
            //# implement, assuming that the option has a length field.
            _ => {}
        }
    }

    /// Bytes these options take in a header, padding included.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        // SACK-permitted fills the two bytes that NOPs would take before the timestamps.
        if self.timestamps.is_some() {
            len += 12;
        } else if self.sack_permitted {
            len += 4;
        }
        let blocks = self.sack_blocks_that_fit(len);
        if blocks > 0 {
            len += 4 + 8 * blocks;
        }
        len
    }

    fn sack_blocks_that_fit(&self, used: usize) -> usize {
        self.sack.len().min(OPTIONS_LEN_MAX.saturating_sub(used + 4) / 8)
    }

    fn emit(&self, out: &mut [u8]) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# All TCP Options except End of Option List Option (EOL) and No-Operation (NOP) MUST have
        //# length fields, including all future options (MUST-68).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The content of the header beyond the End of Option List Option MUST be header padding of
        //# zeros (MUST-69).
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            at
        };
        let mut used = 0;
        if let Some(mss) = self.mss {
            put(&[KIND_MSS, 4]);
            used = put(&mss.to_be_bytes());
        }
        match (self.timestamps, self.sack_permitted) {
            (Some(timestamps), permitted) => {
                put(if permitted { &[KIND_SACK_PERMITTED, 2] } else { &[KIND_NOP, KIND_NOP] });
                put(&[KIND_TIMESTAMPS, 10]);
                put(&timestamps.value.to_be_bytes());
                used = put(&timestamps.echo.to_be_bytes());
            }
            (None, true) => used = put(&[KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]),
            (None, false) => {}
        }
        if let Some(shift) = self.window_scale {
            used = put(&[KIND_NOP, KIND_WINDOW_SCALE, 3, shift]);
        }
        let blocks = self.sack_blocks_that_fit(used);
        if blocks > 0 {
            put(&[KIND_NOP, KIND_NOP, KIND_SACK, 2 + 8 * blocks as u8]);
            for (left, right) in self.sack.iter().take(blocks) {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
    }
}

/// The timestamps option (RFC 7323 §3.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the clock value it last heard from the other side; meaningful only with ACK.
    pub echo: u32,
}

/// Up to four selectively acknowledged ranges (RFC 2018 §3), most recent first.
#[derive(Debug, Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [(SeqNum, SeqNum); SackBlocks::COUNT_MAX],
    len: u8,
}

impl SackBlocks {
    /// 40 bytes of options hold no more.
    pub const COUNT_MAX: usize = 4;

    /// No block: no option.
    pub const fn new() -> SackBlocks {
        SackBlocks { blocks: [(SeqNum(0), SeqNum(0)); Self::COUNT_MAX], len: 0 }
    }

    /// Adds the range `left..right`; false when there is no room.
    pub fn push(&mut self, left: SeqNum, right: SeqNum) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Blocks in it, at most [`COUNT_MAX`](Self::COUNT_MAX).
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether it has no block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ranges as (first, one past the last).
    pub fn iter(&self) -> impl Iterator<Item = (SeqNum, SeqNum)> + '_ {
        self.blocks.iter().copied().take(self.len())
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &SackBlocks) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SackBlocks {}

/// The control bits, from FIN (bit 0) to CWR (bit 7); the four reserved bits are ignored in reading
/// and sent as zero.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// No bit.
    pub const NONE: Flags = Flags(0);
    /// The sender has no more bytes.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise: `seq` is the initial sequence number.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push: hand the bytes to the program now.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement number means something: always, but in the first SYN and in some RSTs.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer means something.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168 section 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// The congestion window was reduced (RFC 3168 section 6.1).
    pub const CWR: Flags = Flags(0x80);

    const MASK: u16 = 0xff;

    /// True when every bit of `other` is set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Removes the bits of `other`.
    #[inline]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut first = true;
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                if !first {
                    f.write_str("|")?;
                }
                f.write_str(name)?;
                first = false;
            }
        }
        if first { f.write_str("-") } else { Ok(()) }
    }
}

/// A sequence number: arithmetic wraps (RFC 9293 §3.4), and order is that of the nearer way round.
///
/// ```
/// use towpath_wire::tcp::SeqNum;
/// let (rcv_nxt, window) = (SeqNum(0xffff_fff0), 1000);
/// assert!((rcv_nxt + 999).is_within(rcv_nxt, window));
/// assert!(!(rcv_nxt - 1).is_within(rcv_nxt, window));
/// assert_eq!(SeqNum(16) - rcv_nxt, 32);
/// ```
///
/// The order is not transitive: of three numbers each may be before the next. So there is no `Ord`,
/// and there are two kinds of questions, with methods of their own:
///
/// * Where is a number that a peer chose? [`is_within`](Self::is_within) a range that we know, or
///   subtract (`seq - base`) and compare the length against one that we know. A number of the peer
///   may lie anywhere.
/// * For the later of two numbers of our own, use `lt`, `leq`, `gt`, `geq`, `max` or `min`. `lt`,
///   `leq`, `gt`, `geq`, `max`, `min`. Both are never more than [`APART_MAX`](Self::APART_MAX)
///   apart, which debug builds assert. So the first hostile test finds a peer's number that gets
///   here unchecked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Largest distance of two numbers of one connection that are in use. The largest window (RFC
    /// 7323 §2.3) counts, and half as much again for what lies before it. Well below 2^31, where
    /// order turns round.
    pub const APART_MAX: u32 = 3 << 29;

    /// Whether it is one of the `count` numbers from `first` on. Right for every number, wherever
    /// it comes from.
    #[inline]
    pub const fn is_within(self, first: SeqNum, count: u32) -> bool {
        self.0.wrapping_sub(first.0) < count
    }

    /// How far `self` is past `other` by the nearer way round; negative when it is before. The sign
    /// says nothing but which way is nearer if a peer chose a number.
    #[inline]
    pub const fn distance(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// As `distance`, of two numbers of our own.
    #[inline]
    const fn ours(self, other: SeqNum) -> i32 {
        let distance = self.distance(other);
        debug_assert!(distance.unsigned_abs() <= Self::APART_MAX, "sequence numbers too far apart");
        distance
    }

    /// `self` is before `other`; both are ours.
    #[inline]
    pub const fn lt(self, other: SeqNum) -> bool {
        self.ours(other) < 0
    }

    /// `self` is `other` or before it; both are ours.
    #[inline]
    pub const fn leq(self, other: SeqNum) -> bool {
        self.ours(other) <= 0
    }

    /// `self` is past `other`; both are ours.
    #[inline]
    pub const fn gt(self, other: SeqNum) -> bool {
        self.ours(other) > 0
    }

    /// `self` is `other` or past it; both are ours.
    #[inline]
    pub const fn geq(self, other: SeqNum) -> bool {
        self.ours(other) >= 0
    }

    /// The later of the two; both are ours.
    #[inline]
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.geq(other) { self } else { other }
    }

    /// The earlier of the two; both are ours.
    #[inline]
    pub const fn min(self, other: SeqNum) -> SeqNum {
        if self.leq(other) { self } else { other }
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn add(self, count: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn sub(self, count: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(count))
    }
}

/// The count of numbers from `other` on to `self`, modulo 2^32.
impl Sub<SeqNum> for SeqNum {
    type Output = u32;
    #[inline]
    fn sub(self, other: SeqNum) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(options: Options) -> Header {
        Header {
            src_port: 1,
            dst_port: 80,
            seq: SeqNum(0xffff_fff0),
            ack: SeqNum(7),
            flags: Flags::ACK | Flags::PSH,
            window: 512,
            checksum: 0xbeef,
            urgent: 3,
            header_len: (HEADER_LEN_MIN + options.emitted_len()) as u8,
            options,
        }
    }

    fn parse_options(bytes: &[u8]) -> Options {
        let mut segment = [0u8; HEADER_LEN_MAX];
        header(Options::default()).emit(&mut segment);
        segment[12] = ((HEADER_LEN_MIN + bytes.len().next_multiple_of(4)) as u8 / 4) << 4;
        segment[HEADER_LEN_MIN..HEADER_LEN_MIN + bytes.len()].copy_from_slice(bytes);
        Header::parse(&segment).expect("options never cost the segment").options
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(SeqNum(0xffff_ff00).lt(SeqNum(0x10)));
        assert_eq!(SeqNum(0x10).distance(SeqNum(0xffff_fff0)), 0x20);
        assert_eq!(SeqNum(0xffff_ffff) + 2, SeqNum(1));
        assert_eq!(SeqNum(1) - SeqNum(0xffff_ffff), 2);
        assert_eq!(SeqNum(1).max(SeqNum(0xffff_ffff)), SeqNum(1));
    }

    #[test]
    fn a_range_is_asked_for_by_its_length() {
        for first in [0, 1000, 0x7fff_fff0, 0xffff_fff0].map(SeqNum) {
            for (offset, within) in [(0, true), (31, true), (32, false), (u32::MAX, false)] {
                assert_eq!((first + offset).is_within(first, 32), within, "{first:?} + {offset}");
            }
            // Where order turns round nothing changes.
            for offset in [0x7fff_ffff, 0x8000_0000, 0x8000_0001] {
                assert!(!(first + offset).is_within(first, 32));
                assert!((first + offset).is_within(first, u32::MAX));
            }
            assert!(!first.is_within(first, 0));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "too far apart")]
    fn order_is_for_numbers_that_are_near() {
        let _ = (SeqNum(7) + 0x7fff_ffff).gt(SeqNum(7));
    }

    #[test]
    fn an_illegal_option_length_ends_the_options_only() {
        for bad in [0u8, 1, 200] {
            let options =
                parse_options(&[KIND_MSS, 4, 5, 0xb4, 99, bad, KIND_WINDOW_SCALE, 3, 7, 0, 0, 0]);
            assert_eq!(options.mss, Some(1460));
            assert_eq!(options.window_scale, None);
        }
    }

    #[test]
    fn unknown_and_unaligned_options_are_stepped_over() {
        let options = parse_options(&[
            99,
            5,
            1,
            2,
            3,
            KIND_WINDOW_SCALE,
            3,
            7,
            KIND_SACK_PERMITTED,
            2,
            KIND_MSS,
            4,
            1,
            2,
        ]);
        assert_eq!(options.window_scale, Some(7));
        assert!(options.sack_permitted);
        assert_eq!(options.mss, Some(258));
    }

    #[test]
    fn an_option_of_a_wrong_length_is_ignored() {
        let options = parse_options(&[
            KIND_MSS,
            3,
            9,
            KIND_SACK,
            9,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            KIND_WINDOW_SCALE,
            3,
            7,
        ]);
        assert_eq!(options, Options { window_scale: Some(7), ..Options::default() });
    }

    #[test]
    fn bad_headers_are_refused() {
        let mut bytes = [0u8; HEADER_LEN_MIN];
        header(Options::default()).emit(&mut bytes);
        assert_eq!(Header::parse(&bytes[..19]), Err(ParseError::Truncated));
        let mut short = bytes;
        short[12] = 0x40;
        assert_eq!(Header::parse(&short), Err(ParseError::HeaderLength));
        let mut long = bytes;
        long[12] = 0x60;
        assert_eq!(Header::parse(&long), Err(ParseError::Truncated));
        bytes[0..2].fill(0);
        assert_eq!(Header::parse(&bytes), Err(ParseError::PortZero));
    }

    #[test]
    fn blocks_that_do_not_fit_are_left_out() {
        let mut options = Options { timestamps: Some(Timestamps::default()), ..Options::default() };
        for block in 0..4u32 {
            assert!(options.sack.push(SeqNum(block * 10), SeqNum(block * 10 + 5)));
        }
        assert!(!options.sack.push(SeqNum(1), SeqNum(2)));
        let mut out = [0u8; HEADER_LEN_MAX];
        let len = header(options).emit(&mut out);
        assert_eq!(len, HEADER_LEN_MAX);
        assert_eq!(Header::parse(&out).unwrap().options.sack.len(), 3);
    }

    prop_compose! {
        fn any_options()(
            mss: Option<u16>,
            window_scale: Option<u8>,
            sack_permitted: bool,
            timestamps: Option<(u32, u32)>,
            blocks in prop::collection::vec((any::<u32>(), any::<u32>()), 0..3),
        ) -> Options {
            let mut sack = SackBlocks::new();
            // A SYN carries no blocks; with all the others only two would fit.
            if mss.is_none() && window_scale.is_none() {
                for (left, right) in blocks {
                    sack.push(SeqNum(left), SeqNum(right));
                }
            }
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            Options { mss, window_scale, sack_permitted, timestamps, sack }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert!(usize::from(header.header_len) <= bytes.len());
                let mut out = [0u8; HEADER_LEN_MAX];
                prop_assert!(header.emit(&mut out) <= HEADER_LEN_MAX);
            }
        }

        #[test]
        fn arbitrary_options_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            parse_options(&bytes);
        }

        #[test]
        fn parse_after_emit_is_the_identity(options in any_options(), flags in 0u16..256) {
            let mut header = header(options);
            header.flags = Flags(flags);
            let mut out = [0xaau8; HEADER_LEN_MAX];
            let len = header.emit(&mut out);
            prop_assert_eq!(len, header.emitted_len());
            prop_assert_eq!(len % 4, 0);
            prop_assert_eq!(Header::parse(&out[..len]).unwrap(), header);
        }
    }
}
