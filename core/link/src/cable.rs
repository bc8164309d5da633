//! A cable between two ports on one thread, in virtual time. The cable consists of a link for each
//! direction.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use towpath_pool::{Batch, LinkType, Offloads, Packet, Pool, Port};
use towpath_qdisc::{Dice, Dropped, QueuedPacket};

use crate::{Link, LinkConfig, LinkStats};

/// Properties of a cable, and of the devices at its ends.
#[derive(Debug, Clone, Copy)]
pub struct CableConfig {
    /// First header of the packets: Ethernet or IP.
    pub link_type: LinkType,
    /// Offloads of the devices at the ends. The cable does not segment: a large packet arrives as
    /// one packet.
    pub offloads: Offloads,
    /// Properties of the link in each direction.
    pub link: LinkConfig,
    /// Maximum number of packets in the queue of each sending device; further packets wait in the
    /// stack. If this is `None`, the device accepts all packets, and [`LinkConfig::limit`] drops
    /// the excess.
    pub ring: Option<usize>,
}

impl Default for CableConfig {
    fn default() -> Self {
        let (link_type, offloads) = (LinkType::Ip, Offloads::default());
        Self { link_type, offloads, link: LinkConfig::default(), ring: None }
    }
}

/// A function that is called for each sent packet, with the number of the sending end (0 or 1).
pub type Observer = Box<dyn FnMut(usize, &Packet)>;

/// A cable with two ends, 0 and 1. A clone refers to the same cable.
#[derive(Clone)]
pub struct Cable(Rc<RefCell<Shared>>);

struct Shared {
    config: CableConfig,
    /// Directions of the cable; `ways[n]` transmits from end `n` to the opposite end.
    ways: [Way; 2],
    observer: Option<Observer>,
    /// Packets that a link dropped during the current call; empty between calls.
    drops: Vec<Dropped<QueuedPacket>>,
}

struct Way {
    link: Link<QueuedPacket>,
    /// Packets that `Cable::inject` added. The packets of the link are delivered after them.
    injected: Batch,
    /// Whether the sending device is stopped. A stopped device accepts no packets.
    is_stopped: bool,
    /// Whether the device has refused packets from its stack since it last had space.
    is_blocked: bool,
}

impl Cable {
    /// Creates a cable. Each direction has its own stream of random numbers, split from `dice`.
    pub fn new(config: CableConfig, mut dice: Dice) -> Self {
        let ways = [(); 2].map(|()| Way {
            link: Link::new(config.link, dice.split()),
            injected: Batch::new(),
            is_stopped: false,
            is_blocked: false,
        });
        Self(Rc::new(RefCell::new(Shared { config, ways, observer: None, drops: Vec::new() })))
    }

    /// Returns the port at end 0 or 1 of the cable.
    pub fn end(&self, end: usize) -> CableEnd {
        CableEnd { cable: self.clone(), end }
    }

    /// Returns the ports at both ends of the cable.
    pub fn ends(&self) -> [CableEnd; 2] {
        [self.end(0), self.end(1)]
    }

    /// Calls `observer` for all packets sent from now on, including packets that the link will
    /// lose.
    pub fn observe(&self, observer: impl FnMut(usize, &Packet) + 'static) {
        self.0.borrow_mut().observer = Some(Box::new(observer));
    }

    /// Changes the configuration of both directions. The change applies to packets that are not
    /// transmitted yet.
    pub fn configure(&self, change: impl Fn(&mut LinkConfig)) {
        for way in &mut self.0.borrow_mut().ways {
            let mut config = *way.link.config();
            change(&mut config);
            way.link.configure(config);
        }
    }

    /// Stops or restarts the sending device of an end. A stopped device accepts no packets.
    pub fn stop(&self, end: usize, is_stopped: bool) {
        self.0.borrow_mut().ways[end].is_stopped = is_stopped;
    }

    /// Delivers a packet at an end immediately, before the packets in transit.
    pub fn inject(&self, end: usize, packet: Packet) {
        self.0.borrow_mut().ways[1 - end].injected.push_back(packet);
    }

    /// Returns the counters of both directions. Index `n` has the counters of packets that end `n`
    /// sends.
    pub fn stats(&self) -> [LinkStats; 2] {
        self.0.borrow().ways.each_ref().map(|way| way.link.stats())
    }
}

/// The port at an end of a [`Cable`].
pub struct CableEnd {
    cable: Cable,
    end: usize,
}

impl Port for CableEnd {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let Shared { ways, drops, .. } = &mut *self.cable.0.borrow_mut();
        let Way { link, injected, .. } = &mut ways[1 - self.end];
        let mut arrive = || {
            let packet = injected.pop_front();
            packet.or_else(|| link.poll_packet(now_ns, drops).map(QueuedPacket::into_packet))
        };
        let mut count = 0;
        while count < max
            && let Some(mut packet) = arrive()
        {
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            count += 1;
        }
        give(drops, pool);
        count
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let Shared { config, ways, drops, observer } = &mut *self.cable.0.borrow_mut();
        let way = &mut ways[self.end];
        way.link.advance(now_ns, drops);
        let mut count = 0;
        while !way.is_stopped
            && config.ring.is_none_or(|ring| way.link.waiting() < ring.max(1))
            && let Some(packet) = batch.pop_front()
        {
            let queued = QueuedPacket::new(packet, config.link_type, pool);
            if let Some(observer) = observer {
                observer(self.end, queued.packet());
            }
            way.link.on_packet(now_ns, queued, drops);
            count += 1;
        }
        way.is_blocked = !batch.is_empty();
        give(drops, pool);
        count
    }

    fn offloads(&self) -> Offloads {
        self.cable.0.borrow().config.offloads
    }

    fn link_type(&self) -> LinkType {
        self.cable.0.borrow().config.link_type
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let ways = &self.cable.0.borrow().ways;
        let (to, from) = (&ways[self.end], &ways[1 - self.end]);
        let waits = to.is_blocked && !to.is_stopped;
        let room = waits.then(|| to.link.next_timeout_ns()).flatten();
        let injected = (!from.injected.is_empty()).then_some(0);
        [room, injected, from.link.next_timeout_ns()].into_iter().flatten().min()
    }
}

fn give(drops: &mut Vec<Dropped<QueuedPacket>>, pool: &mut Pool) {
    drops.drain(..).for_each(|drop| pool.give(drop.item.into_packet()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loss;

    const MS: u64 = 1_000_000;

    fn packet(pool: &mut Pool, bytes: usize) -> Packet {
        let mut packet = pool.take(bytes);
        packet.push_back(bytes).expect("taken with room").fill(0x45);
        packet
    }

    /// Returns the lengths of the packets that are delivered up to `now_ns`.
    fn poll(end: &mut CableEnd, now_ns: u64) -> Vec<usize> {
        let (mut pool, mut out) = (Pool::default(), Batch::new());
        let count = end.poll(now_ns, &mut pool, &mut out, usize::MAX);
        assert_eq!(count, out.len());
        assert!(out.iter().all(|packet| packet.meta.arrival_ns == now_ns));
        out.iter().map(Packet::len).collect()
    }

    #[test]
    fn packets_come_out_at_the_other_end_after_the_delay_and_injected_ones_before() {
        let link = LinkConfig { delay_ns: MS, ..LinkConfig::default() };
        let cable = Cable::new(CableConfig { link, ..CableConfig::default() }, Dice::new(1, 0));
        let seen = Rc::<RefCell<Vec<_>>>::default();
        let sees = Rc::clone(&seen);
        cable.observe(move |end, packet| sees.borrow_mut().push((end, packet.len())));
        let [mut a, mut b] = cable.ends();
        let mut pool = Pool::default();
        let mut batch = Batch::from([packet(&mut pool, 40), packet(&mut pool, 60)]);
        assert_eq!(a.submit(0, &mut pool, &mut batch), 2);
        let mut batch = Batch::from([packet(&mut pool, 80)]);
        assert_eq!(b.submit(0, &mut pool, &mut batch), 1);
        assert_eq!((a.next_timeout_ns(), b.next_timeout_ns()), (Some(MS), Some(MS)));
        assert_eq!(poll(&mut b, MS - 1), []);
        cable.inject(1, packet(&mut pool, 20));
        assert_eq!((a.next_timeout_ns(), b.next_timeout_ns()), (Some(MS), Some(0)));
        assert_eq!(poll(&mut b, MS), [20, 40, 60]);
        assert_eq!(poll(&mut a, MS), [80]);
        assert_eq!((a.next_timeout_ns(), b.next_timeout_ns()), (None, None));
        assert_eq!(*seen.borrow(), [(0, 40), (0, 60), (1, 80)]);
    }

    #[test]
    fn a_device_takes_no_more_than_its_ring_and_names_the_time_of_the_next_place() {
        // At a rate of 8 Mbit/s, 1000 bytes take a millisecond.
        let link = LinkConfig { rate: Some(8_000_000), ..LinkConfig::default() };
        let config = CableConfig { link, ring: Some(2), ..CableConfig::default() };
        let cable = Cable::new(config, Dice::new(1, 0));
        let [mut a, mut b] = cable.ends();
        let mut pool = Pool::default();
        let mut batch: Batch = (0..5).map(|_| packet(&mut pool, 1000)).collect();
        cable.stop(0, true);
        assert_eq!(a.submit(0, &mut pool, &mut batch), 0);
        assert_eq!(a.next_timeout_ns(), None, "a stopped device names no time");
        cable.stop(0, false);
        // The link transmits the first packet, and the other two wait in the device's queue.
        assert_eq!(a.submit(0, &mut pool, &mut batch), 3);
        assert_eq!(a.next_timeout_ns(), Some(MS));
        assert_eq!(a.submit(MS - 1, &mut pool, &mut batch), 0);
        assert_eq!(a.submit(MS, &mut pool, &mut batch), 1);
        assert_eq!(poll(&mut b, MS), [1000]);
        cable.configure(|link| link.loss = Loss::Numbered { first: 3, count: 1 });
        assert_eq!(a.submit(2 * MS, &mut pool, &mut batch), 1);
        assert_eq!(a.next_timeout_ns(), None, "nothing is left with the stack");
        assert_eq!(poll(&mut b, 5 * MS), [1000; 3]);
        assert_eq!(cable.stats().map(|stats| (stats.entered, stats.lost)), [(5, 1), (0, 0)]);
    }
}
