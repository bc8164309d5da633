//! States of a TCP connection.

use core::fmt;

/// The TCP states of RFC 9293 §3.3.2, except LISTEN. SYN-RECEIVED of a passive open usually is a
/// [`HalfOpen`](crate::HalfOpen) instead.
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
    /// An active open whose SYN is sent or about to be sent.
    SynSent,
    /// A simultaneous open, or a passive open with data in the SYN (RFC 7413).
    SynReceived,
    /// The connection is open in both directions.
    Established,
    /// The program closed its sending direction first. Our FIN is queued or not yet acknowledged.
    FinWait1,
    /// The peer has acknowledged our FIN, but not sent its own.
    FinWait2,
    /// The peer has closed its direction, but our direction is open.
    CloseWait,
    /// Both directions are closed. The peer's FIN arrived before the acknowledgement of ours.
    Closing,
    /// The peer closed first, then the program. Our FIN is queued or not yet acknowledged.
    LastAck,
    /// Both directions are closed. Lasts until the final ACK is sent and the caller takes the event
    /// [`ConnectionEvent::TimeWait`](crate::ConnectionEvent::TimeWait).
    TimeWait,
    /// The connection has ended.
    Closed,
}

impl State {
    /// Returns whether both peers have agreed on the initial sequence numbers.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::SynSent | State::SynReceived | State::Closed)
    }

    /// Returns whether the peer may still send data.
    pub const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns whether some of our data or our FIN may still be unsent or unacknowledged.
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
