//! The memory shared by programs and the engine (the process with the network stack). The crate has
//! the mappings, the layout of their content, and the messages that set up a channel.
//!
//! Read [`layout`] first, the interface between programs and the engine. The engine assumes that
//! programs are hostile. Therefore it copies a value before it validates it, and never has a
//! reference to memory that a program can write.
//!
//! - [`Mapping`]: a memfd or private memory, accessed only by copying and by atomic operations.
//! - [`layout`]: the region (slots and byte FIFOs) and the channel (command and event rings).
//! - [`control`]: requests and replies, in the request slot or on the Unix socket.
//! - [`token`]: the kernel objects that a program's socket descriptors refer to.
//! - [`image`]: checks whether an executable can use this network stack.
//! - [`futex`]: waiting for changes of a word in a mapping.
//! - [`syscall`]: system calls without libc; [`Fd`]: descriptors that are closed without libc.
//! - [`atomic`]: the atomics of a socket's shared state, or those of loom in models.

#![warn(missing_docs)]

#[macro_use]
mod numbers;

pub mod atomic;
pub mod control;
mod fd;
pub mod futex;
pub mod image;
pub mod layout;
mod mapping;
pub mod spin;
pub mod syscall;
pub mod token;

pub use fd::{Fd, opened, placed};
pub use mapping::{Backing, Fragments, Mapping, Part, Stretch};
