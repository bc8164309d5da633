//! Lists sockets, counters and neighbors for programs, which see them in /proc/net and netlink.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_shm::control::{ControlReply, DATA_MAX, Request, SocketRow, Tally, Traffic};
use towpath_shm::layout::{Kind, RawAddr, option_bit};
use towpath_stack::SocketState;
use towpath_tcp::{Info, TimerKind};

use crate::errno::{EINVAL, Errno};
use crate::shard::net::describe::append;
use crate::shard::requests::listings::{ENTRY, SLOTS_A_REQUEST, SSTHRESH_NONE};
use crate::shard::requests::rounds::Answer;
use crate::shard::requests::{RequestCx, Requests, ShardView};
use crate::shard::sockets::linux::{state, state_number};
use crate::shard::sockets::option_bits::has_bit;
use crate::shard::sockets::slots::{AF_INET, AF_INET6};

/// Maximum number of connections without a slot that are listed per shard. Each request must skip
/// those that were already listed, so a longer list would delay an iteration of the event loop.
const WITHOUT_MAX: usize = 4096;
/// Maximum number of sockets in one reply.
const ROWS: usize = DATA_MAX / size_of::<SocketRow>();

impl Requests {
    /// Returns as many sockets as fit in one reply: first those with a slot, then connections
    /// without one.
    pub(crate) fn socket_rows(
        &mut self,
        cx: &mut RequestCx<'_>,
        request: &Request,
    ) -> ControlReply {
        let mut reply = ControlReply::default();
        if request.b == 0 && self.rows_of_slots(cx, request.a, &mut reply) {
            return reply;
        }
        if request.b == 0 && reply.len > 0 {
            (reply.a, reply.b) = (cx.sockets.slots.first(), 1);
            return reply;
        }
        let told = request.b.saturating_sub(1);
        let mut without = cx.net.stack.embryos().take(WITHOUT_MAX);
        let skipped = without.by_ref().take(told as usize).count();
        let some: Vec<_> = without.by_ref().take(ROWS).collect();
        let more = without.next().is_some();
        for (local, remote, at) in &some {
            append(&mut reply, &row_without_socket(*local, *remote, *at));
        }
        // Count skipped connections as work steps, so that a long list is continued in the next
        // iteration of the event loop.
        cx.sockets.counters.work(skipped + ENTRY * some.len());
        (reply.a, reply.b) = match more {
            true => (cx.sockets.slots.first(), (skipped + some.len()) as u32 + 1),
            false => (self.next_shard.unwrap_or(0), 0),
        };
        reply
    }

    /// Appends sockets to a reply in the order of their slots. Returns true if more slots are left;
    /// `reply.a` is then the first of these.
    fn rows_of_slots(
        &mut self,
        cx: &mut RequestCx<'_>,
        first: u32,
        reply: &mut ControlReply,
    ) -> bool {
        let first = first.max(cx.sockets.slots.first());
        let end = first.saturating_add(SLOTS_A_REQUEST).min(cx.sockets.slots.end());
        for slot in first..end {
            cx.sockets.counters.slots_listed += 1;
            cx.sockets.counters.work(1);
            let Some(row) = cx.view().row(slot) else { continue };
            if reply.len as usize + size_of::<SocketRow>() > DATA_MAX {
                reply.a = slot;
                return true;
            }
            append(reply, &row);
        }
        reply.a = end;
        end < cx.sockets.slots.end()
    }
}

impl ShardView<'_> {
    fn row(&self, slot: u32) -> Option<SocketRow> {
        let entry = self.sockets.slots.get(slot)?;
        let info = entry.id.and_then(|id| self.net.info(id));
        let tcp = info.and_then(|info| info.tcp);
        let (recv_q, send_q) = crate::shard::requests::listings::queues(entry, info.as_ref());
        let (recv_buffer, send_buffer) = self.sockets.buffers_of(slot, entry);
        let present = |addr: Option<SocketAddr>| {
            addr.map_or_else(RawAddr::default, |addr| self.net.present_own(entry.family, addr))
        };
        let device = self.sockets.device(slot).map_or(0, |id| u32::from(id.0) + 1);
        let row = SocketRow {
            local: present(info.and_then(|info| info.local)),
            remote: present(info.and_then(|info| info.remote)),
            slot,
            generation: entry.generation,
            family: entry.family,
            protocol: match (entry.kind, entry.family) {
                (Kind::Datagram, _) => 17,
                (Kind::Echo, AF_INET6) => 58,
                (Kind::Echo, _) => 1,
                _ => 6,
            },
            state: info.map_or(state::CLOSE, |info| state_number(info.state)),
            recv_q,
            send_q,
            recv_buffer,
            send_buffer,
            v6_only: has_bit(self.sockets.slots.shared(slot), option_bit::V6ONLY).into(),
            device,
            ..SocketRow::default()
        };
        Some(tcp.map_or(row, |tcp| with_figures(row, &tcp)))
    }

    /// Returns the TCP_INFO of any socket, even if the process does not have it. Programs of a run
    /// may inspect each other's sockets.
    pub(crate) fn socket_figures(&self, slot: u32) -> Answer {
        let entry = self.sockets.slots.get(slot).ok_or(Errno(EINVAL))?;
        let info = entry.id.and_then(|id| self.net.info(id));
        let tcp = info.and_then(|info| info.tcp);
        let mut reply = ControlReply { b: tcp.is_some().into(), ..ControlReply::default() };
        let figures = self.sockets.tcp_info(slot, info.as_ref());
        let name = tcp.map_or("", |tcp| tcp.congestion.name()).as_bytes();
        let (end, len) = (figures.len(), figures.len() + name.len());
        reply.data[..end].copy_from_slice(&figures);
        reply.data[end..len].copy_from_slice(name);
        (reply.a, reply.len) = (end as u32, len as u32);
        Ok(reply)
    }

    /// Returns the counters of this shard, and the traffic of its interfaces.
    pub(crate) fn tally(&self, next_shard: Option<u32>) -> ControlReply {
        let (net, sockets) = (&self.net.stack.net.counters().data, self.net.stack.counters());
        let tally = Tally {
            ip_received: net.received,
            ip_received_bytes: net.received_bytes,
            ip_delivered: net.delivered,
            ip_sent: net.sent,
            ip_sent_bytes: net.sent_bytes,
            ip_forwarded: net.forwarded,
            fragments: net.fragments_received,
            reassembled: net.reassembled,
            fragmented: net.fragmented,
            icmp_errors_received: net.icmp_errors_received,
            icmp_errors_sent: net.icmp_errors_sent,
            echoes_answered: net.echoes_answered,
            echo_received: sockets.echo_received,
            echo_sent: sockets.echo_sent,
            tcp_connects: sockets.tcp_connects,
            tcp_accepts: sockets.tcp_accepts,
            tcp_failures: sockets.tcp_failures,
            tcp_received: sockets.tcp_received,
            tcp_sent: sockets.tcp_sent,
            tcp_retransmits: sockets.tcp_retransmits,
            tcp_resets_sent: sockets.tcp_resets_sent,
            tcp_syn_cookies_sent: sockets.tcp_syn_cookies_sent,
            tcp_syn_cookies_valid: sockets.tcp_syn_cookies_valid,
            tcp_syn_cookies_invalid: sockets.tcp_syn_cookies_invalid,
            tcp_time_wait_reused: sockets.tcp_time_wait_reused,
            udp_received: sockets.udp_received,
            udp_sent: sockets.udp_sent,
        };
        let mut reply = ControlReply { a: next_shard.unwrap_or(0), ..ControlReply::default() };
        append(&mut reply, &tally);
        // The traffic is listed by interface index, including removed interfaces.
        for known in self.net.stack.net.traffic() {
            let traffic = Traffic {
                rx_packets: known.rx_packets,
                rx_bytes: known.rx_bytes,
                rx_dropped: known.rx_dropped,
                tx_packets: known.tx_packets,
                tx_bytes: known.tx_bytes,
                tx_dropped: known.tx_dropped,
            };
            if reply.len as usize + size_of::<Traffic>() > DATA_MAX {
                break;
            }
            append(&mut reply, &traffic);
        }
        reply
    }
}

fn with_figures(row: SocketRow, tcp: &Info) -> SocketRow {
    let (timer, left) = match tcp.timer {
        Some((TimerKind::Retransmit | TimerKind::TailLossProbe | TimerKind::Reordering, left)) => {
            (1, left)
        }
        Some((TimerKind::KeepAlive, left)) => (2, left),
        Some((TimerKind::FinWait2, left)) => (3, left),
        Some((TimerKind::Persist, left)) => (4, left),
        _ => (0, Duration::ZERO),
    };
    let ssthresh = if tcp.ssthresh < SSTHRESH_NONE { tcp.ssthresh } else { u32::MAX };
    SocketRow {
        timer,
        timer_ms: millis(left),
        retransmits: tcp.retransmits.into(),
        rto_ms: millis(tcp.rto),
        ato_ms: millis(tcp.ato),
        cwnd: tcp.cwnd,
        ssthresh,
        ..row
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn row_without_socket(local: SocketAddr, remote: SocketAddr, at: SocketState) -> SocketRow {
    SocketRow {
        local: RawAddr::new(local),
        remote: RawAddr::new(remote),
        slot: u32::MAX,
        family: if local.is_ipv4() { AF_INET } else { AF_INET6 },
        protocol: 6,
        state: state_number(at),
        ..SocketRow::default()
    }
}
