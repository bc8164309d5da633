//! States of a connection.

use core::fmt;

/// The states of RFC 9293 §3.3.2, except LISTEN and the usual passive SYN-RECEIVED, which is a
/// [`HalfOpen`](crate::HalfOpen).
///
/// ```text
///  connect            SYN                    FIN                       shutdown
/// ────────▶ SynSent ───────▶ SynReceived      ┌─────▶ CloseWait ───────────────▶ LastAck
///              │ SYN,ACK          │ ACK       │                                     │ ACK
///              └───────▶ Established ◀──accept│                                     ▼
///                             │               │                                  Closed
///                    shutdown ▼               │
///                         FinWait1 ──FIN──▶ Closing ──ACK──┐
///                             │ ACK                        ▼
///                         FinWait2 ──────────FIN────▶ TimeWait
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Active open; the SYN is sent or about to be sent.
    SynSent,
    /// Simultaneous open, or passive open with data in the SYN (RFC 7413).
    SynReceived,
    /// Both directions are open.
    Established,
    /// The program closed first; our FIN is queued or not acknowledged.
    FinWait1,
    /// The peer has acknowledged our FIN; its own FIN has not arrived.
    FinWait2,
    /// The peer has closed its direction; ours is open.
    CloseWait,
    /// Both directions are closed; the peer's FIN arrived before the acknowledgement of ours.
    Closing,
    /// The peer closed first, then the program; our FIN is queued or not acknowledged.
    LastAck,
    /// Lasts until the final ACK is sent and the owner takes
    /// [`ConnectionEvent::TimeWait`](crate::ConnectionEvent::TimeWait).
    TimeWait,
    /// The connection has ended.
    Closed,
}

impl State {
    /// Whether both peers have agreed on the initial sequence numbers.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::SynSent | State::SynReceived | State::Closed)
    }

    /// Whether the peer may still send bytes.
    pub const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether our data or FIN may still be unsent or unacknowledged.
    pub(crate) const fn may_send(self) -> bool {
        matches!(
            self,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        })
    }
}
