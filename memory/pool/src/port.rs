//! The seam between a stack and whatever moves its packets.

use std::os::fd::BorrowedFd;

use crate::{Batch, Pool};

/// What lies in a packet's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header: neighbours are resolved by ARP and NDP.
    Ethernet,
    /// An IP header: the other end is the only neighbour (TUN, the gateway).
    Ip,
}

/// What a port does by itself; the stack does the rest in software.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Completes [`crate::Checksum::Partial`] of sent packets.
    pub checksum: bool,
    /// Cuts TCP packets with [`crate::Segmentation`].
    pub tcp_segmentation: bool,
    /// Cuts UDP packets with [`crate::Segmentation`].
    pub udp_segmentation: bool,
}

/// A device queue pair, or a link in memory.
///
/// Called by one thread. Times are ns on the engine's monotonic clock.
pub trait Port {
    /// Moves received packets to the back of `out`, at most `max`; returns how many. Never blocks.
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize;

    /// Takes packets from the front of `batch` as far as there is room, and gives their buffers
    /// back to the pool; what it leaves is offered again. Returns how many were taken.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize;

    /// What it can do.
    fn offloads(&self) -> Offloads;

    /// What its packets begin with.
    fn link_type(&self) -> LinkType;

    /// Becomes readable when `poll` has something to give; None when only time does that.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether `submit` refused packets and wants to be woken by writability of `wake_fd`.
    fn blocked(&self) -> bool {
        false
    }

    /// Whether the device has gone for good. `wake_fd` would wake for ever then, and is not waited for any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// When `poll` wants to be called even if nothing arrives.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Bytes that it has acknowledged to the stack as their receiver and has not handed on, so that they are
    /// lost if the port is dropped now. The end of a stream counts as one byte, as in TCP's sequence space.
    ///
    /// Asked while a run ends only; the work may grow with the number of flows.
    fn undelivered(&self) -> u64 {
        0
    }
}
