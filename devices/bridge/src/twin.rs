//! A port with a twin: a device of the kernel with the same addresses, in which routing daemons
//! run.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use towpath_pool::{Batch, Checksum, LinkType, Offloads, Packet, Pool, Port, PortCounters};

use crate::selection::{FrameReceiver, TwinSelection};
use crate::wakes::Wakes;

/// Maximum number of frames that wait until the port's device or its twin has space. The value is
/// Linux's default for a device (`txqueuelen`).
const QUEUE_MAX: usize = 1000;
/// Maximum number of frames from the kernel that are received per poll. Routing daemons send few
/// frames.
const FROM_TWIN_MAX: usize = 64;
/// Indices of the port and its twin (a kernel device) in arrays such as `queues`.
const DEVICE: usize = 0;
const TWIN: usize = 1;

/// Addresses of a router, which other threads may change.
#[derive(Debug, Clone, Default)]
pub struct OwnAddresses(Arc<OwnState>);

#[derive(Debug, Default)]
struct OwnState {
    /// Number of changes of `list`, so that a port reads the list only after a change.
    changes: AtomicU64,
    list: Mutex<Arc<[IpAddr]>>,
}

impl OwnAddresses {
    /// Replaces the addresses.
    pub fn set(&self, addresses: &[IpAddr]) {
        *self.0.list.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
        self.0.changes.fetch_add(1, Relaxed);
    }

    fn get(&self) -> Arc<[IpAddr]> {
        Arc::clone(&self.0.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A queue of a port, and a queue of its twin.
///
/// Received frames that a [`TwinSelection`] selects go to the twin. Frames of the twin leave by the
/// port, unchanged.
pub struct TwinPort {
    /// The port's device, and the twin.
    ports: [Box<dyn Port + Send>; 2],
    wakes: Wakes,
    selection: TwinSelection,
    own: OwnAddresses,
    /// Number of changes of the router's own addresses that this port has seen, and the addresses
    /// at that time.
    own_seen: (u64, Arc<[IpAddr]>),
    /// Frames that each device has not accepted yet.
    queues: [Batch; 2],
    /// Buffer for received frames; empty between calls.
    arrived: Batch,
    counters: TwinCounters,
}

towpath_pool::counters! {
    /// Frame counters of a port with a twin.
    pub struct TwinCounters {
        /// Frames passed to the twin alone.
        to_twin,
        /// Frames passed to both the stack and the twin device of the kernel.
        to_both,
        /// Frames of the twin that left by the port.
        from_twin,
        /// Frames dropped because a device accepted no more, or the twin was removed.
        overflow,
    }
}

impl TwinPort {
    /// Joins a queue of a port with a queue of its twin, a kernel device. The twin must not leave
    /// checksums or segmentation to its receiver.
    ///
    /// # Errors
    /// Fails if no descriptor is available.
    pub fn new(
        device: Box<dyn Port + Send>,
        twin: Box<dyn Port + Send>,
        selection: TwinSelection,
        own: OwnAddresses,
    ) -> io::Result<Self> {
        let ports = [device, twin];
        let wakes = Wakes::new(&ports)?;
        let own_seen = (0, Arc::default());
        let (queues, arrived) = ([Batch::new(), Batch::new()], Batch::new());
        let counters = TwinCounters::default();
        Ok(Self { ports, wakes, selection, own, own_seen, queues, arrived, counters })
    }

    /// Reads the router's addresses if they have changed.
    fn follow_addresses(&mut self) {
        let changes = self.own.0.changes.load(Relaxed);
        if self.own_seen.0 != changes {
            self.own_seen = (changes, self.own.get());
        }
    }

    /// Passes a received frame on.
    fn receive(&mut self, frame: Packet, pool: &mut Pool, out: &mut Batch) {
        let receiver = match frame.meta.vlan {
            None => self.selection.receiver(frame.linear(), &self.own_seen.1),
            Some(_) => FrameReceiver::Stack,
        };
        match receiver {
            FrameReceiver::Stack => out.push_back(frame),
            FrameReceiver::Twin => {
                self.counters.to_twin += 1;
                self.enqueue(frame, pool);
            }
            FrameReceiver::Both => {
                self.counters.to_both += 1;
                let mut copy = pool.take(frame.len());
                if let Some(bytes) = copy.push_back(frame.len()) {
                    frame.copy_to(0, bytes);
                }
                copy.meta = frame.meta;
                self.enqueue(copy, pool);
                out.push_back(frame);
            }
        }
    }

    /// Queues a frame for the twin.
    fn enqueue(&mut self, mut frame: Packet, pool: &mut Pool) {
        if self.ports[TWIN].is_gone() || self.queues[TWIN].len() >= QUEUE_MAX {
            self.counters.overflow += 1;
            return pool.give(frame);
        }
        if frame.meta.checksum == Checksum::Verified {
            // The device has verified the checksum, which is complete.
            frame.meta.checksum = Checksum::Unknown;
        }
        self.queues[TWIN].push_back(frame);
    }

    /// Submits the queued frames.
    fn flush(&mut self, now_ns: u64, pool: &mut Pool) {
        for (place, port) in self.ports.iter_mut().enumerate() {
            let queue = &mut self.queues[place];
            if !queue.is_empty() {
                port.submit(now_ns, pool, queue);
            }
            self.wakes.follow(place, &**port);
        }
    }
}

impl Port for TwinPort {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        self.follow_addresses();
        let (first, mut arrived) = (out.len(), std::mem::take(&mut self.arrived));
        self.ports[DEVICE].poll(now_ns, pool, &mut arrived, max);
        for frame in arrived.drain(..) {
            self.receive(frame, pool, out);
        }
        self.arrived = arrived;
        // The twin is read even if the queue is full. Its descriptor would otherwise stay readable,
        // and the event loop would not sleep.
        let queue = &mut self.queues[DEVICE];
        self.counters.from_twin += self.ports[TWIN].poll(now_ns, pool, queue, FROM_TWIN_MAX) as u64;
        self.flush(now_ns, pool);
        while self.queues[DEVICE].len() > QUEUE_MAX
            && let Some(frame) = self.queues[DEVICE].pop_back()
        {
            self.counters.from_twin -= 1;
            self.counters.overflow += 1;
            pool.give(frame);
        }
        out.len() - first
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.flush(now_ns, pool);
        // The device is blocked, and would forget this in a call with an empty batch.
        if !self.queues[DEVICE].is_empty() {
            return 0;
        }
        let taken = self.ports[DEVICE].submit(now_ns, pool, batch);
        self.wakes.follow(DEVICE, &*self.ports[DEVICE]);
        taken
    }

    fn offloads(&self) -> Offloads {
        self.ports[DEVICE].offloads()
    }

    fn link_type(&self) -> LinkType {
        LinkType::Ethernet
    }

    /// Returns a descriptor that is readable if a frame has arrived, or if a blocked device has
    /// room again.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakes.fd())
    }

    fn looked(&mut self, ready: bool) {
        self.wakes.look(&mut self.ports, ready);
    }

    fn blocked(&self) -> bool {
        self.ports[DEVICE].blocked()
    }

    fn is_gone(&self) -> bool {
        self.ports[DEVICE].is_gone()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        self.ports.iter().filter_map(|port| port.next_timeout_ns()).min()
    }

    fn undelivered(&self) -> u64 {
        self.ports[DEVICE].undelivered()
    }

    fn undelivered_of_ended(&self) -> u64 {
        self.ports[DEVICE].undelivered_of_ended()
    }

    fn counters(&self) -> PortCounters {
        vec![("twin", self.counters.iter().collect())]
    }
}
