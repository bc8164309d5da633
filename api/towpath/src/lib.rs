//! A TCP/IP stack that runs inside a Rust program.
//!
//! [`Stack::builder`] configures the link of a stack, and starts it on its own thread. Sockets have
//! the API of [`std::net`]. A stack needs no privileges, except for a TAP device:
//!
//! ```
//! use std::io::{Read, Write};
//!
//! // Two hosts, connected by a link in memory.
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
//! [`Builder::rootless`] connects a stack to this user's network, and [`Builder::tap`] to a TAP
//! device. [`net`] contains the sockets with the names that std uses, for programs that select
//! their stack once by [`Stack::set_default`].
//!
//! Several stacks in one process are independent of each other. Each maps about 130 GiB of address
//! space, but uses memory only for its sockets. If a limit (`ulimit -v`) prevents that, starting a
//! stack returns [`StartError::AddressSpace`].
//!
//! # Lifetime of a stack
//!
//! [`Stack`] is a handle: its clones and all its sockets keep the stack alive. Dropping the last of
//! them sends the remaining data, for at most [`Builder::linger`]. Then the thread ends, and memory
//! and descriptors are freed. In a Tokio runtime the drop does not wait; another thread does.
//! [`Stack::shutdown`] does the same explicitly, and returns whether
//! everything was sent.
//!
//! When the process ends by a return from `main` or [`std::process::exit`], remaining stacks are
//! shut down in the same way. If it is killed, aborts or calls _exit(2), unsent data is lost.
//!
//! After [`Stack::shutdown`], or if the stack's thread ends for another reason, every call on its
//! sockets fails with [`std::io::ErrorKind::NetworkDown`]. No call hangs.
//!
//! # fork
//!
//! A stack belongs to the process that created it: in a child of fork(2) every call fails with
//! [`std::io::ErrorKind::NetworkDown`]. A child may start its own stack. Executed programs inherit
//! nothing, because all descriptors are close-on-exec. A child that does not call exec has copies
//! of the descriptors of its parent's stack. Connections through the gateway then end for their
//! peers only after both processes have closed them.

#![warn(missing_docs)]

mod attachment;
mod builder;
mod current;
#[doc(hidden)]
pub mod embedded;
mod engine;
mod error;
mod exit;
mod exiting;
mod fork;
pub mod handler;
#[cfg(feature = "intercept")]
pub mod intercept;
pub mod net;
mod pair;
mod place;
mod shared;
mod stack;
#[cfg(feature = "tokio")]
pub mod tokio;
mod unused;

pub use builder::Builder;
pub use current::Entered;
pub use error::{ShutdownError, StartError};
pub use place::{Protocol, Published};
pub use stack::Stack;
