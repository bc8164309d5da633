//! TCP and UDP sockets on a stack in this process, with the API of [`std::net`].
//!
//! To port a program from [`std::net`], change one `use`, and call
//! [`Stack::set_default`](crate::Stack::set_default). Alternatively, methods such as
//! [`Stack::listen`](crate::Stack::listen) open a socket on a given stack. Errors have the same
//! [`ErrorKind`](std::io::ErrorKind) and errno as on Linux. Further behavior is the same as in std:
//!
//! - Clones (`try_clone`) share a socket, and dropping the last one closes it.
//! - A call that exceeds its time limit returns `WouldBlock`; setting a limit of zero returns
//!   `InvalidInput`.
//! - A blocked call ends when another thread shuts the connection down.
//! - After a signal handler has run, accepting and connecting continue. Reading and writing fail
//!   with `Interrupted`, unless the handler was installed with SA_RESTART.
//!
//! Differences from std:
//!
//! - Sockets have no kernel descriptor, so they do not implement `AsFd`, `AsRawFd` or `FromRawFd`.
//! - Writing to a connection that has ended never raises SIGPIPE.
//! - Reading into an empty buffer returns 0 at once, whereas recv(2) waits for data.
//! - Names are resolved by the host's resolver ([`ToSocketAddrs`] is std's), not over the stack.
//! - If the engine has ended, every call fails with `NetworkDown`, and waiting calls end.
//!
//! Additional options: [`TcpListener::set_backlog`], [`TcpStream::set_linger`],
//! [`TcpStream::set_keepalive`], [`TcpStream::set_congestion`], [`TcpStream::info`], and buffer
//! sizes.
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

pub(crate) mod address;
pub(crate) mod buffers;
pub(crate) mod handle;
mod info;
mod keepalive;
mod listener;
mod open;
pub(crate) mod options;
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
