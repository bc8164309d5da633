//! A bridge that forwards Ethernet frames between ports.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use towpath_pool::{
    Batch, Checksum, LinkType, Offloads, Packet, Pool, Port, PortCounters, Protocol,
};
use towpath_qdisc::QueuedPacket;

use crate::addresses::{Learned, LearnedAddresses, Mac};
use crate::stats::{BridgeStats, count};
use crate::wakes::Wakes;

/// Maximum number of frames queued for transmission per port, as in Linux's default for a device
/// (`txqueuelen`).
const QUEUE_MAX: usize = 1000;
/// Length of an Ethernet header in bytes: two addresses and the EtherType.
const HEADER_LEN: usize = 14;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and two older values of 802.1ad.
const TAGS: [[u8; 2]; 4] = [[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00], [0x92, 0x00]];
/// Prefix of link-local group addresses, which are not forwarded (IEEE 802.1Q-2018 table 8-1).
const LINK_LOCAL: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];
const LINK_LOCAL_LAST: u8 = 0x0f;

/// Configuration of a bridge.
#[derive(Debug, Clone, Copy)]
pub struct BridgeConfig {
    /// Ethernet address of the network stack that uses the bridge.
    pub mac: [u8; 6],
    /// Time in nanoseconds after the last frame from an address, after which the address is
    /// removed.
    pub ageing_ns: u64,
    /// Maximum number of learned addresses per port.
    pub addresses_max: usize,
}

impl BridgeConfig {
    /// Creates a configuration with the default limits: 300 s (IEEE 802.1Q-2018 table 8-6), and
    /// 4096 addresses per port, about 200 KiB.
    pub fn new(mac: [u8; 6]) -> Self {
        Self { mac, ageing_ns: 300_000_000_000, addresses_max: 4096 }
    }
}

/// Error returned when a bridge cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The port with this index does not carry Ethernet frames.
    #[error("port {0} of the bridge carries no Ethernet frames")]
    NoEthernet(usize),
    /// No file descriptor is available.
    #[error("no descriptor for a bridge: {0}")]
    Io(#[from] io::Error),
}

/// Bridge that forwards frames between several Ethernet ports.
pub struct Bridge {
    ports: Vec<Box<dyn Port + Send>>,
    /// Offloads supported by each port.
    offloads: Vec<Offloads>,
    /// Transmit queue of each port: frames that the port has not accepted yet.
    queues: Vec<Batch>,
    addresses: LearnedAddresses,
    wakes: Wakes,
    config: BridgeConfig,
    stats: BridgeStats,
    /// Index of the port that is polled first in the current call. The index changes with each
    /// call, so that all ports are treated equally.
    first: usize,
    /// Whether each port was removed, by the index of the port.
    gone: Vec<bool>,
    /// Buffer for received frames, which is empty between calls.
    arrived: Batch,
}

/// Where a frame came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Stack,
    Port(usize),
}

/// Where a frame is to be delivered.
enum Way {
    Stack,
    Port(usize),
    /// Forward the frame to all ports except the one on which it arrived, and also to the stack if
    /// the flag is set.
    All {
        stack: bool,
    },
    Nowhere,
}

impl Bridge {
    /// Creates a bridge that combines these ports.
    ///
    /// # Errors
    /// Returns [`BridgeError::NoEthernet`] if a port is not an Ethernet port, and
    /// [`BridgeError::Io`] if no descriptor is available.
    pub fn new(
        ports: Vec<Box<dyn Port + Send>>,
        config: BridgeConfig,
    ) -> Result<Self, BridgeError> {
        if let Some(n) = ports.iter().position(|port| port.link_type() != LinkType::Ethernet) {
            return Err(BridgeError::NoEthernet(n));
        }
        let count = ports.len();
        Ok(Self {
            offloads: ports.iter().map(|port| port.offloads()).collect(),
            queues: ports.iter().map(|_| Batch::new()).collect(),
            addresses: LearnedAddresses::new(count, config.addresses_max, config.ageing_ns),
            wakes: Wakes::new(&ports)?,
            config,
            stats: BridgeStats::default(),
            first: 0,
            gone: vec![false; count],
            arrived: Batch::new(),
            ports,
        })
    }

    /// Returns a handle to the bridge's counters.
    pub fn stats(&self) -> BridgeStats {
        self.stats.clone()
    }

    /// Learns the source address of a received frame, and returns the frame's destination.
    fn receive(&mut self, now_ns: u64, port: usize, frame: &Packet) -> Way {
        let cells = &self.stats.0;
        let Some((dst, src)) = addresses_of(frame).filter(|(_, src)| !is_group(src)) else {
            count(&cells.malformed);
            return Way::Nowhere;
        };
        if has_tag(frame) {
            count(&cells.tagged);
            return Way::Nowhere;
        }
        if src == self.config.mac {
            count(&cells.own_address);
            return Way::Nowhere;
        }
        match self.addresses.learn(now_ns, src, port) {
            Learned::Here => {}
            Learned::Moved => count(&cells.moved),
            Learned::Full => count(&cells.addresses_full),
        }
        cells.addresses.store(self.addresses.len() as u64, Relaxed);
        if dst[..5] == LINK_LOCAL && dst[5] <= LINK_LOCAL_LAST {
            count(&cells.link_local);
            return Way::Nowhere;
        }
        if dst == self.config.mac {
            return Way::Stack;
        }
        match self.addresses.port_of(now_ns, &dst) {
            _ if is_group(&dst) => Way::All { stack: true },
            None => Way::All { stack: false },
            Some(there) if there == port => {
                count(&cells.same_port);
                Way::Nowhere
            }
            Some(there) => Way::Port(there),
        }
    }

    /// Delivers a frame to its destination. Returns true if the frame was added to `out`, for the
    /// stack.
    fn go(
        &mut self,
        way: Way,
        from: From,
        frame: Packet,
        pool: &mut Pool,
        out: &mut Batch,
    ) -> bool {
        match way {
            Way::Nowhere => pool.give(frame),
            Way::Stack => {
                count(&self.stats.0.to_stack);
                out.push_back(frame);
                return true;
            }
            Way::Port(port) => {
                count(&self.stats.0.forwarded);
                self.enqueue(port, frame, pool);
            }
            Way::All { stack } => {
                count(&self.stats.0.flooded);
                for port in (0..self.ports.len()).filter(|port| From::Port(*port) != from) {
                    if !self.gone[port] {
                        let copy = copy(&frame, pool);
                        self.enqueue(port, copy, pool);
                    }
                }
                if stack {
                    count(&self.stats.0.to_stack);
                    out.push_back(frame);
                    return true;
                }
                pool.give(frame);
            }
        }
        false
    }

    /// Queues a frame for a port. If the port lacks the offloads, the frame is segmented and its
    /// checksum completed first.
    fn enqueue(&mut self, port: usize, mut frame: Packet, pool: &mut Pool) {
        if self.gone[port] || self.queues[port].len() >= QUEUE_MAX {
            count(&self.stats.0.overflow);
            return pool.give(frame);
        }
        let (queue, can) = (&mut self.queues[port], self.offloads[port]);
        if frame.meta.checksum == Checksum::Verified {
            // The receiving device has verified the checksum, so it is complete. The sending port
            // need not compute it.
            frame.meta.checksum = Checksum::Unknown;
        }
        let is_cut_by_port = frame.meta.segmentation.is_none_or(|how| match how.protocol {
            Protocol::Udp => can.udp_segmentation,
            Protocol::Tcp4 | Protocol::Tcp6 => can.tcp_segmentation,
        });
        let is_summed_by_port = can.checksum || frame.meta.checksum == Checksum::Unknown;
        if is_cut_by_port && is_summed_by_port {
            return queue.push_back(frame);
        }
        QueuedPacket::each(frame, LinkType::Ethernet, pool, |mut segment, pool| {
            if !can.checksum {
                segment.complete_checksum();
            }
            let segment = segment.into_packet();
            if segment.meta.segmentation.is_some() && !is_cut_by_port {
                count(&self.stats.0.malformed);
                return pool.give(segment);
            }
            queue.push_back(segment);
        });
    }

    /// Submits the queued frames to each port.
    fn flush(&mut self, now_ns: u64, pool: &mut Pool) {
        for (place, port) in self.ports.iter_mut().enumerate() {
            let queue = &mut self.queues[place];
            if !queue.is_empty() {
                port.submit(now_ns, pool, queue);
            }
            self.wakes.follow(place, &**port);
            if port.is_gone() && !self.gone[place] {
                self.gone[place] = true;
                self.addresses.forget(place);
                queue.drain(..).for_each(|frame| pool.give(frame));
            }
        }
    }
}

impl Port for Bridge {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let (count, mut left, mut found) = (self.ports.len(), max, 0);
        let first = (self.first + 1) % count.max(1);
        self.first = first;
        for place in (0..count).map(|n| (first + n) % count) {
            let mut arrived = std::mem::take(&mut self.arrived);
            left -= self.ports[place].poll(now_ns, pool, &mut arrived, left).min(left);
            for frame in arrived.drain(..) {
                let way = self.receive(now_ns, place, &frame);
                found += usize::from(self.go(way, From::Port(place), frame, pool, out));
            }
            self.arrived = arrived;
        }
        self.flush(now_ns, pool);
        found
    }

    /// Accepts all frames of the batch. Frames for a port whose queue is full are dropped.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        let taken = batch.len();
        let mut none = Batch::new();
        for mut frame in batch.drain(..) {
            // Copy frames whose payload is in a program's memory, because a queue may hold the
            // frames for a long time.
            frame.linearize(pool);
            let way = match addresses_of(&frame) {
                None => Way::Nowhere,
                Some((dst, _)) => match self.addresses.port_of(now_ns, &dst) {
                    Some(port) if !is_group(&dst) => Way::Port(port),
                    _ => Way::All { stack: false },
                },
            };
            self.go(way, From::Stack, frame, pool, &mut none);
        }
        self.flush(now_ns, pool);
        taken
    }

    /// Returns the offloads supported by all ports, because a frame may leave by any of them.
    fn offloads(&self) -> Offloads {
        let all = Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };
        self.offloads.iter().fold(all, |all, port| Offloads {
            checksum: all.checksum && port.checksum,
            tcp_segmentation: all.tcp_segmentation && port.tcp_segmentation,
            udp_segmentation: all.udp_segmentation && port.udp_segmentation,
        })
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakes.fd())
    }

    fn looked(&mut self, ready: bool) {
        self.wakes.look(&mut self.ports, ready);
    }

    /// Returns whether all ports of the bridge were removed.
    fn is_gone(&self) -> bool {
        self.gone.iter().all(|gone| *gone)
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.ports.iter().filter_map(|port| port.next_timeout_ns()).min()
    }

    fn undelivered(&self) -> u64 {
        self.ports.iter().map(|port| port.undelivered()).sum()
    }

    fn undelivered_of_ended(&self) -> u64 {
        self.ports.iter().map(|port| port.undelivered_of_ended()).sum()
    }

    fn counters(&self) -> PortCounters {
        vec![("bridge", self.stats().counters().iter().collect())]
    }
}

/// Returns whether a frame has a VLAN tag, in its bytes or metadata.
fn has_tag(frame: &Packet) -> bool {
    let ethertype = frame.linear().get(HEADER_LEN - 2..HEADER_LEN);
    let is_tag = ethertype.is_some_and(|ethertype| TAGS.iter().any(|tag| tag == ethertype));
    is_tag || frame.meta.vlan.is_some()
}

/// Returns the destination and source address of a frame; `None` without a complete Ethernet
/// header.
fn addresses_of(frame: &Packet) -> Option<(Mac, Mac)> {
    let header = frame.linear().get(..HEADER_LEN)?;
    let mac = |at: usize| <Mac>::try_from(&header[at..at + 6]).ok();
    Some((mac(0)?, mac(6)?))
}

/// Returns whether `mac` is a multicast or broadcast address.
fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 == 1
}

fn copy(frame: &Packet, pool: &mut Pool) -> Packet {
    let mut copy = pool.take(frame.len());
    frame.copy_to(0, copy.push_back(frame.len()).expect("taken with room"));
    copy.meta = frame.meta;
    copy
}
