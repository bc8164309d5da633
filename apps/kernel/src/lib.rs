//! Keeps routes, addresses and permanent neighbours of an engine equal to those of a kernel. The
//! kernel may be that of a network namespace in which routing daemons run.
//!
//! ```text
//!   kernel ── dump, changes ──► KernelModel ── changed networks ──► Remote::set_kernel_routes
//!                                (pure)     ── Change ───────────► Remote::apply
//! ```
//!
//! - [`KernelFollower`]: the thread that reads the kernel's changes and applies them;
//! - [`KernelModel`]: the state of the kernel, translated to the interfaces of the engine.
//!
//! Each interface of the engine is bound to an interface of the kernel by name. Routes through
//! other interfaces are left out. A dump replaces the whole state: at the start, after lost
//! changes, and after changes about which the kernel reports too little.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod follower;
mod hosts;
mod model;
mod resolve;

pub use follower::{KernelFollower, KernelSource, SyncNotice};
pub use model::{KernelDump, KernelModel, LinkBinding};

#[cfg(test)]
mod tests;
