//! IP layer of a stack: the data part, which receives and sends packets, and access to the host's
//! control part, which manages the configuration.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use towpath_pool::{Batch, Packet, Pool};
use towpath_tcp::Instant;

use super::config::NetConfig;
use super::control::Control;
use super::control_access::{ControlAccess, Shared};
use super::data::{Data, Load, Output};
use super::iface::IfaceId;
use super::keys::Keys;
use super::messages::{DataCommand, NeighborUpdate, Parts};
use super::received::{IcmpError, Looped, Received};
use super::trace::{ControlCounters, DataCounters, DroppedCopy, NetCounters, Traffic};
use crate::drop::DropReason;

/// The IP layer of a host, or of one of its shards. The [module](super) has an overview.
///
/// The owner must:
///
/// - call [`receive`](Self::receive) for each packet of a device, and
///   [`receive_looped`](Self::receive_looped) for each of [`take_loopback`](Self::take_loopback);
/// - pass the packets of [`output`](Self::output) to the devices;
/// - call [`on_timeout`](Self::on_timeout) at the time [`next_timeout`](Self::next_timeout).
#[derive(Debug)]
pub struct Net {
    pub(super) seat: ControlAccess,
    pub(super) data: Data,
    /// Number of configuration snapshots that had been created when this shard (stack) adopted the
    /// one that it uses.
    pub(super) seen: u64,
    /// Neighbour updates for other shards, each with the set of shards that must receive it.
    pub(super) news: VecDeque<(Parts, NeighborUpdate)>,
    /// Value of [`Shared::hurries`] when the first shard last read it. The counter states how often
    /// other shards made the deadline of the control part earlier.
    pub(super) hurries_seen: u64,
    /// Whether the first shard (stack) must be woken, because the deadline of the control part of
    /// the IP layer became earlier.
    pub(super) hurries_first: bool,
    /// Generation number of the routes for which the other shards were last woken.
    pub(super) woken_for: u64,
}

impl Net {
    /// Creates the IP layer of a host with only the loopback interface.
    pub fn new(config: NetConfig, keys: Keys, now: Instant) -> Self {
        let control = Box::new(host_control(config, &keys, now));
        Self::assemble(config, &keys, now, (0, 1), ControlAccess::Alone(control))
    }

    /// Creates the IP layers of a host's shards, one for each element of `keys`. The first shard
    /// runs the control part.
    pub(crate) fn shards(config: NetConfig, keys: &[Keys], now: Instant) -> Vec<Self> {
        let [first, ..] = keys else { return Vec::new() };
        let shared = Arc::new(Shared::new(host_control(config, first, now)));
        let assemble = |(n, own): (usize, &Keys)| {
            let shared = Arc::clone(&shared);
            let seat =
                if n == 0 { ControlAccess::First(shared) } else { ControlAccess::Other(shared) };
            Self::assemble(config, own, now, (n, keys.len()), seat)
        };
        keys.iter().enumerate().map(assemble).collect()
    }

    fn assemble(
        config: NetConfig,
        keys: &Keys,
        now: Instant,
        place: (usize, usize),
        seat: ControlAccess,
    ) -> Self {
        let mut data = Data::new(config, keys, now, place.0, place.1);
        data.follow(&seat.snapshot());
        let woken_for = data.snapshot.generation;
        let (hurries_seen, hurries_first) = (0, false);
        Self { seat, data, seen: 0, news: VecDeque::new(), hurries_seen, hurries_first, woken_for }
    }

    /// Passes reports and control packets to the control part of the IP layer, and executes its
    /// commands. A single stack calls this after each packet, so that the next packet sees the
    /// result. With several shards, a shard sends its reports at the end of its turn of the event
    /// loop.
    pub(super) fn exchange(&mut self, now: Instant, pool: &mut Pool) {
        let Self { seat, data, news, .. } = self;
        match seat {
            ControlAccess::Alone(control) if data.has_told() || control.has_commands() => {
                talk(control, data, news, now, pool);
            }
            ControlAccess::Alone(control) => data.follow(control.snapshot()),
            ControlAccess::First(shared) if data.has_told() || shared.due() == Instant::ZERO => {
                shared.with(|control| talk(control, data, news, now, pool));
            }
            ControlAccess::First(_) | ControlAccess::Other(_) => {}
        }
        self.data.clear_up(pool);
    }

    /// Plans the forwarding of a batch of packets that were received on the interface `iface`. The
    /// caller then calls [`forward_run`](Self::forward_run) and [`receive`](Self::receive)
    /// alternately until the batch is empty.
    #[inline]
    pub(crate) fn plan_transit(&mut self, iface: IfaceId, packets: &Batch) {
        self.data.plan_transit(iface, packets);
    }

    /// Forwards packets from the front of a planned batch, until a packet must be passed to
    /// `receive`. Returns the bytes of all packets that were forwarded or dropped.
    #[inline]
    pub(crate) fn forward_run(
        &mut self,
        now: Instant,
        iface: IfaceId,
        packets: &mut Batch,
        pool: &mut Pool,
    ) -> usize {
        let bytes = self.data.forward_run(now, iface, packets, pool);
        if self.data.has_told() {
            self.exchange(now, pool);
        }
        bytes
    }

    /// Receives one packet from the device of the interface `iface`. Returns `None` if the packet
    /// is not for the sockets: it was consumed (ARP, neighbour discovery, an echo request, a
    /// fragment), or dropped and counted.
    pub fn receive(
        &mut self,
        now: Instant,
        iface: IfaceId,
        packet: Packet,
        pool: &mut Pool,
    ) -> Option<Received> {
        let received = self.data.receive(now, iface, packet, pool);
        self.exchange(now, pool);
        received
    }

    /// Receives one packet of [`take_loopback`](Self::take_loopback). Returns `None` in the same
    /// cases as [`Net::receive`].
    pub fn receive_looped(
        &mut self,
        now: Instant,
        looped: Looped,
        pool: &mut Pool,
    ) -> Option<Received> {
        let received = self.data.receive_looped(now, looped, pool);
        self.exchange(now, pool);
        received
    }

    /// Returns the time at which [`Net::on_timeout`] must be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let control = match &self.seat {
            // The control part has commands for the data part, for example after a configuration
            // change.
            ControlAccess::Alone(control) if control.has_commands() => Instant::ZERO,
            ControlAccess::Alone(control) => control.next_timeout(),
            ControlAccess::First(shared) => shared.due(),
            ControlAccess::Other(_) => Instant::FAR,
        };
        let next = control.min(self.data.next_timeout());
        (next != Instant::FAR).then_some(next)
    }

    /// Handles all timers that have expired at the time `now`.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool) {
        // Process queued reports first. If one confirms a neighbour, a probe that is due now need
        // not be sent.
        self.exchange(now, pool);
        match &mut self.seat {
            ControlAccess::Alone(control) => control.on_timeout(now, pool),
            ControlAccess::First(shared) if shared.due() <= now => {
                let (data, news) = (&mut self.data, &mut self.news);
                // If the lifetime of an address ends, the control part creates a new configuration
                // snapshot, but no command. Adopt the snapshot here, and wake the other shards.
                shared.with(|control| {
                    control.on_timeout(now, pool);
                    talk(control, data, news, now, pool);
                });
            }
            ControlAccess::First(_) | ControlAccess::Other(_) => {}
        }
        self.exchange(now, pool);
        self.data.on_timeout(now, pool);
        self.exchange(now, pool);
    }

    /// Returns the counters of this IP layer. With several shards, only the counters of the first
    /// shard include the control part, so that sums over all shards are correct.
    pub fn counters(&self) -> NetCounters {
        let control = match &self.seat {
            ControlAccess::Other(_) => ControlCounters::default(),
            seat => seat.ask(|control| control.counters.clone()),
        };
        let rules_unlogged = self.data.hooks.unlogged();
        let data = DataCounters { rules_unlogged, ..self.data.counters.clone() };
        NetCounters { data, control }
    }

    /// Counts a dropped packet that was already freed, or that was never created.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.data.counters.drops.count(reason);
    }

    /// Returns the output queue of the interface `iface`.
    ///
    /// # Panics
    /// Panics if the interface does not exist.
    pub fn output(&mut self, iface: IfaceId) -> &mut Output {
        &mut self.data.outputs[iface.index()]
    }

    /// Returns whether the operator has set the interface down.
    #[inline]
    pub(crate) fn is_down(&self, iface: IfaceId) -> bool {
        self.data.here().links.get(iface.index()).is_some_and(|link| link.down)
    }

    /// Returns the traffic counters of this stack, one for each interface by its index.
    pub fn traffic(&self) -> &[Traffic] {
        &self.data.traffic
    }

    /// Counts packets that the device of an interface has received.
    pub(crate) fn note_received(&mut self, iface: IfaceId, received: Load) {
        if let Some(traffic) = self.data.traffic.get_mut(iface.index()) {
            traffic.rx_packets += received.packets as u64;
            traffic.rx_bytes += received.bytes as u64;
        }
    }

    /// Counts packets that the device of an interface has accepted for sending.
    pub(crate) fn note_sent(&mut self, iface: IfaceId, sent: Load) {
        if let Some(traffic) = self.data.traffic.get_mut(iface.index()) {
            traffic.tx_packets += sent.packets as u64;
            traffic.tx_bytes += sent.bytes as u64;
        }
    }

    /// Drops the packets in the output queue of the interface `iface`, which is down or was
    /// removed.
    #[cold]
    pub(crate) fn drop_output(&mut self, iface: IfaceId, pool: &mut Pool) {
        let mut packets = Vec::new();
        let Some(output) = self.data.outputs.get_mut(iface.index()) else { return };
        output.hand_over(|batch| packets.extend(batch.drain(..)));
        for packet in packets {
            self.data.drop(iface, packet, DropReason::LinkDownOut, pool);
        }
    }

    /// Returns the size on the wire of the packets in the output queue of `iface`.
    #[inline]
    pub fn output_load(&self, iface: IfaceId) -> Load {
        self.data.outputs.get(iface.index()).map_or(Load::default(), Output::load)
    }

    /// Returns the size on the wire of the packets of connections in the output queue of `iface`.
    #[inline]
    pub(crate) fn output_connections(&self, iface: IfaceId) -> Load {
        self.data.outputs.get(iface.index()).map_or(Load::default(), Output::connections)
    }

    /// Returns the total size on the wire of the packets in all output queues.
    pub fn output_waiting(&self) -> Load {
        let mut sum = Load::default();
        self.data.outputs.iter().for_each(|output| sum += output.load());
        sum
    }

    /// Returns the number of bytes of `sender` in the output queue of `iface`.
    #[inline]
    pub(crate) fn output_share(&self, iface: IfaceId, sender: NonZeroU32) -> u32 {
        self.data.outputs.get(iface.index()).map_or(0, |output| output.share(sender))
    }

    /// Returns whether `sender` has at least `share` bytes in one of the output queues.
    #[inline]
    pub(crate) fn has_share(&self, sender: NonZeroU32, share: u32) -> bool {
        let mut outputs = self.data.outputs.iter();
        // Check the length of the queue first. If it is shorter than `share`, the sender need not
        // be looked up.
        outputs.any(|it| it.load().bytes >= share as usize && it.share(sender) >= share)
    }

    /// Copies the queued packets that refer to the send buffer of a closed socket, so that the
    /// buffer's memory can be freed ([`towpath_shm::Fragments::is_forsaken`]). Called when buffers
    /// of closed sockets have reached their memory limit.
    pub fn copy_forsaken(&mut self, pool: &mut Pool) {
        let copied = self.data.outputs.iter_mut().map(|output| output.copy_forsaken(pool));
        self.data.counters.output_copied += copied.sum::<u64>();
    }

    /// Returns the connections and UDP sockets with packets in an output queue.
    pub(crate) fn senders(&self) -> Vec<NonZeroU32> {
        self.data.outputs.iter().flat_map(Output::senders).collect()
    }

    /// Removes and returns a sender that waited for space in an output queue and may continue,
    /// because few of its bytes remain in the queues.
    pub(crate) fn pop_drained(&mut self) -> Option<NonZeroU32> {
        self.data.outputs.iter_mut().find_map(Output::pop_drained)
    }

    /// Returns the number of packets in the output queues, plus those that wait for a MAC address.
    pub fn waiting(&self) -> usize {
        let outputs = self.data.outputs.iter().map(Output::len);
        outputs.sum::<usize>() + self.data.next_hops.waiting()
    }

    /// Returns the number of packets in the loopback queue.
    pub fn loopback_len(&self) -> usize {
        self.data.loopback.len()
    }

    /// Removes and returns the oldest packet of the loopback queue. The caller passes it to
    /// [`receive_looped`](Self::receive_looped).
    pub fn take_loopback(&mut self) -> Option<Looped> {
        self.data.loopback.pop_front()
    }

    /// Removes and returns the oldest ICMP error about a packet of this host that was not sent,
    /// because its next hop did not answer.
    pub fn take_error(&mut self) -> Option<IcmpError> {
        self.data.errors.pop_front()
    }

    /// Drops a packet: counts the reason, and keeps a copy if drops are traced.
    pub fn drop(&mut self, iface: IfaceId, packet: Packet, reason: DropReason, pool: &mut Pool) {
        self.data.drop(iface, packet, reason, pool);
    }

    /// Removes and returns the oldest copy of a dropped packet.
    pub fn take_dropped(&mut self) -> Option<DroppedCopy> {
        self.data.dropped.pop_front()
    }

    /// Sets whether copies of dropped packets are kept.
    pub fn set_trace_drops(&mut self, on: bool) {
        self.data.set_trace_drops(on);
    }
}

/// Creates the control part of a host with only the loopback interface.
fn host_control(config: NetConfig, keys: &Keys, now: Instant) -> Control {
    let mut control = Control::new(config, keys);
    control.add_loopback(now);
    control
}

/// Exchanges messages between the control part and the data part of this thread until there are
/// none, and queues updates for other data parts.
///
/// The exchange ends, because the data part reports a next hop only once before it gets an answer.
/// The control part also sends only one packet to an unknown neighbour.
fn talk(
    control: &mut Control,
    data: &mut Data,
    news_of_others: &mut VecDeque<(Parts, NeighborUpdate)>,
    now: Instant,
    pool: &mut Pool,
) {
    loop {
        while let Some(punt) = data.take_control_packet() {
            control.on_control_packet(now, punt, pool);
        }
        while let Some(notice) = data.take_report() {
            control.on_report(now, Parts::FIRST, notice, pool);
        }
        data.follow(control.snapshot());
        let Some(order) = control.take_command() else { break };
        if let DataCommand::News { to, news } = &order
            && *to != Parts::FIRST
        {
            news_of_others.push_back((to.without(Parts::FIRST), *news));
        }
        data.on_command(now, order, pool);
    }
}
