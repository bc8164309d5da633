//! Statistics of a TCP connection.

use crate::config::DUP_THRESH;
use crate::congestion::{CongestionInfo, CongestionKind};
use crate::connection::Connection;
use crate::fast_open::FastOpenOutcome;
use crate::flight::DeliveryRate;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::Instant;
use crate::timers::TimerKind;
use core::num::NonZeroU64;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// Snapshot of a connection with all fields of Linux's `struct tcp_info`. Counts of segments that
/// we keep in bytes are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// State of the connection.
    pub state: State,
    /// Congestion control algorithm of the connection.
    pub congestion: CongestionKind,
    /// Phase of loss recovery as in Linux's `tcpi_ca_state`: 0 open, 1 disorder, 3 recovery, 4
    /// loss.
    pub ca_state: u8,
    /// Number of consecutive retransmission timeouts.
    pub retransmits: u8,
    /// Number of unanswered window probes or keep-alive probes.
    pub probes: u8,
    /// Number of times that the current retransmission timeout was doubled.
    pub backoff: u8,
    /// Whether both ends send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether both ends support selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether both ends scale their windows (RFC 7323).
    pub window_scaling: bool,
    /// Outcome of TCP Fast Open (RFC 7413).
    pub fast_open: FastOpenOutcome,
    /// Shift count of the peer's receive window, 0 to 14.
    pub snd_wscale: u8,
    /// Shift count of our receive window, 0 to 14.
    pub rcv_wscale: u8,
    /// Current retransmission timeout, including backoff.
    pub rto: Duration,
    /// The timer that expires next, and the time until then; `None` if no timer runs.
    pub timer: Option<(TimerKind, Duration)>,
    /// Whether ACKs are currently sent without delay.
    pub quick_acks: bool,
    /// Maximum delay of an ACK; zero before the first payload was received.
    pub ato: Duration,
    /// Smoothed round-trip time. Before the first measurement, this value, `rttvar` and `min_rtt`
    /// are zero.
    pub rtt: Duration,
    /// Variation of the round-trip time: RTTVAR of RFC 6298.
    pub rttvar: Duration,
    /// Minimum round-trip time measured so far.
    pub min_rtt: Duration,
    /// Round-trip time estimated from received data; zero before the first measurement.
    pub recv_rtt: Duration,
    /// Maximum payload in bytes of a segment sent now.
    pub snd_mss: u32,
    /// Largest payload received, in bytes.
    pub rcv_mss: u32,
    /// Maximum payload that our MSS option allows the peer, in bytes.
    pub advmss: u32,
    /// Congestion window in bytes.
    pub cwnd_bytes: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh_bytes: u32,
    /// Slow-start threshold in segments; 0x7fffffff means unlimited.
    pub ssthresh: u32,
    /// Number of segments in flight.
    pub unacked: u32,
    /// Number of segments in flight that the peer reported by SACK.
    pub sacked: u32,
    /// Number of segments in flight that are assumed to be lost, including retransmitted ones.
    pub lost: u32,
    /// Number of segments in flight that were retransmitted.
    pub retrans: u32,
    /// Number of retransmitted segments since the connection began.
    pub total_retrans: u32,
    /// Reordering observed on the path.
    pub reordering: ReorderingInfo,
    /// Oldest unacknowledged sequence number that we sent.
    pub snd_una: SeqNum,
    /// Next sequence number to send.
    pub snd_nxt: SeqNum,
    /// Next sequence number expected from the peer.
    pub rcv_nxt: SeqNum,
    /// Receive window of the peer in bytes.
    pub snd_wnd: u32,
    /// Our receive window in bytes.
    pub rcv_wnd: u32,
    /// Bytes that the program has written and that are not yet sent.
    pub notsent_bytes: u32,
    /// Total payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Number of acknowledged SYN and FIN flags, which Linux adds to `tcpi_bytes_acked`. As there,
    /// the SYN of a passive open does not count.
    pub control_acked: u8,
    /// Total payload bytes received in order.
    pub bytes_received: u64,
    /// Total payload bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Total payload bytes retransmitted.
    pub bytes_retrans: u64,
    /// Number of segments received. Segments coalesced by the receiving device are counted one by
    /// one. Wraps.
    pub segs_in: u32,
    /// Number of segments sent, after segmentation by lower layers or the device. Wraps.
    pub segs_out: u32,
    /// Number of received segments with payload.
    pub data_segs_in: u32,
    /// Number of sent segments with payload.
    pub data_segs_out: u32,
    /// Number of segments delivered to the peer: acknowledged or reported by SACK. Includes SYN and
    /// FIN. Exact only if nothing is in flight.
    pub delivered: u32,
    /// State and counters of Explicit Congestion Notification.
    pub ecn: EcnInfo,
    /// Number of segments received out of order.
    pub rcv_ooopack: u32,
    /// Maximum pacing rate set by the program, in bytes per second; `None` means unlimited.
    pub max_pacing_rate: Option<NonZeroU64>,
    /// Pacing rate in bytes per second; `None` before the first measurement of the round-trip time.
    /// As on Linux, algorithms that do not pace report a rate too. The rate is 120 % of a window
    /// per round trip, or 200 % in slow start.
    pub pacing_rate: Option<NonZeroU64>,
    /// Values specific to the congestion control algorithm.
    pub congestion_info: CongestionInfo,
    /// Last measured delivery rate in bytes per second; zero before the first sample.
    pub delivery_rate: u64,
    /// Whether the program limited the sender when `delivery_rate` was measured, so that the rate
    /// is a lower bound. True before the first sample.
    pub delivery_rate_app_limited: bool,
    /// Time since payload was last sent, or else since the handshake. `None` before the handshake
    /// is complete.
    pub since_data_sent: Option<Duration>,
    /// Time since payload was last received, or else since the handshake. `None` before the
    /// handshake is complete.
    pub since_data_recv: Option<Duration>,
    /// Time since the last accepted segment; `None` before the handshake is complete.
    pub since_ack_recv: Option<Duration>,
    /// Total time with unsent or unacknowledged data, including `rwnd_limited` and
    /// `sndbuf_limited`.
    pub busy_time: Duration,
    /// Part of `busy_time` during which the peer's receive window limited sending.
    pub rwnd_limited: Duration,
    /// Part of `busy_time` during which our send buffer limited sending.
    pub sndbuf_limited: Duration,
}

/// Reordering observed on the path of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReorderingInfo {
    /// Number of segments by which packets may be reordered before a loss is assumed.
    pub degree: u32,
    /// Number of ACKs that revealed reordering: Linux's `tcpi_reord_seen`.
    pub seen: u32,
    /// Number of D-SACK blocks received: Linux's `tcpi_dsack_dups`.
    pub dsack_dups: u32,
}

/// State and counters of Explicit Congestion Notification on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EcnInfo {
    /// Whether the handshake negotiated ECN. Before the SYN-ACK arrives: whether our SYN requests
    /// ECN.
    pub is_negotiated: bool,
    /// Whether the peer has sent packets with ECT or CE.
    pub is_seen: bool,
    /// Number of received segments that were marked with CE.
    pub ce_segs_in: u32,
    /// Number of our segments that the peer reported as marked with CE.
    pub delivered_ce: u32,
}

impl Connection {
    /// Returns the congestion window in bytes (RFC 5681).
    pub fn cwnd(&self) -> u32 {
        self.congestion.cwnd()
    }

    /// Returns the size of a send buffer that does not limit the sender. The buffer contains one
    /// congestion window in flight, and another one that waits to be sent. Bytes reported by SACK
    /// or lost stay in the buffer, too.
    pub fn send_buffer_wanted(&self) -> u32 {
        let pipe = self.recovery.pipe(self.snd.una, self.snd.nxt);
        let held = self.snd.flight().saturating_sub(pipe);
        self.congestion.cwnd().saturating_mul(2).saturating_add(held)
    }

    /// Returns the smoothed round-trip time (RFC 6298), or `None` before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// Returns the round-trip time estimated from received data. If there is no such estimate,
    /// returns [`Self::srtt`].
    pub fn recv_rtt(&self) -> Option<Duration> {
        self.counters.recv_rtt().or_else(|| self.srtt())
    }

    /// Returns the total number of payload bytes received in order, which are committed to the
    /// receive buffer.
    pub fn bytes_received(&self) -> u64 {
        self.counters.bytes_received
    }

    /// Returns the number of payload bytes received out of order, which wait behind a gap.
    pub fn bytes_out_of_order(&self) -> u32 {
        self.rcv.assembler.as_ref().map_or(0, |assembler| assembler.total())
    }

    /// Returns whether the sequence number is in flight: SND.UNA <= `seq` < SND.NXT.
    pub fn is_outstanding(&self, seq: SeqNum) -> bool {
        self.snd.is_outstanding(seq)
    }

    /// Returns the maximum payload in bytes of the peer's segments: our MSS option minus the
    /// options of each segment.
    fn advmss(&self) -> u32 {
        u32::from(self.settings.mss_recv - self.ext.options_len())
    }

    /// Returns the last delivery rate, measured in the current flight or stored after an earlier
    /// one.
    fn delivery_rate(&self) -> DeliveryRate {
        self.recovery.record().map_or(self.counters.rare().delivery_rate, |record| record.rate())
    }

    /// Returns the pacing rate in bytes per second, as in Linux's `tcp_update_pacing_rate`.
    fn pacing_rate(&self) -> Option<NonZeroU64> {
        if let Some(rate) = self.congestion.pacing_rate() {
            return Some(self.max_pacing_rate().map_or(rate, |limit| limit.min(rate)));
        }
        let srtt_us = u64::try_from(self.rtt.srtt()?.as_micros()).ok()?;
        let cwnd = u64::from(self.congestion.cwnd().max(self.snd.flight()));
        let percent = if self.congestion.in_first_half_of_slow_start() { 200 } else { 120 };
        let rate = NonZeroU64::new(cwnd * 10_000 * percent / srtt_us.max(1))?;
        Some(self.max_pacing_rate().map_or(rate, |limit| limit.min(rate)))
    }

    /// Returns the number of unanswered window probes or keep-alive probes.
    fn probes(&self) -> u8 {
        let keep_alive = self.watch.as_ref().map_or(0, |watch| watch.probes());
        self.timers.window_probes.max(keep_alive)
    }

    /// Returns the payload bytes sent, including retransmissions.
    fn bytes_sent(&self) -> u64 {
        // After a failed handshake, the SYN counts among the sequence numbers in flight; subtract
        // it.
        let syn = u32::from(self.state == State::Closed && !self.is_syn_acked());
        let in_flight = self.data_in_flight().saturating_sub(syn);
        let once = self.counters.bytes_acked + u64::from(in_flight);
        once + self.counters.rare().bytes_retransmitted
    }

    /// Returns whether the peer has acknowledged our SYN. Also valid after the connection has
    /// ended.
    fn is_syn_acked(&self) -> bool {
        self.snd.una - self.snd.iss != self.counters.bytes_acked as u32
    }

    /// Returns the number of acknowledged SYN and FIN flags, except the SYN of a passive open.
    fn control_acked(&self) -> u8 {
        let all = (self.snd.una - self.snd.iss).wrapping_sub(self.counters.bytes_acked as u32);
        (all.min(2) as u8).saturating_sub(u8::from(!self.is_active))
    }

    /// Returns the number of segments that the peer has acknowledged or reported by SACK.
    fn segments_delivered(&self) -> u32 {
        let resent = self.counters.rare().data_retransmitted;
        let first = self.counters.data_segs_out.wrapping_sub(resent);
        let missing = self.data_in_flight().saturating_sub(self.recovery.sacked_bytes());
        // As on Linux, a SYN and its data count as one segment if both were acknowledged.
        let syn_alone = !self.ext.fast_open.is_client() || !self.ext.fast_open.is_data_acked();
        let syn = u32::from(self.is_syn_acked() && syn_alone);
        let control = syn + u32::from(self.snd.fin_acked());
        first.saturating_sub(missing.div_ceil(self.mss())).wrapping_add(control)
    }

    fn reordering_info(&self) -> ReorderingInfo {
        let rare = self.counters.rare();
        ReorderingInfo {
            degree: self.rtt.reordering.degree().max(DUP_THRESH as u8).into(),
            seen: rare.reorder_seen,
            dsack_dups: rare.dsack_in,
        }
    }

    fn ecn_info(&self) -> EcnInfo {
        let counts = &self.counters.rare().ecn;
        EcnInfo {
            is_negotiated: self.ecn.is_negotiated(),
            is_seen: self.ecn.is_seen(),
            ce_segs_in: counts.received,
            delivered_ce: counts.delivered,
        }
    }

    /// Returns the maximum delay of an ACK; zero before the first payload was received.
    fn ack_timeout(&self) -> Duration {
        let has_data = self.counters.data_segs_in > 0;
        if has_data { self.settings.delayed_ack() } else { Duration::ZERO }
    }

    /// Returns the time with data in flight, and of it the times during which the peer's receive
    /// window and our send buffer limited sending.
    fn limit_times(&self, now: Instant) -> [Duration; 3] {
        let limited = self.counters.limited_until(now);
        let [network, peer_window, send_buffer] = limited.map(Duration::from_nanos);
        [network + peer_window + send_buffer, peer_window, send_buffer]
    }

    /// Returns the slow-start threshold in segments, or Linux's value for "unlimited" before the
    /// first loss.
    fn ssthresh_segments(&self) -> u32 {
        let bytes = self.congestion.ssthresh();
        if bytes >= 1 << 30 { 0x7fff_ffff } else { bytes / self.mss() }
    }

    /// Returns a snapshot of all statistics. A snapshot is too expensive for every segment; use the
    /// accessors for single values.
    pub fn info(&self, now: Instant, buffers: FifoLevels) -> Info {
        let mss = self.mss();
        let segments = |bytes: u32| bytes.div_ceil(mss);
        let (counters, rare) = (&self.counters, self.counters.rare());
        let [busy_time, rwnd_limited, sndbuf_limited] = self.limit_times(now);
        let delivery_rate = self.delivery_rate();
        Info {
            state: self.state,
            congestion: self.congestion.kind(),
            ca_state: self.recovery.ca_state(),
            retransmits: self.timers.retransmits,
            probes: self.probes(),
            backoff: self.rtt.backoff(),
            timestamps: self.ext.timestamps,
            sack: self.ext.sack,
            window_scaling: self.ext.scaling,
            fast_open: self.ext.fast_open.outcome(),
            snd_wscale: self.snd.wscale,
            rcv_wscale: self.rcv.wscale,
            rto: self.rtt.rto(),
            timer: self.next_timeout().map(|(at, kind)| (kind, at.since(now))),
            quick_acks: self.timers.quick_acks > 0,
            ato: self.ack_timeout(),
            rtt: self.rtt.srtt().unwrap_or_default(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            recv_rtt: counters.recv_rtt().unwrap_or_default(),
            snd_mss: mss,
            rcv_mss: u32::from(self.rcv.mss),
            advmss: self.advmss(),
            cwnd_bytes: self.congestion.cwnd(),
            cwnd: self.congestion.cwnd() / mss,
            ssthresh_bytes: self.congestion.ssthresh(),
            ssthresh: self.ssthresh_segments(),
            unacked: segments(self.snd.flight()),
            sacked: segments(self.recovery.sacked_bytes()),
            lost: segments(self.recovery.lost_bytes(self.snd.una)),
            retrans: segments(self.recovery.retransmitted_bytes(self.snd.una)),
            total_retrans: rare.retransmitted,
            reordering: self.reordering_info(),
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            rcv_nxt: self.rcv.nxt,
            snd_wnd: self.snd.wnd,
            rcv_wnd: self.rcv.window(),
            notsent_bytes: buffers.send_len.saturating_sub(self.data_in_flight()),
            bytes_acked: counters.bytes_acked,
            control_acked: self.control_acked(),
            bytes_received: counters.bytes_received,
            bytes_sent: self.bytes_sent(),
            bytes_retrans: rare.bytes_retransmitted,
            segs_in: counters.segs_in,
            segs_out: counters.segs_out,
            data_segs_in: counters.data_segs_in,
            data_segs_out: counters.data_segs_out,
            delivered: self.segments_delivered(),
            ecn: self.ecn_info(),
            rcv_ooopack: rare.out_of_order_in,
            max_pacing_rate: self.max_pacing_rate(),
            pacing_rate: self.pacing_rate(),
            congestion_info: self.congestion.info(),
            delivery_rate: delivery_rate.bytes_per_second(),
            delivery_rate_app_limited: delivery_rate.is_lower_bound(),
            since_data_sent: since(counters.last_data_sent, now),
            since_data_recv: since(counters.last_data_recv, now),
            since_ack_recv: self.state.is_synchronized().then(|| now.since(self.timers.last_recv)),
            busy_time,
            rwnd_limited,
            sndbuf_limited,
        }
    }
}

/// Returns the time from `then` to `now`; `None` if `then` is zero because the event has not
/// occurred.
fn since(then: Instant, now: Instant) -> Option<Duration> {
    (then != Instant::ZERO).then(|| now.since(then))
}
