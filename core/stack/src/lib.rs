//! A TCP/IP stack without devices, clocks or threads: packets and calls in, packets and events out.
//!
//! One [`Stack`] is one host. It is driven by its owner, who has the clock, the devices and the
//! programs; a simulator and an engine drive it alike. Same seed, same calls, same times: same run.
//!
//! # The caller's duty
//! * Give every interface a port, in the order of adding them, and call [`Stack::turn`] when a port has
//!   packets, when [`Stack::next_timeout`] has come, and after calls on sockets. When it says `more`, turn
//!   again before sleeping.
//! * Supply a [`Host`]: buffers for connections, room for datagrams, and ears for events.
//! * After putting bytes into a send buffer call [`Stack::send_ready`]; after taking bytes out of a
//!   receive buffer [`Stack::recv_taken`]; after taking a child off an accept queue [`Stack::accepted`].
//! * [`Stack::close`] every socket that was opened or accepted. Its user number is free again after
//!   [`SocketEvent::Closed`].
//!
//! # Reading order
//! [`host`](Host) is the seam to the owner. `rx` is the way in and `tx` the way out, a page each; they
//! stand on [`net`], the IP layer; `delivery`, `errors` and `outcome` are their continuations. `passive`
//! and `active` open connections, `port` gives out local ports, `lifecycle` is the rest of a socket's life,
//! `datagram` is UDP and ping. Tables: `flow` (4-tuples), `binds` (listeners and ports), `handshake` (SYN
//! cache), `time_wait`; they live in a `slab` and their deadlines in the `timer` wheel. Every limit is in
//! [`limits`] and [`net::limits`], and every loss has a [`DropReason`].
//!
//! Budget: a segment of an established connection costs one hash and one probe to find its connection,
//! whatever the number of sockets, and no allocation; its payload is copied once, from the packet into
//! the socket's buffer, or not at all on the way out when a device gathers.
#![forbid(unsafe_code)]

pub mod drop;
pub mod limits;
pub mod net;

mod error;
mod host;

mod rx;
mod tx;

mod delivery;
mod errors;
mod outcome;

mod active;
mod datagram;
mod info;
mod lifecycle;
mod options;
mod passive;
mod path;
mod port;
mod socket;
mod stack;
mod tuning;

mod binds;
mod counters;
mod ephemeral;
mod flow;
mod handshake;
mod slab;
mod time_wait;
mod timer;

#[cfg(test)]
mod tests;

pub use active::{is_on_link, scope_of};
pub use counters::Counters;
pub use drop::{DropReason, Drops};
pub use error::{BindError, ConnectError, ListenError, OpenError, OptionError, SendError};
pub use host::{
    BindOptions, Budget, DatagramError, DatagramFrom, DatagramMeta, DatagramOut, EchoMeta, Family,
    Host, Linger, Message, PendingId, Refusal, SocketError, SocketEvent, SocketId, SocketKind,
    Turn,
};
pub use info::{SocketInfo, SocketState, Usage};
pub use net::IfaceId;
pub use options::{MtuDiscovery, SocketOption};
pub use stack::{Stack, StackConfig};
pub use towpath_tcp::{Instant, KeepAlive};
