//! The interface between the network stack and its devices or in-memory links.

use std::os::fd::BorrowedFd;

use crate::{Batch, Pool};

/// Type of the first header of the packets on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header. Neighbours are resolved by ARP and NDP.
    Ethernet,
    /// An IP header. The remote end is the only neighbour, as for a TUN device.
    Ip,
}

/// Work on outgoing packets that a port can do; the stack does the rest in software. For received
/// packets, [`crate::Meta`] records what was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Whether the port completes checksums in the state [`crate::Checksum::Partial`].
    pub checksum: bool,
    /// Whether the port splits TCP packets with [`crate::Segmentation`] into segments.
    pub tcp_segmentation: bool,
    /// Whether the port splits UDP packets with [`crate::Segmentation`] into datagrams.
    pub udp_segmentation: bool,
}

/// A pair of a receive and a transmit queue of a device, or an in-memory link.
///
/// Used by a single thread. Times are in nanoseconds of the stack's monotonic clock. Methods do not
/// block and do not return errors: the port counts errors, and reports the loss of the device by
/// [`Port::is_gone`]. Decision 4 (`docs/decisions/0004-one-port-trait.md`) explains why both
/// directions share a trait.
///
/// # Example
/// A loopback link:
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
    /// Receives up to `max` packets, appends them to `out`, and returns their number.
    fn poll(&mut self, now_ns: u64, pool: &mut Pool, out: &mut Batch, max: usize) -> usize;

    /// Takes packets from the front of `batch` as long as the port has space, and returns their
    /// number. The port gives their buffers back to the pool, now or later. Until then, the payload
    /// of the packets stays in their sockets' FIFOs. The caller submits the remaining packets again
    /// later.
    fn submit(&mut self, now_ns: u64, pool: &mut Pool, batch: &mut Batch) -> usize;

    /// Returns the offloads that the port supports. The result must not change, because it is read
    /// only once, when the interface is configured.
    fn offloads(&self) -> Offloads;

    /// Returns the type of the first header of packets in both directions. The result must not
    /// change.
    fn link_type(&self) -> LinkType;

    /// Returns a descriptor that becomes readable when `poll` has packets; `None` if the port only
    /// relies on timeouts.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Tells the port the result of the last check of `wake_fd`. `ready` means readable or, if the
    /// port is [blocked](Port::blocked), writable. A port may use this to skip unnecessary polls.
    /// Without a `wake_fd`, `ready` is always false.
    fn looked(&mut self, ready: bool) {
        let _ = ready;
    }

    /// Returns whether `submit` did not accept all packets, and the caller should wait until
    /// `wake_fd` is writable.
    fn blocked(&self) -> bool {
        false
    }

    /// Returns whether the device no longer exists. The caller must then stop waiting for
    /// `wake_fd`, which would be readable for ever.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns the time at which `poll` should be called even if no packet arrives, in the clock of
    /// `now_ns`. A past time means immediately. `None` means to wait for `wake_fd` only.
    fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the number of bytes that the port has acknowledged but not forwarded yet, if it
    /// terminates TCP connections on behalf of their receiver. The bytes are lost if the port is
    /// dropped. A FIN counts as one byte, as in TCP's sequence space.
    ///
    /// The implementation may iterate over all flows, because this is only called while the stack
    /// shuts down.
    fn undelivered(&self) -> u64 {
        0
    }

    /// Returns the number of bytes like [`Port::undelivered`], but only of streams whose end was
    /// acknowledged, to which no program writes any more.
    fn undelivered_of_ended(&self) -> u64 {
        0
    }

    /// Returns the number of bytes in frames that the device has accepted but not sent yet. `None`
    /// if the device does not report it; accepted frames then count as sent.
    fn unsent_bytes(&mut self) -> Option<u64> {
        None
    }

    /// Returns the counters of this port by kind of port. A port that wraps another one omits the
    /// counters of that port. May allocate memory, because it is called only for statistics and
    /// before the port is dropped.
    fn counters(&self) -> PortCounters {
        PortCounters::new()
    }

    /// Returns the name of the host's network device that the port uses, if any.
    fn device(&self) -> Option<String> {
        None
    }
}

/// Pairs of a kind of port and its counters, each with a name and a value.
pub type PortCounters = Vec<(&'static str, Vec<(&'static str, u64)>)>;

/// Boxed ports are ports, so that wrappers can contain ports of any type.
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

    fn unsent_bytes(&mut self) -> Option<u64> {
        (**self).unsent_bytes()
    }

    fn device(&self) -> Option<String> {
        (**self).device()
    }
}

/// Implements methods of [`Port`] by forwarding the calls to the wrapped port in the given field.
///
/// ```
/// use towpath_pool::{Batch, Pool, Port};
///
/// /// Counts received packets.
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
    (@ unsent_bytes $port:ident) => {
        fn unsent_bytes(&mut self) -> Option<u64> {
            self.$port.unsent_bytes()
        }
    };
    (@ wake_fd $port:ident) => {
        fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.$port.wake_fd()
        }
    };
}
