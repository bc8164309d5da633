//! The TCP header, its options, and arithmetic on sequence numbers (RFC 9293 §3.1, RFC 7323, RFC
//! 2018).
//!
//! Checksums are not handled here, because they also cover the addresses and the payload. The
//! caller verifies a checksum before `parse`, and computes it after `emit`.

mod flags;
mod options;
mod seq_num;

use core::fmt;

pub use self::flags::Flags;
pub use self::options::{Options, SackBlocks, Timestamps};
pub use self::seq_num::SeqNum;
use crate::bytes::be64_of;

/// Length of a TCP header without options, in bytes.
pub const HEADER_LEN_MIN: usize = 20;
/// Maximum length of a TCP header in bytes, which the 4-bit data offset limits.
pub const HEADER_LEN_MAX: usize = 60;
/// Offset of the checksum field in a TCP header.
pub const CHECKSUM_OFFSET: usize = 16;

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
    /// Source port; never 0 after `parse`.
    pub src_port: u16,
    /// Destination port; never 0 after `parse`.
    pub dst_port: u16,
    /// Sequence number (SEG.SEQ) of the first byte of the payload, or of the SYN.
    pub seq: SeqNum,
    /// Acknowledgment number; valid only if [`Flags::ACK`] is set.
    pub ack: SeqNum,
    /// Control bits, such as SYN and ACK.
    pub flags: Flags,
    /// Window field as on the wire, without window scaling.
    pub window: u16,
    /// Checksum as on the wire; neither verified nor computed here.
    pub checksum: u16,
    /// Urgent pointer; valid only if [`Flags::URG`] is set.
    pub urgent: u16,
    /// Length of the header in bytes, including options. `emit` ignores this field, and writes the
    /// length that the options need.
    pub header_len: u8,
    /// The options that the stack supports; see [`Options::parse`].
    pub options: Options,
}

impl Header {
    /// Parses the TCP header at the start of `bytes`, which may be followed by the payload.
    ///
    /// An invalid option ends the parsing of options, but the segment is not rejected; options
    /// before it are used.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, TcpParseError> {
        let Some((fixed, _)) = bytes.split_first_chunk::<HEADER_LEN_MIN>() else {
            return Err(TcpParseError::Truncated);
        };
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, bits, w0, w1, c0, c1, u0, u1] =
            *fixed;
        let header_len = usize::from(offset >> 4) * 4;
        if header_len < HEADER_LEN_MIN {
            return Err(TcpParseError::HeaderLength);
        }
        let Some(options) = bytes.get(HEADER_LEN_MIN..header_len) else {
            return Err(TcpParseError::Truncated);
        };
        let src_port = u16::from_be_bytes([s0, s1]);
        let dst_port = u16::from_be_bytes([d0, d1]);
        if src_port == 0 || dst_port == 0 {
            return Err(TcpParseError::PortZero);
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

    /// Writes the header with its options and padding to the start of `out`, and returns its length
    /// in bytes.
    ///
    /// # Panics
    /// Panics if `out` is shorter than [`emitted_len`](Self::emitted_len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.emitted_len();
        let (fixed, options) = out[..len]
            .split_first_chunk_mut::<HEADER_LEN_MIN>()
            .expect("emitted_len is at least the fixed header");
        let halves = |n: u32| [(n >> 16) as u16, n as u16];
        let ([q0, q1], [a0, a1]) = (halves(self.seq.0), halves(self.ack.0));
        let bits = (len as u16 / 4) << 12 | (self.flags.0 & Flags::MASK);
        // Use few stores. The checksum may be computed next by loading words, and a load that spans
        // several recent stores would stall.
        fixed[..8].copy_from_slice(&be64_of([self.src_port, self.dst_port, q0, q1]));
        fixed[8..16].copy_from_slice(&be64_of([a0, a1, bits, self.window]));
        let last = u32::from(self.checksum) << 16 | u32::from(self.urgent);
        fixed[16..].copy_from_slice(&last.to_be_bytes());
        if !options.is_empty() {
            self.options.emit(options);
        }
        len
    }

    /// Returns the length in bytes of the header that `emit` writes: a multiple of 4 between 20 and
    /// 60.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        HEADER_LEN_MIN + self.options.emitted_len()
    }
}

/// Reason why bytes are not a valid TCP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpParseError {
    /// There are fewer bytes than the header needs.
    Truncated,
    /// The data offset is smaller than the header without options.
    HeaderLength,
    /// A port is 0, which is reserved (RFC 6335 §6).
    PortZero,
}

impl fmt::Display for TcpParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TcpParseError::Truncated => "TCP header is truncated",
            TcpParseError::HeaderLength => "TCP data offset is less than 5 words",
            TcpParseError::PortZero => "TCP port is 0",
        })
    }
}

impl core::error::Error for TcpParseError {}

#[cfg(test)]
mod tests {
    use super::options::{KIND_MSS, KIND_SACK, KIND_SACK_PERMITTED, KIND_WINDOW_SCALE};
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
            // `is_within` gives correct results even for offsets at which comparisons of sequence
            // numbers are inverted.
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
        assert_eq!(Header::parse(&bytes[..19]), Err(TcpParseError::Truncated));
        let mut short = bytes;
        short[12] = 0x40;
        assert_eq!(Header::parse(&short), Err(TcpParseError::HeaderLength));
        let mut long = bytes;
        long[12] = 0x60;
        assert_eq!(Header::parse(&long), Err(TcpParseError::Truncated));
        bytes[0..2].fill(0);
        assert_eq!(Header::parse(&bytes), Err(TcpParseError::PortZero));
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
            // Add SACK blocks only if the segment is not a SYN. Together with all other options,
            // only two blocks would fit.
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
        fn parse_after_emit_is_the_identity(options in any_options(), flags in 0u16..512) {
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
