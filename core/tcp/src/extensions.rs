//! TCP extensions that both peers negotiated: timestamps and window scaling (RFC 7323), selective
//! acknowledgements (RFC 2018), and Fast Open (RFC 7413).

use crate::config::{Config, TIMESTAMPS_LEN};
use crate::disposition::SegmentDropReason;
use crate::fast_open::FastOpenState;
use crate::ranges::Assembler;
use crate::segment::Segment;
use crate::time::Instant;
use crate::timestamps;
use towpath_wire::tcp::{Options, SackBlocks, SeqNum, Timestamps};

/// Maximum age of TS.Recent, 24 days; older values are ignored (RFC 7323 §5.5).
const TS_RECENT_AGE_MAX: u32 = Instant(24 * 24 * 3600 * 1_000_000_000).coarse();

/// TCP extensions in use. Before the peer's SYN arrives, the extensions that we offer.
#[derive(Debug)]
pub(crate) struct Extensions {
    /// TS.Recent of RFC 7323 §4.3: the peer's timestamp to echo.
    pub(crate) ts_recent: u32,
    /// Time at which `ts_recent` was set, in the unit of [`Instant::coarse`].
    ts_recent_at: u32,
    pub(crate) ts_offset: u32,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) scaling: bool,
    pub(crate) fast_open: FastOpenState,
}

impl Extensions {
    pub(crate) fn new(config: &Config, ts_offset: u32, now: Instant) -> Extensions {
        Extensions {
            //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
            //# If the ACK bit is not set in the outgoing TCP header, the sender of that segment
            //# SHOULD set the TSecr field to zero.
            ts_recent: 0,
            ts_recent_at: now.coarse(),
            ts_offset,
            timestamps: config.timestamps,
            sack: config.sack,
            scaling: config.scaling,
            fast_open: FastOpenState::default(),
        }
    }

    /// Disables extensions that the peer's SYN does not offer.
    pub(crate) fn apply(&mut self, options: &Options) {
        self.scaling &= options.window_scale.is_some();
        self.sack &= options.sack_permitted;
        self.timestamps &= options.timestamps.is_some();
    }

    /// Returns the length in bytes of the TCP options that every segment carries.
    pub(crate) fn options_len(&self) -> u16 {
        if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    pub(crate) fn timestamps_option(&self, now: Instant) -> Option<Timestamps> {
        self.timestamps.then(|| timestamps::option(now, self.ts_offset, self.ts_recent))
    }

    /// Sets TS.Recent to the timestamp of the segment, if the segment has one.
    #[inline]
    pub(crate) fn note_timestamp(&mut self, now: Instant, segment: &Segment) {
        if let Some(timestamps) = segment.options.timestamps {
            self.ts_recent = timestamps.value;
            self.ts_recent_at = now.coarse();
        }
    }

    /// Updates TS.Recent from a segment that the next ACK acknowledges (RFC 7323 §4.3). `acked` is
    /// the last acknowledgement number sent.
    #[inline]
    pub(crate) fn update_timestamp(&mut self, now: Instant, segment: &Segment, acked: SeqNum) {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-4.3
        //# when delayed ACKs are in use, the receiver SHOULD reply with the TSval field from the
        //# earliest unacknowledged segment.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-4.3
        //# An <ACK> for an out-of-order segment SHOULD, therefore, contain the timestamp from the
        //# most recent segment that advanced RCV.NXT.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-4.3
        //# the timestamp from the latest segment (which filled the hole) MUST be echoed.
        if self.timestamps && segment.seq.leq(acked) {
            self.note_timestamp(now, segment);
        }
    }

    /// Checks the segment's timestamp by PAWS (RFC 7323 §5). If TS.Recent is 24 days old, every
    /// timestamp passes, because the peer's clock may have wrapped.
    #[inline]
    pub(crate) fn check_timestamps(
        &self,
        now: Instant,
        segment: &Segment,
    ) -> Result<(), SegmentDropReason> {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# the TSopt MUST be ignored and the packet processed normally.
        if !self.timestamps {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc7323#section-5.5
        //# the TCP MAY update a clock or timestamp value associated with the connection whenever
        //# TS.Recent is updated
        let age = now.coarse().saturating_sub(self.ts_recent_at);
        match timestamps::check(self.ts_recent, segment) {
            //= https://www.rfc-editor.org/rfc/rfc7323#section-5.5
            //# a mechanism to "invalidate" the TS.Recent value when a connection is idle for more
            //# than 24 days.
            Err(SegmentDropReason::Paws) if age >= TS_RECENT_AGE_MAX => Ok(()),
            checked => checked,
        }
    }

    /// Returns the maximum number of SACK blocks in a segment. With timestamps, three blocks fit in
    /// the remaining 40 - 12 - 4 bytes of options.
    fn sack_blocks_max(&self) -> usize {
        if self.timestamps { 3 } else { SackBlocks::COUNT_MAX }
    }

    /// Returns the number of SACK blocks that [`Self::sack_blocks`] will return.
    #[inline]
    pub(crate) fn sack_blocks_count(&self, dsack: bool, assembler: Option<&Assembler>) -> usize {
        // Fast path: all bytes arrived once and in order.
        if !dsack && assembler.is_none() {
            return 0;
        }
        let max = self.sack_blocks_max() - usize::from(dsack);
        let blocks = assembler.filter(|_| self.sack).map_or(0, |it| it.blocks_count(max));
        usize::from(dsack) + blocks
    }

    /// Returns the SACK blocks of a segment. `dsack` is a range of bytes that was received again
    /// (D-SACK). The last `skip` changes of the assembler's ranges are left out, because later ACKs
    /// report them.
    ///
    /// A D-SACK block precedes all others (RFC 2883 §4). If the range is a part of a range of
    /// received out-of-order data, that range follows, because it was received most recently.
    pub(crate) fn sack_blocks(
        &self,
        dsack: Option<(SeqNum, SeqNum)>,
        assembler: Option<&Assembler>,
        skip: u8,
    ) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        if let Some((left, right)) = dsack {
            blocks.push(left, right);
        }
        if let Some(assembler) = assembler.filter(|_| self.sack) {
            let max = self.sack_blocks_max() - blocks.len();
            //= https://www.rfc-editor.org/rfc/rfc2883#section-4
            //# then the second SACK block in that SACK option should specify that (possibly larger)
            //# block of data.
            //= https://www.rfc-editor.org/rfc/rfc2883#section-4
            //# additional SACK blocks can be used for reporting additional blocks of data, as
            //# specified in RFC 2018.
            assembler.blocks(max, skip).iter().for_each(|(left, right)| {
                blocks.push(left, right);
            });
        }
        blocks
    }
}
