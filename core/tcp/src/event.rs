//! Events that a connection reports to the stack or the program.

use crate::time_wait::TimeWait;

/// Event of a connection, for the program or the stack. Events are delivered in the order in which
/// they occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// An active open has completed: the connection is established.
    Connected,
    /// The peer's FIN was received in order. The stream ends after the bytes that are now in order.
    PeerClosed,
    /// The peer has acknowledged our FIN, so it has received all our data.
    SendClosed,
    /// The peer reset the connection. The event `Closed` follows.
    Reset,
    /// The peer refused the connection. The event `Closed` follows.
    Refused,
    /// The peer does not answer any more. The event `Closed` follows.
    TimedOut,
    /// An ICMP error reported that the peer is unreachable. `Unreachable` may replace `TimedOut`.
    /// The event `Closed` follows.
    Unreachable,
    /// Both directions are closed and the last ACK was sent. Replace the connection with this
    /// value, which handles TIME-WAIT.
    TimeWait(TimeWait),
    /// The connection is closed without TIME-WAIT. Drop it.
    Closed,
}

/// Bits of events to be returned by `poll_event`, in the order of delivery.
pub(crate) mod pending {
    pub(crate) const CONNECTED: u8 = 1 << 0;
    pub(crate) const PEER_CLOSED: u8 = 1 << 1;
    pub(crate) const SEND_CLOSED: u8 = 1 << 2;
    pub(crate) const RESET: u8 = 1 << 3;
    pub(crate) const REFUSED: u8 = 1 << 4;
    pub(crate) const UNREACHABLE: u8 = 1 << 5;
    pub(crate) const TIMED_OUT: u8 = 1 << 6;
    /// Flag: the final event was delivered.
    pub(crate) const ENDED: u8 = 1 << 7;
}
