//! Transmit timestamps that programs request by SO_TIMESTAMPING.

use std::collections::VecDeque;

/// Flags of SO_TIMESTAMPING for transmit timestamps (SOF_TIMESTAMPING_*).
pub(crate) mod flag {
    pub const TX_SOFTWARE: u32 = 1 << 1;
    pub const OPT_ID: u32 = 1 << 7;
    pub const TX_SCHED: u32 = 1 << 8;
    pub const TX_ACK: u32 = 1 << 9;
    pub const OPT_ID_TCP: u32 = 1 << 16;
}

/// Maximum number of sends of a stream that wait for timestamps, and of timestamps that the program
/// has not read. Beyond the maximum, timestamps are lost, as on Linux.
pub(crate) const STAMPS_MAX: usize = 256;

/// Event of sent data that a timestamp reports. The numbers are Linux's SCM_TSTAMP_SND, _SCHED and
/// _ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StampKind {
    Sent = 0,
    Scheduled = 1,
    Acked = 2,
}

/// A transmit timestamp: the time of an event of sent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub kind: StampKind,
    /// Number of the datagram, or of the last byte of the send call. 0 without
    /// SOF_TIMESTAMPING_OPT_ID.
    pub id: u32,
    pub unix_ns: u64,
}

/// Transmit timestamps of a datagram socket (SO_TIMESTAMPING).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatagramStamps {
    /// Flags of SO_TIMESTAMPING, which select the kinds of timestamps.
    pub flags: u32,
    /// Number of the next datagram. `None` without SOF_TIMESTAMPING_OPT_ID.
    pub next_id: Option<u32>,
}

impl DatagramStamps {
    /// Sets the flags of SO_TIMESTAMPING. Datagrams are numbered from zero when
    /// SOF_TIMESTAMPING_OPT_ID is enabled.
    pub fn set(&mut self, flags: u32) {
        let next = self.next_id.unwrap_or(0);
        self.next_id = (flags & flag::OPT_ID != 0).then_some(next);
        self.flags = flags;
    }

    /// Called when the stack has accepted a datagram. Returns the kinds of timestamps to report,
    /// and the number of the datagram. The datagram is scheduled and sent in one iteration of the
    /// event loop, so both timestamps are reported now.
    pub fn on_sent(&mut self) -> Option<(impl Iterator<Item = StampKind>, u32)> {
        let flags = self.flags;
        if flags & (flag::TX_SCHED | flag::TX_SOFTWARE) == 0 {
            return None;
        }
        let id = self.next_id.unwrap_or(0);
        self.next_id = self.next_id.map(|id| id.wrapping_add(1));
        Some((sent_kinds(flags), id))
    }
}

/// Returns the kinds of timestamps to report when data is passed to the device.
fn sent_kinds(flags: u32) -> impl Iterator<Item = StampKind> {
    let kinds = [(flag::TX_SCHED, StampKind::Scheduled), (flag::TX_SOFTWARE, StampKind::Sent)];
    kinds.into_iter().filter(move |(bit, _)| flags & bit != 0).map(|(_, kind)| kind)
}

/// Transmit timestamps of a stream (SO_TIMESTAMPING). Positions are positions in the send FIFO of
/// the socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamStamps {
    flags: u32,
    /// Position in the send FIFO of the byte with number 0.
    first: u32,
    /// Sends of the program for which timestamps are still to be recorded, oldest first.
    sends: VecDeque<StampedSend>,
    /// Timestamps that the program has not read yet, oldest first.
    pub unread: VecDeque<Stamp>,
}

/// A send of the program for which timestamps are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StampedSend {
    /// Position in the send FIFO that follows the last byte of the send.
    end: u32,
    is_sent: bool,
}

impl StreamStamps {
    /// Sets the flags of SO_TIMESTAMPING. `acked` and `queued` are the positions after the last
    /// acknowledged and the last queued byte. Bytes are numbered from one of them when
    /// SOF_TIMESTAMPING_OPT_ID is enabled.
    pub fn set(&mut self, flags: u32, acked: u32, queued: u32) {
        if flags & flag::OPT_ID != 0 && self.flags & flag::OPT_ID == 0 {
            self.first = if flags & flag::OPT_ID_TCP != 0 { queued } else { acked };
        }
        self.flags = flags;
    }

    /// Discards pending sends after a disconnect has dropped their bytes. Otherwise the bytes of
    /// the next connection, which have higher positions, would make them count as acknowledged.
    pub fn forget_sends(&mut self) {
        self.sends.clear();
    }

    /// Records a send of the program whose last byte is before position `end`. Returns false if too
    /// many sends wait for timestamps.
    pub fn add(&mut self, end: u32) -> bool {
        if self.flags & (flag::TX_SCHED | flag::TX_SOFTWARE | flag::TX_ACK) == 0 {
            return true;
        }
        let fits = self.sends.len() < STAMPS_MAX;
        if fits {
            self.sends.push_back(StampedSend { end, is_sent: false });
        }
        fits
    }

    /// Returns whether any send waits for timestamps.
    pub fn is_waiting(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Returns whether no timestamps are requested, awaited or unread.
    pub fn is_over(&self) -> bool {
        self.flags == 0 && self.sends.is_empty() && self.unread.is_empty()
    }

    /// Records timestamps at the time `unix_ns`. Bytes before position `acked` were acknowledged,
    /// and the `sent` bytes after it were sent. Returns the number of timestamps that were lost
    /// because too many are unread.
    pub fn advance(&mut self, acked: u32, sent: u32, unix_ns: u64) -> u64 {
        let (flags, first) = (self.flags, self.first);
        let mut lost = 0;
        let mut report = |kind, end: u32| {
            let number = end.wrapping_sub(first).wrapping_sub(1);
            let id = if flags & flag::OPT_ID != 0 { number } else { 0 };
            if self.unread.len() < STAMPS_MAX {
                self.unread.push_back(Stamp { kind, id, unix_ns });
            } else {
                lost += 1;
            }
        };
        // A FIFO is shorter than 2^31 bytes, so the sign of the difference tells whether `end` is
        // after `acked`.
        let ahead = |end: u32| u32::try_from(end.wrapping_sub(acked) as i32).unwrap_or(0);
        for send in self.sends.iter_mut().filter(|send| !send.is_sent) {
            if ahead(send.end) > sent {
                break;
            }
            send.is_sent = true;
            sent_kinds(flags).for_each(|kind| report(kind, send.end));
        }
        while let Some(&StampedSend { end, is_sent: true }) = self.sends.front() {
            match flags & flag::TX_ACK != 0 {
                true if ahead(end) > 0 => break,
                true => report(StampKind::Acked, end),
                false => {}
            }
            self.sends.pop_front();
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = flag::TX_SCHED | flag::TX_SOFTWARE | flag::TX_ACK | flag::OPT_ID;

    fn kinds(stamps: &mut StreamStamps) -> Vec<(StampKind, u32)> {
        stamps.unread.drain(..).map(|stamp| (stamp.kind, stamp.id)).collect()
    }

    #[test]
    fn reports_sent_and_acknowledged_bytes_once() {
        use StampKind::{Acked, Scheduled, Sent};
        let mut stamps = StreamStamps::default();
        // Choose positions that wrap around during the first send.
        let start = u32::MAX - 99;
        stamps.set(ALL, start, start + 50);
        assert!(stamps.add(start.wrapping_add(200)) && stamps.add(start.wrapping_add(300)));
        assert_eq!(stamps.advance(start, 150, 1), 0);
        assert_eq!(kinds(&mut stamps), []);
        stamps.advance(start, 250, 2);
        stamps.advance(start.wrapping_add(100), 150, 3);
        assert_eq!(kinds(&mut stamps), [(Scheduled, 199), (Sent, 199)]);
        stamps.advance(start.wrapping_add(200), 100, 4);
        assert_eq!(kinds(&mut stamps), [(Scheduled, 299), (Sent, 299), (Acked, 199)]);
        assert!(stamps.is_waiting());
        stamps.advance(start.wrapping_add(300), 0, 5);
        assert_eq!(kinds(&mut stamps), [(Acked, 299)]);
        assert!(!stamps.is_waiting() && !stamps.is_over());
        stamps.set(0, start, start);
        assert!(stamps.is_over());
    }

    #[test]
    fn numbers_count_from_the_queued_bytes_if_requested() {
        let mut stamps = StreamStamps::default();
        stamps.set(flag::TX_SOFTWARE | flag::OPT_ID | flag::OPT_ID_TCP, 10, 30);
        stamps.add(40);
        stamps.advance(40, 0, 1);
        assert_eq!(kinds(&mut stamps), [(StampKind::Sent, 9)]);
        // Without SOF_TIMESTAMPING_OPT_ID, the number of each timestamp is 0.
        stamps.set(flag::TX_SOFTWARE, 40, 40);
        stamps.add(50);
        stamps.advance(40, 10, 2);
        assert_eq!(kinds(&mut stamps), [(StampKind::Sent, 0)]);
    }

    #[test]
    fn dropped_bytes_are_not_reported() {
        use StampKind::{Acked, Scheduled, Sent};
        let mut stamps = StreamStamps::default();
        stamps.set(ALL, 0, 0);
        assert!(stamps.add(50));
        stamps.forget_sends();
        assert!(stamps.add(60));
        stamps.advance(60, 0, 1);
        assert_eq!(kinds(&mut stamps), [(Scheduled, 59), (Sent, 59), (Acked, 59)]);
    }

    #[test]
    fn drops_timestamps_beyond_the_limit() {
        let mut stamps = StreamStamps::default();
        stamps.set(flag::TX_SOFTWARE, 0, 0);
        let max = STAMPS_MAX as u32;
        assert!((0..max).all(|n| stamps.add(n + 1)) && !stamps.add(max + 1));
        assert_eq!(stamps.advance(0, max, 1), 0);
        stamps.add(max + 1);
        assert_eq!(stamps.advance(max, 1, 2), 1);
        assert_eq!(stamps.unread.len(), STAMPS_MAX);
    }
}
