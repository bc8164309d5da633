//! A TCP connection as a pure, deterministic state machine (RFC 9293 and related RFCs).
//!
//! The crate handles sequence numbers, byte counts and time, but not IP, packets, sockets or
//! payload. `on_segment` gets the length of a received payload, and returns where the bytes belong.
//! `plan` gets the number of bytes waiting, and returns which of them to send.
//!
//! # Usage
//! * Validate checksums and look up the connection, then call [`Connection::on_segment`]. Apply the
//!   returned [`FifoChanges`] in this order: write, commit, release.
//! * After any event (a segment, new bytes, a timeout, a call of the program) run `while let
//!   Plan::Send(transmit) = c.plan(..) { c.emit(..) }`. Then pass the reason for stopping to
//!   [`Connection::on_idle`].
//! * Drain [`Connection::poll_event`] until `None`; after [`ConnectionEvent::Closed`] or
//!   [`ConnectionEvent::TimeWait`] the connection may be dropped.
//! * Keep one timer for [`Connection::next_timeout`], and call [`Connection::on_timeout`] when it
//!   expires.
//!
//! A passive open is a [`HalfOpen`] until the handshake is complete, and a closed connection is a
//! [`TimeWait`]. Both are small, because there may be very many.
//!
//! # Reading order
//! Read in this order: [`Segment`] and [`Outgoing`] → `connection` (its parts) → `open` → `receive`
//! → `plan` (which segments to send, with `pacing`) → `emit` → `loss` → `timeouts` → `calls`.
//!
//! The parts of `connection` do not depend on it:
//! * `send_space`, `receive_space` with `ranges`, `recv_rtt`, `timers`, `watch`;
//! * `extensions` with `fast_open`, `ecn`;
//! * `recovery` with `flight` and `rack`, `congestion`, `rtt`, `pacer`.
//!
//! # Example
//! A handshake and five bytes of data, over an ideal network:
//! ```
//! use towpath_tcp::{
//!     FifoLevels, Config, Connection, ConnectionEvent, Disposition, HalfOpen, HalfOpenVerdict,
//!     Instant, Outgoing, Plan, Segment, SeqNum,
//! };
//!
//! let now = Instant(1_000_000_000);
//! // Delivers an outgoing segment as the layers below would.
//! let arrive = |out: Outgoing| Segment {
//!     seq: out.seq,
//!     ack: out.ack,
//!     flags: out.flags,
//!     window: out.window,
//!     urgent: out.urgent,
//!     options: out.options,
//!     payload_len: out.len,
//!     arrival: now,
//!     ecn: out.ecn,
//!     segments: 1,
//! };
//! // Returns the next segment that a connection sends.
//! let send = |connection: &mut Connection, buffers| match connection.plan(now, buffers, 0) {
//!     Plan::Send(transmit) => connection.emit(now, transmit, buffers),
//!     Plan::Nothing(why) => panic!("nothing to send: {why:?}"),
//! };
//! let empty = FifoLevels { recv_free: 65_536, recv_capacity: 65_536, ..FifoLevels::default() };
//!
//! let mut client = Connection::connect(Config::default(), SeqNum(1000), 0, now);
//! let syn = arrive(send(&mut client, empty));
//! let mut half_open = HalfOpen::new(&Config::default(), &syn, SeqNum(5000), 0, now);
//! let syn_ack = arrive(half_open.syn_ack(now, 65_536));
//! client.on_segment(now, &syn_ack, empty);
//! assert_eq!(client.poll_event(), Some(ConnectionEvent::Connected));
//!
//! // The last segment of the handshake carries the first bytes.
//! let buffers = FifoLevels { send_len: 5, send_capacity: 65_536, ..empty };
//! let segment = arrive(send(&mut client, buffers));
//! let HalfOpenVerdict::Established(handshake) = half_open.on_segment(now, &segment) else {
//!     panic!("it acknowledges the SYN")
//! };
//! let mut server = Connection::accept(Config::default(), handshake, now);
//! let Disposition::Accepted(changes) = server.on_segment(now, &segment, empty) else {
//!     panic!("it is in order")
//! };
//! assert_eq!((changes.write.map(|write| write.len), changes.commit), (Some(5), 5));
//! ```
//!
//! # Not implemented
//! The TCP option of accurate ECN (RFC 9768) belongs in `ecn`. BBR's reaction to ECN marks belongs
//! in `congestion`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod audit;
mod calls;
mod challenge;
mod config;
mod congestion;
mod connection;
mod counters;
mod defaults;
mod disposition;
mod ecn;
mod emit;
mod event;
mod extensions;
mod fast_open;
mod flight;
mod half_open;
mod info;
pub mod isn;
mod loss;
mod open;
mod pacer;
mod pacing;
mod plan;
mod rack;
mod ranges;
mod receive;
mod receive_space;
mod recovery;
mod recv_rtt;
mod reset;
mod rtt;
mod segment;
mod send_space;
mod settings;
mod state;
mod time;
mod time_wait;
mod timeouts;
mod timers;
mod timestamps;
mod urgent;
mod urgent_mark;
mod watch;

pub use config::{Config, KeepAliveConfig, SYN_LINEAR_TIMEOUTS, SynCookies};
pub use congestion::{CongestionInfo, CongestionKind};
pub use connection::Connection;
pub use core::time::Duration;
pub use defaults::{TCP_DEFAULTS, TcpDefaultError, TcpDefaultRow, TcpDefaults};
pub use disposition::{Disposition, FifoChanges, SegmentDropReason, Write};
pub use ecn::{EcnMode, EcnState};
pub use event::ConnectionEvent;
pub use fast_open::{FastOpenFailure, FastOpenKeys, FastOpenModes, FastOpenOutcome};
pub use half_open::{COOKIE_LIFETIME, CookieClaims, HalfOpen, HalfOpenVerdict, Handshake};
pub use info::{EcnInfo, Info, ReorderingInfo};
pub use plan::{Idle, Plan, Transmit, TransmitKind};
pub use reset::reset_for;
pub use segment::{FifoLevels, Outgoing, Segment};
pub use state::State;
pub use time::Instant;
pub use time_wait::{TimeWait, TimeWaitVerdict};
pub use timers::TimerKind;
pub use towpath_wire::Ecn;
pub use towpath_wire::tcp::{Flags, Options, SackBlocks, SeqNum, Timestamps};
pub use urgent_mark::UrgentMark;
