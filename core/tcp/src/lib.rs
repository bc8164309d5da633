//! One TCP connection as a pure state machine (RFC 9293 and what it pulls in).
//!
//! This crate knows sequence numbers, bytes and time. It knows no IP, no packet, no socket, and it
//! never sees payload: it is told how many bytes arrived and answers where they belong; it is told
//! how many bytes wait and answers which of them to send. Same calls, same answers, always.
//!
//! # The caller's duty
//! * Validate checksums and find the connection, then [`Connection::on_segment`]. Do what the
//!   [`FifoChanges`] says, in this order: write, commit, release.
//! * After anything happened (a segment, new bytes, a timeout, a call below) visit the connection:
//!   `while let Plan::Send(transmit) = c.plan(..) { c.emit(..) }`, then tell it why it stopped with
//!   [`Connection::on_idle`].
//! * Drain [`Connection::poll_event`] until `None`; after [`ConnectionEvent::Closed`] or [`ConnectionEvent::TimeWait`]
//!   the connection is done and may be dropped.
//! * Keep one timer for [`Connection::next_timeout`]; when it is due, [`Connection::on_timeout`].
//!
//! Passive opens are a [`HalfOpen`] until the handshake is over, closed connections a [`TimeWait`]:
//! both are small, for there may be very many.
//!
//! # Reading order
//! [`Segment`] and [`Outgoing`] (what comes and goes) → `receive` (a segment arrives) → `plan` (what
//! may go now) → `emit` → `timers`, `watch`; the parts they use are `recovery`, `congestion`, `rtt`, `ranges`.
//!
//! # Not here yet, and where it goes
//! RACK-TLP and spurious-loss undo: `recovery` (arrival times are already in [`Segment`]). PRR:
//! `recovery`, in the step that bounds what recovery may send. ECN: [`Segment::ce`] in `receive`, ECE
//! and CWR in `emit`. Pacing: one more reason in [`Idle`] and one more [`TimerKind`]. BBR, Vegas,
//! HyStart++: `congestion`.
#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod counters;
mod emit;
mod event;
mod half_open;
mod info;
pub mod isn;
mod plan;
mod ranges;
mod receive;
mod recovery;
mod reset;
mod rtt;
mod segment;
mod settings;
mod state;
mod time;
mod time_wait;
mod timers;
mod timestamps;
mod watch;

pub use config::{Config, KeepAlive};
pub use congestion::CongestionKind;
pub use connection::Connection;
pub use core::time::Duration;
pub use event::{
    ConnectionEvent, Disposition, DropReason, FifoChanges, Idle, Plan, TimerKind, Transmit,
    TransmitKind, Write,
};
pub use half_open::{HalfOpen, HalfOpenVerdict, Handshake};
pub use info::Info;
pub use reset::reset_for;
pub use segment::{Buffers, Outgoing, Segment};
pub use state::State;
pub use time::Instant;
pub use time_wait::{TimeWait, TimeWaitVerdict};
pub use towpath_wire::tcp::{Flags, Options, SackBlocks, SeqNum, Timestamps};
