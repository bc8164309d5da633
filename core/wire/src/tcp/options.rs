//! The options of a TCP header (RFC 9293 §3.1, RFC 7323, RFC 2018).

use super::{HEADER_LEN_MAX, HEADER_LEN_MIN, SeqNum};

const OPTIONS_LEN_MAX: usize = HEADER_LEN_MAX - HEADER_LEN_MIN;

pub(super) const KIND_END: u8 = 0;
pub(super) const KIND_NOP: u8 = 1;
pub(super) const KIND_MSS: u8 = 2;
pub(super) const KIND_WINDOW_SCALE: u8 = 3;
pub(super) const KIND_SACK_PERMITTED: u8 = 4;
pub(super) const KIND_SACK: u8 = 5;
pub(super) const KIND_TIMESTAMPS: u8 = 8;

/// The TCP options that the stack supports. The parser skips other options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size: the longest payload in bytes that the sender of the option accepts
    /// (RFC 9293 §3.7.1). Only in SYNs.
    pub mss: Option<u16>,
    /// Window scale of the sender (RFC 7323 §2.2), as on the wire. The receiver must limit it to
    /// 14. Only in SYNs.
    pub window_scale: Option<u8>,
    /// Whether the sender permits selective acknowledgments (RFC 2018 §2). Only in SYNs.
    pub sack_permitted: bool,
    /// Timestamps (RFC 7323 §3.2); `None` if the segment has no such option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 §3); empty if the segment has no SACK option.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the options of a TCP header. The options need not be padded or well formed.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Options {
        // Fast path for the options that almost all segments with timestamps have (RFC 7323
        // appendix A).
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

    /// Stores one parsed option. Unknown options, and options with an invalid length, are ignored.
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

    /// Returns the number of bytes that the options take in a TCP header, including padding.
    #[inline]
    pub fn emitted_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        // With timestamps, SACK-permitted needs no further bytes, because it replaces the two NOPs
        // before the timestamps option.
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

    pub(super) fn emit(&self, out: &mut [u8]) {
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
    /// TSval: value of the sender's timestamp clock.
    pub value: u32,
    /// TSecr: the most recent timestamp that the sender received from its peer; valid only with
    /// ACK.
    pub echo: u32,
}

/// Up to four selectively acknowledged ranges (RFC 2018 §3), most recent first.
#[derive(Debug, Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [(SeqNum, SeqNum); SackBlocks::COUNT_MAX],
    len: u8,
}

impl SackBlocks {
    /// Maximum number of SACK blocks that fit in the 40 bytes of options.
    pub const COUNT_MAX: usize = 4;

    /// Creates an empty list. No SACK option is emitted for it.
    pub const fn new() -> SackBlocks {
        SackBlocks { blocks: [(SeqNum(0), SeqNum(0)); Self::COUNT_MAX], len: 0 }
    }

    /// Appends the range of sequence numbers `left..right`. Returns false if the list is full.
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

    /// Returns the number of SACK blocks, at most [`COUNT_MAX`](Self::COUNT_MAX).
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns whether there are no SACK blocks.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the ranges. Each is a pair of the first sequence number and the number after
    /// the last one.
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
