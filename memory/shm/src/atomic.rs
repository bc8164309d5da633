//! The atomics of a socket's shared state: those of the standard library, or those of loom
//! (`RUSTFLAGS="--cfg loom"`), which explores all interleavings.

#[cfg(not(loom))]
pub use std::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
};

/// Does nothing, because models have no signal handlers, and loom does not reorder operations like
/// a compiler.
#[cfg(loom)]
pub fn compiler_fence(_: Ordering) {}
