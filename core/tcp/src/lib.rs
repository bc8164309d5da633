//! A TCP connection as a pure state machine (RFC 9293 and what it pulls in).
//!
//! The crate knows sequence numbers, bytes and time, but no IP, no packet, no socket and no
//! payload. `on_segment` is told how many bytes arrived, and answers where they belong. `plan` is
//! told how many bytes wait, and answers which of them to send. The same calls always get the same
//! answers.
//!
//! # The caller's duty
//! * Validate checksums and find the connection, then [`Connection::on_segment`]. Do what the
//!   [`FifoChanges`] says, in this order: write, commit, release.
//! * After anything happened (a segment, new bytes, a timeout, a call below) visit the connection:
//!   `while let Plan::Send(transmit) = c.plan(..) { c.emit(..) }`, then tell it why it stopped with
//!   [`Connection::on_idle`].
//! * Drain [`Connection::poll_event`] until `None`; after [`ConnectionEvent::Closed`] or
//!   [`ConnectionEvent::TimeWait`] the connection is done and may be dropped.
//! * Keep one timer for [`Connection::next_timeout`]; when it is due, [`Connection::on_timeout`].
//!
//! Passive opens are a [`HalfOpen`] until the handshake is over, closed connections a [`TimeWait`]:
//! both are small, for there may be very many.
//!
//! # Reading order
//! Read in this order: [`Segment`] and [`Outgoing`] → `connection` (its parts) → `open` →
//! `receive` → `plan` (segments that may go, with `pacing`) → `emit` →
//! `timeouts` → `calls` (the user's). Below `connection` are its parts, which know nothing of it:
//! `send_space`, `receive_space`, `extensions` with `fast_open`, `recovery` with `flight`,
//! `congestion`, `rtt`, `ranges`, `timers`, `watch`, `pacer`.
//!
//! # Example
//! A handshake and five bytes, with nothing in between:
//! ```
//! use towpath_tcp::{
//!     FifoLevels, Config, Connection, ConnectionEvent, Disposition, HalfOpen, HalfOpenVerdict,
//!     Instant, Outgoing, Plan, Segment, SeqNum,
//! };
//!
//! let now = Instant(1_000_000_000);
//! // What the layers below make of a segment on its way.
//! let arrive = |out: Outgoing| Segment {
//!     seq: out.seq,
//!     ack: out.ack,
//!     flags: out.flags,
//!     window: out.window,
//!     urgent: out.urgent,
//!     options: out.options,
//!     payload_len: out.len,
//!     arrival: now,
//!     ce: false,
//!     segments: 1,
//! };
//! // What a connection sends next.
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
//! # Not here yet, and where it goes
//! RACK-TLP and spurious-loss undo: `recovery` (arrival times are already in [`Segment`]). PRR:
//! `recovery`, in the step that bounds what recovery may send. ECN: [`Segment::ce`] in `receive`,
//! ECE and CWR in `emit`. Pacing by a model of the path: `pacing`, whose rate is the program's.
//! BBR, Vegas, HyStart++: `congestion`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod audit;
mod calls;
mod challenge;
mod config;
mod congestion;
mod connection;
mod counters;
mod disposition;
mod emit;
mod event;
mod extensions;
mod fast_open;
mod flight;
mod half_open;
mod info;
pub mod isn;
mod open;
mod pacer;
mod pacing;
mod plan;
mod ranges;
mod receive;
mod receive_space;
mod recovery;
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

pub use config::{Config, KeepAliveConfig, SYN_LINEAR_TIMEOUTS};
pub use congestion::CongestionKind;
pub use connection::Connection;
pub use core::time::Duration;
pub use disposition::{Disposition, FifoChanges, SegmentDropReason, Write};
pub use event::ConnectionEvent;
pub use fast_open::{FastOpenFailure, FastOpenOutcome};
pub use half_open::{HalfOpen, HalfOpenVerdict, Handshake};
pub use info::Info;
pub use plan::{Idle, Plan, Transmit, TransmitKind};
pub use reset::reset_for;
pub use segment::{FifoLevels, Outgoing, Segment};
pub use state::State;
pub use time::Instant;
pub use time_wait::{TimeWait, TimeWaitVerdict};
pub use timers::TimerKind;
pub use towpath_wire::tcp::{Flags, Options, SackBlocks, SeqNum, Timestamps};
pub use urgent_mark::UrgentMark;
