//! Urgent data: notifies programs and signals the owner of the open file (SIGURG).

use towpath_shm::layout::{event, flags};

use crate::shard::sockets::Sockets;

impl Sockets {
    /// Handles an urgent mark, or the arrival of the urgent byte, in the receive FIFO.
    pub(crate) fn on_urgent(&mut self, slot: u32, is_new: bool) {
        // Keep the flag that the receive FIFO has set, because later updates publish the engine's
        // flags.
        self.slots.set_flags(slot, flags::URGENT, 0);
        self.slots.post(slot, event::PRI);
        if is_new {
            self.to_signal.push(slot);
        }
    }
}
