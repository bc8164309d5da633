//! Counters of a bridge, which other threads can read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters both as plain numbers (a snapshot) and as atomic cells.
macro_rules! counters {
    ($( $(#[$doc:meta])* $name:ident, )*) => {
        /// Counters of a bridge: frames since its creation, and the current number of learned
        /// addresses.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $( $(#[$doc])* pub $name: u64, )* }

        impl Counters {
            /// Iterates over names and values of the counters, in a fixed order.
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
    /// Frames whose destination address was known, and that were forwarded to the port of that
    /// address.
    forwarded,
    /// Frames flooded to all ports except the one on which they arrived. A frame counts once,
    /// regardless of the number of ports.
    flooded,
    /// Frames passed to the network stack that uses the bridge.
    to_stack,
    /// Current number of learned addresses.
    addresses,
    /// Number of times that an address moved to another port.
    moved,
    /// Frames whose source address was not learned because the port had its maximum number of
    /// addresses.
    addresses_full,
    /// Frames dropped because of a truncated Ethernet header, a group source address, or invalid
    /// offload metadata.
    malformed,
    /// Frames dropped because of a link-local destination address, which bridges must not forward.
    link_local,
    /// Frames dropped because of a VLAN tag: all ports of a bridge are in one VLAN.
    tagged,
    /// Frames dropped because their source is the stack's own address.
    own_address,
    /// Frames dropped because their destination is on the port on which they arrived.
    same_port,
    /// Frames dropped because the destination port was removed, or its queue of 1000 frames was
    /// full.
    overflow,
}

/// Handle to the counters of a bridge.
#[derive(Debug, Clone, Default)]
pub struct BridgeStats(pub(crate) Arc<Cells>);

impl BridgeStats {
    /// Returns the counters since the bridge was created.
    pub fn counters(&self) -> Counters {
        self.0.read()
    }
}

/// Increments a counter of the bridge.
pub(crate) fn count(counter: &AtomicU64) {
    // Use a load and a store instead of an atomic addition, because only the bridge's thread writes
    // the counter.
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}
