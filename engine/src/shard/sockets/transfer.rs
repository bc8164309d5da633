//! Handles bytes that programs have written and read, and shutdown(2).

use std::sync::atomic::Ordering::Relaxed;

use towpath_ring::SocketSend;
use towpath_shm::layout::{Kind, event, flags, shut};

use crate::shard::net::Net;
use crate::shard::sockets::Sockets;

impl Sockets {
    /// Passes the bytes or datagrams that a program has added to its send FIFO to the stack.
    pub(crate) fn transmit(&mut self, net: &mut Net, slot: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        if entry.is_datagram() {
            self.send_datagrams(net, slot);
        } else if let Some(id) = entry.id
            && let Some(send) = net.stack.send_buffer(id).and_then(SocketSend::slot)
            && send.pull()
        {
            net.stack.send_ready(id);
        }
    }

    /// Reports to the stack that a program has read bytes, so that the stack can send a window
    /// update.
    pub(crate) fn received(&mut self, net: &mut Net, slot: u32) {
        let now = self.now;
        let Some(entry) = self.slots.get(slot) else { return };
        if entry.kind != Kind::Stream {
            return;
        }
        if let Some(id) = entry.id {
            net.stack.recv_taken(now, id);
        }
    }

    /// Implements shutdown(2).
    pub(crate) fn shut_down(&mut self, net: &mut Net, slot: u32, how: u32) {
        let Some(entry) = self.slots.get(slot) else { return };
        let (kind, id) = (entry.kind, entry.id);
        if how & shut::WRITE != 0 && kind == Kind::Stream {
            self.transmit(net, slot);
            if let Some(id) = id {
                net.stack.shutdown_send(id);
            }
            self.slots.set_flags(slot, flags::TX_CLOSED, 0);
            self.slots.post(slot, event::TX);
            self.telling.to_publish.push(slot);
        }
        if how & shut::READ != 0 {
            // Wake the threads and processes that use this socket, so that they see in the slot
            // that it is shut down.
            self.slots.post(slot, event::RX | event::RDHUP);
        }
        // The program may have shut down the other direction before. Programs can write to `shut`
        // in the shared slot, but a wrong value affects only processes that have this socket.
        let both = shut::READ | shut::WRITE;
        if (how | self.slots.shared(slot).shut.load(Relaxed)) & both == both {
            self.slots.post(slot, event::HUP);
        }
    }
}
