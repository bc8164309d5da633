//! Sockets in flight: they were sent to another process by SCM_RIGHTS, and no process has them open
//! until it receives them.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use crate::ids::ChannelId;
use crate::shard::sockets::Sockets;

/// Time for which a socket in flight (SCM_RIGHTS) is kept while no process has it open.
pub(super) const ADOPT_WITHIN: Duration = Duration::from_secs(30);

/// Maximum number of sockets in flight (SCM_RIGHTS). When it is reached, a socket is closed with
/// its last descriptor, even if it is in flight.
pub(super) const IN_FLIGHT_MAX: usize = 4096;

impl Sockets {
    /// Keeps a socket in flight until a process has received it. Returns false if the socket must
    /// be closed now. A program that falsely claims to have sent a socket only delays the close of
    /// its own socket.
    pub(crate) fn keep_in_flight(&mut self, id: ChannelId, slot: u32) -> bool {
        let now = self.now;
        let in_flight = self.slots.shared(slot).in_flight.load(Acquire);
        let Some(entry) = self.slots.get_mut(slot) else { return false };
        if in_flight == 0
            || entry.hostile
            || entry.closing
            || self.released.to_close_in_flight.len() >= IN_FLIGHT_MAX
        {
            return false;
        }
        let until = now + ADOPT_WITHIN;
        entry.set_rare(|rare| rare.waits.in_flight_until = Some(until));
        self.released.to_close_in_flight.insert((until, slot), Some(id));
        true
    }

    /// Removes a socket from those in flight, because a process has received it or it was closed.
    pub(crate) fn end_flight(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if let Some(until) = entry.rare().waits.in_flight_until {
            entry.set_rare(|rare| rare.waits.in_flight_until = None);
            self.released.to_close_in_flight.remove(&(until, slot));
        }
    }
}
