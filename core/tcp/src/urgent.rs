//! Urgent data (RFC 9293 §3.8.5), with the urgent pointer as Linux has it (RFC 6093 §3.1).
//!
//! ```text
//!   SND.UNA ───── normal bytes ─────┬ urgent byte ┬─ normal bytes ───
//!                                   mark          SND.UP: what the pointer says
//! ```
//!
//! Only one byte is urgent, the last before SND.UP: Linux treats the pointer so
//! (`tcp_stdurg` = 0), and other systems as well. A newer pointer makes the byte before it normal.
//! Few connections ever send or receive any: the state lives in a box of rare things.

use crate::connection::Connection;
use crate::segment::Segment;
use crate::urgent_mark::UrgentMark;
use towpath_wire::tcp::{Flags, SeqNum};

/// Largest distance from SND.UNA to SND.UP: as many bytes as a window can have (RFC 7323 §2.3).
const AHEAD_MAX: u32 = 1 << 30;

impl Connection {
    /// The byte in front of `end`, counted from the front of the send buffer, is urgent (MSG_OOB).
    /// The peer is told with each segment up to there. `end` may lie beyond the bytes that are
    /// there: those that follow reach it.
    pub fn set_urgent(&mut self, end: u32) {
        if end == 0 || end > AHEAD_MAX || !self.state.is_synchronized() {
            return;
        }
        let snd_up = self.snd.una + end + u32::from(self.syn_in_flight());
        self.counters.urgent_mut().snd_up = Some(snd_up);
    }

    /// The mark of the last segment, for which [`FifoChanges::urgent`] is set.
    ///
    /// [`FifoChanges::urgent`]: crate::FifoChanges::urgent
    pub fn take_urgent_mark(&mut self) -> Option<UrgentMark> {
        self.counters.urgent()?;
        self.counters.urgent_mut().news.take()
    }

    /// Whether bytes up to SND.UP are not acknowledged (Linux's `tcp_urg_mode`).
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.counters.urgent().is_some() && self.urgent_ahead() != 0
    }

    /// Distance from SND.UNA to SND.UP; 0 outside urgent mode.
    #[cold]
    fn urgent_ahead(&self) -> u32 {
        let snd_up = self.counters.urgent().and_then(|urgent| urgent.snd_up);
        let ahead = snd_up.map_or(0, |snd_up| snd_up - self.snd.una);
        if ahead <= AHEAD_MAX { ahead } else { 0 }
    }

    /// URG and the urgent pointer of a segment that starts at `seq`, as `__tcp_transmit_skb` sets
    /// them.
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
            // The pointer does not reach SND.UP. The last segments say that urgent data follows;
            // earlier ones would make the receiver look for the mark too early.
            Err(_) => (self.snd.nxt - seq < u32::from(u16::MAX)).then_some(u16::MAX),
        }
    }

    /// Sixth, check the URG bit, before the text of the segment is processed: `tcp_check_urg`.
    /// True: there is a mark for the owner.
    ///
    /// The pointer is believed within 64 KiB of the segment, also beyond the window. A program
    /// then waits for a byte that may never come, and reads all others.
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
        // A pointer of 0 names the first byte, as with Linux.
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
