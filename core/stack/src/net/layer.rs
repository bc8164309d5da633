//! The IP layer of a host with one shard: control and a data part, on one thread.

use std::num::NonZeroU32;

use towpath_pool::{Packet, Pool};
use towpath_tcp::Instant;

use super::control::Control;
use super::data::{Data, Load, Output};
use super::iface::IfaceId;
use super::keys::Keys;
use super::received::{IcmpError, Looped, Received};
use super::trace::{Dropped, NetCounters};
use crate::drop::DropReason;

/// What the owner of a [`Net`] decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Keep copies of dropped packets for [`Net::take_dropped`].
    pub trace_drops: bool,
}

impl Default for NetConfig {
    /// No trace.
    fn default() -> Self {
        Self { trace_drops: false }
    }
}

/// The IP layer of one host. See the [module](super).
///
/// The owner calls [`receive`](Self::receive) for each packet of a device and
/// [`receive_looped`](Self::receive_looped) for each of [`take_loopback`](Self::take_loopback), submits
/// [`output`](Self::output) to the devices, and calls [`on_timeout`](Self::on_timeout) when
/// [`next_timeout`](Self::next_timeout) has come.
#[derive(Debug)]
pub struct Net {
    pub(super) control: Control,
    pub(super) data: Data,
}

impl Net {
    /// A host with nothing but the loopback interface.
    pub fn new(config: NetConfig, keys: Keys, now: Instant) -> Self {
        let mut control = Control::new(&keys);
        control.add_loopback(now);
        let mut data = Data::new(&keys, now);
        data.set_trace_drops(config.trace_drops);
        data.follow(control.snapshot());
        Self { control, data }
    }

    /// Lets control and data hear what they have to tell each other. With one shard that is after each packet, so that
    /// the next one finds the host as the last one left it. Where there are more, each shard's part of this is done
    /// between two of its turns, and what passes is batches.
    ///
    /// It ends: data tells of a next hop once until it is answered, and control has what it wants sent to a neighbour
    /// that it does not know sent once.
    pub(super) fn exchange(&mut self, now: Instant, pool: &mut Pool) {
        loop {
            while let Some(punt) = self.data.take_punt() {
                self.control.on_punt(now, punt, pool);
            }
            while let Some(notice) = self.data.take_notice() {
                self.control.on_notice(now, notice, pool);
            }
            self.data.follow(self.control.snapshot());
            let Some(order) = self.control.take_order() else { break };
            self.data.on_order(now, order, pool);
        }
        self.data.clear_up(pool);
    }

    /// Receives one packet of the device of `iface`. `None`: it was consumed here (ARP, neighbour
    /// discovery, an answered ping, a fragment), or dropped and counted.
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

    /// Receives one packet of [`take_loopback`](Self::take_loopback). `None` as with [`Net::receive`].
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

    /// When [`Net::on_timeout`] wants to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let next = self.control.next_timeout().min(self.data.next_timeout());
        (next != Instant::FAR).then_some(next)
    }

    /// Does everything that is due at `now`.
    pub fn on_timeout(&mut self, now: Instant, pool: &mut Pool) {
        // A confirmation that was told before ends a probe that is due.
        self.exchange(now, pool);
        self.control.on_timeout(now, pool);
        self.exchange(now, pool);
        self.data.on_timeout(now, pool);
        self.exchange(now, pool);
    }

    /// What happened so far.
    pub fn counters(&self) -> NetCounters {
        let (data, control) = (self.data.counters.clone(), self.control.counters.clone());
        NetCounters { data, control }
    }

    /// Counts something as dropped whose packet is gone, or was never made.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.data.counters.drops.count(reason);
    }

    /// What the device of `iface` shall send. Panics when there is no such interface.
    pub fn output(&mut self, iface: IfaceId) -> &mut Output {
        &mut self.data.outputs[iface.index()]
    }

    /// What waits for the device of `iface`.
    #[inline]
    pub fn output_load(&self, iface: IfaceId) -> Load {
        self.data.outputs.get(iface.index()).map_or(Load::default(), Output::load)
    }

    /// The same of connections alone.
    #[inline]
    pub(crate) fn output_connections(&self, iface: IfaceId) -> Load {
        self.data.outputs.get(iface.index()).map_or(Load::default(), Output::connections)
    }

    /// What waits for all devices together.
    pub fn output_waiting(&self) -> Load {
        let mut sum = Load::default();
        self.data.outputs.iter().for_each(|output| sum += output.load());
        sum
    }

    /// Bytes of `sender` that wait for the device of `iface`.
    #[inline]
    pub(crate) fn output_share(&self, iface: IfaceId, sender: NonZeroU32) -> u32 {
        self.data.outputs.get(iface.index()).map_or(0, |output| output.share(sender))
    }

    /// Whether `sender` has as many bytes as `share` in the queue of some device.
    #[inline]
    pub(crate) fn has_share(&self, sender: NonZeroU32, share: u32) -> bool {
        let mut outputs = self.data.outputs.iter();
        // One that has less than that has no more of anybody.
        outputs.any(|it| it.load().bytes >= share as usize && it.share(sender) >= share)
    }

    /// Copies packets in the queues of devices that keep memory for which nobody else has a use
    /// ([`towpath_shm::Fragments::is_forsaken`]). Called when that has become too much; a turn's work at most.
    pub fn copy_forsaken(&mut self, pool: &mut Pool) {
        let copied = self.data.outputs.iter_mut().map(|output| output.copy_forsaken(pool));
        self.data.counters.output_copied += copied.sum::<u64>();
    }

    /// Those who have something in the queue of some device.
    pub(crate) fn senders(&self) -> Vec<NonZeroU32> {
        self.data.outputs.iter().flat_map(Output::senders).collect()
    }

    /// The next sender of which a device has taken so much that it may go on.
    pub(crate) fn pop_drained(&mut self) -> Option<NonZeroU32> {
        self.data.outputs.iter_mut().find_map(Output::pop_drained)
    }

    /// Packets on their way out: those that a device did not take yet, and those whose neighbour is asked.
    pub fn waiting(&self) -> usize {
        let outputs = self.data.outputs.iter().map(Output::len);
        outputs.sum::<usize>() + self.data.next_hops.waiting()
    }

    /// Packets of this host to itself that wait to be received.
    pub fn loopback_len(&self) -> usize {
        self.data.loopback.len()
    }

    /// The next packet of this host to itself; it goes to [`receive_looped`](Self::receive_looped).
    pub fn take_loopback(&mut self) -> Option<Looped> {
        self.data.loopback.pop_front()
    }

    /// The next error about a packet that never left this host: its neighbour does not answer.
    pub fn take_error(&mut self) -> Option<IcmpError> {
        self.data.errors.pop_front()
    }

    /// Throws a packet away: counts why, and keeps a copy when drops are traced.
    pub fn drop(&mut self, iface: IfaceId, packet: Packet, reason: DropReason, pool: &mut Pool) {
        self.data.drop(iface, packet, reason, pool);
    }

    /// The oldest traced drop not yet taken.
    pub fn take_dropped(&mut self) -> Option<Dropped> {
        self.data.dropped.pop_front()
    }

    /// Whether dropped packets are kept from now on.
    pub fn set_trace_drops(&mut self, on: bool) {
        self.data.set_trace_drops(on);
    }
}
