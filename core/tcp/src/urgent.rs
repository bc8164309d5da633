//! Urgent data (RFC 9293 §3.8.5), with the urgent pointer interpreted as by Linux (RFC 6093 §3.1).
//!
//! ```text
//!   SND.UNA ───── normal bytes ─────┬ urgent byte ┬─ normal bytes ───
//!                                   mark          SND.UP: value of the pointer
//! ```
//!
//! Only the last byte before SND.UP is urgent, as on Linux (`tcp_stdurg` = 0) and other systems. A
//! newer pointer makes the previous urgent byte a normal one. Few connections use urgent data, so
//! its state is in the box of rare counters.

use crate::connection::Connection;
use crate::segment::Segment;
use crate::urgent_mark::UrgentMark;
use towpath_wire::tcp::{Flags, SeqNum};

/// Maximum distance from SND.UNA to SND.UP in bytes: the largest window (RFC 7323 §2.3).
const AHEAD_MAX: u32 = 1 << 30;

impl Connection {
    /// Marks the byte before `end` as urgent (MSG_OOB). `end` is an offset from the start of the
    /// send buffer, and may be beyond the bytes that it contains. Each segment up to the urgent
    /// byte announces it to the peer.
    pub fn set_urgent(&mut self, end: u32) {
        if end == 0 || end > AHEAD_MAX || !self.state.is_synchronized() {
            return;
        }
        let snd_up = self.snd.una + end + u32::from(self.syn_in_flight());
        self.counters.urgent_mut().snd_up = Some(snd_up);
    }

    /// Removes and returns the position of urgent data that the last segment announced. Call this
    /// if [`FifoChanges::urgent`] is set.
    ///
    /// [`FifoChanges::urgent`]: crate::FifoChanges::urgent
    pub fn take_urgent_mark(&mut self) -> Option<UrgentMark> {
        self.counters.urgent()?;
        self.counters.urgent_mut().news.take()
    }

    /// Returns whether bytes before SND.UP are unacknowledged (Linux's `tcp_urg_mode`).
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.counters.urgent().is_some() && self.urgent_ahead() != 0
    }

    /// Returns the distance in bytes from SND.UNA to SND.UP; 0 outside urgent mode.
    #[cold]
    fn urgent_ahead(&self) -> u32 {
        let snd_up = self.counters.urgent().and_then(|urgent| urgent.snd_up);
        let ahead = snd_up.map_or(0, |snd_up| snd_up - self.snd.una);
        if ahead <= AHEAD_MAX { ahead } else { 0 }
    }

    /// Returns the urgent pointer for a segment that starts at `seq`, as in Linux's
    /// `__tcp_transmit_skb`; `None` if URG should not be set.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
    //# TCP implementations MUST still include support for the urgent mechanism (MUST-30).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
    //# A TCP implementation MUST support a sequence of urgent data of any length (MUST-31)
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
    //# The urgent pointer MUST point to the sequence number of the octet following the urgent
    //# data (MUST-62).
    #[cold]
    pub(crate) fn urgent_pointer(&mut self, seq: SeqNum) -> Option<u16> {
        let snd_up = self.counters.urgent()?.snd_up?;
        if self.urgent_ahead() == 0 {
            self.counters.urgent_mut().snd_up = None;
            return None;
        }
        let ahead = snd_up - seq;
        if ahead == 0 || ahead > AHEAD_MAX + 1 {
            return None;
        }
        match u16::try_from(ahead) {
            Ok(pointer) => Some(pointer),
            // SND.UP is further away than the urgent pointer can express. Announce urgent data only
            // in the last segments before it. Earlier announcements would make the receiver expect
            // the urgent byte too early.
            Err(_) => (self.snd.nxt - seq < u32::from(u16::MAX)).then_some(u16::MAX),
        }
    }

    /// Sixth step: checks the URG bit before the text is processed, as in Linux's `tcp_check_urg`.
    /// Returns true if there is a new mark for the owner.
    ///
    /// Any pointer within 64 KiB of the segment is accepted, also beyond the window. If the peer
    /// lied, the program waits for an urgent byte that never arrives, but can read all normal
    /// bytes.
    ///
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.5
    //# A TCP implementation MUST (MUST-32) inform the application layer asynchronously whenever
    //# it receives an urgent pointer and there was previously no pending urgent data, or whenever
    //# the urgent pointer advances in the data stream.
    #[cold]
    pub(crate) fn check_urgent(&mut self, segment: &Segment) -> bool {
        if !segment.flags.contains(Flags::URG) || !self.state.may_receive() {
            return false;
        }
        // As on Linux, an urgent pointer of 0 refers to the segment's first byte.
        let at = u32::from(segment.urgent.saturating_sub(1));
        let mark = segment.seq + at;
        let Ok(offset) = u32::try_from(mark.distance(self.rcv.nxt)) else {
            return false;
        };
        let position = self.counters.bytes_received + u64::from(offset);
        let payload_offset = (at < segment.payload_len).then_some(at);
        let received = self.counters.bytes_received;
        let urgent = self.counters.urgent_mut();
        let known = urgent.mark.filter(|known| *known >= received);
        let is_new = known.is_none_or(|known| position > known);
        let is_byte = known == Some(position) && !urgent.delivered && payload_offset.is_some();
        if !is_new && !is_byte {
            return false;
        }
        urgent.mark = Some(position);
        urgent.delivered = payload_offset.is_some();
        urgent.news = Some(UrgentMark { offset, payload_offset, is_new });
        true
    }
}
