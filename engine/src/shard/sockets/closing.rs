//! Closes sockets: first the stack ends the connection, then the slot is freed.

use std::sync::atomic::Ordering::Relaxed;

use towpath_stack::Linger;

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;

/// Number of work steps (of about 100 ns) for closing a socket in the stack and freeing its slot.
const END: usize = 4;

impl Sockets {
    /// Resets a connection if no process has accepted it.
    pub(crate) fn end_unaccepted(&mut self, net: &mut Net, slot: u32, generation: u32) {
        let entry = self.slots.find(slot, generation);
        if entry.is_some_and(|entry| entry.unclaimed().is_some()) {
            self.end(net, slot, Linger::Abort);
        }
    }

    pub(crate) fn end(&mut self, net: &mut Net, slot: u32, linger: Linger) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if !std::mem::replace(&mut entry.closing, true) {
            self.end_of_closing(net, slot, linger);
        }
    }

    /// Closes the stack's socket after all queued data was passed to the stack. If the slot has no
    /// socket of the stack, queues the slot to be freed.
    pub(crate) fn end_of_closing(&mut self, net: &mut Net, slot: u32, linger: Linger) {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(slot) else { return };
        self.counters.work(END);
        match entry.id {
            Some(id) => {
                net.stack.close(now, id, linger);
                self.ends.unsettle();
                if self.slots.shared(slot).linger.load(Relaxed) > 1 {
                    self.telling.lingering.push_back(slot);
                }
            }
            None => self.released.to_free.push(slot),
        }
    }

    /// Resets a socket because a program wrote invalid values to its slot. From now on, the engine
    /// ignores what programs write to the slot. No process is removed, because all processes that
    /// use the engine can write to it.
    pub(crate) fn reset_socket(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if std::mem::replace(&mut entry.hostile, true) {
            return;
        }
        self.counters.hostile_sockets += 1;
        if let (false, Some(id)) = (entry.closing, entry.id) {
            // The slot is kept until all processes have closed the socket. The processes get the
            // reset as an event after the stack has closed the socket.
            net.stack.close(now, id, Linger::Abort);
        }
    }
}
