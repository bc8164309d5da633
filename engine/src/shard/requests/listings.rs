//! Lists sockets and counters for `towpath ss` and `--stats`.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_ring::{RecvBuffer, SendBuffer};
use towpath_shm::control::{ControlReply, DATA_MAX};
use towpath_shm::layout::{Kind, option_bit};
use towpath_stack::{SocketInfo, SocketState};
use towpath_tcp::{CongestionInfo, Info, TimerKind};

use crate::report::{CongestionValues, Counters, HOLDERS_SHOWN, SocketEntry, TcpFigures};
use crate::shard::requests::{RequestCx, Requests, ShardView};
use crate::shard::sockets::linux::{state, state_number};
use crate::shard::sockets::option_bits::has_bit;
use crate::shard::sockets::slots::SlotEntry;

/// Maximum number of slots examined by one SOCKETS request. Each takes some nanoseconds.
pub(crate) const SLOTS_A_REQUEST: u32 = 4096;
/// Number of work steps that one entry of a listing counts as.
pub(crate) const ENTRY: usize = 8;
/// Value of `ssthresh` if no threshold is set, in Linux and in [`Info`].
pub(crate) const SSTHRESH_NONE: u32 = 0x7fff_ffff;
/// Names of TCP states in `ss`, indexed by Linux's number of the state.
const STATES: [&str; 12] = [
    "UNKNOWN",
    "ESTAB",
    "SYN-SENT",
    "SYN-RECV",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "UNCONN",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
];

impl Requests {
    /// Lists as many sockets as fit a reply, from slot `first` on. The reply may be empty although
    /// more sockets follow.
    pub(crate) fn list_sockets(&mut self, cx: &mut RequestCx<'_>, first: u32) -> ControlReply {
        let mut reply = ControlReply::default();
        let mut lines = Vec::new();
        let first = first.max(cx.sockets.slots.first());
        let end = first.saturating_add(SLOTS_A_REQUEST).min(cx.sockets.slots.end());
        reply.a = if end < cx.sockets.slots.end() { end } else { self.next_shard.unwrap_or(0) };
        for slot in first..end {
            cx.sockets.counters.slots_listed += 1;
            cx.sockets.counters.work(1);
            let Some(mut shown) = cx.view().entry(slot) else { continue };
            // A line with a single process ID always fits a reply.
            shown.pids.truncate(1);
            let line = serde_json::to_vec(&shown).unwrap_or_default();
            if lines.len() + line.len() + 1 > DATA_MAX {
                reply.a = slot;
                break;
            }
            lines.extend_from_slice(&line);
            lines.push(b'\n');
        }
        reply.len = lines.len() as u32;
        reply.data[..lines.len()].copy_from_slice(&lines);
        reply
    }
}

impl ShardView<'_> {
    /// Returns all sockets of this shard.
    pub(crate) fn sockets(&self) -> Vec<SocketEntry> {
        let sockets = self.sockets.slots.iter().map(|(slot, entry)| self.show(slot, entry));
        let without = self.net.stack.embryos();
        sockets.chain(without.map(|(local, remote, at)| no_socket(local, remote, at))).collect()
    }

    /// Returns the listing entry of the socket in a slot; `None` if the slot is free.
    pub(crate) fn entry(&self, slot: u32) -> Option<SocketEntry> {
        self.sockets.slots.get(slot).map(|entry| self.show(slot, entry))
    }

    fn show(&self, slot: u32, entry: &SlotEntry) -> SocketEntry {
        let info = entry.id.and_then(|id| self.net.info(id));
        let state = info.map_or(state::CLOSE, |info| state_number(info.state));
        let tcp = info.and_then(|info| info.tcp);
        let (recv_q, send_q) = queues(entry, info.as_ref());
        let holders = entry.holders.iter().filter_map(|it| self.channels.get(it.id));
        // Skip process ID 0: the process has not begun, or has not sent its ID.
        let pids = holders.map(|holder| holder.pid).filter(|pid| *pid != 0);
        let shared = self.sockets.slots.shared(slot);
        let (recv_buffer, send_buffer) = self.sockets.buffers_of(slot, entry);
        let device = self.sockets.device(slot).and_then(|id| self.net.stack.net.interface(id));
        SocketEntry {
            proto: match entry.kind {
                Kind::Datagram => "udp",
                Kind::Echo => "icmp",
                _ => "tcp",
            },
            state: STATES.get(state as usize).unwrap_or(&STATES[0]),
            recv_q,
            send_q,
            local: info.and_then(|info| info.local).map(|addr| addr.to_string()),
            remote: info.and_then(|info| info.remote).map(|addr| addr.to_string()),
            cwnd: tcp.map_or(0, |tcp| tcp.cwnd),
            rtt_us: tcp.map_or(0, |tcp| micros(tcp.rtt)),
            congestion: tcp.map(|tcp| tcp.congestion.name()),
            tcp: tcp.map(|tcp| figures(&tcp, info.and_then(|info| info.mtu).unwrap_or(0))),
            pids: pids.take(HOLDERS_SHOWN).collect(),
            recv_buffer,
            send_buffer,
            v6_only: has_bit(shared, option_bit::V6ONLY),
            device: device.map(|interface| interface.name().to_owned()),
            slot,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let net = self.net.stack.net.counters();
        let mut engine = self.sockets.counters.list();
        let memory = self.sockets.windows.usage();
        let output = self.net.stack.net.output_waiting();
        engine.extend([
            ("sockets", self.sockets.slots.len() as u64),
            // The registry (process manager) adds the values of this counter and the next one, so
            // they are 0 here.
            ("channels", 0),
            ("descriptors_to_close", 0),
            ("events_lost", self.channels.events_lost()),
            ("memory_touched", memory.touched),
            ("memory_kept", memory.kept),
            ("memory_returning", memory.returning),
            ("memory_limit", memory.limit),
            ("memory_refused", memory.refused),
            ("windows_assigned", u64::from(memory.assigned)),
            ("slots_awaited", self.sockets.released.to_reuse.len() as u64),
            ("packets_allocated", self.net.pool.allocated()),
            ("output_packets", output.packets as u64),
            ("output_bytes", output.bytes as u64),
        ]);
        Counters {
            engine,
            sockets: self.net.stack.counters().iter().collect(),
            net: net.iter().collect(),
            drops: net.data.drops.iter().collect(),
        }
    }
}

fn figures(info: &Info, pmtu: u32) -> TcpFigures {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let scale = |shift: u8| info.window_scaling.then_some(shift);
    TcpFigures {
        ts: info.timestamps,
        sack: info.sack,
        ecn: info.ecn.is_negotiated,
        ecnseen: info.ecn.is_seen,
        snd_wscale: scale(info.snd_wscale),
        rcv_wscale: scale(info.rcv_wscale),
        rto_us: micros(info.rto),
        backoff: info.backoff,
        timer: info.timer.and_then(|(kind, _)| timer_name(kind)).map(Cow::Borrowed),
        timer_ms: info.timer.map_or(0, |(_, left)| millis(left)),
        rttvar_us: micros(info.rttvar),
        minrtt_us: micros(info.min_rtt),
        ato_us: micros(info.ato),
        mss: info.snd_mss,
        pmtu,
        rcvmss: info.rcv_mss,
        advmss: info.advmss,
        ssthresh: Some(info.ssthresh).filter(|segments| *segments < SSTHRESH_NONE),
        bytes_sent: info.bytes_sent,
        bytes_retrans: info.bytes_retrans,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        segs_out: info.segs_out,
        segs_in: info.segs_in,
        data_segs_out: info.data_segs_out,
        data_segs_in: info.data_segs_in,
        lastsnd_ms: info.since_data_sent.map(millis),
        lastrcv_ms: info.since_data_recv.map(millis),
        lastack_ms: info.since_ack_recv.map(millis),
        pacing_rate: match info.congestion_info {
            CongestionInfo::Bbr { .. } => info.pacing_rate,
            _ => info.max_pacing_rate,
        },
        pacing_rate_max: info.max_pacing_rate,
        congestion_values: congestion_values(info.congestion_info),
        delivered: info.delivered,
        delivered_ce: info.ecn.delivered_ce,
        busy_ms: millis(info.busy_time),
        rwnd_limited_ms: millis(info.rwnd_limited),
        sndbuf_limited_ms: millis(info.sndbuf_limited),
        unacked: info.unacked,
        retrans: info.retrans,
        retrans_total: info.total_retrans,
        lost: info.lost,
        sacked: info.sacked,
        notsent: info.notsent_bytes,
        rcv_ooopack: info.rcv_ooopack,
        snd_wnd: info.snd_wnd,
        rcv_wnd: info.rcv_wnd,
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn congestion_values(info: CongestionInfo) -> Option<CongestionValues> {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let or_0 = |time: Option<Duration>| time.map_or(0, micros);
    Some(match info {
        CongestionInfo::Bbr { bandwidth, min_rtt, pacing_gain_percent, cwnd_gain_percent } => {
            CongestionValues::Bbr {
                bw: bandwidth,
                mrtt_us: or_0(min_rtt),
                pacing_gain: pacing_gain_percent,
                cwnd_gain: cwnd_gain_percent,
            }
        }
        CongestionInfo::Dctcp { alpha, bytes_marked, bytes_acked } => {
            CongestionValues::Dctcp { alpha, ab_ecn: bytes_marked, ab_tot: bytes_acked }
        }
        CongestionInfo::Vegas { base_rtt, min_rtt, .. } => {
            CongestionValues::Vegas { basertt_us: or_0(base_rtt), minrtt_us: or_0(min_rtt) }
        }
        CongestionInfo::None => return None,
    })
}

/// Returns the entry of a connection without a slot, which is half-open or in TIME-WAIT.
pub(crate) fn no_socket(local: SocketAddr, remote: SocketAddr, at: SocketState) -> SocketEntry {
    SocketEntry {
        proto: "tcp",
        state: STATES.get(state_number(at) as usize).unwrap_or(&STATES[0]),
        recv_q: 0,
        send_q: 0,
        local: Some(local.to_string()),
        remote: Some(remote.to_string()),
        cwnd: 0,
        rtt_us: 0,
        congestion: None,
        tcp: None,
        pids: Vec::new(),
        recv_buffer: 0,
        send_buffer: 0,
        v6_only: false,
        device: None,
        slot: u32::MAX,
    }
}

/// Returns the name of a timer in `ss -o`. `None` if `ss` does not display this timer.
fn timer_name(kind: TimerKind) -> Option<&'static str> {
    match kind {
        TimerKind::Retransmit | TimerKind::TailLossProbe | TimerKind::Reordering => Some("on"),
        TimerKind::Persist => Some("persist"),
        TimerKind::KeepAlive => Some("keepalive"),
        TimerKind::FinWait2 => Some("timewait"),
        _ => None,
    }
}

pub(crate) fn queues(entry: &SlotEntry, info: Option<&SocketInfo>) -> (u32, u32) {
    match (&entry.owned, entry.kind) {
        (Some(owned), Kind::Datagram | Kind::Echo) => {
            let unread = owned.rx.as_ref().map_or(0, RecvBuffer::unread);
            (unread, owned.tx.as_ref().map_or(0, SendBuffer::len))
        }
        _ => info.map_or((0, 0), |info| (info.recv_queue, info.send_queue)),
    }
}
