//! Socket calls that behave as those of Linux, implemented with [`towpath_client`].
//!
//! Each function implements a C function and takes its arguments (raw descriptors and pointers).
//! The behaviour is that of Linux, and errors are returned as [`Errno`]. The caller first checks
//! that a descriptor belongs to the stack ([`descriptor::is_ours`]); for other descriptors these
//! functions return EBADF or ENOTSOCK.
//!
//! A [`Posix`] contains the state of these functions in a process. Each function takes it as its
//! first argument, or in an [`handle::OpenSocket`]. The crate itself has no static variable for it.
//!
//! # Errors
//! The errnos are those of each call's manual page, in the same cases as on Linux. The
//! documentation of a function names cases that the manual leaves open, or that the stack adds. The
//! calls have in common:
//! - EBADF and ENOTSOCK: the descriptor is not a socket of the stack;
//! - ENETDOWN: the engine (the process with the network stack) has ended, or the process is not
//!   attached to one. The caller delays programs that retry in a loop
//!   ([`Posix::rest_when_engine_is_gone`]; decision 6 in `docs/decisions/0006-how-a-run-ends.md`
//!   has the reason);
//! - EAGAIN: the call would block, or SO_RCVTIMEO or SO_SNDTIMEO has passed;
//! - EINTR: a signal handler ran; signal(7) lists the calls that SA_RESTART restarts;
//! - ERESTART: a signal handler forked while the call waited, and this is the child. The caller
//!   restarts the call, so that no program sees this errno.
//!
//! # Reading order
//! - [`Posix`], [`attach`]; [`mod@fork`]; [`exec`], [`environment`]: what a new process image
//!   needs; [`outside`]: programs that cannot load this library; [`limit`], [`memory_lock`]: its
//!   address space;
//! - [`descriptor`]: close, dup, fcntl; [`rights`]: sockets received from elsewhere;
//! - [`handle`]: the object of a call; [`socket`]: socket to shutdown; [`transfer`]: bytes;
//!   [`message`]: sendmsg and recvmsg; [`control`]: control messages; [`copy`]: sendfile and
//!   splice;
//! - [`option`], [`ioctl`], [`interface`], [`names`], [`given`], [`netlink`], [`proc_net`],
//!   [`resolver`], [`dns`]; [`signal`]: handlers that interrupt calls;
//! - [`poll`], [`epoll`]: waiting for many descriptors, by the reactor of `towpath_client`;
//! - [`calls`]: the list of all calls and their support, the source of `docs/posix.md`.

#![warn(missing_docs)]

pub mod address;
pub mod attach;
mod attachment;
pub mod calls;
pub mod control;
pub mod copy;
mod cork;
pub mod descriptor;
pub mod dns;
pub mod environment;
pub mod epoll;
mod errno;
pub mod exec;
pub mod fork;
pub mod given;
pub mod handle;
mod handlers;
pub mod identity;
pub mod interface;
pub mod ioctl;
mod library;
pub mod limit;
mod listing;
mod machine_name;
mod mapped;
mod memory_file;
pub mod memory_lock;
pub mod message;
pub mod names;
pub mod netlink;
mod numbers;
pub mod option;
pub mod others;
pub mod outside;
pub mod poll;
mod posix;
mod privilege;
pub mod proc_net;
mod report;
pub mod resolver;
pub mod rights;
pub mod signal;
pub mod socket;
mod spawns;
mod table;
pub mod transfer;
mod turning;

pub use errno::{Errno, Result};
pub use mapped::MappedPosix;
pub use posix::Posix;
