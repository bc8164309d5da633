//! Counters of a bridge, readable by other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters both as a snapshot and as atomic cells.
macro_rules! counters {
    ($( $(#[$doc:meta])* $name:ident, )*) => {
        /// Frame counters of a bridge since its creation, and its number of addresses.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $( $(#[$doc])* pub $name: u64, )* }

        impl Counters {
            /// Iterates over names and values, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [ $( (stringify!($name), self.$name), )* ].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Cells { $( pub $name: AtomicU64, )* }

        impl Cells {
            fn read(&self) -> Counters {
                Counters { $( $name: self.$name.load(Relaxed), )* }
            }
        }
    };
}

counters! {
    /// Frames forwarded to the port of a known destination.
    forwarded,
    /// Frames flooded to all other ports. A frame counts once, regardless of the number of ports.
    flooded,
    /// Frames passed to the stack.
    to_stack,
    /// Number of learned addresses.
    addresses,
    /// Addresses that moved to another port.
    moved,
    /// Frames whose source address could not be learned because the port's limit was reached.
    addresses_full,
    /// Frames dropped because of a truncated Ethernet header, a group source address, or invalid
    /// offload metadata.
    malformed,
    /// Frames dropped because their destination is link-local.
    link_local,
    /// Frames dropped because of a VLAN tag: all ports of a bridge are in one VLAN.
    tagged,
    /// Frames dropped because their source is the stack's own address.
    own_address,
    /// Frames dropped because their destination is on the port of arrival.
    same_port,
    /// Frames dropped because the port's queue of 1000 was full, or the port was removed.
    overflow,
}

/// Handle to the counters of a bridge.
#[derive(Debug, Clone, Default)]
pub struct BridgeStats(pub(crate) Arc<Cells>);

impl BridgeStats {
    /// Returns the counters since creation.
    pub fn counters(&self) -> Counters {
        self.0.read()
    }
}

/// Increments a counter.
pub(crate) fn count(counter: &AtomicU64) {
    // A load and a store suffice, because only the bridge's thread writes the counter.
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}
