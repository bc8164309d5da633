//! The seam between a stack and whatever moves its packets.

use std::os::fd::BorrowedFd;

use crate::{Batch, Pool};

/// Header at the start of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header: neighbours are resolved by ARP and NDP.
    Ethernet,
    /// An IP header: the other end is the only neighbour (TUN, the gateway).
    Ip,
}

/// Work that a port does by itself on packets that it sends; the stack does the rest in software.
/// Received packets are not concerned: their [`crate::Meta`] says what was done.
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
/// Called by one thread. Times are ns on the engine's monotonic clock. No call blocks or fails:
/// what goes wrong is the port's to count, and a device that is lost says so by [`Port::is_gone`].
/// Decision 4 (`docs/decisions/0004-one-port-trait.md`) says why both directions are one trait.
///
/// # Example
/// A link that returns what is sent on it:
/// ```
/// use std::os::fd::BorrowedFd;
/// use towpath_pool::{Batch, LinkType, Offloads, Pool, Port};
///
/// struct Loopback(Batch);
///
/// impl Port for Loopback {
///     fn poll(&mut self, _now_ns: u64, _pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
///         let n = self.0.len().min(max);
///         out.extend(self.0.drain(..n));
///         n
///     }
///
///     fn submit(&mut self, now_ns: u64, _pool: &mut Pool, batch: &mut Batch) -> usize {
///         let n = batch.len();
///         for mut packet in batch.drain(..) {
///             packet.meta.arrival_ns = now_ns;
///             self.0.push_back(packet);
///         }
///         n
///     }
///
///     fn offloads(&self) -> Offloads {
///         Offloads::default()
///     }
///
///     fn link_type(&self) -> LinkType {
///         LinkType::Ip
///     }
///
///     fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
///         None
///     }
///
///     fn next_timeout_ns(&self) -> Option<u64> {
///         (!self.0.is_empty()).then_some(0)
///     }
/// }
///
/// let (mut pool, mut batch) = (Pool::default(), Batch::new());
/// let mut port = Loopback(Batch::new());
/// batch.push_back(pool.take(1500));
/// assert_eq!(port.submit(1_000, &mut pool, &mut batch), 1);
/// assert_eq!(port.poll(2_000, &mut pool, &mut batch, 64), 1);
/// assert_eq!(batch[0].meta.arrival_ns, 1_000);
/// ```
pub trait Port {
    /// Moves received packets to the back of `out`, at most `max`; returns how many. Never blocks.
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize;

    /// Takes packets from the front of `batch` as far as there is room, and gives their buffers
    /// back to the pool, now or later. A FIFO to which a packet points waits for that. Packets that
    /// are left are offered again. Returns how many were taken.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize;

    /// Offloads of the port. The stack asks when its interface is configured, so the answer must
    /// stay the same.
    fn offloads(&self) -> Offloads;

    /// The header at the start of its packets, in both directions. Stays the same, as
    /// [`Port::offloads`] does.
    fn link_type(&self) -> LinkType;

    /// Becomes readable when `poll` has something to give; None when only time does that.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Its owner has just looked at `wake_fd`, and it was `ready`: readable, or writable where that
    /// was waited for. A port that is asked more often than it has something may go by that.
    /// Without a `wake_fd` it is never ready.
    fn looked(&mut self, ready: bool) {
        let _ = ready;
    }

    /// Whether `submit` refused packets and wants to be woken by writability of `wake_fd`.
    fn blocked(&self) -> bool {
        false
    }

    /// Whether the device has gone for good. `wake_fd` would wake for ever then, and is not waited
    /// for any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// When `poll` wants to be called even if nothing arrives, on the clock of `now_ns`; a time
    /// that is past means at once. None: not before `wake_fd` is readable.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Bytes that the port has acknowledged to the stack as their receiver and has not handed on.
    /// Dropping the port loses them. The end of a stream counts as one byte, as in TCP's sequence
    /// space.
    ///
    /// The engine asks only while a run ends, so the work may grow with the number of flows.
    fn undelivered(&self) -> u64 {
        0
    }

    /// The same of streams alone whose end it has acknowledged: nobody writes to them any more.
    fn undelivered_of_ended(&self) -> u64 {
        0
    }

    /// Counters of this port by kind, without those of a port that it decorates. Allocates: the
    /// owner asks when a user wants to know, and before it drops the port.
    fn counters(&self) -> PortCounters {
        PortCounters::new()
    }

    /// Name of the host's device behind the port, if there is one.
    fn device(&self) -> Option<String> {
        None
    }
}

/// Counters by kind of port, each with its name.
pub type PortCounters = Vec<(&'static str, Vec<(&'static str, u64)>)>;

/// A port behind a pointer is a port: decorators of any kind take it.
impl<P: Port + ?Sized> Port for Box<P> {
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
        (**self).poll(now_ns, pool, out, max)
    }

    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize {
        (**self).submit(now_ns, pool, batch)
    }

    fn offloads(&self) -> Offloads {
        (**self).offloads()
    }

    fn link_type(&self) -> LinkType {
        (**self).link_type()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wake_fd()
    }

    fn looked(&mut self, ready: bool) {
        (**self).looked(ready);
    }

    fn blocked(&self) -> bool {
        (**self).blocked()
    }

    fn is_gone(&self) -> bool {
        (**self).is_gone()
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        (**self).next_timeout_ns()
    }

    fn undelivered(&self) -> u64 {
        (**self).undelivered()
    }

    fn undelivered_of_ended(&self) -> u64 {
        (**self).undelivered_of_ended()
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }

    fn device(&self) -> Option<String> {
        (**self).device()
    }
}

/// Methods of a [`Port`] around another one that are those of the other, by the name of its field.
///
/// ```
/// use towpath_pool::{Batch, Pool, Port};
///
/// /// Counts packets that its port receives.
/// struct Counted<P> {
///     port: P,
///     count: usize,
/// }
///
/// impl<P: Port> Port for Counted<P> {
///     fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize {
///         let count = self.port.poll(now_ns, pool, out, max);
///         self.count += count;
///         count
///     }
///
///     towpath_pool::forward_port!(port: submit, offloads, link_type, wake_fd, looked, blocked);
///     towpath_pool::forward_port!(port: is_gone, next_timeout_ns);
///     towpath_pool::forward_port!(port: undelivered, undelivered_of_ended);
/// }
/// ```
#[macro_export]
macro_rules! forward_port {
    ($port:ident: $($method:ident),+) => { $( $crate::forward_port!(@ $method $port); )+ };
    (@ poll $port:ident) => {
        fn poll(
            &mut self,
            now_ns: u64,
            pool: &mut $crate::Pool,
            out: &mut $crate::Batch,
            max: usize,
        ) -> usize {
            self.$port.poll(now_ns, pool, out, max)
        }
    };
    (@ submit $port:ident) => {
        fn submit(
            &mut self,
            now_ns: u64,
            pool: &mut $crate::Pool,
            batch: &mut $crate::Batch,
        ) -> usize {
            self.$port.submit(now_ns, pool, batch)
        }
    };
    (@ looked $port:ident) => {
        fn looked(&mut self, ready: bool) {
            self.$port.looked(ready);
        }
    };
    (@ offloads $port:ident) => {
        fn offloads(&self) -> $crate::Offloads {
            self.$port.offloads()
        }
    };
    (@ link_type $port:ident) => {
        fn link_type(&self) -> $crate::LinkType {
            self.$port.link_type()
        }
    };
    (@ blocked $port:ident) => {
        fn blocked(&self) -> bool {
            self.$port.blocked()
        }
    };
    (@ is_gone $port:ident) => {
        fn is_gone(&self) -> bool {
            self.$port.is_gone()
        }
    };
    (@ next_timeout_ns $port:ident) => {
        fn next_timeout_ns(&self) -> Option<u64> {
            self.$port.next_timeout_ns()
        }
    };
    (@ undelivered $port:ident) => {
        fn undelivered(&self) -> u64 {
            self.$port.undelivered()
        }
    };
    (@ undelivered_of_ended $port:ident) => {
        fn undelivered_of_ended(&self) -> u64 {
            self.$port.undelivered_of_ended()
        }
    };
    (@ wake_fd $port:ident) => {
        fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.$port.wake_fd()
        }
    };
}
