//! Events of a connection, for its owner.

use crate::time_wait::TimeWait;

/// An event for the program or the stack. Events are delivered in the order in which they happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// An active open is complete.
    Connected,
    /// The peer's FIN is in order: the stream ends after the bytes committed so far.
    PeerClosed,
    /// The peer has acknowledged our FIN, so all bytes reached it.
    SendClosed,
    /// The peer reset the connection. `Closed` follows.
    Reset,
    /// The peer refused the connection. `Closed` follows.
    Refused,
    /// The peer does not answer any more. `Closed` follows.
    TimedOut,
    /// An ICMP error reported that the peer is unreachable; may replace `TimedOut`. `Closed`
    /// follows.
    Unreachable,
    /// Both directions are closed and the last ACK was sent. Store the value in place of the
    /// connection, and drop the connection.
    TimeWait(TimeWait),
    /// The connection is closed and needs no TIME-WAIT: drop it.
    Closed,
}

/// Bits for events that wait for `poll_event`, in the order of delivery.
pub(crate) mod pending {
    pub(crate) const CONNECTED: u8 = 1 << 0;
    pub(crate) const PEER_CLOSED: u8 = 1 << 1;
    pub(crate) const SEND_CLOSED: u8 = 1 << 2;
    pub(crate) const RESET: u8 = 1 << 3;
    pub(crate) const REFUSED: u8 = 1 << 4;
    pub(crate) const UNREACHABLE: u8 = 1 << 5;
    pub(crate) const TIMED_OUT: u8 = 1 << 6;
    /// Set after the final event was delivered.
    pub(crate) const ENDED: u8 = 1 << 7;
}
