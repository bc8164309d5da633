//! What `towpath ss` and `--stats` show of sockets and counters.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_shm::layout::{Kind, option_bit};
use towpath_stack::{SocketInfo, SocketState};
use towpath_tcp::{Info, TimerKind};

use crate::engine::Engine;
use crate::report::{Counters, HOLDERS_SHOWN, SocketEntry, TcpFigures};
use crate::shard::linux::{congestion_name, state, state_number};
use crate::shard::option_bits::has_bit;
use crate::shard::slots::Entry;

/// What Linux and [`Info`] say when there is no threshold.
const SSTHRESH_NONE: u32 = 0x7fff_ffff;
/// As `ss` names them, by Linux's number.
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

impl Engine {
    pub(crate) fn sockets(&self) -> Vec<SocketEntry> {
        let sockets = self.shard.host.slots.iter().map(|(slot, entry)| self.show(slot, entry));
        let without = self.shard.stack.embryos();
        sockets.chain(without.map(|(local, remote, at)| no_socket(local, remote, at))).collect()
    }

    pub(crate) fn show(&self, slot: u32, entry: &Entry) -> SocketEntry {
        let info = entry.id.and_then(|id| self.shard.stack.info(self.shard.clock.now(), id));
        let state = info.map_or(state::CLOSE, |info| state_number(info.state));
        let tcp = info.and_then(|info| info.tcp);
        let (recv_q, send_q) = queues(entry, info.as_ref());
        let holders = entry.holders.iter().filter_map(|id| self.registry.get(*id));
        // 0: a process that has not begun, or a program that says nothing.
        let pids = holders.map(|holder| holder.pid).filter(|pid| *pid != 0);
        let shared = self.shard.host.slots.shared(slot);
        let (recv_buffer, send_buffer) = self.buffers_of(slot, entry);
        let device = self
            .shard
            .device(slot)
            .and_then(|id| self.shard.stack.net.interfaces().get(id.index()));
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
            rtt_us: tcp.map_or(0, |tcp| u32::try_from(tcp.rtt.as_micros()).unwrap_or(u32::MAX)),
            congestion: tcp.map(|tcp| congestion_name(tcp.congestion)),
            tcp: tcp.map(|tcp| figures(&tcp, info.and_then(|info| info.mtu).unwrap_or(0))),
            pids: pids.take(HOLDERS_SHOWN).collect(),
            recv_buffer,
            send_buffer,
            v6_only: has_bit(shared, option_bit::V6ONLY),
            device: device.map(|interface| interface.name().to_owned()),
            slot,
        }
    }

    fn buffers_of(&self, slot: u32, entry: &Entry) -> (u32, u32) {
        let (rare, sizes) = (entry.rare(), &self.shard.host.buffers);
        let (recv, send) = match entry.is_datagram() {
            true => (sizes.datagram, sizes.datagram),
            false => (sizes.recv, sizes.send),
        };
        let shared = self.shard.host.slots.shared(slot);
        let or = |fixed: u32, now: u32, first: u32| if fixed != 0 { fixed } else { now.max(first) };
        let in_use = (shared.rx_cap.load(Relaxed), shared.tx_limit.load(Relaxed));
        (or(rare.recv_fixed(), in_use.0, recv), or(rare.sndbuf, in_use.1, send))
    }

    pub(crate) fn counters(&self) -> Counters {
        let net = &self.shard.stack.net.counters;
        let mut engine = self.shard.host.counters.list();
        let memory = self.shard.host.windows.usage();
        let output = self.shard.stack.net.output_waiting();
        engine.extend([
            ("sockets", self.shard.host.slots.len() as u64),
            ("channels", self.registry.len() as u64),
            ("descriptors_to_close", self.registry.closer.waiting() as u64),
            ("events_lost", self.shard.host.channels.events_lost()),
            ("memory_touched", memory.touched),
            ("memory_kept", memory.kept),
            ("memory_returning", memory.returning),
            ("memory_limit", memory.limit),
            ("memory_refused", memory.refused),
            ("windows_assigned", u64::from(memory.assigned)),
            ("slots_awaited", self.shard.to_reuse.len() as u64),
            ("packets_allocated", self.shard.pool.allocated()),
            ("output_packets", output.packets as u64),
            ("output_bytes", output.bytes as u64),
        ]);
        Counters {
            engine,
            sockets: self.shard.stack.counters().iter().collect(),
            net: net.iter().collect(),
            drops: net.drops.iter().collect(),
        }
    }
}

fn figures(info: &Info, pmtu: u32) -> TcpFigures {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let scale = |shift: u8| info.window_scaling.then_some(shift);
    TcpFigures {
        ts: info.timestamps,
        sack: info.sack,
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
        delivered: info.delivered,
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

/// An entry for a connection without a slot: half-open, or in TIME-WAIT.
fn no_socket(local: SocketAddr, remote: SocketAddr, at: SocketState) -> SocketEntry {
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

/// As `ss -o` names them; it shows no others.
fn timer_name(kind: TimerKind) -> Option<&'static str> {
    match kind {
        TimerKind::Retransmit => Some("on"),
        TimerKind::Persist => Some("persist"),
        TimerKind::KeepAlive => Some("keepalive"),
        TimerKind::FinWait2 => Some("timewait"),
        _ => None,
    }
}

fn queues(entry: &Entry, info: Option<&SocketInfo>) -> (u32, u32) {
    use towpath_ring::{RecvBuffer, SendBuffer};
    match (&entry.owned, entry.kind) {
        (Some(owned), Kind::Datagram | Kind::Echo) => {
            let unread = owned.rx.as_ref().map_or(0, RecvBuffer::unread);
            (unread, owned.tx.as_ref().map_or(0, SendBuffer::len))
        }
        _ => info.map_or((0, 0), |info| (info.recv_queue, info.send_queue)),
    }
}
