//! Urgent data: notifies programs, and signals the owner of the socket (SIGURG).

use towpath_shm::layout::{event, flags};

use crate::shard::sockets::Sockets;

impl Sockets {
    /// Handles an urgent byte. `is_new` is true when a segment announces the byte, and false when
    /// the byte arrives in the receive FIFO.
    pub(crate) fn on_urgent(&mut self, slot: u32, is_new: bool) {
        // The receive FIFO has already set this flag in the shared slot. Set it in the engine's
        // copy of the flags, too, because later updates overwrite the shared flags with the copy.
        self.slots.set_flags(slot, flags::URGENT, 0);
        self.slots.post(slot, event::PRI);
        if is_new {
            self.to_signal.push(slot);
        }
    }
}
