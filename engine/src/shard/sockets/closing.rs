//! Closes sockets: the stack finishes the connection, then the slot is freed.

use std::sync::atomic::Ordering::Relaxed;

use towpath_stack::Linger;

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;

/// Steps of work that closing one socket takes, in the stack and for the slot.
const END: usize = 4;

impl Sockets {
    /// Resets a connection that no process has accepted.
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

    /// Closes the stack's socket, or queues the slot to be freed if the stack has none. All queued
    /// data was passed to the stack.
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

    /// Resets a socket in whose slot a program wrote invalid values. The engine ignores the slot's
    /// words from now on. All processes that can write to the slot share one trust domain, so no
    /// process is cut off.
    pub(crate) fn reset_socket(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if std::mem::replace(&mut entry.hostile, true) {
            return;
        }
        self.counters.hostile_sockets += 1;
        if let (false, Some(id)) = (entry.closing, entry.id) {
            // The holders keep the slot and learn of the reset by `Closed`.
            net.stack.close(now, id, Linger::Abort);
        }
    }
}
