//! Events of a connection, for its owner.

use crate::time_wait::TimeWait;

/// Something the program or the stack wants to know. Order is the order of happening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// An active open is through.
    Connected,
    /// The peer's FIN is in order: end of file after the bytes committed so far.
    PeerClosed,
    /// The peer has acknowledged our FIN: all bytes reached it.
    SendClosed,
    /// The peer reset the connection. `Closed` follows.
    Reset,
    /// The peer refused the connection. `Closed` follows.
    Refused,
    /// The peer does not answer any more. `Closed` follows.
    TimedOut,
    /// As `TimedOut` or in place of it: the network said that the peer cannot be reached. `Closed`
    /// follows.
    Unreachable,
    /// Both directions are over and the last ACK is out: keep this in the connection's place and
    /// drop the connection.
    TimeWait(TimeWait),
    /// The connection is over and needs no TIME-WAIT: drop it.
    Closed,
}

/// Events waiting for `poll_event`, as bits in the order of their delivery.
pub(crate) mod pending {
    pub(crate) const CONNECTED: u16 = 1 << 0;
    pub(crate) const PEER_CLOSED: u16 = 1 << 1;
    pub(crate) const SEND_CLOSED: u16 = 1 << 2;
    pub(crate) const RESET: u16 = 1 << 3;
    pub(crate) const REFUSED: u16 = 1 << 4;
    pub(crate) const UNREACHABLE: u16 = 1 << 5;
    pub(crate) const TIMED_OUT: u16 = 1 << 6;
    /// The last event was delivered.
    pub(crate) const ENDED: u16 = 1 << 15;
}
