//! TCP and UDP sockets on a stack of this process, with the methods and the meaning of
//! [`std::net`].
//!
//! A program changes from [`std::net`] to a stack with one `use`, and a call of
//! [`Stack::set_default`](crate::Stack::set_default). [`Stack::listen`](crate::Stack::listen) and
//! its like name a stack instead. Errors have the [`ErrorKind`](std::io::ErrorKind) and the errno
//! that Linux gives for the same call. The rest is as std has it:
//!
//! - Clones (`try_clone`) share a socket, and the last one that is dropped closes it.
//! - A time limit that passes is `WouldBlock`; a time limit of zero is `InvalidInput`.
//! - A call that is blocked in one thread ends when another thread shuts the connection down.
//! - Accepting and connecting go on after a signal handler has run. Reading and writing fail with
//!   `Interrupted`, unless the handler was installed with SA_RESTART.
//!
//! Differences from std:
//!
//! - Sockets have no descriptor of the kernel: `AsFd`, `AsRawFd`, `FromRawFd` and their like are
//!   not there.
//! - Writing to a connection that has ended never raises SIGPIPE.
//! - Reading into an empty buffer gives 0 at once, where recv(2) waits for bytes.
//! - Names are resolved by the host's resolver ([`ToSocketAddrs`] is std's), not over the stack.
//! - When the engine has ended, every call fails with `NetworkDown`, and waiting calls end.
//!
//! Options beyond std's: [`TcpListener::set_backlog`], [`TcpStream::set_linger`],
//! [`TcpStream::set_keepalive`], [`TcpStream::set_congestion`], [`TcpStream::info`], and the sizes
//! of buffers.
//!
//! # Examples
//! ```
//! use std::io::{Read, Write};
//! use std::net::Shutdown;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = towpath::Stack::builder().loopback().start()?;
//! let listener = stack.listen("127.0.0.1:0")?;
//! let mut client = stack.connect(listener.local_addr()?)?;
//! client.write_all(b"echo")?;
//! client.shutdown(Shutdown::Write)?;
//! let (mut server, _peer) = listener.accept()?;
//! std::io::copy(&mut server.try_clone()?, &mut server)?;
//! drop(server);
//! let mut answer = String::new();
//! client.read_to_string(&mut answer)?;
//! assert_eq!(answer, "echo");
//! # Ok(())
//! # }
//! ```

mod address;
mod buffers;
mod handle;
mod info;
mod keepalive;
mod listener;
mod open;
mod options;
mod resolve;
mod stream;
mod udp;
#[cfg(test)]
mod wake_tests;

pub use info::{TcpInfo, TcpState};
pub use keepalive::KeepAlive;
pub use listener::{Incoming, TcpListener};
pub use stream::TcpStream;
pub use udp::UdpSocket;

pub use std::net::{
    AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6,
    ToSocketAddrs,
};
