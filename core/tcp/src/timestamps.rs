//! The timestamps option (RFC 7323): rules that apply to half-open and open connections and to
//! TIME-WAIT.

use crate::disposition::SegmentDropReason;
use crate::segment::Segment;
use crate::time::Instant;
use towpath_wire::tcp::{Flags, Timestamps};

/// Compares the timestamp of a segment with TS.Recent, in ticks of the peer's clock. A negative
/// result means that the segment's is older. Returns `None` if the segment has no timestamp.
pub(crate) fn order(ts_recent: u32, segment: &Segment) -> Option<i32> {
    let timestamps = segment.options.timestamps?;
    Some(timestamps.value.wrapping_sub(ts_recent) as i32)
}

/// Checks a segment by PAWS (RFC 7323 §5.3, R1) on a connection with timestamps. PAWS precedes all
/// other checks, and does not apply to RSTs.
pub(crate) fn check(ts_recent: u32, segment: &Segment) -> Result<(), SegmentDropReason> {
    //= https://www.rfc-editor.org/rfc/rfc7323#section-5.2
    //# it MUST NOT be subjected to the PAWS check by verifying an acceptable value in SEG.TSval
    if segment.flags.contains(Flags::RST) {
        return Ok(());
    }
    match order(ts_recent, segment) {
        //= https://www.rfc-editor.org/rfc/rfc7323#section-5.2
        //# MUST guarantee a value that is monotonically non-decreasing.
        Some(order) if order < 0 => Err(SegmentDropReason::Paws),
        Some(_) => Ok(()),
        // Accept a SYN without timestamps: a restarted peer may not offer them. RFC 5961 §4.2
        // requires an answer to every SYN. The peer then detects the old connection and resets it.
        None if segment.flags.contains(Flags::SYN) => Ok(()),
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# If a non-<RST> segment is received without a TSopt, a TCP SHOULD silently drop the segment.
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# A TCP MUST NOT abort a TCP connection because any segment lacks an expected TSopt.
        None => Err(SegmentDropReason::TimestampMissing),
    }
}

/// Returns the option for a segment sent now. `offset` differs between connections, to hide our
/// clock.
//= https://www.rfc-editor.org/rfc/rfc7323#section-7
//# It is therefore RECOMMENDED to generate a random, per-connection offset to be used with the
//# clock source
pub(crate) fn option(now: Instant, offset: u32, ts_recent: u32) -> Timestamps {
    //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
    //# the sender MUST echo a recently received TSval sent by the remote TCP
    //= https://www.rfc-editor.org/rfc/rfc7323#section-4.1
    //# Values of this clock MUST be at least approximately proportional to real time, in order to
    //# measure actual RTT.
    //= https://www.rfc-editor.org/rfc/rfc7323#section-5.4
    //# It MUST tick at least once for each 2^31 bytes sent.
    //= https://www.rfc-editor.org/rfc/rfc7323#section-5.4
    //# The recycling time of the timestamp clock MUST be greater than MSL seconds.
    Timestamps { value: now.millis().wrapping_add(offset), echo: ts_recent }
}
