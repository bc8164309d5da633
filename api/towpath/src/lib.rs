//! A TCP/IP stack in the process of a Rust program.
//!
//! [`Stack::builder`] says how the stack is connected, and starts it on a thread of its own. Its
//! sockets are used as those of [`std::net`]. A stack needs no privileges unless it is to have a
//! TAP device:
//!
//! ```
//! use std::io::{Read, Write};
//!
//! // Two hosts that are joined by a link in memory.
//! let (server, client) = towpath::Stack::pair()?;
//! let listener = server.listen("0.0.0.0:80")?;
//! let mut ours = client.connect("10.0.0.1:80")?;
//! let (mut theirs, from) = listener.accept()?;
//! assert_eq!(from.ip(), client.addresses()[0]);
//!
//! ours.write_all(b"down the towpath")?;
//! drop(ours);
//! let mut text = String::new();
//! theirs.read_to_string(&mut text)?;
//! assert_eq!(text, "down the towpath");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Builder::rootless`] connects a stack to the network of this user, and [`Builder::tap`] to a
//! device. [`net`] has the sockets by the names that std gives them, for a program that names its
//! stack once: [`Stack::set_default`].
//!
//! Several stacks in one process share nothing. Each maps about 130 GiB of address space, and
//! uses memory for its sockets only. A limit on address space (`ulimit -v`) may forbid that;
//! [`StartError::AddressSpace`] says so.
//!
//! # Life of a stack
//! [`Stack`] is a handle: clones of it and all its sockets keep the stack alive. The drop of the
//! last of them sends what was written, for at most [`Builder::linger`]. Then the thread ends,
//! and memory and descriptors are given back. [`Stack::shutdown`] does the same at a time of its
//! caller's choice, and says whether everything was sent.
//!
//! The end of the process does the same for all stacks that are left, as the return from `main`
//! and [`std::process::exit`]. A process that is killed, aborts or calls _exit(2) takes along what
//! its stacks had not sent.
//!
//! After [`Stack::shutdown`], and when the thread of a stack has ended in any other way, every
//! call on the stack's sockets fails with [`std::io::ErrorKind::NetworkDown`]. No call hangs.
//!
//! # fork
//! A stack stays with the process that made it: in a child of fork(2) every call fails with
//! [`std::io::ErrorKind::NetworkDown`]. A child may start a stack of its own. Programs that are
//! executed inherit nothing: all descriptors are close-on-exec. A child that executes nothing has
//! copies of the descriptors of its parent's stack. Connections through the gateway then end for
//! their peers when both processes have closed them.

#![warn(missing_docs)]

mod attachment;
mod builder;
mod current;
mod engine;
mod error;
mod exit;
mod exiting;
mod fork;
pub mod net;
mod pair;
mod place;
mod shared;
mod stack;

pub use builder::Builder;
pub use current::Entered;
pub use error::{ShutdownError, StartError};
pub use place::{Protocol, Published};
pub use stack::Stack;
