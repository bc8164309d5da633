//! The C library: stacks in the process of a program, with BSD-like calls.
//!
//! `include/towpath.h` documents the calls, and [`towpath_posix`] implements their semantics. The
//! crate adds the numbers by which a program names stacks, sockets and epoll sets:
//!
//! - `table`: numbers, checked by generation;
//! - `stack`, `options`: stacks, and their configuration;
//! - `sockets`, `transfer`, `polling`: the calls, each a few lines around that of `towpath_posix`;
//! - `answer`: results as C returns them.
//!
//! A panic in a call aborts the process, because functions with the C ABI do not unwind.

mod answer;
mod options;
mod polling;
mod sockets;
mod stack;
mod table;
mod transfer;
