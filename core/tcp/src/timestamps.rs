//! The timestamps option (RFC 7323): what it says about a segment that arrived, and what ours says.
//! Half-open and open connections, and those in TIME-WAIT, share these rules.

use crate::disposition::SegmentDropReason;
use crate::segment::Segment;
use crate::time::Instant;
use towpath_wire::tcp::{Flags, Timestamps};

/// How much newer than TS.Recent the segment is, by the peer's clock: negative is older. `None`: it
/// does not say.
pub(crate) fn order(ts_recent: u32, segment: &Segment) -> Option<i32> {
    let timestamps = segment.options.timestamps?;
    Some(timestamps.value.wrapping_sub(ts_recent) as i32)
}

/// PAWS (RFC 7323 §5.3, R1) on a connection that agreed on timestamps. PAWS comes before every
/// other check and passes RSTs by.
pub(crate) fn check(ts_recent: u32, segment: &Segment) -> Result<(), SegmentDropReason> {
    if segment.flags.contains(Flags::RST) {
        return Ok(());
    }
    match order(ts_recent, segment) {
        Some(order) if order < 0 => Err(SegmentDropReason::Paws),
        Some(_) => Ok(()),
        // A peer that started again may not offer timestamps any more. RFC 5961 §4.2 wants every
        // SYN answered, which is how such a peer finds out and resets the old connection.
        None if segment.flags.contains(Flags::SYN) => Ok(()),
        //= https://www.rfc-editor.org/rfc/rfc7323#section-3.2
        //# If a non-<RST> segment is received without a TSopt, a TCP SHOULD silently drop the segment.
        None => Err(SegmentDropReason::TimestampMissing),
    }
}

/// The option of a segment that is sent now. `offset` makes our clock look unlike that of other
/// connections.
pub(crate) fn option(now: Instant, offset: u32, ts_recent: u32) -> Timestamps {
    Timestamps { value: now.millis().wrapping_add(offset), echo: ts_recent }
}
