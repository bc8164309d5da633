//! TCP/IP stack without devices, clocks or threads. Its inputs are calls and packets, and its
//! outputs are events and packets.
//!
//! A [`Stack`] is a host. Its owner, for example a simulator or the engine, provides the clock, the
//! devices and the programs. With the same seed, calls and times, the stack behaves the same.
//!
//! # Required calls
//!
//! * Provide a port for each interface, in the order in which interfaces are added.
//! * Call [`Stack::turn`] when a port has packets, at [`Stack::next_timeout`], and after calls on
//!   sockets. If the result says `more`, call it again before sleeping.
//! * Implement [`Host`]: buffers for connections, room for datagrams, and a receiver of events.
//! * Call [`Stack::send_ready`] after writing to a send buffer.
//! * Call [`Stack::recv_taken`] after reading from a receive buffer.
//! * Call [`Stack::accepted`] after taking a child from an accept queue.
//! * Call [`Stack::close`] for every socket that was opened or accepted. Its user number is free
//!   again after [`SocketEvent::Closed`].
//!
//! # Terms
//!
//! A *user* is the owner's number for a socket. A [`Port`](towpath_pool::Port) transfers the
//! packets of an interface; other ports are TCP or UDP ports. A *child* is a connection accepted by
//! a listener. A *shard* is one of several stacks that form a host.
//!
//! # Reading order
//!
//! - [`host`](Host) is the interface to the owner. `stack` holds the tables, and `socket` defines
//!   their entries. `turn` defines the order of work; `tcp/rx` is the receive path and `tcp/tx` the
//!   send path.
//! - [`net`] is the IP layer. `errors` finds the socket of an ICMP error.
//! - `tcp`: `passive` and `active` open connections, `syn_bytes` opens those with `fast_open`.
//!   `late_segments` and `outcome` end connections.
//! - `udp`: `datagram` sends, `delivery` selects the receiving sockets of a datagram.
//! - `ports`: `port` allocates local ports, `binds` holds the tables (`holds` and `users`), and
//!   `receivers` finds the socket for a packet. `lifecycle` opens and closes sockets.
//! - `shards` combines several stacks into one host. `incoming` is a received segment, and
//!   `unreached` maps ICMP errors to socket errors.
//! - Tables: `flow` (4-tuples), `peers` (connected datagram sockets), `handshake` (SYN cache),
//!   `time_wait`. Entries are stored in a `slab`, their deadlines in the `timer` wheel.
//! - Limits are in [`limits`] and [`net::limits`]; each loss has a [`DropReason`].
//!
//! Budget: a segment of an established connection costs one hash and one table probe to find its
//! connection, without allocation, for any number of sockets. Payload is copied once, from the
//! packet to the socket's buffer. On transmission it is not copied if the device supports
//! scatter-gather.
//!
//! # Example
//! Connects a host to itself over loopback, which needs no port:
//! ```
//! use std::net::SocketAddr;
//!
//! use towpath_pool::{Fragments, Pool, Port};
//! use towpath_ring::{HeapRecv, HeapSend, Payload, RecvBuffer};
//! use towpath_stack::{
//!     BindOptions, Budget, DatagramMeta, Family, Host, Instant, Linger, SocketEvent,
//!     SocketId, SocketKind, Stack, StackConfig,
//! };
//!
//! const ROOM: u32 = 64 * 1024;
//! // The owner's numbers for its sockets.
//! const LISTENER: u32 = 1;
//! const CLIENT: u32 = 2;
//! const SERVER: u32 = 3;
//!
//! /// Owner that records its events.
//! #[derive(Default)]
//! struct Owner {
//!     child: Option<SocketId>,
//!     events: Vec<(u32, SocketEvent)>,
//! }
//!
//! impl Host for Owner {
//!     type Recv = HeapRecv;
//!     type Send = HeapSend;
//!
//!     fn recv_room(&self, _: u32) -> u32 {
//!         ROOM
//!     }
//!     fn accept(
//!         &mut self,
//!         _: u32,
//!         child: SocketId,
//!         _: SocketAddr,
//!         _: SocketAddr,
//!     ) -> Option<(u32, HeapRecv, HeapSend)> {
//!         self.child = Some(child);
//!         Some((SERVER, HeapRecv::new(ROOM, ROOM), HeapSend::new(ROOM, ROOM)))
//!     }
//!     fn event(&mut self, user: u32, event: SocketEvent) {
//!         self.events.push((user, event));
//!     }
//!     // No datagram socket is opened, and no interface is any-address.
//!     fn datagram(&mut self, _: u32, _: &DatagramMeta, _: &Payload<'_>) -> bool {
//!         false
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Instant(1_000_000_000);
//! let (mut owner, mut pool) = (Owner::default(), Pool::default());
//! // The seed of a host on a network is random and secret.
//! let mut stack = Stack::new(StackConfig::default(), [7; 32], now);
//! let addr = SocketAddr::from(([127, 0, 0, 1], 80));
//!
//! let listener = stack.open(SocketKind::Stream, Family::V4, LISTENER)?;
//! stack.bind(listener, addr, BindOptions::default())?;
//! stack.listen(listener, 16)?;
//! let client = stack.open(SocketKind::Stream, Family::V4, CLIENT)?;
//! let (recv, mut send) = (HeapRecv::new(ROOM, ROOM), HeapSend::new(ROOM, ROOM));
//! send.write(&Payload::new(b"hello", Fragments::empty()));
//! stack.connect(now, client, addr, recv, send)?;
//!
//! let mut ports: Vec<Box<dyn Port>> = Vec::new();
//! while stack.turn(now, &mut owner, &mut ports, &mut pool, Budget::default()).more {}
//! assert!(owner.events.contains(&(CLIENT, SocketEvent::Connected)));
//! assert!(owner.events.contains(&(SERVER, SocketEvent::Readable)));
//!
//! let server = owner.child.ok_or("the handshake is over")?;
//! stack.accepted(listener);
//! let recv = stack.recv_buffer(server).ok_or("it is a connection")?;
//! let mut bytes = [0; 5];
//! recv.peek().copy_to(0, &mut bytes);
//! recv.consume(5);
//! stack.recv_taken(now, server);
//! assert_eq!(&bytes, b"hello");
//!
//! // A reset waits for no answer: the socket is gone after the next turn, and its number is free.
//! stack.close(now, client, Linger::Abort);
//! let mut ports: Vec<Box<dyn Port>> = Vec::new();
//! while stack.turn(now, &mut owner, &mut ports, &mut pool, Budget::default()).more {}
//! assert!(owner.events.contains(&(CLIENT, SocketEvent::Closed)));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod drop;
pub mod limits;
pub mod net;

mod error;
mod host;

mod stack;
mod turn;

mod ports;
mod shards;
mod tables;
mod tcp;
mod udp;

mod attached;
mod audit;
mod counters;
mod cx;
mod dispatch;
mod errors;
mod incoming;
mod info;
mod keys;
mod lifecycle;
mod options;
mod outbox;
mod received;
mod reply;
mod settings;
mod socket;
mod unreached;

#[cfg(test)]
mod tests;

pub use attached::{AttachedPort, StackPort};
pub use counters::Counters;
pub use drop::{DropReason, Drops};
pub use error::{BindError, ConnectError, ListenError, OpenError, OptionError, SendError};
pub use host::{
    BindOptions, Budget, ChildElsewhere, DatagramError, DatagramFrom, DatagramMeta, DatagramOut,
    EchoMeta, Elsewhere, Family, Host, Linger, ListenerName, ListenerNote, Message, PendingId,
    Refusal, SocketError, SocketEvent, SocketId, SocketKind, Turn,
};
pub use info::{SocketInfo, SocketState, Usage};
pub use net::IfaceId;
pub use options::SocketOption;
pub use ports::receiver_watch::{ReceiverAt, ReceiverChange, ReceiverWatch};
pub use received::ReceivedFields;
pub use shards::{Owners, ShardId};
pub use stack::{Stack, StackConfig};
pub use tables::timer::{TimerId, TimerWheel};
pub use tcp::active::{is_on_link, scope_of};
pub use towpath_tcp::{Instant, KeepAliveConfig};
pub use udp::lengths::MtuDiscovery;
