//! Publishes the TCP states of sockets to programs. Includes closed sockets whose close(2) waits
//! for the peer (SO_LINGER).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use towpath_shm::layout::option_bit;
use towpath_stack::SocketOption;

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;
use crate::shard::sockets::linux::{state, state_number};

/// Maximum number of sockets with a waiting close(2) (SO_LINGER) that are checked per iteration of
/// the event loop. Each takes about 100 ns.
pub(super) const LINGERING_A_TURN: usize = 256;

/// Time between two checks if more sockets linger than one turn of the event loop can check.
/// Programs wait for the result.
pub(super) const LINGERING_AGAIN: Duration = Duration::from_millis(1);

impl Sockets {
    /// Publishes the TCP states of connections for which threads wait in close(2) (SO_LINGER).
    pub(crate) fn tell_lingering(&mut self, net: &mut Net) {
        let now = self.now;
        for _ in 0..self.telling.lingering.len().min(LINGERING_A_TURN) {
            let Some(slot) = self.telling.lingering.pop_front() else { break };
            self.counters.work(1);
            if self.is_still_lingering(net, slot) {
                self.telling.lingering.push_back(slot);
            }
        }
        let more = self.telling.lingering.len() > LINGERING_A_TURN;
        self.telling.lingering_at = more.then(|| now + LINGERING_AGAIN);
    }

    fn is_still_lingering(&mut self, net: &mut Net, slot: u32) -> bool {
        if self.slots.get(slot).is_none_or(|entry| !entry.closing) {
            return false;
        }
        let before = self.slots.shared(slot).state.load(Relaxed);
        self.publish_state(net, slot);
        let shared = self.slots.shared(slot);
        let after = shared.state.load(Relaxed);
        if after != before {
            towpath_ring::wake(shared);
        }
        !matches!(after, state::FIN_WAIT2 | state::TIME_WAIT | state::CLOSE)
    }

    /// Publishes the TCP state of a socket, and applies options that only a connection supports.
    pub(crate) fn publish_state(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(id) = self.slots.get(slot).and_then(|entry| entry.id) else { return };
        let Some(info) = net.stack.info(now, id) else { return };
        let shared = self.slots.shared(slot);
        let number = state_number(info.state);
        shared.state.store(number, std::sync::atomic::Ordering::Release);
        if number == state::ESTABLISHED && shared.option_bits.load(Relaxed) & option_bit::CORK != 0
        {
            // Ignore an error: the option fails only for a socket without a connection, which is
            // harmless.
            let _ = net.stack.set_option(id, SocketOption::Cork(true));
        }
    }
}
