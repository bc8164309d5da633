//! Intercepts the connections and datagrams of other programs, hosts or tunnels, for async Rust.
//!
//! An [`Interceptor`] takes IP packets from a TUN or TAP device, or from a pair of channels. Every
//! TCP connection, whatever its destination, becomes a stream of this program. VPN clients, proxies
//! and sandboxes work in this way.
//!
//! ```no_run
//! use tokio::io::copy_bidirectional;
//! use towpath::intercept::{Intercepted, Interceptor, Refusal};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let Intercepted { runner, tcp, .. } = Interceptor::builder().tun("tw0").build()?;
//! tokio::spawn(runner);
//! loop {
//!     let incoming = tcp.accept().await?;
//!     tokio::spawn(async move {
//!         // The client has no answer to its SYN yet.
//!         match tokio::net::TcpStream::connect(incoming.destination()).await {
//!             Err(_) => incoming.refuse(Refusal::Reset),
//!             Ok(mut upstream) => {
//!                 let mut client = incoming.accept().await?;
//!                 copy_bidirectional(&mut client, &mut upstream).await?;
//!             }
//!         }
//!         Ok::<_, std::io::Error>(())
//!     });
//! }
//! # }
//! ```
//!
//! # Parts
//!
//! [`Intercepted`] contains the parts, which may move to different tasks:
//!
//! - [`InterceptRunner`] is a future that runs the stack. Spawn it: no packets are handled while it
//!   is not polled. The future ends when the source of packets ends, or after all other parts were
//!   dropped.
//! - [`TcpListener`] returns connections before their SYN is answered: accept, refuse or ignore.
//! - [`UdpSocket`] receives datagrams to any destination, and sends them from any source.
//! - [`EchoSocket`] receives echo requests if [`EchoPolicy::Deliver`] is set.
//! - [`Interceptor`] returns the counters.
//!
//! # Design
//!
//! The stack is a [`towpath_direct::Node`], not an engine of [`Stack`](crate::Stack). The sockets
//! have buffers in private memory, which grow on demand, so there is no shared region, no thread
//! and no descriptor for each socket. The program accepts or refuses SYNs, and receives datagrams
//! to any address, by calls of the node. An engine would add a queue and a wake-up between the
//! program and each packet.
//!
//! A lock protects the node. Calls of sockets copy bytes under the lock. The runner holds the lock
//! for one iteration of the event loop, which handles at most 64 packets in each direction. The
//! runner receives packets before this iteration, and sends packets after it, without the lock.
//! Only packets with data of connections are sent during the iteration. Devices with virtio headers
//! pass up to 64 KiB of a connection as one packet.
//!
//! # Limits
//!
//! [`InterceptLimits`] describes each limit and its effect, [`InterceptCounters`] counts how often
//! each was reached. No queue grows without a limit: a program that does not read stops the peers
//! by TCP's flow control, and loses datagrams.

mod builder;
mod client;
mod core;
mod counters;
mod datagrams;
mod echo;
mod error;
mod handle;
mod limits;
mod listener;
mod messages;
mod runner;
mod source;
mod stream;
mod streams;
mod syns;
mod udp;
mod wakers;

pub use builder::{InterceptBuilder, Intercepted, Interceptor};
pub use counters::InterceptCounters;
pub use echo::{EchoFlow, EchoPolicy, EchoSocket};
pub use error::InterceptError;
pub use limits::InterceptLimits;
pub use listener::{IncomingConnection, TcpListener};
pub use runner::InterceptRunner;
pub use stream::TcpStream;
pub use towpath_stack::Refusal;
pub use udp::{UdpFlow, UdpSocket, UndeliveredDatagram};
