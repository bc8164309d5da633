//! The owner of a stack whose buffers are private memory: for simulators, tests and sans-IO use.
//!
//! A [`Node`] is one host: a stack, its ports, and a [`Direct`], which keeps the sockets. Calls
//! name a socket by its [`SocketHandle`], and [`Node::poll_event`] tells what became of it.
//! Nothing here reads a clock, starts a thread or waits: the owner calls [`Node::turn`] with the
//! time.
//!
//! # The caller's duty
//! * Call [`Node::turn`] when a port has packets, when [`Node::next_timeout`] has come, and after
//!   calls on sockets. When the turn says `more`, turn again at the same time.
//! * Drain [`Node::poll_event`] after each turn.
//! * [`Node::close`] every socket. The handle is dead after [`NodeEvent::Closed`], which is the
//!   last event of each socket.
//!
//! # Reading order
//! [`Node`] in `node`, then `stream` and `datagram` with the calls of each kind of socket. `direct`
//! is the [`towpath_stack::Host`] behind them, `table` the sockets that it keeps, `event` what it
//! reports. Every table has a limit in [`DirectConfig`] and a counter in [`DirectCounters`].
//!
//! # Example
//! Two nodes on a cable, and a greeting:
//! ```
//! use towpath_direct::{Node, NodeConfig, NodeEvent};
//! use towpath_link::{Cable, CableConfig, Dice};
//! use towpath_stack::Instant;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cable = Cable::new(CableConfig::default(), Dice::new(1, 0));
//! let now = Instant(1_000_000_000);
//! let node = |end: usize, address: &str| -> Result<Node, Box<dyn std::error::Error>> {
//!     let mut node: Node = Node::new(NodeConfig::default(), [end as u8; 32], now);
//!     node.add_port("eth0", Box::new(cable.end(end)), &[address.parse()?]);
//!     Ok(node)
//! };
//! let (mut a, mut b) = (node(0, "10.0.0.1/24")?, node(1, "10.0.0.2/24")?);
//!
//! let listener = b.listen("10.0.0.2:80".parse()?, 16)?;
//! let client = a.connect("10.0.0.2:80".parse()?)?;
//! while a.turn(now).more | b.turn(now).more {}
//! for _ in 0..4 {
//!     a.turn(now);
//!     b.turn(now);
//! }
//! assert_eq!(a.poll_event(), Some(NodeEvent::Connected(client)));
//! assert_eq!(b.poll_event(), Some(NodeEvent::Incoming(listener)));
//!
//! let server = b.accept(listener).ok_or("it is in the queue")?;
//! a.send(client, b"down the towpath")?;
//! a.turn(now);
//! b.turn(now);
//! assert_eq!(b.poll_event(), Some(NodeEvent::Readable(server)));
//! let mut bytes = [0; 64];
//! let n = b.recv(server, &mut bytes)?;
//! assert_eq!(&bytes[..n], b"down the towpath");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod datagram;
mod direct;
mod error;
mod event;
mod handle;
mod node;
mod stream;
mod table;

pub use direct::{Direct, DirectConfig, DirectCounters, Stray};
pub use error::{ReadError, SetUpError, WriteError};
pub use event::{NodeEvent, PendingSyn};
pub use handle::SocketHandle;
pub use node::{Node, NodeConfig};
pub use stream::StreamOptions;
pub use table::{BufferSizes, ReceivedDatagram};
