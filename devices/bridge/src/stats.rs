//! Counters of a bridge, for other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares counters once: as they are shown, and as they are counted.
macro_rules! counters {
    ($( $(#[$doc:meta])* $name:ident, )*) => {
        /// Frames of a bridge since it was made, and its addresses.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $( $(#[$doc])* pub $name: u64, )* }

        impl Counters {
            /// Names and values, in a fixed order.
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
    /// Frames to one port behind which their destination is.
    forwarded,
    /// Frames to all other ports, each counted once.
    flooded,
    /// Frames to the stack.
    to_stack,
    /// Addresses that are known.
    addresses,
    /// Addresses that were seen behind another port than before.
    moved,
    /// Frames of addresses for which their port had no room.
    addresses_full,
    /// Frames dropped that have no Ethernet header, a group as their source, or offload metadata
    /// that contradict their headers.
    malformed,
    /// Frames dropped that are meant for the one link that they came from.
    link_local,
    /// Frames dropped with a VLAN tag: the ports of a bridge are one VLAN.
    tagged,
    /// Frames dropped that come from the stack's own address.
    own_address,
    /// Frames dropped whose destination is behind the port that they came from.
    same_port,
    /// Frames dropped because their port had 1000 in its queue, or has gone.
    overflow,
}

/// A handle on the counters of a bridge.
#[derive(Debug, Clone, Default)]
pub struct BridgeStats(pub(crate) Arc<Cells>);

impl BridgeStats {
    /// Counters since the bridge was made.
    pub fn counters(&self) -> Counters {
        self.0.read()
    }
}

/// Counts one.
pub(crate) fn count(counter: &AtomicU64) {
    // Its bridge alone counts.
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}
