//! The deadlines of a connection, but for those of keepalive and user timeout, which are in
//! `watch`, and that of `pacer`. `timeouts` says what is done when one comes.

use crate::config::QUICK_ACKS;
use crate::time::Instant;

/// Deadlines, and what they count. [`Instant::FAR`] is off. Deadlines of keepalive and the user
/// timeout are in [`PeerWatch`](crate::watch::PeerWatch), that of pacing is in
/// [`Pacer`](crate::pacer::Pacer).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Deadline of retransmission, or with `persisting` of the next window probe. The two never run
    /// together, since the latter runs only with nothing in flight.
    pub(crate) retransmit: Instant,
    pub(crate) delayed_ack: Instant,
    /// Deadline of a corked segment, or in FIN-WAIT-2 of the peer's FIN. The two never run
    /// together, since nothing is held back once a FIN waits behind it.
    pub(crate) hold: Instant,
    /// When the peer was last heard.
    pub(crate) last_recv: Instant,
    pub(crate) persisting: bool,
    /// A soft ICMP error came since the last progress.
    pub(crate) unreachable: bool,
    /// Timeouts in a row without progress.
    pub(crate) retransmits: u8,
    /// Window probes in a row without an answer.
    pub(crate) window_probes: u8,
    pub(crate) persist_backoff: u8,
    /// ACKs to be sent without that delay.
    pub(crate) quick_acks: u8,
}

impl Timers {
    pub(crate) fn new(now: Instant) -> Timers {
        Timers {
            retransmit: Instant::FAR,
            delayed_ack: Instant::FAR,
            hold: Instant::FAR,
            last_recv: now,
            persisting: false,
            unreachable: false,
            retransmits: 0,
            window_probes: 0,
            persist_backoff: 0,
            quick_acks: QUICK_ACKS,
        }
    }
}

/// Purpose of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerKind {
    /// RFC 6298.
    Retransmit,
    /// RFC 9293 §3.8.6.1.
    Persist,
    /// An acknowledgement that waited for company goes alone (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// RFC 9293 §3.8.4.
    KeepAlive,
    /// RFC 5482.
    UserTimeout,
    /// A closed socket's patience with a peer that does not close.
    FinWait2,
    /// A corked short segment goes after all.
    Cork,
    /// The rate of sending allows the next bytes.
    Pacing,
}
