//! Urgent data: notifies programs, and signals the owner of the socket (SIGURG).

use towpath_shm::layout::{event, flags};

use crate::shard::sockets::Sockets;

impl Sockets {
    /// Handles the announcement of an urgent byte, or its arrival in the receive FIFO. `is_new`
    /// tells that it was just announced.
    pub(crate) fn on_urgent(&mut self, slot: u32, is_new: bool) {
        // Add the flag that the receive FIFO has already set in the slot, because later updates
        // publish the engine's flags.
        self.slots.set_flags(slot, flags::URGENT, 0);
        self.slots.post(slot, event::PRI);
        if is_new {
            self.to_signal.push(slot);
        }
    }
}
