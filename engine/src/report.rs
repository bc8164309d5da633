//! What an engine tells about itself.

use serde::Serialize;

/// Counters by layer, each with its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Of the engine.
    pub engine: Vec<(&'static str, u64)>,
    /// Of the socket layer.
    pub sockets: Vec<(&'static str, u64)>,
    /// Of the IP layer.
    pub net: Vec<(&'static str, u64)>,
    /// Lost packets by reason.
    pub drops: Vec<(&'static str, u64)>,
}

/// What [`crate::Engine::run`] leaves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// At the end.
    pub counters: Counters,
}

/// One socket, for `towpath ss`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketEntry {
    /// `tcp`, `udp` or `icmp`.
    pub proto: &'static str,
    /// As `ss` names it: `LISTEN`, `ESTAB`, `UNCONN` ...
    pub state: &'static str,
    /// Unread bytes; connections to accept for a listener.
    pub recv_q: u32,
    /// Bytes not acknowledged; the backlog for a listener.
    pub send_q: u32,
    /// Bound or chosen address.
    pub local: Option<String>,
    /// The peer's.
    pub remote: Option<String>,
    /// Congestion window in segments; 0 when there is none.
    pub cwnd: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_us: u32,
    /// Congestion control.
    pub congestion: Option<&'static str>,
    /// A process that holds it, as that process says; 0: none (any more).
    pub pid: u32,
    /// Index of the slot.
    pub slot: u32,
}

/// Counters of the engine itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EngineCounters {
    /// Turns of the loop.
    pub turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Commands of programs.
    pub commands: u64,
    /// Commands that made no sense, or were about sockets that are gone.
    pub commands_stale: u64,
    /// Requests on control sockets.
    pub requests: u64,
    /// Processes that attached.
    pub attached: u64,
    /// Processes cut off because they broke the rules of the channel.
    pub hostile_channels: u64,
    /// Sockets reset because a program wrote impossible positions.
    pub hostile_sockets: u64,
    /// Datagrams that could not be sent.
    pub datagrams_refused: u64,
    /// Connections that were taken off an accept queue and never claimed.
    pub unclaimed: u64,
    /// Times that a program had to wait for transmit memory.
    pub starved: u64,
    /// Callbacks of the stack that cannot happen here.
    pub unexpected: u64,
}

impl EngineCounters {
    /// Names and values in a fixed order.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        let Self {
            turns,
            sleeps,
            commands,
            commands_stale,
            requests,
            attached,
            hostile_channels,
            hostile_sockets,
            datagrams_refused,
            unclaimed,
            starved,
            unexpected,
        } = *self;
        vec![
            ("turns", turns),
            ("sleeps", sleeps),
            ("commands", commands),
            ("commands_stale", commands_stale),
            ("requests", requests),
            ("attached", attached),
            ("hostile_channels", hostile_channels),
            ("hostile_sockets", hostile_sockets),
            ("datagrams_refused", datagrams_refused),
            ("unclaimed", unclaimed),
            ("starved", starved),
            ("unexpected", unexpected),
        ]
    }
}
