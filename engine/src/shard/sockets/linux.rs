//! TCP states with Linux's numbers.

use towpath_stack::SocketState;
use towpath_tcp::State;

/// TCP states with Linux's numbers, for [`Slot::state`](towpath_shm::layout::Slot::state).
pub(crate) mod state {
    pub(crate) const ESTABLISHED: u32 = 1;
    pub(crate) const SYN_SENT: u32 = 2;
    pub(crate) const SYN_RECV: u32 = 3;
    pub(crate) const FIN_WAIT1: u32 = 4;
    pub(crate) const FIN_WAIT2: u32 = 5;
    pub(crate) const TIME_WAIT: u32 = 6;
    pub(crate) const CLOSE: u32 = 7;
    pub(crate) const CLOSE_WAIT: u32 = 8;
    pub(crate) const LAST_ACK: u32 = 9;
    pub(crate) const LISTEN: u32 = 10;
    pub(crate) const CLOSING: u32 = 11;
}

/// Returns the number that Linux has for a state (`enum` in net/tcp_states.h).
pub(crate) fn state_number(at: SocketState) -> u32 {
    match at {
        SocketState::Unconnected => state::CLOSE,
        SocketState::Listening => state::LISTEN,
        SocketState::Connected => state::ESTABLISHED,
        SocketState::SynReceived => state::SYN_RECV,
        SocketState::Tcp(tcp) => match tcp {
            State::SynSent => state::SYN_SENT,
            State::SynReceived => state::SYN_RECV,
            State::Established => state::ESTABLISHED,
            State::FinWait1 => state::FIN_WAIT1,
            State::FinWait2 => state::FIN_WAIT2,
            State::Closing => state::CLOSING,
            State::TimeWait => state::TIME_WAIT,
            State::CloseWait => state::CLOSE_WAIT,
            State::LastAck => state::LAST_ACK,
            _ => state::CLOSE,
        },
    }
}
