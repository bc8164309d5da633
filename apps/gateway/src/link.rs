//! In-memory link between the inner stack and the program's stack: two packet queues.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
use towpath_stack::net::IfaceId;

use crate::limits::LINK_PACKETS_MAX;
use crate::outer::Outer;

/// Number of the inner stack's interface on the link, its only one besides loopback.
pub(crate) const LINK: IfaceId = IfaceId(1);
/// Offloads of an in-memory link: packets need neither valid checksums nor segmentation.
pub(crate) const OFFLOADS: Offloads =
    Offloads { checksum: true, tcp_segmentation: true, udp_segmentation: true };

/// Link in memory between the program's stack and the inner stack, with one packet queue for each
/// direction. Both stacks run on one thread. The mutex is needed because the inner stack owns a
/// port to the link. Locking costs two uncontended operations per batch of packets.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    outer: Outer,
    queues: Arc<Mutex<Queues>>,
}

/// Packet queues of a [`Link`].
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Packets from the program, which refer to memory in its FIFOs until they are dropped.
    pub(crate) from_program: Batch,
    /// Packets to the program.
    pub(crate) to_program: Batch,
}

impl Link {
    pub(crate) fn new(outer: Outer) -> Self {
        Self { outer, queues: Arc::default() }
    }

    pub(crate) fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for Link {
    fn poll(&mut self, _: u64, _: &mut Pool, out: &mut Batch, max: usize) -> usize {
        let queue = &mut self.queues().from_program;
        let n = max.min(queue.len());
        out.extend(queue.drain(..n));
        n
    }

    fn submit(&mut self, _: u64, _: &mut Pool, batch: &mut Batch) -> usize {
        let queue = &mut self.queues().to_program;
        let n = batch.len().min(LINK_PACKETS_MAX.saturating_sub(queue.len()));
        queue.extend(batch.drain(..n));
        n
    }

    fn offloads(&self) -> Offloads {
        self.outer.offloads
    }

    fn link_type(&self) -> LinkType {
        self.outer.link
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn blocked(&self) -> bool {
        self.queues().to_program.len() >= LINK_PACKETS_MAX
    }
}
