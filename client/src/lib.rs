//! The program's side of a Towpath socket: the connection to an engine (the process with the
//! network stack), and operations on sockets. Every API (POSIX today) is a thin layer over this
//! crate.
//!
//! Read [`towpath_shm::layout`] first. Then, in order:
//! - [`Process`]: state of a process that is independent of its connection to the engine;
//! - [`descriptors`]: descriptor numbers of the process that refer to sockets of the stack;
//! - [`Client`]: the connection to the engine, which sends requests (with replies) and commands
//!   (without);
//! - [`Socket`]: a socket by slot and generation, and its readiness ([`Socket::readiness`]);
//! - [`Handle`]: a socket with its connection to the engine, used by every API;
//! - [`stream`], [`datagram`], [`listener`]: moving bytes, datagrams and connections; [`urgent`]:
//!   urgent bytes of a stream;
//! - [`wait`]: sleeping until a call on a socket can continue; [`interrupt`]: signals and
//!   cancellation during the sleep;
//! - [`reactor`]: sleeping until one of many sockets is ready, and waking tasks of async runtimes;
//! - [`driver`]: an engine in this process, run by threads that wait;
//! - [`in_flight`]: sockets that are being sent to another process.
//!
//! The crate makes no system call through libc, because a library that uses this crate may replace
//! libc's functions. [`syscall`] and rustix's raw backend are used instead.

#![warn(missing_docs)]

mod access;
mod ahead;
mod buffer;
mod client;
mod deadline;
mod error;
mod high_fd;
mod hub;
mod mapped;
mod parent_death;
mod process;
mod socket;
mod state;
mod under_way;
mod watches;

pub mod datagram;
pub mod descriptors;
pub mod driver;
pub mod handle;
pub mod in_flight;
pub mod interrupt;
pub mod listener;
pub mod reactor;
pub mod stream;
pub mod syscall;
pub mod urgent;
pub mod wait;

pub use buffer::Buffer;
pub use client::{Client, Cloned, Tokens, control_from_number};
pub use deadline::Deadline;
pub use driver::Driver;
pub use error::Error;
pub use handle::{Handle, WaitLimit};
pub use high_fd::HighFd;
pub use mapped::MappedProcess;
pub use process::Process;
pub use socket::{Socket, ready};
pub use towpath_ring::{LockGuard, ProcessLock, Region, is_inside, thread_id};
pub use under_way::UnderWay;
