//! The atomics of a socket's shared state: those of the processor, or loom's. Loom runs the code
//! above them under every interleaving (`RUSTFLAGS="--cfg loom"`).

#[cfg(not(loom))]
pub use std::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
};

/// A model has no signal handlers, and its compiler moves nothing.
#[cfg(loom)]
pub fn compiler_fence(_: Ordering) {}
