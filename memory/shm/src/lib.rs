//! The memory that a program and the engine share, and nothing else. Its parts are mappings, the
//! layout of the channel inside them, and the messages that set a channel up.
//!
//! Read [`layout`] first: it is the contract between the two sides. Everything in it is written for
//! a hostile peer. The engine copies a value out, then validates it, and never holds a reference to
//! memory that the program can write.
//!
//! - [`Mapping`]: a memfd or private memory, accessed by copy and by atomics only.
//! - [`layout`]: the region (slots and byte FIFOs) and the channel (command and event rings).
//! - [`control`]: the requests and replies on the Unix socket beside them.
//! - [`token`]: what the kernel has behind a program's socket descriptors.
//! - [`image`]: which program files can be on the stack.
//! - [`futex`]: sleeping on a word of a mapping.
//! - [`syscall`]: system calls without libc; [`Fd`]: descriptors that are closed so.
//! - [`atomic`]: the words of a socket, which models replace by loom's.

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
pub mod syscall;
pub mod token;

pub use fd::{Fd, opened, placed};
pub use mapping::{Backing, Fragments, Mapping, Part, Stretch};
