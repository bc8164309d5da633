//! TCP and UDP sockets on a stack in this process, with the API of [`tokio::net`].
//!
//! To port a program from tokio's sockets, change one `use`, and call
//! [`Stack::set_default`](crate::Stack::set_default). Alternatively, `bind_on` and `connect_on`
//! open a socket on a given stack. Crates that use streams by [`AsyncRead`](::tokio::io::AsyncRead)
//! and [`AsyncWrite`](::tokio::io::AsyncWrite), such as hyper, work with these sockets.
//!
//! # Runtimes
//!
//! As in tokio, a socket belongs to the runtime in which it was created. Tasks that wait for the
//! socket are woken while that runtime exists, even if they run in another runtime. After it has
//! shut down, waiting calls fail. Outside of a runtime, creating a socket fails. Sockets may move
//! between tasks and threads.
//!
//! A runtime polls one descriptor for each stack, and no descriptor for each socket. Creating,
//! binding and listening wait for the engine, normally for one iteration of its event loop.
//!
//! # Cancel safety
//!
//! Dropping the future of a call that waits ends the wait, and no data, datagram or connection is
//! lost. The exceptions are those of tokio: `read_exact`, `write_all` and other methods of
//! `AsyncReadExt` that consist of several reads or writes.
//!
//! # Differences from tokio
//!
//! - Sockets have no kernel descriptor, so they implement neither `AsFd` nor `AsRawFd`.
//! - Readiness is that of the socket at the time of the call, and is not cached. A failed call does
//!   not clear it.
//! - Creating a socket outside of a runtime returns an error instead of a panic.
//! - If the stack has ended, every call fails with `NetworkDown`, and waiting calls end.
//! - Within a runtime, dropping the last handle or socket of a stack does not wait for unsent data.
//!   The end of the process waits: see [the lifetime of a stack](crate#lifetime-of-a-stack).
//!   [`Stack::shutdown`](crate::Stack::shutdown) waits, so call it where blocking is allowed.
//! - Missing: methods that take a `BufMut` (`try_read_buf` and others), TCP_QUICKACK, the traffic
//!   class, and binding to a device.

mod address;
#[cfg(feature = "axum")]
mod axum;
pub(crate) mod dispatch;
#[cfg(feature = "hyper-util")]
mod hyper;
mod listener;
mod named;
mod resolve;
mod socket;
mod source;
mod stream;
mod udp;

pub use address::ToSocketAddrs;
#[cfg(feature = "hyper-util")]
pub use hyper::Connector;
pub use listener::TcpListener;
pub use resolve::{lookup_host, lookup_host_on};
pub use socket::TcpSocket;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, TcpStream, WriteHalf};
pub use udp::UdpSocket;
