//! Urgent data: programs are told, and the owner of the open file is signalled.

use towpath_shm::layout::{event, flags};

use crate::shard::sockets::Sockets;

impl Sockets {
    /// The receive FIFO has a mark, or the byte at the mark.
    pub(crate) fn on_urgent(&mut self, slot: u32, is_new: bool) {
        // As the receive FIFO has set it: the state that is published from now on has it, too.
        self.slots.set_flags(slot, flags::URGENT, 0);
        self.slots.post(slot, event::PRI);
        if is_new {
            self.to_signal.push(slot);
        }
    }
}
