//! Sockets in flight: they lie in messages (SCM_RIGHTS), and no process holds them.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use crate::ids::ChannelId;
use crate::shard::sockets::Sockets;

/// How long a socket is kept that lies in a message and is held by no process.
pub(super) const ADOPT_WITHIN: Duration = Duration::from_secs(30);

/// Most sockets in messages; beyond, the last close is the last.
pub(super) const IN_FLIGHT_MAX: usize = 4096;

impl Sockets {
    /// Keeps a socket that lies in a message for its receiver to adopt. A program that claims to
    /// have sent a socket, and has not, only delays the end of its own.
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

    /// A process has adopted the socket, or it has ended: it does not count as parked any more.
    pub(crate) fn end_flight(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if let Some(until) = entry.rare().waits.in_flight_until {
            entry.set_rare(|rare| rare.waits.in_flight_until = None);
            self.released.to_close_in_flight.remove(&(until, slot));
        }
    }
}
