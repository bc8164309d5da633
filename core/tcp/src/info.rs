//! State that a connection reports of itself.

use crate::congestion::CongestionKind;
use crate::connection::Connection;
use crate::fast_open::FastOpenOutcome;
use crate::recovery::Phase;
use crate::segment::FifoLevels;
use crate::state::State;
use crate::time::Instant;
use crate::timers::TimerKind;
use core::num::NonZeroU64;
use core::time::Duration;
use towpath_wire::tcp::SeqNum;

/// A snapshot: enough to fill Linux's `struct tcp_info`. Counts of segments that we keep as bytes
/// are rounded up to segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Where it is in its life.
    pub state: State,
    /// The congestion control in use.
    pub congestion: CongestionKind,
    /// 0 open, 3 recovery, 4 loss: Linux's `tcpi_ca_state`.
    pub ca_state: u8,
    /// Timeouts in a row.
    pub retransmits: u8,
    /// Unanswered window and keepalive probes.
    pub probes: u8,
    /// Doublings of the timeout in force.
    pub backoff: u8,
    /// Both sides send timestamps (RFC 7323).
    pub timestamps: bool,
    /// Both sides take selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Both sides scale their windows (RFC 7323).
    pub window_scaling: bool,
    /// Bytes in the SYN (RFC 7413).
    pub fast_open: FastOpenOutcome,
    /// Shift count of the peer's windows, 0 to 14.
    pub snd_wscale: u8,
    /// Shift count of ours.
    pub rcv_wscale: u8,
    /// The retransmission timeout in force, doublings included.
    pub rto: Duration,
    /// The event that the timer waits for next, and how long.
    pub timer: Option<(TimerKind, Duration)>,
    /// Whether ACKs go out at once just now.
    pub quick_acks: bool,
    /// How long an ACK is delayed at most.
    pub ato: Duration,
    /// Zero before the first measurement, as are the next two.
    pub rtt: Duration,
    /// RTTVAR of RFC 6298.
    pub rttvar: Duration,
    /// The shortest round trip ever measured.
    pub min_rtt: Duration,
    /// Payload of a full segment sent now.
    pub snd_mss: u32,
    /// Largest payload received.
    pub rcv_mss: u32,
    /// The MSS that we announced.
    pub advmss: u32,
    /// The congestion window.
    pub cwnd_bytes: u32,
    /// In segments.
    pub cwnd: u32,
    /// Where slow start ends.
    pub ssthresh_bytes: u32,
    /// In segments; no limit is 0x7fffffff.
    pub ssthresh: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Segments of them that the peer reported beyond its acknowledgement.
    pub sacked: u32,
    /// Segments of them deemed lost, sent again or not.
    pub lost: u32,
    /// Segments in flight that were sent again.
    pub retrans: u32,
    /// Segments sent again in all.
    pub total_retrans: u32,
    /// Segments of reordering that do not count as loss.
    pub reordering: u32,
    /// The oldest number not acknowledged.
    pub snd_una: SeqNum,
    /// The next number to be sent.
    pub snd_nxt: SeqNum,
    /// The next number expected from the peer.
    pub rcv_nxt: SeqNum,
    /// The peer's window, scaled.
    pub snd_wnd: u32,
    /// Our window, scaled.
    pub rcv_wnd: u32,
    /// Written by the program and not sent.
    pub notsent_bytes: u32,
    /// Payload that the peer acknowledged.
    pub bytes_acked: u64,
    /// Payload received in order.
    pub bytes_received: u64,
    /// Retransmissions included.
    pub bytes_sent: u64,
    /// Payload sent again.
    pub bytes_retrans: u64,
    /// Segments received, coalesced ones counted as they were sent; wraps.
    pub segs_in: u32,
    /// Segments sent, as the layers below cut them; wraps.
    pub segs_out: u32,
    /// Segments received with payload.
    pub data_segs_in: u32,
    /// Segments sent with payload.
    pub data_segs_out: u32,
    /// Segments that the peer has: acknowledged or reported.
    pub delivered: u32,
    /// Segments that arrived marked by congestion.
    pub ce_segs_in: u32,
    /// Segments that arrived ahead of their turn.
    pub rcv_ooopack: u32,
    /// Most bytes a second that are sent; `None`: as many as the windows allow.
    pub max_pacing_rate: Option<NonZeroU64>,
    /// Bytes a second that the network delivered of the last flight; zero before the first sample.
    pub delivery_rate: u64,
    /// The program sent less in that flight than the network would have taken.
    pub delivery_rate_app_limited: bool,
    /// `None`: never.
    pub since_data_sent: Option<Duration>,
    /// `None`: never.
    pub since_data_recv: Option<Duration>,
    /// Since the last segment that was accepted; `None` before the handshake is over.
    pub since_ack_recv: Option<Duration>,
    /// Time with something to send, and the parts of it in which the peer's window or our own
    /// buffer held it back.
    pub busy_time: Duration,
    /// Time held back by the peer's window.
    pub rwnd_limited: Duration,
    /// Time held back by our own send buffer.
    pub sndbuf_limited: Duration,
}

impl Connection {
    /// The congestion window in bytes (RFC 5681).
    pub fn cwnd(&self) -> u32 {
        self.congestion.cwnd()
    }

    /// The smoothed round-trip time (RFC 6298); None before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// Payload bytes that were received in order and so were committed to the receive buffer.
    pub fn bytes_received(&self) -> u64 {
        self.counters.bytes_received
    }

    /// Whether SND.UNA <= `seq` < SND.NXT.
    pub fn is_outstanding(&self, seq: SeqNum) -> bool {
        self.snd.is_outstanding(seq)
    }

    /// Payload that the peer may put into a segment: the MSS of our SYN less what options take of
    /// it.
    fn advmss(&self) -> u32 {
        u32::from(self.settings.mss_recv - self.ext.options_len())
    }

    /// A snapshot of the connection's figures. The snapshot is not for each segment: a caller that
    /// needs one figure asks for that alone.
    pub fn info(&self, now: Instant, buffers: FifoLevels) -> Info {
        let mss = self.mss();
        let segments = |bytes: u32| bytes.div_ceil(mss);
        let counters = &self.counters;
        let rare = counters.rare();
        let since = |then: Instant| (then != Instant::ZERO).then(|| now.since(then));
        let [network, peer_window, send_buffer] =
            counters.limited_until(now).map(Duration::from_nanos);
        let delivered = counters.bytes_acked + u64::from(self.recovery.sacked_bytes());
        let ssthresh = self.congestion.ssthresh();
        let delivery_rate =
            self.recovery.record().map_or(rare.delivery_rate, |record| record.rate());
        let keepalive_probes = self.watch.as_ref().map_or(0, |watch| watch.probes());
        Info {
            state: self.state,
            congestion: self.congestion.kind(),
            ca_state: ca_state(self.recovery.phase),
            retransmits: self.timers.retransmits,
            probes: self.timers.window_probes.max(keepalive_probes),
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
            ato: self.settings.delayed_ack(),
            rtt: self.rtt.srtt().unwrap_or_default(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            snd_mss: mss,
            rcv_mss: u32::from(self.rcv.mss),
            advmss: self.advmss(),
            cwnd_bytes: self.congestion.cwnd(),
            cwnd: self.congestion.cwnd() / mss,
            ssthresh_bytes: ssthresh,
            ssthresh: if ssthresh >= 1 << 30 { 0x7fff_ffff } else { ssthresh / mss },
            unacked: segments(self.snd.flight()),
            sacked: segments(self.recovery.sacked_bytes()),
            lost: segments(self.recovery.lost_bytes(self.snd.una)),
            retrans: segments(self.recovery.retransmitted_bytes(self.snd.una)),
            total_retrans: rare.retransmitted,
            reordering: u32::from(crate::config::DUP_THRESH),
            snd_una: self.snd.una,
            snd_nxt: self.snd.nxt,
            rcv_nxt: self.rcv.nxt,
            snd_wnd: self.snd.wnd,
            rcv_wnd: self.rcv.window(),
            notsent_bytes: buffers.send_len.saturating_sub(self.data_in_flight()),
            bytes_acked: counters.bytes_acked,
            bytes_received: counters.bytes_received,
            bytes_sent: counters.bytes_acked
                + u64::from(self.data_in_flight())
                + rare.bytes_retransmitted,
            bytes_retrans: rare.bytes_retransmitted,
            segs_in: counters.segs_in,
            segs_out: counters.segs_out,
            data_segs_in: counters.data_segs_in,
            data_segs_out: counters.data_segs_out,
            delivered: u32::try_from(delivered.div_ceil(u64::from(mss))).unwrap_or(u32::MAX),
            ce_segs_in: rare.ce_segs_in,
            rcv_ooopack: rare.out_of_order_in,
            max_pacing_rate: self.max_pacing_rate(),
            delivery_rate: delivery_rate.bytes_per_second(),
            delivery_rate_app_limited: delivery_rate.is_app_limited,
            since_data_sent: since(counters.last_data_sent),
            since_data_recv: since(counters.last_data_recv),
            since_ack_recv: self.state.is_synchronized().then(|| now.since(self.timers.last_recv)),
            busy_time: network + peer_window + send_buffer,
            rwnd_limited: peer_window,
            sndbuf_limited: send_buffer,
        }
    }
}

/// TCP_CA_Open, TCP_CA_Recovery and TCP_CA_Loss of Linux.
fn ca_state(phase: Phase) -> u8 {
    match phase {
        Phase::Open => 0,
        Phase::Recovery => 3,
        Phase::Loss | Phase::Resend => 4,
    }
}
