//! Encodes `struct tcp_info` of Linux, and the structs of TCP_CC_INFO.

use std::num::NonZeroU64;
use std::time::Duration;

use towpath_stack::{SocketInfo, SocketState};
use towpath_tcp::{CongestionInfo, Info, State};

use crate::shard::sockets::Sockets;
use crate::shard::sockets::children::fixed_or;
use crate::shard::sockets::linux::{state, state_number};

/// Size in bytes of `struct tcp_info` in Linux 6.18. A program that was compiled with a shorter or
/// longer struct gets the fields that both versions have, as on Linux.
pub(crate) const TCP_INFO_LEN: usize = 280;

/// Fields of `struct tcp_info` that the connection's [`Info`] does not contain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcpInfoExtras {
    /// TCP state, as Linux numbers it.
    pub state: u32,
    /// Path MTU in bytes. 0 if there is no route.
    pub mtu: u32,
    /// Size of the receive buffer in bytes.
    pub recv_capacity: u32,
    /// Accept queue of a listener. `None` for a connection.
    pub accept_queue: Option<AcceptQueue>,
}

/// Number of connections in a listener's accept queue, and its backlog.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptQueue {
    pub len: u32,
    pub backlog: u32,
}

/// Value of `tcpi_reordering` for a listener (TCP_FASTRETRANS_THRESH of Linux). [`INITIAL_WINDOW`]
/// is that of `tcpi_snd_cwnd` (TCP_INIT_CWND).
const REORDERING: u32 = 3;
const INITIAL_WINDOW: u32 = 10;
/// Values for a socket without a connection, as on Linux.
const RTO_INITIAL_US: u32 = 1_000_000;
const RTTVAR_INITIAL_US: u32 = 250_000;
const MSS_DEFAULT: u32 = 536;
const SSTHRESH_UNLIMITED: u32 = 0x7fff_ffff;
const MIN_RTT_UNKNOWN: u32 = u32::MAX;

/// Encodes the struct. `info` is `None` for a socket without a connection.
pub(crate) fn tcp_info(info: Option<&Info>, beside: TcpInfoExtras) -> [u8; TCP_INFO_LEN] {
    let mut out = Layout([0; TCP_INFO_LEN]);
    out.byte(0, beside.state as u8);
    let Some(info) = info else {
        match beside.accept_queue {
            Some(queue) => out.accept_queue(queue),
            None => out.defaults(),
        }
        return out.0;
    };
    out.byte(1, info.ca_state);
    out.byte(2, info.retransmits);
    out.byte(3, info.probes);
    out.byte(4, info.backoff);
    // Write the flags `tcpi_options`: TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK, TCPI_OPT_WSCALE,
    // TCPI_OPT_ECN, TCPI_OPT_ECN_SEEN and TCPI_OPT_SYN_DATA.
    out.byte(
        5,
        u8::from(info.timestamps)
            | u8::from(info.sack) << 1
            | u8::from(info.window_scaling) << 2
            | u8::from(info.ecn.is_negotiated) << 3
            | u8::from(info.ecn.is_seen) << 4
            | u8::from(info.fast_open.data_acked) << 5,
    );
    out.byte(6, info.snd_wscale & 15 | info.rcv_wscale << 4);
    // Write two bit fields: `tcpi_delivery_rate_app_limited` is the lowest bit, and
    // `tcpi_fastopen_client_fail` follows.
    let failure = info.fast_open.failure.map_or(0, |failure| failure as u8);
    out.byte(7, u8::from(info.delivery_rate_app_limited) | failure << 1);
    out.round_trips(info, beside);
    out.figures(info);
    out.0
}

struct Layout([u8; TCP_INFO_LEN]);

impl Layout {
    /// Writes the accept queue of a listener, to fields that have a different meaning for
    /// connections.
    fn accept_queue(&mut self, queue: AcceptQueue) {
        self.word(24, queue.len);
        self.word(28, queue.backlog);
        self.word(80, INITIAL_WINDOW);
        self.word(88, REORDERING);
        self.long(104, u64::MAX);
        self.long(112, u64::MAX);
    }

    /// Writes the values for a socket without a connection.
    fn defaults(&mut self) {
        self.byte(7, 1);
        self.word(8, RTO_INITIAL_US);
        self.word(16, MSS_DEFAULT);
        self.word(72, RTTVAR_INITIAL_US);
        self.word(76, SSTHRESH_UNLIMITED);
        self.word(80, INITIAL_WINDOW);
        self.word(88, REORDERING);
        self.long(104, u64::MAX);
        self.long(112, u64::MAX);
        self.word(148, MIN_RTT_UNKNOWN);
    }

    fn round_trips(&mut self, info: &Info, beside: TcpInfoExtras) {
        self.word(8, micros(info.rto));
        self.word(12, micros(info.ato));
        self.word(16, info.snd_mss);
        self.word(20, info.rcv_mss);
        self.word(24, info.unacked);
        self.word(28, info.sacked);
        self.word(32, info.lost);
        self.word(36, info.retrans);
        self.word(44, millis(info.since_data_sent));
        self.word(52, millis(info.since_data_recv));
        self.word(56, millis(info.since_ack_recv));
        self.word(60, beside.mtu);
        self.word(64, beside.recv_capacity);
        self.word(68, micros(info.rtt));
        self.word(72, micros(info.rttvar));
        self.word(76, info.ssthresh);
        self.word(80, info.cwnd);
        self.word(84, info.advmss);
        self.word(88, info.reordering.degree);
        self.word(92, micros(info.recv_rtt));
        self.word(96, beside.recv_capacity);
        self.word(100, info.total_retrans);
    }

    fn figures(&mut self, info: &Info) {
        // Write `u64::MAX` if there is no limit, as Linux does.
        self.long(104, info.pacing_rate.map_or(u64::MAX, NonZeroU64::get));
        self.long(112, info.max_pacing_rate.map_or(u64::MAX, NonZeroU64::get));
        self.long(120, info.bytes_acked + u64::from(info.control_acked));
        // The peer's FIN counts as a received byte, as on Linux.
        let has_fin = matches!(
            info.state,
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait
        );
        self.long(128, info.bytes_received + u64::from(has_fin));
        self.word(136, info.segs_out);
        self.word(140, info.segs_in);
        self.word(144, info.notsent_bytes);
        self.word(148, micros(info.min_rtt));
        self.word(152, info.data_segs_in);
        self.word(156, info.data_segs_out);
        self.long(160, info.delivery_rate);
        self.long(168, micros_long(info.busy_time));
        self.long(176, micros_long(info.rwnd_limited));
        self.long(184, micros_long(info.sndbuf_limited));
        self.word(192, info.delivered);
        self.word(196, info.ecn.delivered_ce);
        self.long(200, info.bytes_sent);
        self.long(208, info.bytes_retrans);
        self.word(216, info.reordering.dsack_dups);
        self.word(220, info.reordering.seen);
        self.word(224, info.rcv_ooopack);
        self.word(228, info.snd_wnd);
        self.word(232, info.rcv_wnd);
        self.word(248, info.ecn.ce_segs_in);
    }

    fn byte(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    fn word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn long(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Unit of the gains in `struct tcp_bbr_info` (BBR_UNIT of Linux): this value stands for 1.
const BBR_UNIT: u32 = 256;

/// Returns the bytes of the struct that TCP_CC_INFO returns. Empty if the congestion control
/// algorithm has none.
pub(crate) fn congestion_info(info: CongestionInfo) -> Vec<u8> {
    let rtt = |time: Option<Duration>, unknown| time.map_or(unknown, micros);
    let words = match info {
        CongestionInfo::None => Vec::new(),
        CongestionInfo::Vegas { is_enabled, samples, base_rtt, min_rtt } => {
            let (base, min) = (rtt(base_rtt, RTT_UNKNOWN), rtt(min_rtt, RTT_UNKNOWN));
            vec![is_enabled.into(), samples, base, min]
        }
        CongestionInfo::Dctcp { alpha, bytes_marked, bytes_acked } => {
            // The first word consists of `dctcp_enabled` and `dctcp_ce_state`, two bytes each.
            let [low, high] = 1u16.to_ne_bytes();
            vec![u32::from_ne_bytes([low, high, 0, 0]), alpha, bytes_marked, bytes_acked]
        }
        CongestionInfo::Bbr { bandwidth, min_rtt, pacing_gain_percent, cwnd_gain_percent } => vec![
            bandwidth as u32,
            (bandwidth >> 32) as u32,
            rtt(min_rtt, u32::MAX),
            pacing_gain_percent * BBR_UNIT / 100,
            cwnd_gain_percent * BBR_UNIT / 100,
        ],
    };
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Value of Vegas's round-trip time before the first measurement.
const RTT_UNKNOWN: u32 = 0x7fff_ffff;

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn micros_long(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Converts the time since an event to milliseconds. Returns 0 if there was no event, for which
/// Linux returns the time since boot.
fn millis(since: Option<Duration>) -> u32 {
    since.map_or(0, |since| u32::try_from(since.as_millis()).unwrap_or(u32::MAX))
}

impl Sockets {
    pub(crate) fn tcp_info(&self, slot: u32, info: Option<&SocketInfo>) -> [u8; TCP_INFO_LEN] {
        let fixed = self.slots.get(slot).map_or(0, |entry| entry.rare().recv_fixed());
        let (recv_capacity, _) = fixed_or(fixed, self.buffers.recv, self.buffers.recv_max);
        let tcp = info.and_then(|info| info.tcp);
        let state = info.map_or(state::CLOSE, |info| state_number(info.state));
        let mtu = info.and_then(|info| info.mtu).unwrap_or(0);
        let listener = info.filter(|info| info.state == SocketState::Listening);
        let accept_queue =
            listener.map(|info| AcceptQueue { len: info.recv_queue, backlog: info.send_queue });
        tcp_info(tcp.as_ref(), TcpInfoExtras { state, mtu, recv_capacity, accept_queue })
    }
}
