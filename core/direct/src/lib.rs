//! Runs a stack with buffers in private memory: for simulators, tests and sans-IO use.
//!
//! A [`Node`] is a host: a stack, its ports, and a [`Direct`], which holds the sockets. Calls refer
//! to a socket by its [`SocketHandle`], and [`Node::poll_event`] returns socket events. The crate
//! reads no clock, starts no thread and never blocks. The owner passes the time to [`Node::turn`].
//!
//! # Required calls
//! * Call [`Node::turn`] when a port has packets, at [`Node::next_timeout`], and after calls on
//!   sockets. If the result says `more`, call it again with the same time.
//! * Drain [`Node::poll_event`] after each turn.
//! * [`Node::close`] every socket. Its handle is dead after [`NodeEvent::Closed`], the last event
//!   of each socket.
//!
//! # Reading order
//! [`Node`] in `node`, then [`PrivateSockets`] in `calls`. [`DirectCalls`] offers the calls for a
//! stack that is not part of a [`Node`]. `stream` and `datagram` have the calls that only a
//! [`Node`] offers. `direct` implements [`towpath_stack::Host`], `table` stores the sockets, and
//! `event` defines the events. Each table has a limit in [`DirectConfig`] and a counter in
//! [`DirectCounters`].
//!
//! # Example
//! Connects two nodes by a cable and sends a message:
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

mod calls;
mod datagram;
mod direct;
mod error;
mod event;
mod handle;
mod node;
mod options;
mod refuse;
mod sent;
mod set_up;
mod spare;
mod stream;
mod table;

pub use calls::{DirectCalls, PrivateHost, PrivateSockets};
pub use direct::{Direct, DirectConfig, DirectCounters, Stray};
pub use error::{ReadError, SetUpError, WriteError};
pub use event::{NodeEvent, PendingSyn};
pub use handle::SocketHandle;
pub use node::{Node, NodeConfig};
pub use options::{DatagramOptions, StreamOptions};
pub use table::{BufferSizes, ReceivedDatagram, StreamStatus};
