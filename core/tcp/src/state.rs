//! Where a connection is in its life.

use core::fmt;

/// The states of RFC 9293 §3.3.2, without LISTEN and passive SYN-RECEIVED
/// ([`HalfOpen`](crate::HalfOpen)).
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
    /// An active open has sent its SYN, or is about to.
    SynSent,
    /// The state of a simultaneous open, and of a passive one with bytes in its SYN (RFC 7413).
    SynReceived,
    /// Both directions are open.
    Established,
    /// The program ended its direction; the FIN is not acknowledged, or not sent yet.
    FinWait1,
    /// The peer has our FIN; its own is awaited.
    FinWait2,
    /// The peer ended its direction.
    CloseWait,
    /// Both ended theirs; the peer's FIN came before the acknowledgement of ours.
    Closing,
    /// The peer ended its direction first, the program then; our FIN is not acknowledged, or not
    /// sent yet.
    LastAck,
    /// Until the last ACK is out and
    /// [`ConnectionEvent::TimeWait`](crate::ConnectionEvent::TimeWait) was taken.
    TimeWait,
    /// The connection is over.
    Closed,
}

impl State {
    /// Both sides have agreed on where the sequence numbers start.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::SynSent | State::SynReceived | State::Closed)
    }

    /// The peer may still send bytes.
    pub const fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Bytes or a FIN of ours may still be unsent or unacknowledged.
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
