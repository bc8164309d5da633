//! A turn of the stack's event loop, and the order of its steps.

use towpath_pool::{Batch, Packet, Pool, Port as _};
use towpath_tcp::Instant;

use crate::attached::StackPort;
use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{Budget, Host, Turn};
use crate::limits;
use crate::net::{IfaceId, Load};
use crate::stack::{Stack, TimerOwner};

impl<H: Host> Stack<H> {
    /// Returns whether any socket has set a preferred CPU ([`BindOptions`](crate::BindOptions)).
    pub fn minds_processor(&self) -> bool {
        self.ports.tcp.receivers.minds_processor() || self.ports.udp.receivers.minds_processor()
    }

    /// Sets the CPU on which the next turns of the event loop run.
    pub fn runs_on(&mut self, processor: u32) {
        self.ports.tcp.receivers.runs_on(processor);
        // With several shards (stacks), shards on different CPUs look up the same UDP datagram, and
        // must find the same socket. Consider the CPU only if there is a single stack.
        if self.shards.is_alone() {
            self.ports.udp.receivers.runs_on(processor);
        }
    }

    /// Runs one turn of the event loop: receives packets from the ports (devices), handles expired
    /// timers, lets connections send, and passes packets to the ports. [`StackPort`] assigns ports
    /// to interfaces; loopback needs no port.
    ///
    /// Each turn passes packets to every port, even if nothing new is queued. A device that was
    /// full may have space again, and a call without work takes little time.
    pub fn turn<P: StackPort>(
        &mut self,
        now: Instant,
        host: &mut H,
        ports: &mut [P],
        pool: &mut Pool,
        budget: Budget,
    ) -> Turn {
        self.counters.turns += 1;
        let mut turn = Turn::default();
        let cx = &mut Cx { now, host, pool };
        self.datagrams.filter_steps = 0;
        self.deliver_waiting(cx);
        self.receive_mail(cx);
        self.receive_ports(cx, ports, budget.rx_packets, &mut turn);
        self.fire_timers(cx);
        let mut tx_left = budget.tx_packets;
        for _ in 0..limits::ROUNDS_A_TURN {
            self.transmit(cx, &mut tx_left);
            if tx_left == 0 || !self.receive_loopback(cx) {
                break;
            }
        }
        self.tell(cx.host);
        turn.mail = self.flush_mail(cx.pool);
        for (place, port) in ports.iter_mut().enumerate() {
            let (iface, port) = port.parts(place);
            if self.net.is_down(iface) {
                self.net.drop_output(iface, cx.pool);
                continue;
            }
            let output = self.net.output(iface);
            let before = output.load();
            let sent = output.hand_over(|batch| {
                port.submit(now.0, cx.pool, batch);
            });
            let taken = before - output.load();
            turn.sent += sent;
            self.net.note_sent(iface, taken);
        }
        self.end_waits();
        self.events.visits_put_off = !self.dirty.is_empty();
        turn.filter_steps = self.datagrams.filter_steps;
        turn.more |= self.has_work();
        turn
    }

    /// Returns the time at which [`Stack::turn`] must be called if no packet arrives before. A time
    /// in the past means that work is pending. The caller must also consider the timeouts of the
    /// ports.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.has_work() {
            return Some(Instant::ZERO);
        }
        let pending = self.handshakes.pending_line.front();
        let pending =
            pending.and_then(|index| self.handshakes.pending.get(index)).map(|syn| syn.expires);
        let times = [
            self.wheel.next_timeout(),
            self.net.next_timeout(),
            self.time_waits.next_timeout(),
            pending,
        ];
        times.into_iter().flatten().min()
    }

    fn has_work(&self) -> bool {
        !self.dirty.is_empty()
            || !self.events.is_empty()
            || self.loopback_due
            || !self.datagrams.deliveries.is_empty()
            || self.output_lines.is_due(&self.net)
            || self.has_mail()
    }

    fn receive_ports<P: StackPort>(
        &mut self,
        cx: &mut Cx<'_, H>,
        ports: &mut [P],
        max: usize,
        turn: &mut Turn,
    ) {
        for (place, port) in ports.iter_mut().enumerate() {
            let (iface, port) = port.parts(place);
            let mut batch = std::mem::take(&mut self.rx);
            let received = port.poll(cx.now.0, cx.pool, &mut batch, max);
            turn.received += received;
            turn.more |= received >= max;
            // Apply changes of sockets in other shards before the batch, because its packets may
            // depend on these changes.
            self.catch_up_for_batch();
            let mut bytes = 0;
            let is_down = self.net.is_down(iface);
            if self.net.is_router() && !is_down {
                bytes += self.receive_in_runs(cx, iface, &mut batch);
            }
            for packet in batch.drain(..) {
                bytes += packet.len();
                if is_down {
                    self.net.drop(iface, packet, DropReason::LinkDown, cx.pool);
                    continue;
                }
                self.take_packet(cx, iface, packet);
            }
            self.net.note_received(iface, Load { packets: received, bytes });
            self.rx = batch;
        }
    }

    /// Receives a batch of packets as a router. Packets to other hosts are forwarded several at a
    /// time, and packets to this host are received one by one.
    #[cold]
    fn receive_in_runs(&mut self, cx: &mut Cx<'_, H>, iface: IfaceId, batch: &mut Batch) -> usize {
        let mut bytes = 0;
        self.net.plan_transit(iface, batch);
        loop {
            bytes += self.net.forward_run(cx.now, iface, batch, cx.pool);
            let Some(packet) = batch.pop_front() else { return bytes };
            bytes += packet.len();
            self.take_packet(cx, iface, packet);
        }
    }

    /// Receives a packet from a device. With several shards, the shard to which it belongs is found
    /// first.
    #[inline]
    fn take_packet(&mut self, cx: &mut Cx<'_, H>, iface: IfaceId, packet: Packet) {
        match self.shards.is_alone() {
            true => self.receive_packet(cx, iface, packet, None),
            false => self.judge_packet(cx, iface, packet, 0),
        }
    }

    /// Receives the packets that are in the loopback queue at present. Answers to them are received
    /// by the next call. If a program's socket filters have used up their limit of instructions,
    /// its datagrams wait in `deliveries`. Other programs are therefore not delayed. Returns false
    /// if the queue was empty.
    fn receive_loopback(&mut self, cx: &mut Cx<'_, H>) -> bool {
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..self.net.loopback_len() {
            let Some(looped) = self.net.take_loopback() else { break };
            packets += 1;
            bytes += looped.packet.len();
            match self.shards.is_alone() {
                true => self.receive_looped(cx, looped, None),
                false => self.judge_looped(cx, looped, 0),
            }
        }
        let any = packets > 0;
        if any {
            let load = Load { packets, bytes };
            self.net.note_received(IfaceId::LOOPBACK, load);
            self.net.note_sent(IfaceId::LOOPBACK, load);
        }
        // The IP layer may have queued answers, so the loopback queue must be checked again.
        self.loopback_due = any;
        any
    }

    fn fire_timers(&mut self, cx: &mut Cx<'_, H>) {
        if self.net.next_timeout().is_some_and(|due| due <= cx.now) {
            self.net.on_timeout(cx.now, cx.pool);
        }
        while let Some(error) = self.net.take_error() {
            self.receive_error(cx, &error);
        }
        if let Some(due) = self.wheel.next_timeout().filter(|due| *due <= cx.now) {
            // After a pause of the owner, many timers are overdue. Handle packets between them,
            // because an ACK of the first retransmission may make further ones unnecessary. Timers
            // that were armed for a time in the past are handled at once, because they do not
            // indicate a pause.
            let step =
                (cx.now.since(due) / 8).clamp(limits::TIMERS_AT_ONCE, limits::TIMERS_AT_ONCE_MAX);
            self.fire_until(cx, cx.now.min(due.max(self.wheel.passed()) + step));
        }
        self.expire_time_waits(cx.now);
        self.expire_pending(cx);
        self.forget_old_mtus(cx.now);
        self.tell(cx.host);
    }

    fn fire_until(&mut self, cx: &mut Cx<'_, H>, until: Instant) {
        let mut moves = limits::TIMERS_A_TURN;
        for _ in 0..limits::TIMERS_A_TURN {
            let Some(owner) = self.wheel.pop(until, &mut moves) else { break };
            self.counters.timers_fired += 1;
            match owner {
                TimerOwner::Socket(index) => self.on_socket_timeout(until, cx.now, index),
                TimerOwner::HalfOpen(index) => {
                    self.on_half_open_timeout(cx, index);
                }
            }
        }
    }

    /// Delivers queued events to the owner. Calls without access to the owner queue their events,
    /// which [`Stack::turn`] delivers as well.
    pub fn tell(&mut self, host: &mut H) {
        self.events.deliver(host);
    }
}
