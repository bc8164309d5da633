//! Counters of a connection, reported by [`Info`](crate::Info). Only `last_data_sent`,
//! `last_data_recv`, `bytes_acked` and `ts_repeated` influence behaviour. Urgent data, pacing and
//! the receiver's round-trip time are stored with the rare counters.

use crate::ecn::EcnCounts;
use crate::flight::DeliveryRate;
use crate::pacer::Pacer;
use crate::recv_rtt::RecvRtt;
use crate::time::Instant;
use crate::urgent_mark::Urgent;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Counters that every connection has, and a box with counters of rare events. The box is allocated
/// when the first such event occurs.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    /// Time during which the network limited sending. The low bits hold the current [`SendLimit`]
    /// (reason why no more is sent).
    network: Stopwatch,
    pub(crate) last_data_sent: Instant,
    pub(crate) last_data_recv: Instant,
    rare: Option<Box<RareCounters>>,
    pub(crate) segs_in: u32,
    pub(crate) segs_out: u32,
    pub(crate) data_segs_in: u32,
    pub(crate) data_segs_out: u32,
}

const _: () = assert!(size_of::<ConnectionCounters>() <= 64);

/// Counters that stay zero for most connections.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RareCounters {
    pub(crate) bytes_retransmitted: u64,
    pub(crate) retransmitted: u32,
    /// Number of retransmitted segments with payload.
    pub(crate) data_retransmitted: u32,
    pub(crate) ecn: EcnCounts,
    pub(crate) out_of_order_in: u32,
    /// Range of received bytes that we already had, to be reported as D-SACK by the next ACK (RFC
    /// 2883).
    dsack: Option<(SeqNum, SeqNum)>,
    /// Number of D-SACK blocks received.
    pub(crate) dsack_in: u32,
    /// Number of ACKs that reported bytes out of order although nothing was retransmitted.
    pub(crate) reorder_seen: u32,
    /// Timestamp option of the last retransmission of the segment at SND.UNA.
    pub(crate) ts_repeated: u32,
    /// Time during which the peer's receive window limited sending.
    peer_window: Stopwatch,
    /// Time during which our send buffer limited sending.
    send_buffer: Stopwatch,
    /// State of urgent data; `None` until the first urgent byte.
    urgent: Option<Urgent>,
    /// Last delivery rate measured while several transmissions were in flight.
    pub(crate) delivery_rate: DeliveryRate,
    /// Pacing state; `None` unless the sending rate is limited.
    pub(crate) pacing: Option<Pacer>,
    /// Estimate of the round-trip time from received data.
    recv_rtt: RecvRtt,
}

/// Reason why the sender currently sends no more. The variants whose time is counted in
/// [`RareCounters`] come last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SendLimit {
    #[default]
    Idle,
    Network,
    PeerWindow,
    SendBuffer,
}

/// Stopwatch that sums up nanoseconds in one word. When it starts, the start time is subtracted
/// (wrapping); when it stops, the stop time is added. The lowest two bits hold a [`SendLimit`] and
/// are not affected by times. The remaining bits count 146 years.
#[derive(Debug, Clone, Copy, Default)]
struct Stopwatch(u64);

impl Stopwatch {
    /// Number of low bits of the stopwatch reserved for the [`SendLimit`].
    const SHIFT: u32 = 2;

    fn start(&mut self, now: Instant) {
        self.0 = self.0.wrapping_sub(now.0 << Self::SHIFT);
    }

    fn stop(&mut self, now: Instant) {
        self.0 = self.0.wrapping_add(now.0 << Self::SHIFT);
    }

    fn read(self, now: Instant, running: bool) -> u64 {
        let sum = if running { self.0.wrapping_add(now.0 << Self::SHIFT) } else { self.0 };
        sum >> Self::SHIFT
    }

    #[inline]
    fn is_at(self, limit: SendLimit) -> bool {
        self.0 & 3 == limit as u64
    }

    /// Returns whether sending is currently limited by a reason whose time is counted in
    /// [`RareCounters`].
    #[inline]
    fn is_at_rare(self) -> bool {
        self.0 & 3 > SendLimit::Network as u64
    }

    #[inline]
    fn set_limit(&mut self, limit: SendLimit) {
        self.0 = self.0 & !3 | limit as u64;
    }
}

impl ConnectionCounters {
    /// Returns the rare counters; all zero if none was ever incremented.
    pub(crate) fn rare(&self) -> RareCounters {
        self.rare.as_deref().copied().unwrap_or_default()
    }

    #[cold]
    pub(crate) fn rare_mut(&mut self) -> &mut RareCounters {
        self.rare.get_or_insert_default()
    }

    /// Returns the counters of ECN; all zero if no packet was ever marked.
    #[inline]
    pub(crate) fn ecn(&self) -> EcnCounts {
        self.rare.as_deref().map_or_else(EcnCounts::default, |rare| rare.ecn)
    }

    /// Returns the range of bytes that the next ACK reports as received twice (D-SACK).
    #[inline]
    pub(crate) fn dsack(&self) -> Option<(SeqNum, SeqNum)> {
        self.rare.as_deref()?.dsack
    }

    /// Sets the bytes that the next ACK reports as duplicates.
    //= https://www.rfc-editor.org/rfc/rfc2883#section-4
    //# (1) A D-SACK block is only used to report a duplicate contiguous sequence of data received
    //# by the receiver in the most recent packet.
    #[cold]
    pub(crate) fn set_dsack(&mut self, left: SeqNum, right: SeqNum) {
        self.rare_mut().dsack = Some((left, right));
    }

    /// Clears the D-SACK range, because an ACK with it was sent.
    #[inline]
    pub(crate) fn clear_dsack(&mut self) {
        if let Some(rare) = self.rare.as_deref_mut() {
            rare.dsack = None;
        }
    }

    #[inline]
    pub(crate) fn urgent(&self) -> Option<&Urgent> {
        self.rare.as_deref()?.urgent.as_ref()
    }

    #[inline]
    pub(crate) fn pacing(&self) -> Option<&Pacer> {
        self.rare.as_deref()?.pacing.as_ref()
    }

    #[inline]
    pub(crate) fn pacing_mut(&mut self) -> Option<&mut Pacer> {
        self.rare.as_deref_mut()?.pacing.as_mut()
    }

    #[inline]
    pub(crate) fn recv_rtt(&self) -> Option<Duration> {
        self.rare.as_deref()?.recv_rtt.get()
    }

    #[inline]
    pub(crate) fn recv_rtt_mut(&mut self) -> &mut RecvRtt {
        &mut self.rare.get_or_insert_default().recv_rtt
    }

    #[cold]
    pub(crate) fn urgent_mut(&mut self) -> &mut Urgent {
        self.rare_mut().urgent.get_or_insert_default()
    }

    /// Returns whether the sender is idle because the program has nothing to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.network.is_at(SendLimit::Idle)
    }

    /// Starts counting time for `limit`, the reason why the sender sends no more.
    #[inline]
    pub(crate) fn enter(&mut self, now: Instant, limit: SendLimit) {
        if !self.network.is_at(limit) {
            self.change(now, limit);
        }
    }

    fn change(&mut self, now: Instant, limit: SendLimit) {
        let before = self.network;
        if before.is_at(SendLimit::Network) {
            self.network.stop(now);
        } else if limit == SendLimit::Network {
            self.network.start(now);
        }
        self.network.set_limit(limit);
        if before.is_at_rare() || self.network.is_at_rare() {
            self.change_rare(now, before, limit);
        }
    }

    /// Updates the stopwatches of the rarely used reasons, as part of
    /// [`ConnectionCounters::change`].
    #[cold]
    fn change_rare(&mut self, now: Instant, before: Stopwatch, limit: SendLimit) {
        let rare = self.rare_mut();
        if before.is_at(SendLimit::PeerWindow) {
            rare.peer_window.stop(now);
        } else if before.is_at(SendLimit::SendBuffer) {
            rare.send_buffer.stop(now);
        }
        match limit {
            SendLimit::Idle | SendLimit::Network => {}
            SendLimit::PeerWindow => rare.peer_window.start(now),
            SendLimit::SendBuffer => rare.send_buffer.start(now),
        }
    }

    /// Returns for how many nanoseconds the network, the peer's receive window and our send buffer
    /// have limited sending, up to `now`.
    pub(crate) fn limited_until(&self, now: Instant) -> [u64; 3] {
        let RareCounters { peer_window, send_buffer, .. } = self.rare();
        [
            (self.network, SendLimit::Network),
            (peer_window, SendLimit::PeerWindow),
            (send_buffer, SendLimit::SendBuffer),
        ]
        .map(|(stopwatch, limit)| stopwatch.read(now, self.network.is_at(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_time() {
        let mut counters = ConnectionCounters::default();
        counters.enter(Instant(100), SendLimit::Network);
        counters.enter(Instant(150), SendLimit::PeerWindow);
        counters.enter(Instant(170), SendLimit::Network);
        assert_eq!(counters.limited_until(Instant(180)), [60, 20, 0]);
        counters.enter(Instant(180), SendLimit::SendBuffer);
        assert_eq!(counters.limited_until(Instant(185)), [60, 20, 5]);
        counters.enter(Instant(190), SendLimit::Idle);
        assert_eq!(counters.limited_until(Instant(999)), [60, 20, 10]);
    }

    #[test]
    fn what_never_had_trouble_owns_no_box() {
        let mut counters = ConnectionCounters::default();
        counters.enter(Instant(1), SendLimit::Network);
        counters.enter(Instant(2), SendLimit::Idle);
        assert!(counters.rare.is_none());
    }
}
