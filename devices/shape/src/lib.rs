//! Adds delay, loss, a rate limit and a queue to any port.
//!
//! [`Shaped`] adds a simulated [`Link`] to a port in each direction, like a cable between the stack
//! and the port. Both links have the configured properties, so a delay of 50 ms results in a
//! round-trip time of 100 ms.
//!
//! Packets with several segments are segmented before they enter a link, in both directions. Each
//! segment can be lost individually, and counts towards the rate. The port's offloads stay the
//! same, because the port still completes the checksums of segments.
//!
//! ```
//! use towpath_link::{Dice, LinkConfig};
//! use towpath_pool::{Batch, Pool, Port};
//! use towpath_shape::Shaped;
//! # use std::os::fd::BorrowedFd;
//! # use towpath_pool::{LinkType, Offloads};
//! # struct Loopback(Batch);
//! # impl Port for Loopback {
//! #     fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
//! #         let n = self.0.len().min(max);
//! #         out.extend(self.0.drain(..n));
//! #         n
//! #     }
//! #     fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
//! #         let n = batch.len();
//! #         self.0.extend(batch.drain(..));
//! #         n
//! #     }
//! #     fn offloads(&self) -> Offloads {
//! #         Offloads::default()
//! #     }
//! #     fn link_type(&self) -> LinkType {
//! #         LinkType::Ip
//! #     }
//! #     fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
//! #         None
//! #     }
//! # }
//!
//! let delay = LinkConfig { delay_ns: 50_000_000, ..LinkConfig::default() };
//! let (mut pool, mut batch) = (Pool::default(), Batch::new());
//! let mut port = Shaped::new(Loopback(Batch::new()), [delay, delay], Dice::new(1, 0));
//! batch.push_back(pool.take(1500));
//! port.submit(0, &mut pool, &mut batch);
//! assert_eq!(port.next_timeout_ns(), Some(50_000_000));
//! assert_eq!(port.poll(50_000_000, &mut pool, &mut batch, 64), 0);
//! assert_eq!(port.poll(100_000_000, &mut pool, &mut batch, 64), 1);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use towpath_link::{Dice, Dropped, Link, LinkConfig, LinkStats, QueuedPacket};
use towpath_pool::{Batch, Pool, Port, PortCounters};

/// A port with a simulated link in each direction.
pub struct Shaped<P> {
    port: P,
    /// Simulated link from the stack to the port.
    egress: Link<QueuedPacket>,
    /// Simulated link from the port to the stack.
    ingress: Link<QueuedPacket>,
    /// Packets that have passed the egress link and wait until the port accepts them.
    ready: Batch,
    /// Packets received from the port, to be put into the ingress link; empty between calls.
    arrived: Batch,
    /// Packets dropped by a simulated link; empty between calls.
    drops: Vec<Dropped<QueuedPacket>>,
}

/// Default for the maximum number of packets in a link, as in tc-netem(8).
pub const LIMIT_DEFAULT: usize = 1000;
/// Maximum number of packets that wait for a port that does not accept them. If it is reached,
/// packets stay in the link and count towards the link's limit.
const READY_MAX: usize = 64;

impl<P: Port> Shaped<P> {
    /// Adds links with the properties `[egress, ingress]` to a port. Each link has its own sequence
    /// of random numbers.
    pub fn new(port: P, [egress, ingress]: [LinkConfig; 2], mut dice: Dice) -> Self {
        let limited = |config: LinkConfig| LinkConfig {
            limit: config.limit.or(Some(LIMIT_DEFAULT)),
            ..config
        };
        Self {
            port,
            egress: Link::new(limited(egress), dice.split()),
            ingress: Link::new(limited(ingress), dice.split()),
            ready: Batch::new(),
            arrived: Batch::new(),
            drops: Vec::new(),
        }
    }

    /// Returns the counters of the simulated links `[egress, ingress]`.
    pub fn stats(&self) -> [LinkStats; 2] {
        [self.egress.stats(), self.ingress.stats()]
    }

    /// Submits packets that have passed the egress link to the port.
    fn flush(&mut self, now_ns: u64, pool: &mut Pool) {
        loop {
            while self.ready.len() < READY_MAX
                && let Some(queued) = self.egress.poll_packet(now_ns, &mut self.drops)
            {
                self.ready.push_back(queued.into_packet());
            }
            self.give_drops(pool);
            let offered = self.ready.len();
            if offered == 0 || self.port.submit(now_ns, pool, &mut self.ready) < offered {
                return;
            }
        }
    }

    fn give_drops(&mut self, pool: &mut Pool) {
        self.drops.drain(..).for_each(|drop| pool.give(drop.item.into_packet()));
    }
}

impl<P: Port> Port for Shaped<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.flush(now_ns, pool);
        self.port.poll(now_ns, pool, &mut self.arrived, max);
        let link_type = self.port.link_type();
        for packet in self.arrived.drain(..) {
            QueuedPacket::each(packet, link_type, pool, |queued, _| {
                self.ingress.on_packet(now_ns, queued, &mut self.drops);
            });
        }
        let mut count = 0;
        while count < max
            && let Some(queued) = self.ingress.poll_packet(now_ns, &mut self.drops)
        {
            let mut packet = queued.into_packet();
            // Set the arrival time to the time at which the packet leaves the link, because the
            // stack measures round-trip times with it.
            packet.meta.arrival_ns = now_ns;
            out.push_back(packet);
            count += 1;
        }
        self.give_drops(pool);
        count
    }

    /// Accepts all packets of the batch. The link drops packets beyond its limit, as a network
    /// does.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let count = batch.len();
        let link_type = self.port.link_type();
        for packet in batch.drain(..) {
            QueuedPacket::each(packet, link_type, pool, |queued, _| {
                self.egress.on_packet(now_ns, queued, &mut self.drops);
            });
        }
        self.flush(now_ns, pool);
        count
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let egress = match (self.ready.is_empty(), self.port.blocked()) {
            (true, _) => self.egress.next_timeout_ns(),
            // Poll again at once: the port did not accept all packets, but is not blocked, so no
            // event would wake the stack.
            (false, false) => Some(0),
            (false, true) => None,
        };
        let ingress = self.ingress.next_timeout_ns();
        [egress, ingress, self.port.next_timeout_ns()].into_iter().flatten().min()
    }

    /// Returns the undelivered bytes of the port, and of packets that are in the egress link or
    /// wait for the port. The bytes are lost if the port is dropped now.
    fn undelivered(&self) -> u64 {
        let ready: u64 = self.ready.iter().map(|packet| packet.len() as u64).sum();
        self.port.undelivered() + self.egress.held_bytes() + ready
    }

    towpath_pool::forward_port!(port: offloads, link_type, wake_fd, looked, blocked, is_gone);
    towpath_pool::forward_port!(port: undelivered_of_ended);

    fn counters(&self) -> PortCounters {
        let [egress, ingress] = self.stats();
        vec![("netem_egress", egress.iter().collect()), ("netem_ingress", ingress.iter().collect())]
    }
}

#[cfg(test)]
mod tests;
